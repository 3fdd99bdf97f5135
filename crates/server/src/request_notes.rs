//! The log's facts about a request, from its arrival to the end of its answer; refused requests are logged and counted
//! here.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use crate::app::new_id;
use crate::failure::Refusal;
use crate::log::Line;
use crate::site::Site;

/// Header with the id of a request: the client's own, or a new one.
const ID_HEADER: &str = "x-request-id";

/// Maximum number of characters of a client's own id.
const LONGEST_ID: usize = 64;

/// Paths for checks of the server's state. Their negative answers do not count as refused requests.
const PROBES: [&str; 2] = ["/health", "/ready"];

tokio::task_local! {
    static CURRENT: Arc<RequestNotes>;
}

/// The address of a connection's client.
#[derive(Debug, Clone)]
pub(crate) struct Peer(pub(crate) String);

/// Facts about a request for the log.
#[derive(Debug)]
pub(crate) struct RequestNotes {
    id: String,
    client: Option<String>,
    key: OnceLock<String>,
    model: OnceLock<String>,
}

impl RequestNotes {
    fn of(request: &Request) -> Self {
        Self {
            id: id_of(request.headers()),
            client: request.extensions().get::<Peer>().map(|peer| peer.0.clone()),
            key: OnceLock::new(),
            model: OnceLock::new(),
        }
    }

    /// The facts about this task's request; `None` if it did not come over HTTP.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Records the name of the request's key.
    pub(crate) fn set_key(name: &str) {
        drop(CURRENT.try_with(|notes| notes.key.set(name.to_owned())));
    }

    /// Records the model of the answer.
    pub(crate) fn set_model(name: &str) {
        drop(CURRENT.try_with(|notes| notes.model.set(name.to_owned())));
    }

    /// A line that begins with these facts.
    pub(crate) fn line(&self, event: &'static str) -> Line {
        Line::new(event)
            .with("request", self.id.as_str())
            .with_some("client", self.client.as_deref())
            .with_some("key", self.key.get().map(String::as_str))
            .with_some("model", self.model.get().map(String::as_str))
    }
}

/// A line that begins with the facts about a request, if any.
pub(crate) fn line_of(notes: Option<&Arc<RequestNotes>>, event: &'static str) -> Line {
    notes.map_or_else(|| Line::new(event), |notes| notes.line(event))
}

fn id_of(headers: &HeaderMap) -> String {
    let own = headers.get(ID_HEADER).and_then(|id| id.to_str().ok());
    let is_plain = |id: &&str| {
        let mut letters = id.chars();
        (1..=LONGEST_ID).contains(&id.len())
            && letters.all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
    };
    own.filter(is_plain).map_or_else(|| new_id("req_"), str::to_owned)
}

/// Gives a request its id, and logs and counts its refusal.
pub(crate) async fn note_request(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let notes = Arc::new(RequestNotes::of(&request));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let begun = Instant::now();
    let mut response = CURRENT.scope(Arc::clone(&notes), next.run(request)).await;
    if let Ok(id) = HeaderValue::from_str(&notes.id) {
        response.headers_mut().insert(ID_HEADER, id);
    }
    let status = response.status();
    let is_refused = status.is_client_error() || status.is_server_error();
    if is_refused && !PROBES.contains(&path.as_str()) {
        let refusal = response.extensions().get::<Refusal>();
        let reason = refusal.map_or_else(|| reason_of(status), |refusal| refusal.reason);
        site.refusals.count(status, reason);
        let line = notes
            .line("refused")
            .with("method", method.as_str())
            .with("path", path)
            .with("status", status.as_u16())
            .with("reason", reason)
            .with_some("message", refusal.map(|refusal| refusal.message.as_str()))
            .with_seconds("total_s", begun.elapsed().as_secs_f64());
        site.log.request(&line);
    }
    response
}

/// A word for a status, for refusals without their own.
pub(crate) fn reason_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "invalid_request",
        401 => "invalid_api_key",
        403 => "forbidden",
        404 => "not_found",
        405 => "method_not_allowed",
        408 => "timeout",
        409 => "conflict",
        413 => "too_large",
        415 => "unsupported_media_type",
        429 => "rate_limit_exceeded",
        501 => "not_implemented",
        503 => "unavailable",
        500..=599 => "server_error",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_own_id_is_kept_where_it_is_plain() {
        let id = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ID_HEADER, HeaderValue::from_str(text).unwrap());
            id_of(&headers)
        };
        assert_eq!(id("abc-1.2_3"), "abc-1.2_3");
        for text in ["", "a b", "a=\"b\"", &"a".repeat(65)] {
            assert!(id(text).starts_with("req_"), "{text}");
        }
        assert!(id_of(&HeaderMap::new()).starts_with("req_"));
    }
}
