//! Streams of server-sent events, and of lines of JSON.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::Value;

/// A part of a streamed answer.
pub(super) trait StreamPart: Sized + Send + 'static {
    /// A response with these parts as its body.
    fn response(parts: impl Stream<Item = Result<Self, Infallible>> + Send + 'static) -> Response;
}

/// A line of JSON.
pub(super) struct Line(Bytes);

impl Line {
    pub(super) fn of(value: &Value) -> Result<Self, Infallible> {
        Ok(Self(format!("{value}\n").into()))
    }
}

impl From<Line> for Bytes {
    fn from(line: Line) -> Self {
        line.0
    }
}

impl StreamPart for Event {
    fn response(parts: impl Stream<Item = Result<Self, Infallible>> + Send + 'static) -> Response {
        Sse::new(parts).into_response()
    }
}

impl StreamPart for Line {
    fn response(parts: impl Stream<Item = Result<Self, Infallible>> + Send + 'static) -> Response {
        (
            [(header::CONTENT_TYPE, "application/x-ndjson")],
            Body::from_stream(parts),
        )
            .into_response()
    }
}

/// An event with data only.
pub(super) fn data(value: &Value) -> Result<Event, Infallible> {
    Ok(Event::default().data(value.to_string()))
}

/// An event with a name.
pub(super) fn named(name: &str, value: &Value) -> Result<Event, Infallible> {
    Ok(Event::default().event(name).data(value.to_string()))
}

/// The event that ends a stream of OpenAI's shape.
pub(super) fn done() -> Result<Event, Infallible> {
    Ok(Event::default().data("[DONE]"))
}

/// A streamed response.
pub(super) fn response<P: StreamPart>(parts: impl Stream<Item = Result<P, Infallible>> + Send + 'static) -> Response {
    let mut response = P::response(parts);
    // Without this header a proxy may collect the stream, and the answer would seem to stall.
    response
        .headers_mut()
        .insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
