//! Tools that a model may call, and answers that have to be calls.

use std::sync::Arc;

use riffle_model::Tokenizer;
use serde_json::{Value, json};

use crate::app::App;
use crate::failure::Failure;
use crate::fields::Fields;
use crate::forms::{Form, with_options};
use crate::speech::CallStyle;

/// The tools of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tools {
    /// In the shape of chat completions, as templates take them; empty where none may be called.
    pub(crate) tools: Vec<Value>,
    /// The form of an answer that has to be a call, or of one whose calls have to fit what strict tools take.
    pub(crate) form: Option<Form>,
    /// Whether one call at most is wanted.
    pub(crate) is_single: bool,
}

/// Which tools may or have to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    Never,
    Freely,
    Always,
    /// The tool of this name.
    One(String),
}

/// Takes `tools`, `tool_choice` and `parallel_tool_calls` of a chat completion.
pub(crate) fn take(app: &Arc<App>, fields: &mut Fields) -> Result<Tools, Failure> {
    let tools = fields.list("tools")?.unwrap_or_default();
    let tools = tools.into_iter().enumerate();
    let tools = tools.map(|(at, tool)| tool_of(tool, &format!("tools[{at}]")));
    let tools: Vec<Value> = tools.collect::<Result<_, _>>()?;
    take_with(app, fields, tools)
}

/// Takes `tool_choice` and `parallel_tool_calls`, given the tools.
pub(super) fn take_with(app: &Arc<App>, fields: &mut Fields, tools: Vec<Value>) -> Result<Tools, Failure> {
    let choice = choice_of(fields.value("tool_choice"))?;
    let is_parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    finish(app, tools, choice, is_parallel)
}

/// Checks tools against the choice among them.
pub(crate) fn finish(
    app: &Arc<App>,
    mut tools: Vec<Value>,
    choice: Choice,
    is_parallel: bool,
) -> Result<Tools, Failure> {
    let name_of = |tool: &Value| tool["function"]["name"].as_str().unwrap_or("").to_owned();
    let form = match &choice {
        Choice::Never => {
            tools.clear();
            None
        }
        Choice::Freely => {
            let is_strict = tools.iter().any(|tool| tool["function"]["strict"] == json!(true));
            match is_strict {
                true => Some(form_of(app, &tools, false)?),
                false => None,
            }
        }
        Choice::Always if tools.is_empty() => {
            return Err(Failure::field(
                "tool_choice",
                "a call is required but there are no tools",
            ));
        }
        Choice::Always => Some(form_of(app, &tools, true)?),
        Choice::One(name) => {
            let chosen: Vec<Value> = tools.iter().filter(|tool| name_of(tool) == *name).cloned().collect();
            if chosen.is_empty() {
                return Err(Failure::field("tool_choice", format!("there is no tool {name:?}")));
            }
            Some(form_of(app, &chosen, true)?)
        }
    };
    Ok(Tools {
        tools,
        form,
        is_single: !is_parallel,
    })
}

fn tool_of(tool: Value, place: &str) -> Result<Value, Failure> {
    let mut fields = Fields::of(tool, place)?;
    let kind = fields.required_text("type")?;
    if kind != "function" {
        return Err(Failure::field(
            fields.name("type"),
            format!("{kind:?} is not run by this server: only functions of the client can be called"),
        ));
    }
    let at = fields.name("function");
    let function = Fields::of(fields.required("function")?, &at)?;
    fields.finish()?;
    Ok(json!({"type": "function", "function": function_of(function)?}))
}

/// A function's name, description and parameters.
pub(crate) fn function_of(mut fields: Fields) -> Result<Value, Failure> {
    let name = fields.required_text("name")?;
    if name.is_empty() {
        return Err(Failure::field(fields.name("name"), "it must not be empty"));
    }
    let mut function = json!({"name": name});
    if let Some(description) = fields.text("description")? {
        function["description"] = description.into();
    }
    let parameters = fields.value("parameters");
    function["parameters"] = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    if fields.flag("strict")? == Some(true) {
        function["strict"] = true.into();
    }
    fields.finish()?;
    Ok(function)
}

fn choice_of(choice: Option<Value>) -> Result<Choice, Failure> {
    const PLACE: &str = "tool_choice";
    match choice {
        None => Ok(Choice::Freely),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Ok(Choice::Never),
            "auto" => Ok(Choice::Freely),
            "required" => Ok(Choice::Always),
            other => Err(Failure::field(
                PLACE,
                format!("{other:?} is not known: use none, auto, required, or name a function"),
            )),
        },
        Some(other) => {
            let mut fields = Fields::of(other, PLACE)?;
            let kind = fields.required_text("type")?;
            if kind != "function" {
                return Err(Failure::field(
                    fields.name("type"),
                    format!("{kind:?} is not known: use function"),
                ));
            }
            // Chat completions nest the name, responses do not.
            let name = match fields.object("function")? {
                Some(mut function) => {
                    let name = function.required_text("name")?;
                    function.finish()?;
                    name
                }
                None => fields.required_text("name")?,
            };
            fields.finish()?;
            Ok(Choice::One(name))
        }
    }
}

/// The form of an answer that calls one of these tools, in the marks of the model. Unless a call is required, the answer may be
/// text, and calls may stand in it.
fn form_of(app: &App, tools: &[Value], is_required: bool) -> Result<Form, Failure> {
    let style = app.markup.calls();
    let key = match style {
        CallStyle::Bare => "parameters",
        _ => "arguments",
    };
    let calls = tools.iter().map(|tool| {
        let function = &tool["function"];
        json!({
            "type": "object",
            "properties": {"name": {"const": function["name"]}, key: function["parameters"]},
            "required": ["name", key],
            "additionalProperties": false,
        })
    });
    let schema = with_options(json!({"anyOf": calls.collect::<Vec<_>>()}));
    let tokenizer = app.engine.tokenizer().map_err(|error| Failure::of(&error))?;
    let (begin, inner, end) = match style {
        CallStyle::Tagged => ("<tool_call>", r#""\n" call "\n""#, Some("</tool_call>")),
        CallStyle::Mistral => ("[TOOL_CALLS]", r#""[" call "]""#, None),
        CallStyle::Phi => ("<|tool_call|>", r#""[" call "]""#, Some("<|/tool_call|>")),
        CallStyle::Bare if is_required => return Ok(Form::Grammar(format!("start: call\ncall: %json {schema}"))),
        CallStyle::Bare | CallStyle::Gemma => {
            return Err(match is_required {
                true => Failure::field("tool_choice", "this model's calls cannot be required: use auto"),
                false => Failure::field(
                    "tools",
                    "this model's calls cannot be held to strict tools: leave strict out",
                ),
            });
        }
    };
    let end = end.map(|end| mark_of(tokenizer, end)).unwrap_or_default();
    let rest = format!("{inner} {end}\ncall: %json {schema}");
    Ok(Form::Grammar(match is_required {
        true => format!("start: {} {rest}", mark_of(tokenizer, begin)),
        false => format!("{}\nrest: {rest}", free_start(tokenizer, begin)),
    }))
}

/// The beginning of a grammar of text in which the mark `begin` is followed by a `rest`.
fn free_start(tokenizer: &Tokenizer, begin: &str) -> String {
    let is_special = |mark: &str| tokenizer.token_id(mark).is_some_and(|id| tokenizer.is_special(id));
    let mark = mark_of(tokenizer, begin);
    if !is_special(begin) {
        return format!(
            "start: (lead rest)* TAIL?\nlead[lazy]: ANY {mark}\nANY: /(.|\\n)*/\nTAIL: /(.|\\n)+/ & ~(ANY {mark} ANY)"
        );
    }
    // Text matches no special token.
    let mut pieces = vec!["TEXT".to_owned(), format!("{mark} rest")];
    let thoughts = ["<think>", "</think>"]
        .into_iter()
        .filter(|thought| is_special(thought));
    pieces.extend(thoughts.map(|thought| mark_of(tokenizer, thought)));
    format!("start: ({})*\nTEXT: /(.|\\n)+/", pieces.join(" | "))
}

/// A mark in a grammar: a special token by its number, anything else by its text.
fn mark_of(tokenizer: &Tokenizer, mark: &str) -> String {
    match tokenizer.token_id(mark).filter(|id| tokenizer.is_special(*id)) {
        Some(id) => format!("<[{id}]>"),
        None => json!(mark).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_is_text_begins_a_call_wherever_it_stands() {
        let engine = crate::forms::tests::engine();
        let grammar = format!(
            "{}\nrest: \"\\n\" call \"\\n</tool_call>\"\ncall: %json {}",
            free_start(engine.tokenizer().unwrap(), "<tool_call>"),
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
