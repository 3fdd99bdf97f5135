//! The input of a response, as templates take it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::messages::{content_of, read as read_messages};
use super::tools::{self, Tools};
use crate::app::App;
use crate::failure::Failure;
use crate::fields::{Fields, unexpected};

/// A text, or a list of items: messages, calls and what came of them.
pub(super) fn read(input: Value) -> Result<Vec<Value>, Failure> {
    let items = match input {
        Value::String(text) => return Ok(vec![json!({"role": "user", "content": text})]),
        Value::Array(items) if items.is_empty() => {
            return Err(Failure::field("input", "it must have at least one item"));
        }
        Value::Array(items) => items,
        other => return Err(unexpected("input", "a text or a list of items", &other)),
    };
    let mut messages: Vec<Value> = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        let place = format!("input[{at}]");
        let mut fields = Fields::of(item, &place)?;
        match fields.kind().as_str() {
            "" | "message" => {
                fields.pass_over(&["type", "id", "status", "phase"]);
                let message = read_messages(vec![Value::Object(fields.rest())]);
                messages.extend(message.map_err(|failure| at_item(failure, &place))?);
            }
            "function_call" => {
                fields.pass_over(&["type", "id", "status"]);
                let call = call_of(&mut fields)?;
                fields.finish()?;
                push_call(call, &mut messages);
            }
            "function_call_output" => {
                fields.pass_over(&["type", "id", "status"]);
                let id = fields.required_text("call_id")?;
                let name = fields.name("output");
                let output = content_of(Some(fields.required("output")?), &name)?;
                fields.finish()?;
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
            }
            // Thoughts of earlier answers are not read again.
            "reasoning" => {}
            other => {
                return Err(Failure::field(
                    fields.name("type"),
                    format!("{other:?} is not known: use message, function_call or function_call_output"),
                ));
            }
        }
    }
    match messages.is_empty() {
        true => Err(Failure::field("input", "it must have at least one message")),
        false => Ok(messages),
    }
}

/// Says where in the input a message stands.
fn at_item(failure: Failure, place: &str) -> Failure {
    let moved = |text: &str| text.replacen("messages[0]", place, 1);
    Failure {
        message: moved(&failure.message),
        param: failure.param.as_deref().map(moved),
        ..failure
    }
}

fn call_of(fields: &mut Fields) -> Result<Value, Failure> {
    let (id, name) = (fields.required_text("call_id")?, fields.required_text("name")?);
    let place = fields.name("arguments");
    let arguments = fields.text("arguments")?.unwrap_or_default();
    let arguments: Value = match arguments.trim() {
        "" => json!({}),
        text => serde_json::from_str(text)
            .map_err(|error| Failure::field(place, format!("it is not valid JSON: {error}")))?,
    };
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

/// Calls that follow one another, or an assistant's text, are of one message.
fn push_call(call: Value, messages: &mut Vec<Value>) {
    match messages.last_mut().filter(|last| last["role"] == "assistant") {
        Some(last) => match last["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(call),
            None => last["tool_calls"] = json!([call]),
        },
        None => messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]})),
    }
}

/// Takes tools whose fields are not nested.
pub(super) fn take_tools(app: &Arc<App>, fields: &mut Fields) -> Result<Tools, Failure> {
    let place = fields.name("tools");
    let mut nested = Vec::new();
    for (at, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let mut tool = Fields::of(tool, &format!("{place}[{at}]"))?;
        let kind = tool.required_text("type")?;
        if kind != "function" {
            return Err(Failure::field(
                tool.name("type"),
                format!("{kind:?} is not run by this server: only functions of the client can be called"),
            ));
        }
        nested.push(json!({"type": "function", "function": tools::function_of(tool)?}));
    }
    tools::take_with(app, fields, nested)
}
