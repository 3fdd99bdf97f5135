//! Chat templates: messages to the text a model was trained on.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;

use crate::ModelError;
use crate::calendar::format_time;
use crate::fields::read_text_file;
use crate::python_json::{Style, to_python_json};
use crate::tokenizer::TokenizerSettings;

const TEMPLATE_FILE: &str = "chat_template.jinja";
const TEMPLATE_NAME: &str = "chat_template";

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl ChatMessage {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> ChatMessage {
        ChatMessage {
            role: role.into(),
            content: content.into(),
        }
    }
}

/// A model's chat template, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(String, String)>,
}

impl ChatTemplate {
    /// Compiles a template; `special_tokens` are variables it may use, such as `bos_token`.
    pub fn new(source: &str, special_tokens: Vec<(String, String)>) -> Result<ChatTemplate, ModelError> {
        let mut environment = Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(broken)?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned(TEMPLATE_NAME, without_generation_marks(source))
            .map_err(broken)?;
        Ok(ChatTemplate {
            environment,
            special_tokens,
        })
    }

    /// The template of a directory: chat_template.jinja, else tokenizer_config.json's.
    pub(crate) fn from_directory(
        directory: &Path,
        settings: &TokenizerSettings,
    ) -> Result<Option<ChatTemplate>, ModelError> {
        let path = directory.join(TEMPLATE_FILE);
        let source = match read_text_file(&path)?.map(String::from_utf8) {
            Some(Ok(source)) => Some(source),
            Some(Err(_)) => return Err(ModelError::Template(format!("{TEMPLATE_FILE} is not valid UTF-8"))),
            None => settings.chat_template.clone(),
        };
        source
            .map(|source| ChatTemplate::new(&source, settings.special_tokens.clone()))
            .transpose()
    }

    /// The text of a conversation. With `add_generation_prompt` it ends where the assistant is to speak.
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String, ModelError> {
        let messages = serde_json::to_value(messages).map_err(|error| ModelError::Template(error.to_string()))?;
        self.render_with(&messages, add_generation_prompt, &serde_json::Map::new())
    }

    /// The text of a conversation whose messages may hold more than role and content, with further variables such as
    /// `tools` or `enable_thinking`.
    pub fn render_with(
        &self,
        messages: &serde_json::Value,
        add_generation_prompt: bool,
        variables: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, ModelError> {
        let mut context = serde_json::Map::new();
        for (name, text) in &self.special_tokens {
            context.insert(name.clone(), text.clone().into());
        }
        for (name, value) in variables {
            context.insert(name.clone(), value.clone());
        }
        context.insert("messages".into(), messages.clone());
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let template = self.environment.get_template(TEMPLATE_NAME).map_err(broken)?;
        template.render(minijinja::value::Serde(context)).map_err(broken)
    }
}

/// The reason alone, with the line of the template where there is one.
fn broken(error: Error) -> ModelError {
    let reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    ModelError::Template(match error.line() {
        Some(line) => format!("{reason} (line {line} of the template)"),
        None => reason,
    })
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// The time in UTC, since the machine's time zone is not the model's concern.
fn strftime_now(format: String) -> Result<String, Error> {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs());
    format_time(&format, seconds).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now cannot format {format:?}"),
        )
    })
}

/// `json.dumps` with the arguments templates pass.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let invalid = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut style = Style {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent: options.get::<Option<usize>>("indent")?,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ..Style::default()
    };
    if style.indent.is_some() {
        style.item_separator = ",".into();
    }
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two strings"))?;
        (style.item_separator, style.key_separator) = (item, key);
    }
    options.assert_all_used()?;
    Ok(to_python_json(&serde_json::to_value(value).map_err(invalid)?, &style))
}

/// `{% generation %}` marks what the assistant said, for training; here it does nothing.
fn without_generation_marks(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let Some(end) = tag.find("%}") else {
            result.push_str(tag);
            return result;
        };
        let (tag, after) = tag.split_at(end + 2);
        let word = tag[2..end].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" => result.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => result.push_str(&tag.replace("endgeneration", "endif")),
            _ => result.push_str(tag),
        }
        rest = after;
    }
    result.push_str(rest);
    result
}
