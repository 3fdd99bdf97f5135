//! The form of answers that are calls of tools, in the marks of the model.

use riffle_model::Tokenizer;
use serde_json::{Value, json};

use super::{Form, with_options};
use crate::app::App;
use crate::failure::Failure;
use crate::speech::CallStyle;

/// The form of an answer that calls one of these tools, in the marks of the model. Unless a call is required, the answer may be
/// text, and calls may stand in it.
pub(crate) fn form_of(app: &App, tools: &[Value], is_required: bool) -> Result<Form, Failure> {
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
