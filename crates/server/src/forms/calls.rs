//! The form of tool calls, in the marks of the model.

use riffle_model::Tokenizer;
use serde_json::{Value, json};

use super::{Form, OPTIONS, line_break};
use crate::app::App;
use crate::failure::Failure;
use crate::speech::{CallSyntax, ThoughtMarks};

/// Levels of indentation in a call.
const CALL_LEVELS: usize = 2;

/// The form of an answer that is either a call of one of these tools or JSON of a schema.
pub(crate) fn form_beside(app: &App, tools: &[Value], schema: Value) -> Result<Form, Failure> {
    match form_of(app, tools, true)? {
        Form::Grammar(calls) => {
            let calls = calls.replacen("start:", "calls:", 1);
            Ok(Form::Grammar(format!(
                "start: calls | data\n{calls}\ndata: %json {}",
                without_options(schema)
            )))
        }
        other => Ok(other),
    }
}

/// The form of a call of one of these tools, in the marks of the model. If calls are optional, the answer may be text
/// with calls in it.
pub(crate) fn form_of(app: &App, tools: &[Value], is_required: bool) -> Result<Form, Failure> {
    let style = app.markup.calls();
    let key = match style.syntax {
        CallSyntax::Bare => "parameters",
        _ => "arguments",
    };
    let call = call_rules(tools, key);
    let tokenizer = app.engine.tokenizer().map_err(|error| Failure::from_engine(&error))?;
    let inner = match style.syntax {
        CallSyntax::Object => r#""\n" call "\n""#,
        CallSyntax::List | CallSyntax::Named => r#""[" call "]""#,
        CallSyntax::Bare if is_required => return Ok(Form::Grammar(format!("start: call\n{call}"))),
        _ => {
            return Err(if is_required {
                Failure::field("tool_choice", "this model's calls cannot be required: use auto")
            } else {
                Failure::field(
                    "tools",
                    "this model's calls cannot be held to strict tools: leave strict out",
                )
            });
        }
    };
    let (begin, end) = (style.begins[0], style.end);
    let end = end.map(|end| mark_of(tokenizer, end)).unwrap_or_default();
    let rest = format!("{inner} {end}\n{call}");
    Ok(Form::Grammar(if is_required {
        format!("start: {} {rest}", mark_of(tokenizer, begin))
    } else {
        format!("{}\nrest: {rest}", free_start(tokenizer, begin, app.markup.thoughts()))
    }))
}

/// The rule `call` and its subrules: the call of one of the tools, with its arguments under `key`. The parameters of
/// each tool are a separate schema, so that their references name parts of them.
fn call_rules(tools: &[Value], key: &str) -> String {
    let literal = |text: &str| json!(text).to_string();
    let quoted = |value: &Value| literal(&value.to_string());
    let names: Vec<String> = (0..tools.len()).map(|at| format!("tool_{at}")).collect();
    let line = line_break(CALL_LEVELS);
    let mut rules = format!(
        "call: {}\nLINE: /{line}/\nCOLON: /: ?/\nCOMMA: /, ?/",
        names.join(" | ")
    );
    for (at, tool) in tools.iter().enumerate() {
        let function = &tool["function"];
        let name = quoted(&function["name"]);
        let schema = without_options(function["parameters"].clone());
        rules.push_str(&format!(
            "\ntool_{at}: \"{{\" LINE? {} COLON {name} LINE? COMMA LINE? {} COLON parameters_{at} LINE? \"}}\"\nparameters_{at}: %json {schema}",
            quoted(&json!("name")),
            quoted(&json!(key)),
        ));
    }
    rules
}

/// A schema without options of its own.
fn without_options(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.remove(OPTIONS);
    }
    schema
}

/// The start of a grammar of text in which a `rest` follows the mark `begin`.
fn free_start(tokenizer: &Tokenizer, begin: &str, thoughts: ThoughtMarks) -> String {
    let is_special = |mark: &str| tokenizer.token_id(mark).is_some_and(|id| tokenizer.is_special(id));
    let mark = mark_of(tokenizer, begin);
    if !is_special(begin) {
        return format!(
            "start: (lead rest)* TAIL?\nlead[lazy]: ANY {mark}\nANY: /(.|\\n)*/\nTAIL: /(.|\\n)+/ & ~(ANY {mark} ANY)"
        );
    }
    // Text matches no special token.
    let mut pieces = vec!["TEXT".to_owned(), format!("{mark} rest")];
    let thoughts = [thoughts.begin, thoughts.end]
        .into_iter()
        .filter(|thought| is_special(thought));
    pieces.extend(thoughts.map(|thought| mark_of(tokenizer, thought)));
    format!("start: ({})*\nTEXT: /(.|\\n)+/", pieces.join(" | "))
}

/// A mark in a grammar: a special token by its id, anything else by its text.
fn mark_of(tokenizer: &Tokenizer, mark: &str) -> String {
    match tokenizer.token_id(mark).filter(|id| tokenizer.is_special(*id)) {
        Some(id) => format!("<[{id}]>"),
        None => json!(mark).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, parameters: Value) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    }

    fn calls(tools: &[Value]) -> impl Fn(&str) -> bool {
        let engine = crate::forms::tests::engine();
        let grammar = format!("start: call\n{}", call_rules(tools, "arguments"));
        move |text: &str| crate::forms::tests::fits(&engine, Form::Grammar(grammar.clone()), text)
    }

    #[test]
    fn references_name_parts_of_the_tools_own_parameters() {
        let nested = |digits: usize| {
            json!({
                "$defs": {"Item": {"type": "object", "properties": {"sku": {"type": "string", "maxLength": digits}}, "required": ["sku"], "additionalProperties": false}},
                "type": "object",
                "properties": {"item": {"$ref": "#/$defs/Item"}},
                "required": ["item"],
                "additionalProperties": false,
            })
        };
        let list = json!({
            "type": "object",
            "properties": {"v": {"enum": [1, 2]}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
            "required": ["v", "next"],
            "additionalProperties": false,
        });
        let other = json!({
            "type": "object",
            "definitions": {"a/b c": {"enum": ["x"]}},
            "properties": {"a": {"enum": [1]}, "b": {"$ref": "#/properties/a"}, "c": {"$ref": "#/definitions/a~1b%20c"}, "$ref": {"enum": [{"$ref": "#/nowhere"}]}},
            "required": ["b", "c", "$ref"],
        });
        let named = json!({
            "$id": "https://example.org/tool.json",
            "$defs": {"Item": {"$anchor": "item", "enum": [7]}},
            "type": "object",
            "properties": {"a": {"$ref": "#item"}, "b": {"$ref": "https://example.org/tool.json#/$defs/Item"}},
            "required": ["a", "b"],
        });
        let tools = [
            tool("one", nested(1)),
            tool("two", nested(2)),
            tool("list", list),
            tool("other", other),
            tool("named", named),
        ];
        let fits = calls(&tools);
        for text in [
            r#"{"name": "one", "arguments": {"item": {"sku": "a"}}}"#,
            r#"{"name":"two","arguments":{"item":{"sku":"ab"}}}"#,
            "{\n  \"name\": \"list\",\n  \"arguments\": {\"v\": 1, \"next\": {\"v\": 2, \"next\": null}}\n}",
            r##"{"name": "other", "arguments": {"b": 1, "c": "x", "$ref": {"$ref": "#/nowhere"}}}"##,
            r#"{"name": "named", "arguments": {"a": 7, "b": 7}}"#,
        ] {
            assert!(fits(text), "{text}");
        }
        for text in [
            r#"{"name": "one", "arguments": {"item": {"sku": "ab"}}}"#,
            r#"{"name": "list", "arguments": {"v": 1, "next": {"name": "list", "arguments": {}}}}"#,
            r##"{"name": "other", "arguments": {"b": 2, "c": "x", "$ref": {"$ref": "#/nowhere"}}}"##,
            r#"{"name": "three", "arguments": {}}"#,
            "{\"name\":  \"one\", \"arguments\": {\"item\": {\"sku\": \"a\"}}}",
            "{\"name\": \"one\", \"arguments\":  {\"item\": {\"sku\": \"a\"}}}",
        ] {
            assert!(!fits(text), "{text}");
        }
    }

    #[test]
    fn a_mark_that_is_text_begins_a_call_wherever_it_stands() {
        let engine = crate::forms::tests::engine();
        let grammar = format!(
            "{}\nrest: \"\\n\" call \"\\n</tool_call>\"\ncall: %json {}",
            free_start(engine.tokenizer().unwrap(), "<tool_call>", ThoughtMarks::THINK),
            json!({"type": "object", "properties": {"days": {"enum": [1, 2]}}, "required": ["days"], "additionalProperties": false}),
        );
        let fits = |text: &str| crate::forms::tests::fits(&engine, Form::Grammar(grammar.clone()), text);
        for text in [
            "No call at all, but a < and a <tool",
            "<tool_call>\n{\"days\":1}\n</tool_call>",
            "I look it up.\n<tool_call>\n{\"days\":2}\n</tool_call>",
            "<tool_call>\n{\"days\":1}\n</tool_call>\n<tool_call>\n{\"days\":2}\n</tool_call> done",
        ] {
            assert!(fits(text), "{text}");
        }
        for text in [
            "<tool_call>\n{\"days\":3}\n</tool_call>",
            "I look it up. <tool_call> somewhere",
            "<tool_call>\n{\"days\":1}\n</tool_call>\n<tool_call>\n{}\n</tool_call>",
            "ends with <tool_call>",
        ] {
            assert!(!fits(text), "{text}");
        }
    }
}
