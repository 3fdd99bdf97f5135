//! Converts messages, system texts and tools of Anthropic's shape for templates.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::openai::{Choice, Tools, arguments_of, called, finish_tools};
use crate::app::App;
use crate::asking::prompt::Conversation;
use crate::failure::Failure;
use crate::fields::{Fields, Warnings, text_of, unexpected};
use crate::speech::Tool;

/// A block in front of the system text that a client changes with every request. A model does not need it, and it
/// would keep later requests from reusing the pages after it.
const BILLING: &str = "x-anthropic-billing-header";

/// Kinds of blocks, besides results, that other servers add for their own tools.
const OTHERS_BLOCKS: &[&str] = &[
    "server_tool_use",
    "mcp_tool_use",
    "tool_reference",
    "container_upload",
    "compaction",
];

/// Takes `system`, `messages`, `tools` and `tool_choice`.
pub(super) fn take(app: &Arc<App>, fields: &mut Fields) -> Result<(Conversation, Tools), Failure> {
    let mut messages = Vec::new();
    if let Some(system) = fields.value("system") {
        let texts = texts_of(system, "system", fields.warnings())?;
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
        let message = Fields::from_value(message, &format!("messages[{at}]"), fields.warnings())?;
        push_message(message, &mut messages)?;
    }
    let tools = take_tools(app, fields)?;
    let goes_on = messages.last().is_some_and(|last| last["role"] == "assistant");
    let conversation = Conversation {
        messages,
        tools: tools.known.shown(),
        goes_on,
        warnings: fields.warnings().clone(),
        ..Conversation::default()
    };
    Ok((conversation, tools))
}

/// A text, or blocks of text.
fn texts_of(value: Value, place: &str, warnings: &Warnings) -> Result<Vec<String>, Failure> {
    let blocks = match value {
        Value::String(text) => return Ok(vec![text]),
        Value::Array(blocks) => blocks,
        other => return Err(unexpected(place, "a text or a list of blocks", &other)),
    };
    let mut texts = Vec::with_capacity(blocks.len());
    for (at, block) in blocks.into_iter().enumerate() {
        let block = Fields::from_value(block, &format!("{place}[{at}]"), warnings)?;
        texts.extend(text_block(block)?);
    }
    Ok(texts)
}

/// The text of a block, or `None` for a block of another server's own tools.
fn text_block(mut block: Fields) -> Result<Option<String>, Failure> {
    let kind = block.required_text("type")?;
    let text = match kind.as_str() {
        "text" => block.required_text("text")?,
        "document" => {
            let place = block.name("source");
            let mut source = Fields::from_value(block.required("source")?, &place, block.warnings())?;
            match source.required_text("type")?.as_str() {
                "text" => source.required_text("data")?,
                "content" => {
                    let content = source.required("content")?;
                    texts_of(content, &source.name("content"), source.warnings())?.join("\n")
                }
                other => {
                    return Err(Failure::field(
                        source.name("type"),
                        format!("a document of the kind {other:?} cannot be read: send its text"),
                    ));
                }
            }
        }
        "search_result" => {
            let (title, content) = (block.text("title")?.unwrap_or_default(), block.required("content")?);
            let texts = texts_of(content, &block.name("content"), block.warnings())?;
            [vec![title], texts].concat().join("\n")
        }
        other if OTHERS_BLOCKS.contains(&other) || other.ends_with("_tool_result") => {
            let reason = format!("{other:?} is of another server's own tools: the block was left out");
            block.warnings().add(&block.name("type"), &reason);
            return Ok(None);
        }
        other => {
            return Err(Failure::field(
                block.name("type"),
                format!("{other:?} cannot be read by this model: send text"),
            ));
        }
    };
    block.ignore_rest_but(&["cache_control", "citations", "title", "context", "source"]);
    Ok(Some(text))
}

fn push_message(mut fields: Fields, messages: &mut Vec<Value>) -> Result<(), Failure> {
    let warnings = fields.warnings().clone();
    let role = fields.required_text("role")?;
    if !["user", "assistant", "system"].contains(&role.as_str()) {
        return Err(Failure::field(
            fields.name("role"),
            format!("{role:?} is not known: use user or assistant"),
        ));
    }
    let at = fields.name("content");
    let content = match role.as_str() {
        // An empty turn of an assistant.
        "assistant" => fields.value("content").unwrap_or_else(|| json!("")),
        _ => fields.required("content")?,
    };
    let blocks = match content {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        Value::Array(blocks) => blocks,
        other => return Err(unexpected(&at, "a text or a list of blocks", &other)),
    };
    fields.ignore_rest_but(&[
        "id",
        "type",
        "model",
        "stop_reason",
        "stop_sequence",
        "usage",
        "cache_control",
        "output_config",
    ]);
    let mut said = Said::default();
    for (number, block) in blocks.into_iter().enumerate() {
        said.take(Fields::from_value(block, &format!("{at}[{number}]"), &warnings)?, &role)?;
    }
    said.push(&role, messages);
    Ok(())
}

/// Content of one message, sorted by the kinds of its blocks.
#[derive(Default)]
struct Said {
    texts: Vec<String>,
    thoughts: Vec<String>,
    calls: Vec<Value>,
    results: Vec<Value>,
}

impl Said {
    fn take(&mut self, mut block: Fields, role: &str) -> Result<(), Failure> {
        // Reads the kind and leaves the field for the text block.
        let kind = block.kind();
        match (kind.as_str(), role) {
            ("tool_use", "assistant") => {
                let (id, name) = (block.required_text("id")?, block.required_text("name")?);
                let place = block.name("input");
                let input = arguments_of(block.value("input"), &place, block.warnings());
                block.ignore_rest_but(&["type", "cache_control", "caller"]);
                self.calls.push(called(Some(id), &name, &input));
            }
            ("tool_result", "user") => {
                let id = block.required_text("tool_use_id")?;
                let place = block.name("content");
                let texts = match block.value("content") {
                    Some(content) => texts_of(content, &place, block.warnings())?,
                    None => Vec::new(),
                };
                block.ignore_rest_but(&["type", "cache_control", "is_error"]);
                self.results
                    .push(json!({"role": "tool", "tool_call_id": id, "content": texts.join("\n")}));
            }
            ("thinking", "assistant") => {
                self.thoughts.push(block.required_text("thinking")?);
                block.ignore_rest_but(&["type", "signature", "cache_control"]);
            }
            ("redacted_thinking", "assistant") => {}
            _ => self.texts.extend(text_block(block)?),
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
        let mut tool = Fields::from_value(tool, &format!("tools[{at}]"), fields.warnings())?;
        let kind = tool.text("type")?;
        if let Some(kind) = kind.filter(|kind| kind != "custom") {
            let reason = format!("{kind:?} is not run by this server: the tool was left out");
            tool.warnings().add(&tool.name("type"), &reason);
            continue;
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
        tool.ignore_rest_but(&[
            "cache_control",
            "eager_input_streaming",
            "input_examples",
            "defer_loading",
            "allowed_callers",
        ]);
        tools.push(Tool::function(function));
    }
    let (mut choice, mut is_parallel) = (Choice::Freely, true);
    if let Some(mut asked) = fields.object("tool_choice")? {
        is_parallel = !asked.flag("disable_parallel_tool_use")?.unwrap_or(false);
        choice = match asked.required_text("type")?.as_str() {
            "auto" => Choice::Freely,
            "any" | "required" => Choice::Always,
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
