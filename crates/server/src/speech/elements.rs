//! Calls with parameters as elements, and calls as sections between marks.

use serde_json::{Map, Value};

use super::calls::{has_long_number, is_name, parse_arguments, without_fence};
use super::parameters::typed;
use super::styles::{InvokeMarks, SectionMarks};
use super::tools::{KnownTools, WrittenCall};

/// `<function=name><parameter=key>value</parameter></function>`, several in a row. Values have the types that the
/// tool declares.
pub(super) fn parse_xml(text: &str, tools: &KnownTools) -> Option<Vec<WrittenCall>> {
    let mut calls = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (call, after) = parse_function(rest, tools)?;
        calls.push(call);
        rest = after.trim_start();
    }
    Some(calls)
}

fn parse_function<'t>(text: &'t str, tools: &KnownTools) -> Option<(WrittenCall, &'t str)> {
    let (name, mut rest) = text.strip_prefix("<function=")?.split_once('>')?;
    let mut arguments = Arguments::default();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix("</function>") {
            return Some((arguments.of(name), after));
        }
        let (key, after) = rest.strip_prefix("<parameter=")?.split_once('>')?;
        let end = end_of_value(after, "</parameter>", ["<parameter=", "</function>"])?;
        let value = &after[..end];
        rest = &after[end + "</parameter>".len()..];
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key, typed(value, tools.parameters(name), key));
    }
}

/// The end of a value: the first end `mark` before another parameter or the end of the call.
fn end_of_value(text: &str, mark: &str, next: [&str; 2]) -> Option<usize> {
    let follows = |at: usize| {
        let rest = text[at + mark.len()..].trim_start();
        next.iter().any(|next| rest.starts_with(next))
    };
    let mut ends = text.match_indices(mark).map(|(at, _)| at);
    ends.find(|at| follows(*at))
}

/// Arguments collected so far: values, and their source if numbers need it.
#[derive(Default)]
struct Arguments {
    values: Map<String, Value>,
    exact: Vec<String>,
}

impl Arguments {
    fn insert(&mut self, key: &str, (value, source): (Value, String)) {
        self.exact.push(format!("{}:{source}", Value::from(key)));
        self.values.insert(key.to_owned(), value);
    }

    fn of(self, name: &str) -> WrittenCall {
        let exact = format!("{{{}}}", self.exact.join(","));
        WrittenCall {
            name: name.to_owned(),
            arguments: self.values,
            exact: Some(exact).filter(|source| has_long_number(source)),
        }
    }
}

/// `name<arg_key>key</arg_key><arg_value>value</arg_value>` (GLM). Values have the types that the tool declares.
pub(super) fn parse_keyed(text: &str, tools: &KnownTools) -> Option<WrittenCall> {
    let (name, mut rest) = text.split_at(text.find("<arg_key>").unwrap_or(text.len()));
    let name = name.trim();
    let is_call = is_name(name) && (!rest.is_empty() || tools.find(name).is_some());
    let mut arguments = Arguments::default();
    while is_call && !rest.is_empty() {
        let (key, after) = rest.strip_prefix("<arg_key>")?.split_once("</arg_key>")?;
        let value = after.trim_start().strip_prefix("<arg_value>")?;
        let end = match end_of_value(value, "</arg_value>", ["<arg_key>"; 2]) {
            Some(end) => end,
            None => value.rfind("</arg_value>")?,
        };
        arguments.insert(key, typed(&value[..end], tools.parameters(name), key));
        rest = value[end + "</arg_value>".len()..].trim_start();
    }
    is_call.then(|| arguments.of(name))
}

/// One element per call, with one element per parameter. A parameter may be marked as a text or as JSON; otherwise it
/// has the type that the tool declares.
pub(super) fn parse_invoked(text: &str, marks: &InvokeMarks, tools: &KnownTools) -> Option<Vec<WrittenCall>> {
    let (mut calls, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (name, after) = rest.strip_prefix(marks.call)?.split_once('"')?;
        rest = after.split_once('>')?.1;
        let mut arguments = Arguments::default();
        loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix(marks.call_end) {
                rest = after.trim_start();
                break;
            }
            let (key, after) = rest.strip_prefix(marks.parameter)?.split_once('"')?;
            let (attributes, value) = after.split_once('>')?;
            let end = end_of_value(value, marks.parameter_end, [marks.parameter, marks.call_end])?;
            let written = &value[..end];
            let value_of = match attributes.trim() {
                "string=\"true\"" => (Value::from(written), Value::from(written).to_string()),
                "string=\"false\"" => (serde_json::from_str(written).ok()?, written.trim().to_owned()),
                _ => typed(written, tools.parameters(name), key),
            };
            arguments.insert(key, value_of);
            rest = &value[end + marks.parameter_end.len()..];
        }
        calls.push(arguments.of(name));
    }
    Some(calls)
}

/// A name and an object for each call, between marks. The first models write the name below the separator, and the
/// object in a code fence; others write `functions.name:0`.
pub(super) fn parse_sections(text: &str, marks: &SectionMarks) -> Option<Vec<WrittenCall>> {
    let (mut calls, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (call, after) = rest.strip_prefix(marks.call)?.split_once(marks.call_end)?;
        let (head, body) = call.split_once(marks.separator)?;
        let below = body.split_once("```").filter(|_| head.trim() == "function");
        let (name, body) = match below {
            Some((name, _)) => (name, without_fence(body[name.len()..].trim())),
            None => (head, body),
        };
        let name = name.trim();
        let name = name.strip_prefix("functions.").unwrap_or(name);
        let name = match name.rsplit_once(':') {
            Some((name, number)) if number.bytes().all(|digit| digit.is_ascii_digit()) => name,
            _ => name,
        };
        calls.push(parse_arguments(name.to_owned(), body)?);
        rest = after.trim_start();
    }
    Some(calls)
}
