//! Messages of a chat completion, as templates take them.

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::fields::{Fields, text_of, unexpected};

/// Checks messages and brings them into the form that templates take: texts in one piece, arguments of calls as objects.
pub(crate) fn read(list: Vec<Value>) -> Result<Vec<Value>, Failure> {
    if list.is_empty() {
        return Err(Failure::field("messages", "it must have at least one message"));
    }
    let messages = list.into_iter().enumerate();
    messages
        .map(|(at, message)| message_of(message, &format!("messages[{at}]")))
        .collect()
}

fn message_of(message: Value, place: &str) -> Result<Value, Failure> {
    let mut fields = Fields::of(message, place)?;
    let role = fields.required_text("role")?;
    let content = content_of(fields.value("content"), &fields.name("content"))?;
    let name = fields.text("name")?;
    let message = match role.as_str() {
        // "developer" is the newer word for it, which few templates know.
        "system" | "developer" => said("system", required(content, &fields)?),
        "user" => said("user", required(content, &fields)?),
        "assistant" => assistant(content, &mut fields)?,
        "tool" | "function" => {
            let mut message = said("tool", required(content, &fields)?);
            if let Some(id) = fields.text("tool_call_id")? {
                message["tool_call_id"] = id.into();
            }
            message
        }
        other => {
            return Err(Failure::field(
                fields.name("role"),
                format!("{other:?} is not known: use system, developer, user, assistant or tool"),
            ));
        }
    };
    fields.finish()?;
    Ok(match name {
        None => message,
        Some(name) => {
            let mut message = message;
            message["name"] = name.into();
            message
        }
    })
}

fn said(role: &str, content: String) -> Value {
    json!({"role": role, "content": content})
}

fn required(content: Option<String>, fields: &Fields) -> Result<String, Failure> {
    content.ok_or_else(|| Failure::field(fields.name("content"), "this field is required"))
}

fn assistant(content: Option<String>, fields: &mut Fields) -> Result<Value, Failure> {
    fields.pass_over(&["refusal", "audio", "annotations"]);
    let calls = fields.list("tool_calls")?.unwrap_or_default();
    let thought = fields.text("reasoning_content")?;
    if content.is_none() && calls.is_empty() {
        return Err(Failure::field(
            fields.name("content"),
            "an assistant's message needs content or tool_calls",
        ));
    }
    let mut message = said("assistant", content.unwrap_or_default());
    if let Some(thought) = thought {
        message["reasoning_content"] = thought.into();
    }
    if !calls.is_empty() {
        let place = fields.name("tool_calls");
        let calls = calls.into_iter().enumerate();
        let calls = calls.map(|(at, call)| call_of(call, &format!("{place}[{at}]")));
        message["tool_calls"] = calls.collect::<Result<Vec<_>, _>>()?.into();
    }
    Ok(message)
}

fn call_of(call: Value, place: &str) -> Result<Value, Failure> {
    let mut fields = Fields::of(call, place)?;
    fields.pass_over(&["index"]);
    let id = fields.text("id")?;
    let kind = fields.text("type")?;
    if kind.as_deref().is_some_and(|kind| kind != "function") {
        return Err(Failure::field(fields.name("type"), "only functions can be called"));
    }
    let at = fields.name("function");
    let mut function = Fields::of(fields.required("function")?, &at)?;
    let name = function.required_text("name")?;
    let arguments = match function.value("arguments") {
        None => json!({}),
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        Some(Value::String(text)) => serde_json::from_str(&text)
            .map_err(|error| Failure::field(function.name("arguments"), format!("it is not valid JSON: {error}")))?,
        Some(object @ Value::Object(_)) => object,
        Some(other) => return Err(unexpected(&function.name("arguments"), "JSON as a text", &other)),
    };
    function.finish()?;
    fields.finish()?;
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

/// The text of a message: a text, or a list of parts that are texts.
pub(crate) fn content_of(content: Option<Value>, place: &str) -> Result<Option<String>, Failure> {
    let parts = match content {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text)),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(unexpected(place, "a text or a list of parts", &other)),
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.into_iter().enumerate() {
        let mut part = Fields::of(part, &format!("{place}[{at}]"))?;
        match part.required_text("type")?.as_str() {
            "text" | "input_text" | "output_text" => {
                let name = part.name("text");
                texts.push(text_of(part.required("text")?, &name)?);
            }
            "refusal" => texts.push(part.required_text("refusal")?),
            other => {
                return Err(Failure::field(
                    part.name("type"),
                    format!("{other:?} cannot be read by this model: send text"),
                ));
            }
        }
        part.pass_over(&["annotations", "logprobs", "cache_control"]);
        part.finish()?;
    }
    Ok(Some(texts.join("\n")))
}
