//! Calls of tools as families of models spell them.

use serde_json::{Map, Value};

use super::{Call, CallStyle};

/// The calls that the text between the marks of a style spells; `None` where it spells something else.
pub(super) fn parse(style: CallStyle, text: &str) -> Option<Vec<Call>> {
    let text = text.trim();
    match style {
        CallStyle::Tagged if text.starts_with("<function=") => parse_xml(text).map(|call| vec![call]),
        CallStyle::Tagged | CallStyle::Phi => parse_json(text),
        CallStyle::Mistral => parse_json(text).or_else(|| parse_named(text)),
        CallStyle::Gemma => parse_gemma(text).map(|call| vec![call]),
        CallStyle::Bare => parse_json(without_fence(text)),
    }
}

/// `{"name": …, "arguments": {…}}` or a list of these; `parameters` as Llama has it.
fn parse_json(text: &str) -> Option<Vec<Call>> {
    match serde_json::from_str(text).ok()? {
        Value::Array(calls) => calls.into_iter().map(call_of).collect(),
        call => call_of(call).map(|call| vec![call]),
    }
}

fn call_of(value: Value) -> Option<Call> {
    let Value::Object(mut call) = value else {
        return None;
    };
    let Some(Value::String(name)) = call.remove("name") else {
        return None;
    };
    let arguments = call.remove("arguments").or_else(|| call.remove("parameters"));
    let arguments = match arguments {
        Some(Value::Object(arguments)) => arguments,
        // Some models write the object as text.
        Some(Value::String(text)) => serde_json::from_str(&text).ok()?,
        Some(_) => return None,
        None => Map::new(),
    };
    Some(Call { name, arguments })
}

/// Whether a text is the beginning of an object whose first field is a name, with or without a fence around it.
pub(super) fn may_be_unmarked(text: &str) -> bool {
    let letters: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
    let begins = [
        "{\"name\":\"",
        "[{\"name\":\"",
        "```{\"name\":\"",
        "```json{\"name\":\"",
    ];
    begins
        .iter()
        .any(|begin| letters.starts_with(begin) || begin.starts_with(letters.as_str()))
}

fn without_fence(text: &str) -> &str {
    let Some(inner) = text.strip_prefix("```").and_then(|text| text.strip_suffix("```")) else {
        return text;
    };
    let inner = inner.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric() || letter == '_');
    inner.trim()
}

/// `name[ARGS]{…}`, several one after the other.
fn parse_named(text: &str) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    for part in text.split("[TOOL_CALLS]") {
        let (name, arguments) = part.split_once("[ARGS]").or_else(|| {
            let at = part.find('{')?;
            Some(part.split_at(at))
        })?;
        calls.push(Call {
            name: name.trim().to_owned(),
            arguments: serde_json::from_str(arguments.trim()).ok()?,
        });
    }
    let are_named = calls.iter().all(|call| is_name(&call.name));
    are_named.then_some(calls)
}

fn is_name(text: &str) -> bool {
    let fits = |letter: char| letter.is_alphanumeric() || "_-.".contains(letter);
    !text.is_empty() && text.chars().all(fits)
}

/// `<function=name><parameter=key>value</parameter></function>`. A value that is JSON counts as such.
fn parse_xml(text: &str) -> Option<Call> {
    let (name, mut rest) = text.strip_prefix("<function=")?.split_once('>')?;
    let mut arguments = Map::new();
    while let Some(at) = rest.find("<parameter=") {
        let (key, after) = rest[at + "<parameter=".len()..].split_once('>')?;
        let (value, after) = after.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        arguments.insert(key.to_owned(), value);
        rest = after;
    }
    let name = name.to_owned();
    rest.contains("</function>").then_some(Call { name, arguments })
}

/// `call:name{key:<escape>text<escape>,other:2}`.
fn parse_gemma(text: &str) -> Option<Call> {
    let (name, rest) = text.strip_prefix("call:")?.split_once('{')?;
    let rest = rest.strip_suffix('}')?;
    let mut arguments = Map::new();
    let mut rest = rest.trim();
    while !rest.is_empty() {
        let (key, after) = rest.split_once(':')?;
        let (value, after) = match after.strip_prefix("<escape>") {
            Some(after) => {
                let (value, after) = after.split_once("<escape>")?;
                (Value::String(value.to_owned()), after)
            }
            None => {
                let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
                let value = values.next()?.ok()?;
                (value, &after[values.byte_offset()..])
            }
        };
        arguments.insert(key.trim().to_owned(), value);
        rest = after.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Some(Call {
        name: name.trim().to_owned(),
        arguments,
    })
}
