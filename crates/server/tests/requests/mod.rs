//! Malformed requests, made from tables.

mod bodies;
mod fields;
mod wire;

use serde_json::{Value, json};

/// Shape of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    OpenAi,
    Anthropic,
    Ollama,
    /// Only a status: the bytes are not HTTP, or do not name an API.
    Bare,
}

/// State of the connection's sending side after the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Open,
    Closed,
}

/// A request that the server must refuse.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) shape: Shape,
    pub(crate) ending: Ending,
}

impl Case {
    /// An invalid body at a path.
    fn body(path: &str, what: &str, body: impl AsRef<[u8]>) -> Self {
        Self {
            name: format!("{path}: {what}"),
            bytes: post(path, body),
            shape: shape_of(path),
            ending: Ending::Open,
        }
    }

    /// These bytes without a change.
    fn raw(name: &str, bytes: impl Into<Vec<u8>>, shape: Shape) -> Self {
        Self {
            name: name.to_owned(),
            bytes: bytes.into(),
            shape,
            ending: Ending::Open,
        }
    }
}

/// All malformed requests to a server with the key [`KEY`].
pub(crate) fn all() -> Vec<Case> {
    [bodies::cases(), fields::cases(), wire::cases()].concat()
}

/// The key of the server.
pub(crate) const KEY: &str = "sk-right";

pub(crate) const COMPLETIONS: &str = "/v1/completions";
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const RESPONSES: &str = "/v1/responses";
pub(crate) const MESSAGES: &str = "/v1/messages";

/// A request with the right key.
pub(crate) fn post(path: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// The smallest valid body of a path.
fn valid(path: &str) -> Value {
    let messages = json!([{"role": "user", "content": "a"}]);
    match path {
        COMPLETIONS => json!({"model": "model", "prompt": "a", "max_tokens": 1}),
        CHAT => json!({"model": "model", "messages": messages, "max_tokens": 1}),
        RESPONSES => json!({"model": "model", "input": "a", "max_output_tokens": 1}),
        MESSAGES => json!({"model": "model", "messages": messages, "max_tokens": 1}),
        "/v1/messages/count_tokens" => json!({"model": "model", "messages": messages}),
        "/tokenize" => json!({"content": "a"}),
        "/detokenize" => json!({"tokens": [1]}),
        "/apply-template" => json!({"messages": messages}),
        "/api/chat" => json!({"model": "model", "messages": messages, "options": {"num_predict": 1}}),
        "/api/generate" => json!({"model": "model", "prompt": "a", "options": {"num_predict": 1}}),
        "/api/show" => json!({"model": "model"}),
        "/completion" => json!({"prompt": "a", "n_predict": 1}),
        "/infill" => json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 1}),
        "/v1/embeddings" => json!({"model": "model", "input": "a"}),
        "/v1/rerank" => json!({"model": "model", "query": "a", "documents": ["b"]}),
        "/api/embed" => json!({"model": "model", "input": "a"}),
        other => panic!("no body is known for {other}"),
    }
}

/// A valid body except for one field.
fn with(path: &str, field: &str, value: Value) -> Value {
    let mut body = valid(path);
    body[field] = value;
    body
}

fn shape_of(path: &str) -> Shape {
    if path.starts_with(MESSAGES) {
        Shape::Anthropic
    } else if path.starts_with("/api/") {
        Shape::Ollama
    } else {
        Shape::OpenAi
    }
}
