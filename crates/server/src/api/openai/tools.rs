//! Tools that a model may call, and answers that have to be calls.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::app::App;
use crate::failure::Failure;
use crate::fields::Fields;
use crate::forms::Form;
use crate::forms::calls::form_of;

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
