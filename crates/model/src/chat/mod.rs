//! Chat templates: messages to the text a model was trained on.

//!
//! A template is a program by the author of a model file. It runs on a thread of its own, within the limits of
//! `limits.rs`: `guard.rs` meters the operators it uses, `costs.rs` the filters and functions, `meter.rs` counts.

mod costs;
mod functions;
mod guard;
mod limits;
mod meter;
mod operators;
mod sandbox;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::ModelError;
use crate::fields::read_text_file;
use crate::tokenizer::TokenizerSettings;

pub use limits::TemplateLimit;

const TEMPLATE_FILE: &str = "chat_template.jinja";

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

/// A model's chat template. Rendering is bounded in time and memory, whatever the template says; see [`TemplateLimit`].
#[derive(Debug)]
pub struct ChatTemplate {
    file: PathBuf,
    source: String,
    special_tokens: Vec<(String, String)>,
}

impl ChatTemplate {
    /// Checks a template; `special_tokens` are variables it may use, such as `bos_token`.
    ///
    /// # Errors
    /// [`ModelError::Template`] when it is no template, [`ModelError::TemplateLimit`] when it is too long.
    pub fn new(source: &str, special_tokens: Vec<(String, String)>) -> Result<ChatTemplate, ModelError> {
        ChatTemplate::of_file(Path::new(TEMPLATE_FILE), source, special_tokens)
    }

    /// The template that `file` holds; errors name the file.
    pub(crate) fn of_file(
        file: &Path,
        source: &str,
        special_tokens: Vec<(String, String)>,
    ) -> Result<ChatTemplate, ModelError> {
        let source = without_generation_marks(source);
        sandbox::check(file, &source)?;
        Ok(ChatTemplate {
            file: file.to_owned(),
            source,
            special_tokens,
        })
    }

    /// The template of a directory: chat_template.jinja, else tokenizer_config.json's.
    pub(crate) fn from_directory(
        directory: &Path,
        settings: &TokenizerSettings,
    ) -> Result<Option<ChatTemplate>, ModelError> {
        let path = directory.join(TEMPLATE_FILE);
        let special_tokens = settings.special_tokens.clone();
        match read_text_file(&path)?.map(String::from_utf8) {
            Some(Ok(source)) => ChatTemplate::of_file(&path, &source, special_tokens).map(Some),
            Some(Err(_)) => Err(ModelError::Template {
                file: path,
                problem: "it is not valid UTF-8".to_owned(),
            }),
            None => settings
                .chat_template
                .as_ref()
                .map(|source| ChatTemplate::of_file(&settings.path, source, special_tokens))
                .transpose(),
        }
    }

    /// Whether the template's source holds a text, such as the name of a variable or a mark it writes.
    pub fn mentions(&self, text: &str) -> bool {
        self.source.contains(text)
    }

    /// The text of a conversation. With `add_generation_prompt` it ends where the assistant is to speak.
    ///
    /// # Errors
    /// As [`render_until`](Self::render_until).
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String, ModelError> {
        self.render_messages_until(messages, add_generation_prompt, &mut || ControlFlow::Continue(()))
    }

    /// As [`render`](Self::render); `poll` is asked every few milliseconds whether to go on.
    ///
    /// # Errors
    /// As [`render_until`](Self::render_until).
    pub fn render_messages_until(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
        poll: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<String, ModelError> {
        let messages = serde_json::to_value(messages).map_err(|error| self.broken(error.to_string()))?;
        self.render_until(&messages, add_generation_prompt, &serde_json::Map::new(), poll)
    }

    /// The text of a conversation whose messages may hold more than role and content, with further variables such as
    /// `tools` or `enable_thinking`.
    ///
    /// # Errors
    /// As [`render_until`](Self::render_until).
    pub fn render_with(
        &self,
        messages: &serde_json::Value,
        add_generation_prompt: bool,
        variables: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, ModelError> {
        self.render_until(messages, add_generation_prompt, variables, &mut || {
            ControlFlow::Continue(())
        })
    }

    /// As [`render_with`](Self::render_with); `poll` is asked every few milliseconds whether to go on.
    ///
    /// # Errors
    /// [`ModelError::Template`] when the template refuses the messages or fails, [`ModelError::TemplateLimit`] when it
    /// takes too long or too much memory, [`ModelError::TemplateInterrupted`] when `poll` breaks.
    pub fn render_until(
        &self,
        messages: &serde_json::Value,
        add_generation_prompt: bool,
        variables: &serde_json::Map<String, serde_json::Value>,
        poll: &mut dyn FnMut() -> ControlFlow<()>,
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
        sandbox::render(&self.file, &self.source, context, poll)
    }

    fn broken(&self, problem: String) -> ModelError {
        ModelError::Template {
            file: self.file.clone(),
            problem,
        }
    }
}

/// `{% generation %}` marks what the assistant said, for training; here it does nothing.
fn without_generation_marks(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        // The end stands behind the beginning: `{%}` is no tag.
        let Some(end) = tag[2..].find("%}").map(|end| end + 2) else {
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
