//! The tools of a request, under the names for the model and the client.

use std::sync::Arc;

use serde_json::{Map, Value, json};

/// A tool of the client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    /// Definition for chat templates: `{"type": "function", "function": {…}}`, with the model's name of the tool.
    pub(crate) shown: Value,
    /// Name for the client.
    pub(crate) name: String,
    /// The client's namespace of the tool.
    pub(crate) namespace: Option<String>,
    pub(crate) kind: ToolKind,
    /// True if the prompt defines the tool. Tools found by a search are defined in its results.
    is_shown: bool,
}

/// Kinds of tools that clients run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolKind {
    Function,
    /// A tool whose input is free text. The model sees a function with one text, `input`.
    Custom,
    /// The client's search for further tools.
    Search,
}

/// The tools of a request. Copies share one list.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownTools(Arc<Vec<Tool>>);

/// A call in the model's form.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WrittenCall {
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
    /// JSON text of the arguments, if they contain numbers that [`Value`] cannot hold.
    pub(super) exact: Option<String>,
}

/// A call of a tool, in the client's names.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    pub(crate) kind: ToolKind,
    pub(crate) input: CallInput,
}

/// The input of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CallInput {
    Arguments(Map<String, Value>),
    /// Arguments with numbers that [`Value`] cannot hold, with their source.
    Exact(Map<String, Value>, String),
    /// Free text, of a custom tool.
    Text(String),
}

impl Tool {
    /// A function with one name for the model and the client. `function` is its definition.
    pub(crate) fn function(function: Value) -> Self {
        Self {
            name: function["name"].as_str().unwrap_or("").to_owned(),
            shown: json!({"type": "function", "function": function}),
            namespace: None,
            kind: ToolKind::Function,
            is_shown: true,
        }
    }

    /// The same tool with another kind.
    pub(crate) fn of_kind(self, kind: ToolKind) -> Self {
        Self { kind, ..self }
    }

    /// The same tool, marked as found by a search.
    pub(crate) fn found(self) -> Self {
        Self {
            is_shown: false,
            ..self
        }
    }

    /// A tool with free text. The model sees a function with one text.
    pub(crate) fn custom(name: &str, description: &str) -> Self {
        let parameters = json!({
            "type": "object",
            "properties": {"input": {"type": "string", "description": "The whole input of the tool, as plain text."}},
            "required": ["input"],
            "additionalProperties": false,
        });
        let function = json!({"name": name, "description": description, "parameters": parameters});
        Self::function(function).of_kind(ToolKind::Custom)
    }

    /// The same tool as part of a namespace. The model sees `NAMESPACE__NAME`.
    pub(crate) fn within(mut self, namespace: &str) -> Self {
        self.shown["function"]["name"] = json!(shown_name(namespace, &self.name));
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Name for the model.
    pub(crate) fn shown_name(&self) -> &str {
        self.shown["function"]["name"].as_str().unwrap_or("")
    }

    /// True if the model or the client uses this name for the tool.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.shown_name() == name || self.name == name
    }
}

/// The model's name of a tool in a namespace.
pub(crate) fn shown_name(namespace: &str, name: &str) -> String {
    let separator = if namespace.ends_with("__") { "" } else { "__" };
    format!("{namespace}{separator}{name}")
}

impl KnownTools {
    pub(crate) fn new(tools: Vec<Tool>) -> Self {
        Self(Arc::new(tools))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The definitions for the model.
    pub(crate) fn shown(&self) -> Vec<Value> {
        let shown = self.0.iter().filter(|tool| tool.is_shown);
        shown.map(|tool| tool.shown.clone()).collect()
    }

    /// The tool of a name that the model wrote: its name for the model, or else a client's name that only one tool
    /// has.
    pub(super) fn find(&self, name: &str) -> Option<&Tool> {
        let shown = self.0.iter().find(|tool| tool.shown_name() == name);
        shown.or_else(|| {
            let mut own = self.0.iter().filter(|tool| tool.name == name);
            own.next().filter(|_| own.next().is_none())
        })
    }

    /// Schema of the parameters of a tool.
    pub(super) fn parameters(&self, name: &str) -> Option<&Value> {
        self.find(name).map(|tool| &tool.shown["function"]["parameters"])
    }

    /// Names that the model may use for tools.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|tool| [tool.shown_name(), tool.name.as_str()])
    }

    /// A call in the client's names. An unknown tool keeps the model's name.
    pub(super) fn call(&self, written: WrittenCall) -> Call {
        let WrittenCall {
            name,
            mut arguments,
            exact,
        } = written;
        let tool = self.find(&name);
        let kind = tool.map_or(ToolKind::Function, |tool| tool.kind);
        let input = match (kind, exact) {
            (ToolKind::Custom, _) => CallInput::Text(match arguments.remove("input") {
                Some(Value::String(text)) => text,
                Some(other) => other.to_string(),
                None => Value::Object(arguments).to_string(),
            }),
            (_, Some(source)) => CallInput::Exact(arguments, source),
            (_, None) => CallInput::Arguments(arguments),
        };
        Call {
            name: tool.map_or(name, |tool| tool.name.clone()),
            namespace: tool.and_then(|tool| tool.namespace.clone()),
            kind,
            input,
        }
    }
}

impl Call {
    /// The input as text: JSON of the arguments, or the free text.
    pub(crate) fn input_text(&self) -> String {
        match &self.input {
            CallInput::Arguments(arguments) => Value::Object(arguments.clone()).to_string(),
            CallInput::Exact(_, text) | CallInput::Text(text) => text.clone(),
        }
    }

    /// The arguments as an object; free text is in `input`.
    pub(crate) fn arguments(&self) -> Value {
        match &self.input {
            CallInput::Arguments(arguments) | CallInput::Exact(arguments, _) => Value::Object(arguments.clone()),
            CallInput::Text(text) => json!({"input": text}),
        }
    }

    /// True if the tool takes free text.
    pub(crate) fn is_custom(&self) -> bool {
        self.kind == ToolKind::Custom
    }
}
