//! Failures of a request, in the shape of its API.

use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use riffle_engine::{EngineError, rename_options};
use serde_json::{Value, json};

use crate::request_notes::reason_of;

/// Error of a request, shown as one line.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub(crate) status: StatusCode,
    /// The problem and its remedy, in one line.
    pub(crate) message: String,
    /// The faulty field of the request.
    pub(crate) param: Option<String>,
    /// A word for programs, if there is a standard one.
    pub(crate) code: Option<&'static str>,
    /// Seconds after which to try again.
    pub(crate) retry_after_s: Option<u64>,
}

/// Reason of a refusal, for the log and the metrics.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    /// A word from a small fixed list.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Shape of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Shape {
    /// The shape of errors at a path.
    pub(crate) fn of(path: &str) -> Self {
        if path.starts_with("/v1/messages") {
            Self::Anthropic
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else {
            Self::OpenAi
        }
    }
}

/// The field of a request for an option of the engine.
fn field_of(option: &str) -> Option<&'static str> {
    const FIELDS: [(&str, &str); 10] = [
        ("decode", "riffle.decode"),
        ("draft", "riffle.draft"),
        ("frequency_penalty", "frequency_penalty"),
        ("logit_bias", "logit_bias"),
        ("min_p", "min_p"),
        ("prefill", "riffle.prefill"),
        ("presence_penalty", "presence_penalty"),
        ("repeat_penalty", "repeat_penalty"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
    ];
    let field = FIELDS.iter().find(|(name, _)| *name == option)?;
    Some(field.1)
}

impl Failure {
    /// HTTP status of the failure: 400 for an invalid request, 429 for one too many, 503 when the worker ends or has
    /// no memory, 500 when the engine failed.
    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code: None,
            retry_after_s: None,
        }
    }

    /// An invalid request.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// An invalid field of a request.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = param.into();
        Self {
            message: format!("{param}: {}", message.into()),
            param: Some(param),
            ..Self::bad("")
        }
    }

    /// The failure for too many requests.
    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self {
            retry_after_s: Some(5),
            code: Some("rate_limit_exceeded"),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, message)
        }
    }

    /// The server is shutting down.
    pub(crate) fn stopping() -> Self {
        Self {
            retry_after_s: Some(10),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the server is shutting down: try again later",
            )
        }
    }

    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Converts an engine's error for clients.
    pub(crate) fn from_engine(error: &EngineError) -> Self {
        let failure = match error {
            EngineError::ContextExceeded {
                what, needed, context, ..
            } if what.starts_with("the text with") => Self::bad(format!(
                "{what} needs {needed} tokens and the server's context holds {context}: compress a shorter session, or start the server with a larger --ctx"
            ))
            .with_code("context_length_exceeded"),
            EngineError::ContextExceeded {
                needed, context, ..
            } => Self::bad(format!(
                "the prompt and the answer need {needed} tokens and the server's context holds {context}: shorten the prompt, or ask for a shorter answer"
            ))
            .with_code("context_length_exceeded"),
            EngineError::EmptyPrompt => Self::bad("the prompt is empty: give it at least one token"),
            EngineError::Option { name, .. } => Self {
                param: field_of(name).map(str::to_owned),
                ..Self::bad(error.to_string())
            },
            EngineError::Policy(_) => Self::bad(error.to_string()),
            EngineError::Form(_) | EngineError::NoTokenizer(_) | EngineError::NoChatTemplate(_) => {
                Self::bad(error.to_string())
            }
            EngineError::NoVectors(_) | EngineError::NoScores(_) | EngineError::NoTokens => {
                Self::bad(error.to_string()).with_code("unsupported_by_model")
            }
            EngineError::TextTooLong { .. } => Self::bad(error.to_string()).with_code("context_length_exceeded"),
            EngineError::NotCompressible(_) => Self::new(StatusCode::CONFLICT, error.to_string()),
            EngineError::OtherText { saved, shared, .. } => Self::bad(format!(
                "the prompt does not go on from the session: they share the first {shared} of its {saved} tokens; begin with the text that was saved"
            )),
            EngineError::NoRoom(_) => Self {
                retry_after_s: Some(10),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
            },
            EngineError::SessionNotHeld(_) => Self {
                retry_after_s: Some(1),
                ..Self::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the session left memory or its file changed meanwhile: ask again",
                )
            },
            EngineError::OutOfMemory { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        };
        let named = rename_options(&failure.message, |option, value| {
            let field = field_of(option)?;
            Some(value.map_or(field.to_owned(), |value| format!("{field} {value}")))
        });
        Self {
            message: named.replace(['\n', '\r'], " "),
            ..failure
        }
    }

    /// The error as an object of its API.
    pub(crate) fn body(&self, shape: Shape) -> Value {
        match shape {
            Shape::OpenAi => json!({"error": {
                "message": self.message,
                "type": self.openai_type(),
                "param": self.param,
                "code": self.code,
            }}),
            Shape::Anthropic => json!({
                "type": "error",
                "error": {"type": self.anthropic_type(), "message": self.message},
            }),
            Shape::Ollama => json!({"error": self.message}),
        }
    }

    pub(crate) fn into_response_of(self, shape: Shape) -> Response {
        let mut response = (self.status, Json(self.body(shape))).into_response();
        if let Some(seconds) = self.retry_after_s {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(Refusal {
            reason: self.reason(),
            message: self.message,
        });
        response
    }

    /// A word for metrics.
    pub(crate) fn reason(&self) -> &'static str {
        self.code.unwrap_or_else(|| reason_of(self.status))
    }

    fn openai_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            503 => "service_unavailable_error",
            500..=599 => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500..=599 => "api_error",
            _ => "invalid_request_error",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        self.into_response_of(Shape::OpenAi)
    }
}

#[cfg(test)]
mod tests {
    use riffle_engine::SamplingOptions;

    use super::*;

    #[test]
    fn an_option_out_of_range_is_told_by_the_field_of_the_request() {
        let sampling = SamplingOptions {
            presence_penalty: f32::NAN,
            ..SamplingOptions::default()
        };
        let failure = Failure::from_engine(&sampling.validate().expect_err("not a number"));
        assert_eq!(failure.param.as_deref(), Some("presence_penalty"));
        assert_eq!(
            failure.message,
            "presence_penalty is NaN, but it must be a number (0 is off)"
        );
    }
}
