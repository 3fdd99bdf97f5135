//! Converts the input of a response for templates.

use serde_json::{Value, json};

use super::kept::KeptItems;
use super::messages::{arguments_of, called, content_of, message_of};
use super::tools::{SEARCH, take_list};
use crate::failure::Failure;
use crate::fields::{Fields, Warnings, unexpected};
use crate::speech::{Tool, shown_name};

/// Kinds of items, besides calls, that other servers add to a conversation.
const OTHERS_ITEMS: &[&str] = &[
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "additional_tools",
    "compaction",
    "compaction_summary",
    "compaction_trigger",
    "context_compaction",
    "ghost_snapshot",
];

/// The input of a response.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// Messages for templates.
    pub(super) messages: Vec<Value>,
    /// Tools that the client's search has found.
    pub(super) found: Vec<Tool>,
}

/// The items of an input, which is a text or a list of items.
pub(super) fn items_of(input: Value) -> Result<Vec<Value>, Failure> {
    match input {
        Value::String(text) => Ok(vec![json!({"role": "user", "content": text})]),
        Value::Array(items) if items.is_empty() => Err(Failure::field("input", "it must have at least one item")),
        Value::Array(items) => Ok(items),
        other => Err(unexpected("input", "a text or a list of items", &other)),
    }
}

/// Reads items: messages, calls, their results, and references to `kept` items. The items of `earlier` responses
/// precede the request's.
pub(super) fn read(
    earlier: Vec<Value>,
    items: Vec<Value>,
    kept: &KeptItems,
    warnings: &Warnings,
) -> Result<Input, Failure> {
    let mut read = Input::default();
    let earlier = earlier
        .into_iter()
        .map(|item| ("previous_response_id".to_owned(), item));
    let own = items.into_iter().enumerate();
    let own = own.map(|(at, item)| (format!("input[{at}]"), item));
    for (place, item) in earlier.chain(own) {
        let mut fields = Fields::from_value(item, &place, warnings)?;
        if fields.kind() == "item_reference" {
            let id = fields.required_text("id")?;
            // Thoughts of earlier answers are skipped, so the prompt is the same without them.
            let item = match kept.get(&id) {
                Some(item) => item,
                None if id.starts_with("rs_") => continue,
                None => {
                    return Err(Failure::field(
                        fields.name("id"),
                        format!("this server does not hold the item {id:?} any more: send the item itself"),
                    ));
                }
            };
            fields = Fields::from_value(item, &place, warnings)?;
        }
        push_item(fields, &place, &mut read)?;
    }
    if read.messages.is_empty() {
        Err(Failure::field("input", "it must have at least one message"))
    } else {
        Ok(read)
    }
}

fn push_item(mut fields: Fields, place: &str, read: &mut Input) -> Result<(), Failure> {
    let messages = &mut read.messages;
    let warnings = fields.warnings().clone();
    let kind = fields.kind();
    match kind.as_str() {
        "" | "message" => {
            let is_call_before = messages.last().is_some_and(|last| last.get("tool_calls").is_some());
            let message = message_of(Value::Object(fields.rest()), place, &warnings)?;
            match messages.last_mut() {
                // The text of an answer may follow its calls.
                Some(last) if is_call_before && message["role"] == "assistant" && last["content"] == "" => {
                    last["content"] = message["content"].clone();
                }
                _ => messages.push(message),
            }
        }
        "function_call" | "custom_tool_call" | "tool_search_call" => push_call(call_of(fields, &kind)?, messages),
        "function_call_output" | "custom_tool_call_output" => {
            let id = fields.required_text("call_id")?;
            let name = fields.name("output");
            let output = content_of(Some(fields.required("output")?), &name, &warnings)?;
            fields.ignore_rest_but(&["type", "id", "status", "name"]);
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": output.text.unwrap_or_default()}));
        }
        "tool_search_output" => {
            let id = fields.text("call_id")?;
            let found = take_list(&mut fields)?;
            let shown: Vec<&Value> = found.iter().map(|tool| &tool.shown["function"]).collect();
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": json!(shown).to_string()}));
            read.found.extend(found.into_iter().map(Tool::found));
        }
        // Thoughts of earlier answers are skipped.
        "reasoning" => {}
        other if other.ends_with("_call") || other.ends_with("_call_output") || OTHERS_ITEMS.contains(&other) => {
            warnings.add(
                &fields.name("type"),
                &format!("{other:?} is of another server: the item was left out"),
            );
        }
        other => {
            return Err(Failure::field(
                fields.name("type"),
                format!("{other:?} is not known: use message, function_call or function_call_output"),
            ));
        }
    }
    Ok(())
}

/// An earlier call, under the model's name for its tool.
fn call_of(mut fields: Fields, kind: &str) -> Result<Value, Failure> {
    let (id, name) = match kind {
        "tool_search_call" => (fields.text("call_id")?, SEARCH.to_owned()),
        _ => (Some(fields.required_text("call_id")?), fields.required_text("name")?),
    };
    let name = match fields.text("namespace")? {
        Some(namespace) => shown_name(&namespace, &name),
        None => name,
    };
    let arguments = match kind {
        "custom_tool_call" => json!({"input": fields.text("input")?.unwrap_or_default()}),
        _ => {
            let (arguments, place) = (fields.value("arguments"), fields.name("arguments"));
            arguments_of(arguments, &place, fields.warnings())
        }
    };
    fields.ignore_rest_but(&["type", "id", "status", "execution"]);
    Ok(called(id, &name, &arguments))
}

/// Adjacent calls, or a call after an assistant's text, form one message.
fn push_call(call: Value, messages: &mut Vec<Value>) {
    match messages.last_mut().filter(|last| last["role"] == "assistant") {
        Some(last) => match last["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(call),
            None => last["tool_calls"] = json!([call]),
        },
        None => messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]})),
    }
}
