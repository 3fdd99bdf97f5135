//! The items of a response: thoughts, messages, calls. Only one is open at a time.

use serde_json::{Value, json};

use crate::app::new_id;
use crate::speech::{AnswerPiece, Call, ToolKind};

/// The finished items, and the open one.
#[derive(Debug, Default)]
pub(super) struct Items {
    done: Vec<Value>,
    open: Option<Open>,
}

/// The open item.
#[derive(Debug)]
struct Open {
    id: String,
    is_thought: bool,
    text: String,
}

/// An event of a stream, with its kind.
type StreamEvent = (&'static str, Value);

impl Open {
    fn part(&self) -> Value {
        if self.is_thought {
            json!({"type": "reasoning_text", "text": self.text})
        } else {
            json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": []})
        }
    }

    fn item(&self, status: &str) -> Value {
        let content: Vec<Value> = match status {
            "in_progress" => Vec::new(),
            _ => vec![self.part()],
        };
        if self.is_thought {
            json!({"id": self.id, "type": "reasoning", "summary": [], "content": content, "status": status})
        } else {
            json!({
                "id": self.id, "type": "message", "role": "assistant", "content": content, "status": status,
            })
        }
    }
}

impl Items {
    /// All items; the last one is incomplete if the answer was cut.
    pub(super) fn output(&self, is_cut: bool) -> Vec<Value> {
        let mut output = self.done.clone();
        if let (true, Some(last)) = (is_cut, output.last_mut()) {
            last["status"] = json!("incomplete");
        }
        output
    }

    /// The events for a piece.
    pub(super) fn push(&mut self, piece: AnswerPiece) -> Vec<StreamEvent> {
        let mut told = Vec::new();
        match piece {
            AnswerPiece::Text(text) => self.write(&text, false, &mut told),
            AnswerPiece::Thought(text) => self.write(&text, true, &mut told),
            AnswerPiece::Call(call) => {
                self.close(&mut told);
                self.call(&call, &mut told);
            }
        }
        told
    }

    /// The events that close the open item.
    pub(super) fn finish(&mut self) -> Vec<StreamEvent> {
        let mut told = Vec::new();
        if self.open.is_none() && self.done.is_empty() {
            // An empty answer is a message too.
            self.write("", false, &mut told);
        }
        self.close(&mut told);
        told
    }

    fn write(&mut self, text: &str, is_thought: bool, told: &mut Vec<StreamEvent>) {
        if self.open.as_ref().is_some_and(|open| open.is_thought != is_thought) {
            self.close(told);
        }
        let index = self.done.len();
        let open = self.open.get_or_insert_with(|| {
            let open = Open {
                id: new_id(if is_thought { "rs_" } else { "msg_" }),
                is_thought,
                text: String::new(),
            };
            let item = open.item("in_progress");
            told.push((
                "response.output_item.added",
                json!({"output_index": index, "item": item}),
            ));
            told.push((
                "response.content_part.added",
                json!({"item_id": open.id, "output_index": index, "content_index": 0, "part": open.part()}),
            ));
            open
        });
        open.text.push_str(text);
        if text.is_empty() {
            return;
        }
        let mut delta = json!({"item_id": open.id, "output_index": index, "content_index": 0, "delta": text});
        told.push(if is_thought {
            ("response.reasoning_text.delta", delta)
        } else {
            delta["logprobs"] = json!([]);
            ("response.output_text.delta", delta)
        });
    }

    fn close(&mut self, told: &mut Vec<StreamEvent>) {
        let index = self.done.len();
        let Some(open) = self.open.take() else {
            return;
        };
        let mut done = json!({
            "item_id": open.id, "output_index": index, "content_index": 0, "text": open.text,
        });
        told.push(if open.is_thought {
            ("response.reasoning_text.done", done)
        } else {
            done["logprobs"] = json!([]);
            ("response.output_text.done", done)
        });
        told.push((
            "response.content_part.done",
            json!({"item_id": open.id, "output_index": index, "content_index": 0, "part": open.part()}),
        ));
        let item = open.item("completed");
        told.push((
            "response.output_item.done",
            json!({"output_index": index, "item": item}),
        ));
        self.done.push(item);
    }

    fn call(&mut self, call: &Call, told: &mut Vec<StreamEvent>) {
        if call.kind == ToolKind::Search {
            self.search(call, told);
            return;
        }
        let index = self.done.len();
        let input = call.input_text();
        let (id, call_id) = (new_id(if call.is_custom() { "ctc_" } else { "fc_" }), new_id("call_"));
        let (kind, field) = if call.is_custom() {
            ("custom_tool_call", "input")
        } else {
            ("function_call", "arguments")
        };
        let item = |input: &str, status: &str| {
            let mut item = json!({"id": id, "type": kind, "call_id": call_id, "name": call.name, "status": status});
            item[field] = json!(input);
            if let Some(namespace) = &call.namespace {
                item["namespace"] = json!(namespace);
            }
            item
        };
        told.push((
            "response.output_item.added",
            json!({"output_index": index, "item": item("", "in_progress")}),
        ));
        let (delta, done) = if call.is_custom() {
            (
                "response.custom_tool_call_input.delta",
                "response.custom_tool_call_input.done",
            )
        } else {
            (
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
            )
        };
        told.push((delta, json!({"item_id": id, "output_index": index, "delta": input})));
        let mut whole = json!({"item_id": id, "output_index": index, "name": call.name});
        whole[field] = json!(input);
        told.push((done, whole));
        let done = item(&input, "completed");
        told.push((
            "response.output_item.done",
            json!({"output_index": index, "item": done}),
        ));
        self.done.push(done);
    }

    /// A client's search for further tools, in one event.
    fn search(&mut self, call: &Call, told: &mut Vec<StreamEvent>) {
        let item = json!({
            "id": new_id("tsc_"), "type": "tool_search_call", "execution": "client", "call_id": new_id("call_"),
            "arguments": call.arguments(), "status": "completed",
        });
        for kind in ["response.output_item.added", "response.output_item.done"] {
            told.push((kind, json!({"output_index": self.done.len(), "item": item})));
        }
        self.done.push(item);
    }
}
