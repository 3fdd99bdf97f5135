//! Saves and compresses sessions, which takes as long as reading their texts.

use std::convert::Infallible;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use async_stream::stream;
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use riffle_engine::{
    CompressMethod, CompressOptions, Compressed, EngineError, GenerateOptions, LoanedSequence, Sequence,
};
use serde_json::{Value, json};

use super::{existing, hide, loaned, path_of};
use crate::api::openai::{read_messages, take_tools};
use crate::api::{Answering, events, fields_of, report, respond, send};
use crate::app::{App, aside};
use crate::asking::prompt::{Conversation, encode, prompt};
use crate::driver::{Answer, DriverEvent, Finished, Reading, SessionTold};
use crate::failure::{Failure, Shape};
use crate::fields::Fields;
use crate::tokenising::Wanted;

/// A running save or compression.
struct SessionWork {
    app: Arc<App>,
    name: String,
    path: PathBuf,
    answer: Answer,
    /// Options of the compression; `None` if a session is saved.
    compress: Option<CompressOptions>,
    /// The sequence to save, after its text was read.
    sequence: Option<Box<Sequence>>,
}

/// An event of a session's work.
enum Progress {
    Reading(Reading),
    Ended(Value),
}

/// Reads a prompt, unless it is cached, and saves the session.
pub(crate) async fn save(State(app): State<Arc<App>>, Path(name): Path<String>, request: Request) -> Response {
    respond(Shape::OpenAi, saved(app, name, request).await)
}

async fn saved(app: Arc<App>, name: String, request: Request) -> Result<Response, Failure> {
    let path = path_of(&app, &name)?;
    let mut fields = fields_of(request).await?;
    let is_streamed = fields.flag("stream")?.unwrap_or(false);
    let tokens = take_prompt(&app, &mut fields).await?;
    let mut answer = app.driver.ask_for_sequence(riffle_engine::Request {
        tokens,
        generate: GenerateOptions {
            max_tokens: 0,
            ..GenerateOptions::default()
        },
        ..riffle_engine::Request::default()
    })?;
    answer.accepted().await?;
    let work = SessionWork {
        app,
        name,
        path,
        answer,
        compress: None,
        sequence: None,
    };
    send(work, is_streamed).await
}

/// `prompt`, or `messages` with `tools`.
async fn take_prompt(app: &Arc<App>, fields: &mut Fields) -> Result<Vec<u32>, Failure> {
    let model = app.take_model(fields)?;
    if model.is_some_and(|name| app.adapter(&name).is_some()) {
        return Err(Failure::field(
            "model",
            "sessions are read by the model itself, without an adapter: name the model",
        ));
    }
    let text = fields.text("prompt")?;
    let messages = fields.list("messages")?;
    let tools = take_tools(app, fields)?;
    fields.check_finished()?;
    match (text, messages) {
        (Some(text), None) => encode(app, text, true, Wanted::Prompt).await,
        (None, Some(messages)) => {
            let conversation = Conversation {
                messages: read_messages(messages, fields.warnings())?,
                tools: tools.known.shown(),
                ..Conversation::default()
            };
            Ok(prompt(app, conversation).await?.tokens)
        }
        _ => Err(Failure::field("prompt", "give either a prompt or messages")),
    }
}

/// Keeps a share of the keys and values of a saved session.
pub(crate) async fn compress(State(app): State<Arc<App>>, Path(name): Path<String>, request: Request) -> Response {
    respond(Shape::OpenAi, compressed(app, name, request).await)
}

async fn compressed(app: Arc<App>, name: String, request: Request) -> Result<Response, Failure> {
    let path = existing(&app, &name)?;
    let mut fields = fields_of(request).await?;
    let options = take_compression(&mut fields)?;
    let is_streamed = fields.flag("stream")?.unwrap_or(false);
    fields.finish()?;
    let session = loaned(&app, &name, &path).await?;
    let mut answer = app.driver.compress(session, options.clone())?;
    answer.accepted().await?;
    let work = SessionWork {
        app,
        name,
        path,
        answer,
        compress: Some(options),
        sequence: None,
    };
    send(work, is_streamed).await
}

fn take_compression(fields: &mut Fields) -> Result<CompressOptions, Failure> {
    let keep = fields.number("keep", 0.0..=1.0)?;
    let keep = keep.filter(|keep| *keep > 0.0).ok_or_else(|| {
        Failure::field(
            "keep",
            "give the share of keys and values to keep, above 0 and at most 1, such as 0.3",
        )
    })?;
    let method = match fields.text("method")? {
        None => CompressMethod::ECHO,
        Some(method) => {
            let unknown = |_| Failure::field("method", format!("{method:?} is none: echo, kvzip or expected"));
            method.parse().map_err(unknown)?
        }
    };
    // A share such as 0.3 must keep its decimal value.
    let keep = keep.to_string().parse().unwrap_or(f64::from(keep));
    Ok(CompressOptions::new(method, keep))
}

impl SessionWork {
    async fn next(&mut self) -> Result<Progress, Failure> {
        loop {
            match self.answer.next().await {
                Some(DriverEvent::Reading(reading)) => return Ok(Progress::Reading(reading)),
                Some(DriverEvent::Session(SessionTold::Read(sequence))) => self.sequence = Some(sequence),
                Some(DriverEvent::Finished(finished)) => return self.save(&finished).await.map(Progress::Ended),
                Some(DriverEvent::Session(SessionTold::Compressed(compressed, session))) => {
                    return self.keep(compressed, *session).await.map(Progress::Ended);
                }
                Some(DriverEvent::Failed(failure)) => return Err(failure),
                Some(DriverEvent::Accepted | DriverEvent::PromptProbabilities(_) | DriverEvent::Token(_)) => {}
                None => return Err(Failure::stopping()),
            }
        }
    }

    /// Writes the file of a text after it was read.
    async fn save(&mut self, finished: &Finished) -> Result<Value, Failure> {
        let sequence = self.sequence.take().ok_or_else(Failure::stopping)?;
        let bytes = self.write(move |path| Ok(sequence.save(path)?.len())).await?;
        Ok(json!({
            "name": self.name,
            "tokens": finished.report.prompt_tokens,
            "cached_tokens": finished.report.reused_tokens,
            "bytes": bytes,
        }))
    }

    /// Writes the file of a compressed session, and keeps it in memory.
    async fn keep(&mut self, compressed: Compressed, mut session: LoanedSequence) -> Result<Value, Failure> {
        let (session, bytes) = self
            .write(move |path| session.save(path).map(|bytes| (session, bytes)))
            .await?;
        self.app.driver.work(move |scheduler| scheduler.hold(session)).await?;
        Ok(json!({
            "name": self.name,
            "compress": self.compress.as_ref().map(ToString::to_string),
            "tokens": compressed.tokens,
            "pairs_before": compressed.pairs_before,
            "pairs": compressed.pairs,
            "page_bytes_before": compressed.bytes_before,
            "page_bytes": compressed.bytes,
            "bytes": bytes,
        }))
    }

    /// Writes the file on its own thread.
    async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&FilePath) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, Failure> {
        let path = self.path.clone();
        aside(move || Ok(write(&path))).await?.map_err(|error| Failure {
            message: hide(&Failure::from_engine(&error).message, &self.app),
            ..Failure::from_engine(&error)
        })
    }
}

impl Answering for SessionWork {
    type Part = Event;

    async fn whole(mut self) -> Result<Response, Failure> {
        loop {
            if let Progress::Ended(value) = self.next().await? {
                return Ok(Json(value).into_response());
            }
        }
    }

    fn stream(mut self) -> impl Stream<Item = Result<Event, Infallible>> + Send + 'static {
        stream! {
            loop {
                match self.next().await {
                    Ok(Progress::Reading(reading)) => yield events::data(&json!({"riffle": report::progress(&reading).1})),
                    Ok(Progress::Ended(value)) => {
                        yield events::data(&value);
                        break;
                    }
                    Err(failure) => {
                        yield events::data(&failure.body(Shape::OpenAi));
                        break;
                    }
                }
            }
            yield events::done();
        }
    }
}
