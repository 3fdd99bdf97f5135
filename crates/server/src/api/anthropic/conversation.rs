//! Messages, system texts and tools of Anthropic's shape, as templates take them.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::openai::{Choice, Tools, finish_tools};
use crate::app::App;
use crate::asking::prompt::Conversation;
use crate::failure::Failure;
use crate::fields::{Fields, text_of, unexpected};

/// A block that a client puts before the system text and changes with every request. It says nothing to a model, and nothing of
/// what has been read would be found again behind it.
const BILLING: &str = "x-anthropic-billing-header";

/// Takes `system`, `messages`, `tools` and `tool_choice`.
pub(super) fn take(app: &Arc<App>, fields: &mut Fields) -> Result<(Conversation, Tools), Failure> {
    let mut messages = Vec::new();
    if let Some(system) = fields.value("system") {
        let texts = texts_of(system, "system")?;
        let texts: Vec<String> = texts.into_iter().filter(|text| !text.starts_with(BILLING)).collect();
        if !texts.is_empty() {
            messages.push(json!({"role": "system", "content": texts.join("\n")}));
        }
    }
    let list = fields.list("messages")?;
    let list = list.ok_or_else(|| Failure::field("messages", "this field is required"))?;
    if list.is_empty() {
        return Err(Failure::field("messages", "it must have at least one message"));
    }
    for (at, message) in list.into_iter().enumerate() {
        push_message(message, &format!("messages[{at}]"), &mut messages)?;
    }
    let tools = take_tools(app, fields)?;
    let goes_on = messages.last().is_some_and(|last| last["role"] == "assistant");
    let conversation = Conversation {
        messages,
        tools: tools.tools.clone(),
        goes_on,
        ..Conversation::default()
    };
    Ok((conversation, tools))
}

/// A text, or blocks of text.
fn texts_of(value: Value, place: &str) -> Result<Vec<String>, Failure> {
    match value {
        Value::String(text) => Ok(vec![text]),
        Value::Array(blocks) => {
            let blocks = blocks.into_iter().enumerate();
            blocks
                .map(|(at, block)| {
                    let mut block = Fields::of(block, &format!("{place}[{at}]"))?;
                    let text = text_block(&mut block)?;
                    block.finish()?;
                    Ok(text)
                })
                .collect()
        }
        other => Err(unexpected(place, "a text or a list of blocks", &other)),
    }
}

/// The text of a block that can be read as text.
fn text_block(block: &mut Fields) -> Result<String, Failure> {
    block.pass_over(&["cache_control", "citations"]);
    let kind = block.required_text("type")?;
    match kind.as_str() {
        "text" => block.required_text("text"),
        "document" => {
            block.pass_over(&["title", "context"]);
            let place = block.name("source");
            let mut source = Fields::of(block.required("source")?, &place)?;
            match source.required_text("type")?.as_str() {
                "text" => {
                    source.pass_over(&["media_type"]);
                    let text = source.required_text("data")?;
                    source.finish()?;
                    Ok(text)
                }
                other => Err(Failure::field(
                    source.name("type"),
                    format!("a document of the kind {other:?} cannot be read: send its text"),
                )),
            }
        }
        other => Err(Failure::field(
            block.name("type"),
            format!("{other:?} cannot be read by this model: send text"),
        )),
    }
}

fn push_message(message: Value, place: &str, messages: &mut Vec<Value>) -> Result<(), Failure> {
    let mut fields = Fields::of(message, place)?;
    let role = fields.required_text("role")?;
    if !["user", "assistant", "system"].contains(&role.as_str()) {
        return Err(Failure::field(
            fields.name("role"),
            format!("{role:?} is not known: use user or assistant"),
        ));
    }
    let at = fields.name("content");
    let blocks = match fields.required("content")? {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        Value::Array(blocks) => blocks,
        other => return Err(unexpected(&at, "a text or a list of blocks", &other)),
    };
    fields.finish()?;
    let mut said = Said::default();
    for (number, block) in blocks.into_iter().enumerate() {
        let mut block = Fields::of(block, &format!("{at}[{number}]"))?;
        said.take(&mut block, &role)?;
        block.finish()?;
    }
    said.push(&role, messages);
    Ok(())
}

/// What the blocks of one message say.
#[derive(Default)]
struct Said {
    texts: Vec<String>,
    thoughts: Vec<String>,
    calls: Vec<Value>,
    results: Vec<Value>,
}

impl Said {
    fn take(&mut self, block: &mut Fields, role: &str) -> Result<(), Failure> {
        // The kind is looked at and left for the text block to take.
        let kind = block.kind();
        match (kind.as_str(), role) {
            ("tool_use", "assistant") => {
                block.pass_over(&["type", "cache_control"]);
                let (id, name) = (block.required_text("id")?, block.required_text("name")?);
                let input = block.value("input").unwrap_or_else(|| json!({}));
                self.calls.push(json!({
                    "id": id, "type": "function", "function": {"name": name, "arguments": input},
                }));
            }
            ("tool_result", "user") => {
                block.pass_over(&["type", "cache_control", "is_error"]);
                let id = block.required_text("tool_use_id")?;
                let place = block.name("content");
                let texts = block
                    .value("content")
                    .map(|content| texts_of(content, &place))
                    .transpose()?;
                self.results.push(json!({
                    "role": "tool", "tool_call_id": id, "content": texts.unwrap_or_default().join("\n"),
                }));
            }
            ("thinking", "assistant") => {
                block.pass_over(&["type", "signature"]);
                self.thoughts.push(block.required_text("thinking")?);
            }
            ("redacted_thinking", "assistant") => block.pass_over(&["type", "data"]),
            _ => self.texts.push(text_block(block)?),
        }
        Ok(())
    }

    fn push(self, role: &str, messages: &mut Vec<Value>) {
        let has_results = !self.results.is_empty();
        messages.extend(self.results);
        if has_results && self.texts.is_empty() {
            return;
        }
        let mut message = json!({"role": role, "content": self.texts.join("\n")});
        if !self.thoughts.is_empty() {
            message["reasoning_content"] = self.thoughts.join("\n").into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.into();
        }
        messages.push(message);
    }
}

fn take_tools(app: &Arc<App>, fields: &mut Fields) -> Result<Tools, Failure> {
    let mut tools = Vec::new();
    for (at, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let mut tool = Fields::of(tool, &format!("tools[{at}]"))?;
        tool.pass_over(&[
            "cache_control",
            "eager_input_streaming",
            "input_examples",
            "defer_loading",
        ]);
        let kind = tool.text("type")?;
        if let Some(kind) = kind.filter(|kind| kind != "custom") {
            return Err(Failure::field(
                tool.name("type"),
                format!("{kind:?} is not run by this server: only tools of the client can be called"),
            ));
        }
        let (name, schema) = (tool.required_text("name")?, tool.required("input_schema")?);
        let mut function = json!({"name": name});
        if let Some(description) = tool.text("description")? {
            function["description"] = description.into();
        }
        function["parameters"] = schema;
        if tool.flag("strict")? == Some(true) {
            function["strict"] = true.into();
        }
        tool.finish()?;
        tools.push(json!({"type": "function", "function": function}));
    }
    let (mut choice, mut is_parallel) = (Choice::Freely, true);
    if let Some(mut asked) = fields.object("tool_choice")? {
        is_parallel = !asked.flag("disable_parallel_tool_use")?.unwrap_or(false);
        choice = match asked.required_text("type")?.as_str() {
            "auto" => Choice::Freely,
            "any" => Choice::Always,
            "none" => Choice::Never,
            "tool" => Choice::One(text_of(asked.required("name")?, "tool_choice.name")?),
            other => {
                return Err(Failure::field(
                    "tool_choice.type",
                    format!("{other:?} is not known: use auto, any, tool or none"),
                ));
            }
        };
        asked.finish()?;
    }
    finish_tools(app, tools, choice, is_parallel)
}
