//! The blocks of a streamed message. Only one is open at a time.

use serde_json::{Value, json};

use crate::app::new_id;
use crate::speech::AnswerPiece;

/// Kind of the content block that is open in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Text,
    Thought,
}

/// Converts pieces of an answer to block events.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    open: Option<BlockKind>,
    /// Index of the open block, or of the next one.
    index: usize,
}

impl Blocks {
    /// The events for a piece, with their names.
    pub(super) fn push(&mut self, piece: AnswerPiece) -> Vec<(&'static str, Value)> {
        let mut events = Vec::new();
        match piece {
            AnswerPiece::Text(text) => {
                self.open(BlockKind::Text, json!({"type": "text", "text": ""}), &mut events);
                events.push(self.delta(json!({"type": "text_delta", "text": text})));
            }
            AnswerPiece::Thought(text) => {
                let begun = json!({"type": "thinking", "thinking": "", "signature": ""});
                self.open(BlockKind::Thought, begun, &mut events);
                events.push(self.delta(json!({"type": "thinking_delta", "thinking": text})));
            }
            AnswerPiece::Call(call) => {
                self.close(&mut events);
                let begun = json!({"type": "tool_use", "id": new_id("toolu_"), "name": call.name, "input": {}});
                events.push(self.start(begun));
                events.push(self.delta(json!({"type": "input_json_delta", "partial_json": call.input_text()})));
                events.push(self.stop());
                self.index += 1;
            }
        }
        events
    }

    /// The events that close the open block.
    pub(super) fn finish(&mut self) -> Vec<(&'static str, Value)> {
        let mut events = Vec::new();
        self.close(&mut events);
        events
    }

    fn open(&mut self, kind: BlockKind, begun: Value, events: &mut Vec<(&'static str, Value)>) {
        if self.open != Some(kind) {
            self.close(events);
            events.push(self.start(begun));
            self.open = Some(kind);
        }
    }

    fn close(&mut self, events: &mut Vec<(&'static str, Value)>) {
        if self.open.take().is_some() {
            events.push(self.stop());
            self.index += 1;
        }
    }

    fn start(&self, block: Value) -> (&'static str, Value) {
        let event = json!({"type": "content_block_start", "index": self.index, "content_block": block});
        ("content_block_start", event)
    }

    fn delta(&self, delta: Value) -> (&'static str, Value) {
        let event = json!({"type": "content_block_delta", "index": self.index, "delta": delta});
        ("content_block_delta", event)
    }

    fn stop(&self) -> (&'static str, Value) {
        let event = json!({"type": "content_block_stop", "index": self.index});
        ("content_block_stop", event)
    }
}
