//! The events of a streamed chat completion.

use serde_json::{Value, json};

use crate::app::{new_id, unix_seconds};
use crate::speech::{AnswerPiece, Call};

/// Version of the code that computes answers. Equal requests with equal seeds may differ between two versions.
pub(super) const FINGERPRINT: &str = concat!("b", env!("CARGO_PKG_VERSION"));

/// Common fields of all chunks of a stream.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

/// Events of a stream that report the tokens read and written.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StreamUsage {
    /// True to report tokens in a separate event after the answers.
    pub(super) is_at_end: bool,
    /// True to report tokens in every event.
    pub(super) is_in_chunks: bool,
}

impl StreamUsage {
    /// Adds the current token counts of one answer to its event, if requested.
    pub(super) fn put(self, chunk: &mut Value, prompt_tokens: usize, written_tokens: usize) {
        if self.is_in_chunks {
            chunk["usage"] = json!({
                "prompt_tokens": prompt_tokens,
                "completion_tokens": written_tokens,
                "total_tokens": prompt_tokens + written_tokens,
            });
        }
    }
}

impl Head {
    pub(super) fn new(prefix: &str, model: &str) -> Self {
        Self {
            id: new_id(prefix),
            created: unix_seconds(),
            model: model.to_owned(),
        }
    }

    /// A chunk with one choice.
    pub(super) fn chunk(&self, index: usize, delta: &Value, finish_reason: Option<&str>) -> Value {
        let mut chunk = self.empty();
        chunk["choices"] = json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": finish_reason}]);
        chunk
    }

    /// A chunk without choices.
    pub(super) fn empty(&self) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": [],
        })
    }
}

/// The change that a piece makes to a message; `calls` counts the calls before it.
pub(super) fn delta_of(piece: AnswerPiece, calls: &mut usize) -> Value {
    match piece {
        AnswerPiece::Text(text) => json!({"content": text}),
        AnswerPiece::Thought(text) => json!({"reasoning_content": text}),
        AnswerPiece::Call(call) => {
            let mut value = call_value(&call);
            value["index"] = json!(*calls);
            *calls += 1;
            json!({"tool_calls": [value]})
        }
    }
}

/// A call in the shape of chat completions.
pub(super) fn call_value(call: &Call) -> Value {
    let (id, input) = (new_id("call_"), call.input_text());
    if call.is_custom() {
        json!({"id": id, "type": "custom", "custom": {"name": call.name, "input": input}})
    } else {
        json!({"id": id, "type": "function", "function": {"name": call.name, "arguments": input}})
    }
}
