//! Tools that an answer may call, under the names that the model and the client know.

use std::sync::Arc;

use serde_json::{Map, Value, json};

/// A tool of the client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    /// Definition as chat templates take it: `{"type": "function", "function": {…}}`. Its name is the one that the model sees.
    pub(crate) shown: Value,
    /// Name that the client knows.
    pub(crate) name: String,
    /// Group of tools that the client knows it in.
    pub(crate) namespace: Option<String>,
    pub(crate) kind: ToolKind,
    /// True if the prompt defines it. Others were found by a search, and their results define them.
    is_shown: bool,
}

/// Kinds of tools that clients run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolKind {
    Function,
    /// Its input is free text. The model sees a function with one text, `input`.
    Custom,
    /// The client's search for further tools.
    Search,
}

/// The tools of a request. Copies share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownTools(Arc<Vec<Tool>>);

/// A call as the model wrote it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WrittenCall {
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
    /// Source of the arguments, where they hold numbers that [`Value`] cannot keep.
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
    /// Arguments with numbers that [`Value`] cannot keep, with their source.
    Exact(Map<String, Value>, String),
    /// Free text, of a custom tool.
    Text(String),
}

impl Tool {
    /// A function that the model and the client know under one name. `function` is its definition.
    pub(crate) fn function(function: Value) -> Self {
        Self {
            name: function["name"].as_str().unwrap_or("").to_owned(),
            shown: json!({"type": "function", "function": function}),
            namespace: None,
            kind: ToolKind::Function,
            is_shown: true,
        }
    }

    /// The same tool as one of another kind.
    pub(crate) fn of_kind(self, kind: ToolKind) -> Self {
        Self { kind, ..self }
    }

    /// The same tool as one that a search has found.
    pub(crate) fn found(self) -> Self {
        Self {
            is_shown: false,
            ..self
        }
    }

    /// A tool that takes free text. The model sees a function with one text.
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

    /// Name that the model sees.
    pub(crate) fn shown_name(&self) -> &str {
        self.shown["function"]["name"].as_str().unwrap_or("")
    }

    /// True if the tool is known under this name to the model or the client.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.shown_name() == name || self.name == name
    }
}

/// Name under which the model sees a tool of a namespace.
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

    /// The definitions that the model sees.
    pub(crate) fn shown(&self) -> Vec<Value> {
        let shown = self.0.iter().filter(|tool| tool.is_shown);
        shown.map(|tool| tool.shown.clone()).collect()
    }

    /// The tool that the model means by a name: the name it was shown, or else the client's name where one tool alone has it.
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

    /// Names that the model may mean tools by.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|tool| [tool.shown_name(), tool.name.as_str()])
    }

    /// A call in the client's names. A tool that nobody knows keeps the name that the model wrote.
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

    /// The arguments as an object; free text stands under `input`.
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
