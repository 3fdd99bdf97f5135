//! The model of a request: `model` in its body or in the query of its address.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::Method;
use axum::response::Response;
use axum::routing::{self, MethodRouter};
use serde::Deserialize;
use serde_json::Value;

use super::keep_alive::{self, KeepAlive};
use super::lease::{Lease, LeasedBody};
use crate::api::body_of;
use crate::app::App;
use crate::failure::{Failure, Shape};
use crate::fields::Fields;
use crate::site::Site;

/// A `POST` that a loaded model answers.
pub(crate) fn post<T: 'static>(handler: impl Handler<T, Arc<App>>) -> MethodRouter<Arc<Site>> {
    routing::post(move |State(site): State<Arc<Site>>, request: Request| answer(site, request, handler.clone()))
}

/// A `GET` that a loaded model answers.
pub(crate) fn get<T: 'static>(handler: impl Handler<T, Arc<App>>) -> MethodRouter<Arc<Site>> {
    routing::get(move |State(site): State<Arc<Site>>, request: Request| answer(site, request, handler.clone()))
}

/// A `DELETE` that a loaded model answers.
pub(crate) fn delete<T: 'static>(handler: impl Handler<T, Arc<App>>) -> MethodRouter<Arc<Site>> {
    routing::delete(move |State(site): State<Arc<Site>>, request: Request| answer(site, request, handler.clone()))
}

async fn answer<T: 'static>(site: Arc<Site>, request: Request, handler: impl Handler<T, Arc<App>>) -> Response {
    let shape = Shape::of(request.uri().path());
    match choose(&site, request).await {
        Ok((lease, request)) => {
            let response = handler.call(request, Arc::clone(lease.app())).await;
            response.map(|body| Body::new(LeasedBody::new(body, lease)))
        }
        Err(failure) => failure.into_response_of(shape),
    }
}

/// The model of a request, after it may be used, and the request.
async fn choose(site: &Site, request: Request) -> Result<(Lease, Request), Failure> {
    if site.models.resident().is_some() {
        return Ok((site.models.lease(0, None).await?, request));
    }
    let (asked, request) = Asked::of(request).await?;
    let index = site.models.find(asked.model.as_deref())?;
    let lease = site.models.lease(index, asked.keep_alive).await?;
    Ok((lease, request))
}

/// The part of a request that chooses its model.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    model: Option<String>,
    keep_alive: Option<KeepAlive>,
}

/// The body's fields that are read before the model reads all of them.
#[derive(Deserialize)]
struct Looked {
    model: Option<String>,
    keep_alive: Option<Value>,
}

impl Asked {
    /// Reads the body, which also stays in the request.
    async fn of(request: Request) -> Result<(Self, Request), Failure> {
        let of_query = model_of_query(request.uri().query());
        if request.method() != Method::POST {
            let asked = Self {
                model: of_query,
                keep_alive: None,
            };
            return Ok((asked, request));
        }
        let (parts, body) = request.into_parts();
        let body = body_of(Request::from_parts(parts.clone(), body)).await?;
        let mut asked = Self::of_body(&body)?;
        asked.model = asked.model.or(of_query);
        Ok((asked, Request::from_parts(parts, Body::from(body))))
    }

    fn of_body(body: &[u8]) -> Result<Self, Failure> {
        let looked = match serde_json::from_slice(body) {
            Ok(looked) => looked,
            // Lists are refused elsewhere. Any other fault gets the usual message.
            Err(_) if body.trim_ascii_start().starts_with(b"[") => return Ok(Self::default()),
            Err(_) => {
                let mut fields = Fields::of_body(body)?;
                Looked {
                    model: fields.text("model")?,
                    keep_alive: fields.value(keep_alive::FIELD),
                }
            }
        };
        Ok(Self {
            model: looked.model,
            keep_alive: looked.keep_alive.as_ref().map(KeepAlive::of).transpose()?,
        })
    }
}

/// The model in the query of an address, as in `?model=NAME`.
pub(crate) fn model_of_query(query: Option<&str>) -> Option<String> {
    value_of_query(query, "model")
}

/// The first value of a name in the query of an address.
pub(crate) fn value_of_query(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(own, _)| *own == name)?;
    Some(unescaped(value))
}

/// A value of a query with its escapes decoded; an invalid escape stays.
fn unescaped(value: &str) -> String {
    let bytes = value.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = value.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                plain.push(byte);
                at += 3;
            }
            None => {
                plain.push(if bytes[at] == b'+' { b' ' } else { bytes[at] });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_model_and_its_time_are_found_in_a_body() {
        let asked = Asked::of_body(br#"{"messages": [{"model": "no"}], "keep_alive": "5m", "model": "a"}"#).unwrap();
        assert_eq!(
            asked,
            Asked {
                model: Some("a".to_owned()),
                keep_alive: Some(KeepAlive::For(Duration::from_secs(300))),
            }
        );
        for body in ["{}", "{\"model\": null}", "[{\"id\": 0}]"] {
            assert_eq!(Asked::of_body(body.as_bytes()), Ok(Asked::default()), "{body}");
        }
        for (body, fault) in [
            ("", "not valid JSON"),
            ("{\"model\": 1}", "model: it must be a text"),
            ("{\"keep_alive\": \"x\"}", "keep_alive: "),
            ("7", "must be a JSON object"),
        ] {
            let failure = Asked::of_body(body.as_bytes()).unwrap_err();
            assert!(failure.message.contains(fault), "{body}: {}", failure.message);
        }
    }

    #[test]
    fn a_query_may_name_the_model() {
        for (query, name) in [
            ("model=a", Some("a")),
            ("x=1&model=owner%2Fname%3AQ4_K_M", Some("owner/name:Q4_K_M")),
            ("model=a+b%", Some("a b%")),
            ("model=%e4%b8", Some("\u{fffd}")),
            ("models=a", None),
        ] {
            assert_eq!(model_of_query(Some(query)).as_deref(), name, "{query}");
        }
    }
}
