//! Streams of server-sent events.

use std::convert::Infallible;

use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::Value;

/// An event that carries data alone.
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

/// A response that is a stream.
pub(super) fn response(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    let mut response = Sse::new(events).into_response();
    // A proxy that collects the stream before it passes it on would make an answer seem to stall.
    response
        .headers_mut()
        .insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}
