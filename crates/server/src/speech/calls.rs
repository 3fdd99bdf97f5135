//! Tool calls in the spellings of model families.

use serde_json::{Map, Value};

use super::elements::{parse_invoked, parse_keyed, parse_sections, parse_xml};
use super::pythonic;
use super::styles::{CallStyle, CallSyntax};
use super::tools::{KnownTools, WrittenCall};

/// Beginnings of answers that are calls without their family's marks. White space is removed.
const UNMARKED: [&str; 6] = ["", "[", "{", "```", "```json", "```tool_call"];

/// The mark around texts in calls of Gemma 4.
pub(super) const QUOTE: &str = "<|\"|>";

/// Deepest nesting of lists and objects in an argument of such a call.
const MOST_LEVELS: usize = 64;

/// Tags around calls that models write instead of their family's.
const OTHER_TAGS: [&str; 3] = ["tools", "function_call", "tool_calls"];

/// The calls in a text between the marks of a style; `None` for any other text.
pub(super) fn parse(syntax: CallSyntax, text: &str, tools: &KnownTools) -> Option<Vec<WrittenCall>> {
    let text = text.trim();
    match syntax {
        CallSyntax::Object if text.starts_with("<function=") => parse_xml(text, tools),
        CallSyntax::Object => parse_json(text).or_else(|| parse_keyed(text, tools).map(|call| vec![call])),
        CallSyntax::List => parse_json(text),
        CallSyntax::Named => parse_json(text).or_else(|| parse_named(text)),
        CallSyntax::Escaped => parse_gemma(text).map(|call| vec![call]),
        CallSyntax::Pythonic => parse_pythonic(text).or_else(|| parse_json(text)),
        CallSyntax::Quoted => parse_gemma4(text).map(|call| vec![call]),
        CallSyntax::Invoked(marks) => parse_invoked(text, marks, tools),
        CallSyntax::Sections(marks) => parse_sections(text, marks),
        CallSyntax::Headed => None,
        CallSyntax::Bare => parse_json(without_fence(text)),
    }
}

/// The call of a tool with these arguments, an object.
pub(super) fn parse_arguments(name: String, text: &str) -> Option<WrittenCall> {
    let text = text.trim();
    let arguments = match text {
        "" => Map::new(),
        text => serde_json::from_str(text).ok()?,
    };
    Some(WrittenCall {
        name,
        arguments,
        exact: Some(text.to_owned()).filter(|source| has_long_number(source)),
    })
}

/// The calls in a whole answer without marks. Each must name a known tool and have arguments, and the answer may
/// contain nothing else: other JSON is data.
pub(super) fn parse_unmarked(text: &str, tools: &KnownTools) -> Option<Vec<WrittenCall>> {
    let text = without_tag(without_fence(text.trim()));
    let calls = if text.starts_with("<function=") {
        parse_xml(text, tools)?
    } else {
        let values = values_of(text)?;
        if !values.iter().all(|(value, _)| is_call(value)) {
            return None;
        }
        calls_of(values)?
    };
    let are_known = !calls.is_empty() && calls.iter().all(|call| tools.find(&call.name).is_some());
    are_known.then_some(calls)
}

/// True if an answer with this beginning may be a call, without marks, of one of the tools.
pub(super) fn may_be_unmarked(text: &str, tools: &KnownTools) -> bool {
    let letters: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
    let may_follow = |begin: &str, rest: &str| begin.starts_with(rest) || rest.starts_with(begin);
    let tags = OTHER_TAGS.map(|tag| format!("<{tag}>"));
    let begins = UNMARKED.iter().copied().chain(tags.iter().map(String::as_str));
    for begin in begins {
        let Some(rest) = letters.strip_prefix(begin) else {
            if begin.starts_with(letters.as_str()) {
                return true;
            }
            continue;
        };
        if may_follow("<function=", rest) {
            return true;
        }
        let name = ["{\"name\":\"", "{\"type\":\"function\"", "{\"function\":{\"name\":\""];
        if name.iter().skip(1).any(|name| may_follow(name, rest)) {
            return true;
        }
        match rest.strip_prefix(name[0]) {
            None if name[0].starts_with(rest) => return true,
            None => {}
            Some(rest) => {
                let fits = |tool: &str| may_follow(&format!("{}\"", tool.replace(char::is_whitespace, "")), rest);
                if tools.names().any(fits) {
                    return true;
                }
            }
        }
    }
    false
}

/// Byte position in `text`, from `from` on, of the mark that ends a call. Marks inside the call's own strings do not
/// end it.
pub(super) fn end_of(style: CallStyle, text: &str, mark: &str, from: usize) -> Option<usize> {
    let is_object = style.syntax == CallSyntax::Object;
    let is_xml = is_object && text.trim_start().starts_with("<function=");
    let is_keyed = is_object && !text.trim_start().starts_with(['{', '[', '<']);
    let ends = text[from..].match_indices(mark).map(|(at, _)| from + at);
    ends.into_iter().find(|at| {
        let call = &text[..*at];
        match style.syntax {
            _ if is_xml => call.trim_end().ends_with("</function>"),
            _ if is_keyed => call.trim_end().ends_with("</arg_value>") || !call.contains("<arg_key>"),
            CallSyntax::Escaped => call.matches("<escape>").count().is_multiple_of(2),
            CallSyntax::Pythonic => !pythonic::is_in_text(call),
            CallSyntax::Quoted => call.matches(QUOTE).count().is_multiple_of(2),
            CallSyntax::Invoked(marks) => call.trim_end().ends_with(marks.call_end),
            CallSyntax::Sections(marks) => call.trim_end().ends_with(marks.call_end),
            _ => !is_in_string(call),
        }
    })
}

/// True if a prefix of JSON ends inside a string.
fn is_in_string(json: &str) -> bool {
    let (mut is_inside, mut is_escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_inside => is_escaped = true,
            b'"' => is_inside = !is_inside,
            _ => {}
        }
    }
    is_inside
}

/// `{"name": …, "arguments": {…}}`, several of these in a row, or a list of them; Llama writes `parameters`.
fn parse_json(text: &str) -> Option<Vec<WrittenCall>> {
    calls_of(values_of(text)?)
}

/// The objects in a text, each with its JSON text. Some models double the braces around an object.
fn values_of(text: &str) -> Option<Vec<(Value, &str)>> {
    let undoubled = || {
        text.strip_prefix('{')?
            .strip_suffix('}')
            .filter(|inner| inner.starts_with('{'))
    };
    let mut values = objects_of(text).or_else(|| objects_of(undoubled()?))?;
    if let [(Value::Array(_), list)] = values.as_slice() {
        let inner = list.strip_prefix('[')?.strip_suffix(']')?;
        values = objects_of(inner)?;
    }
    Some(values)
}

/// JSON values, each with its text, separated by spaces, commas or semicolons.
fn objects_of(text: &str) -> Option<Vec<(Value, &str)>> {
    let is_between = |letter: char| letter.is_whitespace() || letter == ',' || letter == ';';
    let mut values = Vec::new();
    let mut rest = text.trim_start_matches(is_between);
    while !rest.is_empty() {
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let value = stream.next()?.ok()?;
        let (source, after) = rest.split_at(stream.byte_offset());
        values.push((value, source.trim()));
        rest = after.trim_start_matches(is_between);
    }
    Some(values)
}

/// True if an object has only a name and arguments.
fn is_call(value: &Value) -> bool {
    let Some(object) = value.as_object() else {
        return false;
    };
    if let (Some(function), "function") = (
        object.get("function"),
        object.get("type").map_or("function", text_or_empty),
    ) {
        return function.is_object() && is_call(function);
    }
    let has_arguments = object.contains_key("arguments") || object.contains_key("parameters");
    has_arguments
        && object
            .keys()
            .all(|key| ["name", "arguments", "parameters", "id", "type"].contains(&key.as_str()))
}

fn text_or_empty(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn calls_of(values: Vec<(Value, &str)>) -> Option<Vec<WrittenCall>> {
    values
        .into_iter()
        .map(|(value, source)| call_of(value, source))
        .collect()
}

fn call_of(value: Value, source: &str) -> Option<WrittenCall> {
    let Value::Object(mut call) = value else {
        return None;
    };
    if let Some(Value::Object(function)) = call.remove("function") {
        call = function;
    }
    let Some(Value::String(name)) = call.remove("name") else {
        return None;
    };
    let arguments = call.remove("arguments").or_else(|| call.remove("parameters"));
    let (arguments, source) = match arguments {
        Some(Value::Object(arguments)) => (arguments, member_of(source).map(str::to_owned)),
        // Some models write the object as text.
        Some(Value::String(text)) => (serde_json::from_str(&text).ok()?, Some(text)),
        Some(_) => return None,
        // Other fields are data, or arguments in an unsupported form.
        None if call.keys().any(|key| key != "id" && key != "type") => return None,
        None => (Map::new(), None),
    };
    Some(WrittenCall {
        name,
        arguments,
        exact: source.filter(|source| has_long_number(source)),
    })
}

/// JSON text of the arguments, from the JSON text of a call.
fn member_of(call: &str) -> Option<&str> {
    let keys = ["\"arguments\"", "\"parameters\""];
    let (at, key) = keys.iter().find_map(|key| Some((call.find(key)?, key)))?;
    let rest = call[at + key.len()..].trim_start().strip_prefix(':')?;
    let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<serde::de::IgnoredAny>();
    stream.next()?.ok()?;
    Some(rest[..stream.byte_offset()].trim())
}

/// True if JSON contains a number that neither a double nor 64 bits hold exactly.
pub(super) fn has_long_number(json: &str) -> bool {
    let mut digits = 0;
    json.bytes().any(|byte| {
        digits = match byte {
            b'0'..=b'9' => digits + 1,
            b'.' => digits,
            _ => 0,
        };
        digits > 16
    })
}

pub(super) fn without_fence(text: &str) -> &str {
    let Some(inner) = text.strip_prefix("```").and_then(|text| text.strip_suffix("```")) else {
        return text;
    };
    let inner = inner.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric() || letter == '_');
    inner.trim()
}

fn without_tag(text: &str) -> &str {
    let inner = |tag: &&str| {
        let text = text.strip_prefix(&format!("<{tag}>"))?;
        text.strip_suffix(&format!("</{tag}>")).or(Some(text))
    };
    OTHER_TAGS.iter().find_map(inner).map_or(text, str::trim)
}

/// `name[ARGS]{…}`, several in a row.
fn parse_named(text: &str) -> Option<Vec<WrittenCall>> {
    let mut calls = Vec::new();
    for part in text.split("[TOOL_CALLS]") {
        let (name, arguments) = part.split_once("[ARGS]").or_else(|| {
            let at = part.find('{')?;
            Some(part.split_at(at))
        })?;
        let (name, source) = (name.split("[CALL_ID]").next().unwrap_or(name), arguments.trim());
        calls.push(WrittenCall {
            name: name.trim().to_owned(),
            arguments: serde_json::from_str(source).ok()?,
            exact: Some(source.to_owned()).filter(|source| has_long_number(source)),
        });
    }
    let are_named = calls.iter().all(|call| is_name(&call.name));
    are_named.then_some(calls)
}

pub(super) fn is_name(text: &str) -> bool {
    let fits = |letter: char| letter.is_alphanumeric() || "_-.".contains(letter);
    !text.is_empty() && text.chars().all(fits)
}

/// `[name(key="value"), other()]`.
fn parse_pythonic(text: &str) -> Option<Vec<WrittenCall>> {
    let calls = pythonic::calls(text)?.into_iter();
    let written = calls.map(|(name, arguments, source)| WrittenCall {
        name,
        arguments,
        exact: Some(source).filter(|source| has_long_number(source)),
    });
    Some(written.collect())
}

/// `call:name{key:<escape>text<escape>,other:2}`.
fn parse_gemma(text: &str) -> Option<WrittenCall> {
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
    Some(WrittenCall {
        name: name.trim().to_owned(),
        arguments,
        exact: None,
    })
}

/// `call:name{key:<|"|>text<|"|>,other:[1,{deep:true}]}`.
fn parse_gemma4(text: &str) -> Option<WrittenCall> {
    let (name, rest) = text.strip_prefix("call:")?.split_once('{')?;
    let (arguments, behind) = gemma4_object(rest, MOST_LEVELS)?;
    behind.trim().is_empty().then(|| WrittenCall {
        name: name.trim().to_owned(),
        arguments,
        exact: None,
    })
}

/// The members of an object after its opening brace, and the text after the object.
fn gemma4_object(text: &str, levels: usize) -> Option<(Map<String, Value>, &str)> {
    let mut members = Map::new();
    let mut rest = text.trim_start();
    loop {
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((members, behind));
        }
        let (key, after) = match rest.strip_prefix(QUOTE) {
            Some(rest) => {
                let (key, after) = rest.split_once(QUOTE)?;
                (key, after.trim_start().strip_prefix(':')?)
            }
            None => rest.split_once(':')?,
        };
        let (value, after) = gemma4_value(after, levels)?;
        members.insert(key.trim().to_owned(), value);
        rest = next_of(after, '}')?;
    }
}

/// A value, and the text after it.
fn gemma4_value(text: &str, levels: usize) -> Option<(Value, &str)> {
    let (text, levels) = (text.trim_start(), levels.checked_sub(1)?);
    if let Some(rest) = text.strip_prefix(QUOTE) {
        let (value, behind) = rest.split_once(QUOTE)?;
        return Some((value.into(), behind));
    }
    if let Some(rest) = text.strip_prefix('{') {
        let (members, behind) = gemma4_object(rest, levels)?;
        return Some((members.into(), behind));
    }
    let Some(rest) = text.strip_prefix('[') else {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let value = values.next()?.ok()?;
        return Some((value, &text[values.byte_offset()..]));
    };
    let (mut items, mut rest) = (Vec::new(), rest.trim_start());
    loop {
        if let Some(behind) = rest.strip_prefix(']') {
            return Some((items.into(), behind));
        }
        let (item, after) = gemma4_value(rest, levels)?;
        items.push(item);
        rest = next_of(after, ']')?;
    }
}

/// The text from the next member, or from the closing mark `end`.
fn next_of(text: &str, end: char) -> Option<&str> {
    let text = text.trim_start();
    match text.strip_prefix(',') {
        Some(rest) => Some(rest.trim_start()),
        None => text.starts_with(end).then_some(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tools::Tool;
    use super::*;

    fn tools() -> KnownTools {
        let parameters =
            json!({"type": "object", "properties": {"content": {"type": "string"}, "count": {"type": "integer"}}});
        KnownTools::new(vec![Tool::function(
            json!({"name": "write_file", "parameters": parameters}),
        )])
    }

    fn xml(value: &str) -> Value {
        let text = format!("<function=write_file>\n<parameter=content>\n{value}\n</parameter>\n</function>");
        let calls = parse(CallSyntax::Object, &text, &tools()).unwrap();
        calls[0].arguments["content"].clone()
    }

    #[test]
    fn a_text_of_an_xml_call_stays_a_text_whatever_it_looks_like() {
        for text in [
            "{\"a\": 1}",
            "1.10",
            "null",
            "true",
            "\"x\"",
            "12345678901234567890123",
            "</parameter> inside",
            "",
        ] {
            assert_eq!(xml(text), json!(text));
        }
    }

    #[test]
    fn an_answer_without_marks_is_a_call_of_a_known_tool_or_data() {
        let names = |text: &str| parse_unmarked(text, &tools()).map(|calls| calls.len());
        for (text, calls) in [
            (r#"{"name": "write_file", "arguments": {"count": 1}}"#, Some(1)),
            (r#"{{"name": "write_file", "arguments": {"count": 1}}}"#, Some(1)),
            ("```json\n{\"name\": \"write_file\", \"arguments\": {}}\n```", Some(1)),
            (
                "<tools>\n{\"name\": \"write_file\", \"arguments\": {}}\n</tools>",
                Some(1),
            ),
            (
                r#"{"type": "function", "function": {"name": "write_file", "arguments": {}}}"#,
                Some(1),
            ),
            ("<function=write_file>\n</function>", Some(1)),
            (
                r#"[{"name": "write_file", "arguments": {}}, {"name": "write_file", "arguments": {}}]"#,
                Some(2),
            ),
            (r#"{"name": "Ada", "age": 36}"#, None),
            (r#"[{"name": "Ada"}, {"name": "Bob"}]"#, None),
            (r#"{"name": "no_such_tool", "arguments": {}}"#, None),
            (r#"{"name": "write_file", "age": 36}"#, None),
            (r#"{"name": "write_file"}"#, None),
            ("Here: {\"name\": \"write_file\", \"arguments\": {}}", None),
        ] {
            assert_eq!(names(text), calls, "{text}");
            assert!(calls.is_none() || may_be_unmarked(text, &tools()), "{text}");
        }
        assert!(!may_be_unmarked("{\"name\": \"Ada", &tools()));
        assert!(may_be_unmarked("{\"name\": \"wri", &tools()));
    }

    #[test]
    fn an_end_mark_inside_a_string_does_not_end_a_call() {
        const MARK: &str = "</tool_call>";
        let json = r#"{"name": "say", "arguments": {"t": "a </tool_call> \" </tool_call> b"}}"#;
        assert_eq!(
            end_of(CallStyle::TAGGED, &format!("{json}{MARK}"), MARK, 0),
            Some(json.len())
        );
        let xml = "<function=say>\n<parameter=t>\na </tool_call> b\n</parameter>\n</function>\n";
        assert_eq!(
            end_of(CallStyle::TAGGED, &format!("{xml}{MARK} x {MARK}"), MARK, 0),
            Some(xml.len())
        );
        let gemma = "call:say{t:<escape>a </tool_call> b<escape>}";
        assert_eq!(
            end_of(CallStyle::GEMMA, &format!("{gemma}{MARK}"), MARK, 0),
            Some(gemma.len())
        );
    }

    #[test]
    fn numbers_of_any_length_keep_their_digits() {
        let exact = |syntax, text: &str| parse(syntax, text, &tools()).unwrap().remove(0).exact;
        let long = "12345678901234567890123";
        assert_eq!(
            exact(
                CallSyntax::Object,
                &format!(r#"{{"name": "a", "arguments": {{"n": {long}}}}}"#)
            ),
            Some(format!(r#"{{"n": {long}}}"#))
        );
        let xml = format!("<function=write_file><parameter=count>{long}</parameter></function>");
        assert_eq!(exact(CallSyntax::Object, &xml), Some(format!(r#"{{"count":{long}}}"#)));
        assert_eq!(
            exact(CallSyntax::Object, r#"{"name": "a", "arguments": {"n": 5}}"#),
            None
        );
    }
}
