//! Tools of a request, and answers that must be calls.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::app::App;
use crate::failure::Failure;
use crate::fields::{Fields, Warnings};
use crate::forms::Form;
use crate::forms::calls::form_of;
use crate::speech::{KnownTools, Tool, ToolKind};

/// Name of the client's search for further tools.
pub(super) const SEARCH: &str = "tool_search";

/// The tools of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tools {
    /// The callable tools, with the names for the model and the client; empty if none is callable.
    pub(crate) known: KnownTools,
    /// The form of a required call, or of calls to strict tools.
    pub(crate) form: Option<Form>,
    /// True if the answer must be a call.
    pub(crate) is_required: bool,
    /// True if at most one call is allowed.
    pub(crate) is_single: bool,
}

/// The tools that may or must be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    Never,
    Freely,
    Always,
    /// The tool of this name.
    One(String),
    /// Only the tools of these names.
    Among {
        names: Vec<String>,
        is_required: bool,
    },
}

/// Takes `tools`, `tool_choice` and `parallel_tool_calls`.
pub(crate) fn take(app: &Arc<App>, fields: &mut Fields) -> Result<Tools, Failure> {
    take_with(app, fields, Vec::new())
}

/// As [`take`], with further tools found by the client's search.
pub(super) fn take_with(app: &Arc<App>, fields: &mut Fields, found: Vec<Tool>) -> Result<Tools, Failure> {
    let mut tools = take_list(fields)?;
    tools.extend(found);
    let choice = choice_of(fields.value("tool_choice"), fields.warnings())?;
    let is_parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    finish(app, tools, choice, is_parallel)
}

/// Takes the tools of the field `tools`.
pub(super) fn take_list(fields: &mut Fields) -> Result<Vec<Tool>, Failure> {
    let place = fields.name("tools");
    let mut tools = Vec::new();
    for (at, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let tool = Fields::from_value(tool, &format!("{place}[{at}]"), fields.warnings())?;
        tools.extend(tools_of(tool, true)?);
    }
    Ok(tools)
}

/// Checks tools against the choice among them.
pub(crate) fn finish(
    app: &Arc<App>,
    mut tools: Vec<Tool>,
    choice: Choice,
    is_parallel: bool,
) -> Result<Tools, Failure> {
    let shown = |tools: &[Tool]| tools.iter().map(|tool| tool.shown.clone()).collect::<Vec<_>>();
    let called = |tools: &[Tool], names: &[String]| {
        let is_meant = |tool: &&Tool| names.iter().any(|name| tool.is_called(name));
        tools.iter().filter(is_meant).cloned().collect::<Vec<_>>()
    };
    let is_required = match &choice {
        Choice::Never => {
            tools.clear();
            false
        }
        Choice::Freely => false,
        Choice::Always => true,
        Choice::One(name) => {
            let chosen = called(&tools, std::slice::from_ref(name));
            if chosen.is_empty() {
                return Err(Failure::field("tool_choice", format!("there is no tool {name:?}")));
            }
            // The other tools stay in the prompt, so that its beginning does not change.
            return Ok(Tools {
                form: Some(form_of(app, &shown(&chosen), true)?),
                known: KnownTools::new(tools),
                is_required: true,
                is_single: !is_parallel,
            });
        }
        Choice::Among { names, is_required } => {
            tools = called(&tools, names);
            *is_required
        }
    };
    if is_required && tools.is_empty() {
        return Err(Failure::field(
            "tool_choice",
            "a call is required but there are no tools that this server can offer",
        ));
    }
    let is_strict = |tool: &Tool| tool.shown["function"]["strict"] == json!(true);
    let form = if is_required || tools.iter().any(is_strict) {
        Some(form_of(app, &shown(&tools), is_required)?)
    } else {
        None
    };
    Ok(Tools {
        known: KnownTools::new(tools),
        form,
        is_required,
        is_single: !is_parallel,
    })
}

/// The tools of an entry of `tools`: a function of the client, a custom tool, or a namespace of these. A tool that
/// only another vendor runs is skipped with a warning.
fn tools_of(mut fields: Fields, may_nest: bool) -> Result<Vec<Tool>, Failure> {
    let kind = fields.text("type")?.unwrap_or_else(|| "function".to_owned());
    match kind.as_str() {
        "function" => {
            // Chat completions nest the function, responses do not.
            let function = match fields.object("function")? {
                Some(function) => {
                    fields.ignore_rest_but(&["cache_control"]);
                    function
                }
                None => fields,
            };
            Ok(vec![Tool::function(function_of(function)?)])
        }
        "custom" => {
            let custom = match fields.object("custom")? {
                Some(custom) => custom,
                None => fields,
            };
            Ok(vec![custom_of(custom)?])
        }
        "namespace" if may_nest => {
            let name = fields.required_text("name")?;
            let place = fields.name("tools");
            let mut tools = Vec::new();
            for (at, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
                let tool = Fields::from_value(tool, &format!("{place}[{at}]"), fields.warnings())?;
                tools.extend(tools_of(tool, false)?.into_iter().map(|tool| tool.within(&name)));
            }
            fields.pass_over(&["description"]);
            fields.ignore_rest();
            Ok(tools)
        }
        // Only the client's search is possible; this server has no search.
        "tool_search" if fields.peek("execution").is_some_and(|by| by == "client") => {
            let mut function = json!({"name": SEARCH, "description": fields.text("description")?.unwrap_or_default()});
            function["parameters"] = fields.value("parameters").unwrap_or_else(|| json!({"type": "object"}));
            fields.ignore_rest_but(&["execution"]);
            Ok(vec![Tool::function(function).of_kind(ToolKind::Search)])
        }
        other => {
            let reason = format!("{other:?} is not run by this server: the tool was left out");
            fields.warnings().add(&fields.name("type"), &reason);
            Ok(Vec::new())
        }
    }
}

/// A function's name, description and parameters.
pub(crate) fn function_of(mut fields: Fields) -> Result<Value, Failure> {
    let name = name_of(&mut fields)?;
    let mut function = json!({"name": name});
    if let Some(description) = fields.text("description")? {
        function["description"] = description.into();
    }
    let parameters = fields.value("parameters");
    function["parameters"] = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    if fields.flag("strict")? == Some(true) {
        function["strict"] = true.into();
    }
    fields.ignore_rest_but(&["defer_loading", "cache_control", "output_schema"]);
    Ok(function)
}

fn name_of(fields: &mut Fields) -> Result<String, Failure> {
    let name = fields.required_text("name")?;
    if name.is_empty() {
        Err(Failure::field(fields.name("name"), "it must not be empty"))
    } else {
        Ok(name)
    }
}

/// A tool with free text. The model sees the text's grammar, which does not constrain the answer.
fn custom_of(mut fields: Fields) -> Result<Tool, Failure> {
    let name = name_of(&mut fields)?;
    let mut description = fields.text("description")?.unwrap_or_default();
    if let Some(mut format) = fields.object("format")? {
        let mut grammar = format.object("grammar")?.unwrap_or(format);
        if let Some(definition) = grammar.text("definition")? {
            let syntax = grammar.text("syntax")?.unwrap_or_else(|| "lark".to_owned());
            description.push_str(&format!("\nThe input keeps to this grammar ({syntax}):\n{definition}"));
        }
        grammar.pass_over(&["type"]);
        grammar.ignore_rest();
    }
    fields.ignore_rest_but(&["defer_loading"]);
    Ok(Tool::custom(&name, &description))
}

fn choice_of(choice: Option<Value>, warnings: &Warnings) -> Result<Choice, Failure> {
    const PLACE: &str = "tool_choice";
    let mut fields = match choice {
        None => return Ok(Choice::Freely),
        Some(Value::String(word)) => return choice_of_word(&word, PLACE),
        Some(other) => Fields::from_value(other, PLACE, warnings)?,
    };
    let kind = fields.text("type")?.unwrap_or_else(|| "function".to_owned());
    let choice = match kind.as_str() {
        "function" | "custom" | "tool" => Choice::One(chosen_name(&mut fields)?),
        "allowed_tools" => {
            let mut allowed = match fields.object("allowed_tools")? {
                Some(nested) => nested,
                None => fields,
            };
            let place = allowed.name("mode");
            let mode = allowed.text("mode")?.unwrap_or_else(|| "auto".to_owned());
            let is_required = match choice_of_word(&mode, &place)? {
                Choice::Never => return Ok(Choice::Never),
                choice => choice == Choice::Always,
            };
            let place = allowed.name("tools");
            let mut names = Vec::new();
            for (at, tool) in allowed.list("tools")?.unwrap_or_default().into_iter().enumerate() {
                let mut tool = Fields::from_value(tool, &format!("{place}[{at}]"), warnings)?;
                // Tools of other kinds cannot be called.
                if ["", "function", "custom"].contains(&tool.kind().as_str()) {
                    names.push(chosen_name(&mut tool)?);
                }
            }
            return Ok(Choice::Among { names, is_required });
        }
        word => choice_of_word(word, &fields.name("type"))?,
    };
    fields.finish()?;
    Ok(choice)
}

fn choice_of_word(word: &str, place: &str) -> Result<Choice, Failure> {
    match word {
        "none" => Ok(Choice::Never),
        "auto" => Ok(Choice::Freely),
        "required" | "any" => Ok(Choice::Always),
        other => Err(Failure::field(
            place,
            format!("{other:?} is not known: use none, auto, required, or name a function"),
        )),
    }
}

/// The name of the chosen tool. Chat completions nest it, responses do not.
fn chosen_name(fields: &mut Fields) -> Result<String, Failure> {
    fields.pass_over(&["type", "namespace"]);
    for kind in ["function", "custom"] {
        if let Some(mut nested) = fields.object(kind)? {
            let name = nested.required_text("name")?;
            nested.finish()?;
            return Ok(name);
        }
    }
    fields.required_text("name")
}
