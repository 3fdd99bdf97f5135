//! Converts messages of a chat completion for templates.

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::fields::{Fields, Warnings, text_of, unexpected};
use crate::json;

/// Fields of servers and clients without meaning for the model.
const NOTES: &[&str] = &[
    "id",
    "type",
    "status",
    "phase",
    "cache_control",
    "reasoning_details",
    "provider_specific_fields",
    "extra_content",
    "thinking_blocks",
];

/// Checks messages and converts them for templates: texts in one piece, arguments of calls as objects.
pub(crate) fn read(list: Vec<Value>, warnings: &Warnings) -> Result<Vec<Value>, Failure> {
    if list.is_empty() {
        return Err(Failure::field("messages", "it must have at least one message"));
    }
    let messages = list.into_iter().enumerate();
    messages
        .map(|(at, message)| message_of(message, &format!("messages[{at}]"), warnings))
        .collect()
}

/// One message, without the fields that other servers add.
pub(super) fn message_of(message: Value, place: &str, warnings: &Warnings) -> Result<Value, Failure> {
    let mut fields = Fields::from_value(message, place, warnings)?;
    let role = fields.required_text("role")?;
    let Content { text: content, thought } = content_of(fields.value("content"), &fields.name("content"), warnings)?;
    let name = fields.text("name")?;
    let message = match role.as_str() {
        // "developer" is the newer name, which few templates support.
        "system" | "developer" => said("system", required(content, &fields)?),
        "user" => said("user", required(content, &fields)?),
        "assistant" => assistant(content, thought, &mut fields)?,
        "tool" | "function" => {
            let mut message = said("tool", content.unwrap_or_default());
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
    fields.ignore_rest_but(NOTES);
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

fn assistant(content: Option<String>, thought: Option<String>, fields: &mut Fields) -> Result<Value, Failure> {
    fields.pass_over(&["audio", "annotations"]);
    let refusal = fields.value("refusal");
    let content = content.or(refusal.as_ref().and_then(Value::as_str).map(str::to_owned));
    let mut calls = fields.list("tool_calls")?.unwrap_or_default();
    // The older form of a call.
    if let Some(function) = fields.value("function_call")
        && calls.is_empty()
    {
        calls.push(json!({"type": "function", "function": function}));
    }
    // Servers name the thoughts of an answer differently, and some send two names at once.
    let mut thoughts = thought;
    for name in ["reasoning_content", "reasoning", "thinking"] {
        if let Some(Value::String(text)) = fields.value(name) {
            thoughts = thoughts.or(Some(text));
        }
    }
    let mut message = said("assistant", content.unwrap_or_default());
    if let Some(thought) = thoughts {
        message["reasoning_content"] = thought.into();
    }
    if !calls.is_empty() {
        let place = fields.name("tool_calls");
        let calls = calls.into_iter().enumerate();
        let calls = calls.map(|(at, call)| call_of(call, &format!("{place}[{at}]"), fields.warnings()));
        message["tool_calls"] = calls.collect::<Result<Vec<_>, _>>()?.into();
    }
    Ok(message)
}

fn call_of(call: Value, place: &str, warnings: &Warnings) -> Result<Value, Failure> {
    let mut fields = Fields::from_value(call, place, warnings)?;
    fields.pass_over(&["index", "extra_content", "provider_specific_fields"]);
    let id = fields.text("id")?;
    let kind = fields.text("type")?.unwrap_or_default();
    let call = match kind.as_str() {
        "" | "function" => {
            let at = fields.name("function");
            let mut function = Fields::from_value(fields.required("function")?, &at, warnings)?;
            let name = function.required_text("name")?;
            let place = function.name("arguments");
            let arguments = arguments_of(function.value("arguments"), &place, warnings);
            // Ollama's index of the call.
            function.ignore_rest_but(&["index"]);
            called(id, &name, &arguments)
        }
        "custom" => {
            let at = fields.name("custom");
            let mut custom = Fields::from_value(fields.required("custom")?, &at, warnings)?;
            let (name, input) = (custom.required_text("name")?, custom.text("input")?.unwrap_or_default());
            custom.ignore_rest();
            called(id, &name, &json!({"input": input}))
        }
        other => {
            return Err(Failure::field(
                fields.name("type"),
                format!("{other:?} is not known: use function or custom"),
            ));
        }
    };
    fields.ignore_rest();
    Ok(call)
}

/// A call in the shape of templates.
pub(crate) fn called(id: Option<String>, name: &str, arguments: &Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// Arguments of an earlier call as an object, for templates. If a model wrote text that is not an object, the text
/// becomes the only argument, `text`.
pub(crate) fn arguments_of(arguments: Option<Value>, place: &str, warnings: &Warnings) -> Value {
    match arguments {
        None | Some(Value::Null) => json!({}),
        Some(object @ Value::Object(_)) => object,
        Some(Value::String(text)) => match (text.trim(), json::parse_arguments(&text)) {
            ("" | "null", _) => json!({}),
            (_, Ok(object @ Value::Object(_))) => object,
            _ => {
                warnings.add(place, "no JSON object: shown to the model as text");
                json!({"text": text})
            }
        },
        Some(other) => {
            warnings.add(place, "no JSON object: shown to the model as text");
            json!({"text": other.to_string()})
        }
    }
}

/// Content of a message.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Content {
    pub(super) text: Option<String>,
    /// Thoughts among the parts.
    pub(super) thought: Option<String>,
}

/// The content of a message: a text, or a list of text parts.
pub(super) fn content_of(content: Option<Value>, place: &str, warnings: &Warnings) -> Result<Content, Failure> {
    let parts = match content {
        None => return Ok(Content::default()),
        Some(Value::String(text)) => {
            return Ok(Content {
                text: Some(text),
                thought: None,
            });
        }
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(unexpected(place, "a text or a list of parts", &other)),
    };
    let (mut texts, mut thoughts) = (Vec::with_capacity(parts.len()), Vec::new());
    for (at, part) in parts.into_iter().enumerate() {
        let mut part = Fields::from_value(part, &format!("{place}[{at}]"), warnings)?;
        match part.required_text("type")?.as_str() {
            "text" | "input_text" | "output_text" | "summary_text" => {
                let name = part.name("text");
                texts.push(text_of(part.required("text")?, &name)?);
            }
            "refusal" => texts.push(part.required_text("refusal")?),
            "thinking" | "reasoning" | "reasoning_text" => {
                for name in ["thinking", "text", "reasoning"] {
                    if let Some(Value::String(text)) = part.value(name) {
                        thoughts.push(text);
                    }
                }
            }
            other => {
                return Err(Failure::field(
                    part.name("type"),
                    format!("{other:?} cannot be read by this model: send text"),
                ));
            }
        }
        part.pass_over(&[
            "id",
            "annotations",
            "logprobs",
            "cache_control",
            "signature",
            "prompt_cache_breakpoint",
        ]);
        part.ignore_rest();
    }
    Ok(Content {
        text: Some(texts.join("\n")),
        thought: (!thoughts.is_empty()).then(|| thoughts.join("\n")),
    })
}
