//! Shapes of requests and answers.

pub(crate) mod adapters;
pub(crate) mod answers;
pub(crate) mod anthropic;
pub(crate) mod documents;
pub(crate) mod embeddings;
mod events;
pub(crate) mod infill;
pub(crate) mod llama_cpp;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod plain;
mod report;
pub(crate) mod rerank;
pub(crate) mod sessions;
pub(crate) mod web;

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use axum::response::Response;
use futures_core::Stream;

use crate::app::App;
use crate::failure::{Failure, Shape};
use crate::fields::Fields;

/// A running answer in the shape of one API.
trait Answering {
    /// A part of the streamed answer.
    type Part: events::StreamPart;

    /// The complete answer in one body.
    fn whole(self) -> impl Future<Output = Result<Response, Failure>> + Send;

    /// The answer in parts, during generation.
    fn stream(self) -> impl Stream<Item = Result<Self::Part, Infallible>> + Send + 'static;
}

/// The answer, streamed or whole.
async fn send(answering: impl Answering, is_streamed: bool) -> Result<Response, Failure> {
    if is_streamed {
        Ok(events::response(answering.stream()))
    } else {
        answering.whole().await
    }
}

/// Reads the body of a request. `take` reads the fields of its API, including the model's name; all others are
/// refused.
async fn read<T>(
    app: &Arc<App>,
    request: Request,
    take: impl FnOnce(&Arc<App>, &mut Fields) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut fields = fields_of(request).await?;
    let asked = take(app, &mut fields)?;
    fields.finish()?;
    Ok(asked)
}

/// The fields of a request's body.
async fn fields_of(request: Request) -> Result<Fields, Failure> {
    Fields::of_body(&body_of(request).await?)
}

/// The content type that a path accepts.
#[derive(Debug, Clone, Copy)]
enum BodyKind {
    Json,
    /// The raw bytes of a file.
    Bytes,
}

/// The bytes of a request's body, which must be JSON.
pub(crate) async fn body_of(request: Request) -> Result<Bytes, Failure> {
    body_of_kind(request, BodyKind::Json).await
}

async fn body_of_kind(request: Request, wanted: BodyKind) -> Result<Bytes, Failure> {
    check_type(&request, wanted)?;
    Bytes::from_request(request, &()).await.map_err(|rejection| {
        let status = rejection.status();
        let message = match status {
            StatusCode::PAYLOAD_TOO_LARGE => {
                "the body is longer than the server takes: send a shorter text, or start the server with a larger --max-body"
                    .to_owned()
            }
            _ => format!("the body could not be read: {}", rejection.body_text()),
        };
        Failure::new(status, message)
    })
}

/// A foreign web page can send texts and forms without a preflight request, but neither of these types.
fn check_type(request: &Request, wanted: BodyKind) -> Result<(), Failure> {
    let encoding = request.headers().get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(Failure::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "a compressed body is not taken: send it as it is, without Content-Encoding",
        ));
    }
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let (is_right, what, name) = match wanted {
        BodyKind::Json => (
            kind == "application/json" || kind.ends_with("+json"),
            "JSON",
            "application/json",
        ),
        BodyKind::Bytes => (
            kind == "application/octet-stream",
            "the file",
            "application/octet-stream",
        ),
    };
    if is_right {
        Ok(())
    } else {
        Err(Failure::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("the body must be {what}: send it with \"Content-Type: {name}\", found {kind:?}"),
        ))
    }
}

/// Converts the outcome of a handler to a response in the API's shape.
fn respond(shape: Shape, outcome: Result<Response, Failure>) -> Response {
    outcome.unwrap_or_else(|failure| failure.into_response_of(shape))
}
