//! Chat templates: convert messages to the text format of a model's training.

//!
//! A template is a program from the author of a model file. It runs on a separate thread within the limits of
//! `limits.rs`: `guard.rs` meters its operators, `costs.rs` its filters and functions, `meter.rs` counts.

mod containers;
mod costs;
mod functions;
mod guard;
mod limits;
mod literals;
mod meter;
mod namespace;
mod operators;
mod python;
mod sandbox;
mod strings;
mod text;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use literals::ControlTexts;
use serde::Serialize;

use crate::fields::read_text_file;
use crate::tokenizer::TokenizerSettings;
use crate::{ModelError, Tokenizer};

pub use limits::TemplateLimit;
pub use text::ConversationText;

const TEMPLATE_FILE: &str = "chat_template.jinja";
const TEMPLATE_FOLDER: &str = "additional_chat_templates";
pub(crate) const DEFAULT_NAME: &str = "default";

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// The role: `system`, `user`, `assistant`.
    pub role: String,
    /// The text of the message.
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

/// A model's chat template. Rendering is bounded in time and memory for any template; see [`TemplateLimit`].
///
/// Control tokens spelt in messages and variables stay plain text; [`ConversationText`] records their positions. A
/// model may have separate templates for conversations with tools (`tool_use`) and with documents (`rag`), which are
/// used if these are given.
#[derive(Debug)]
pub struct ChatTemplate {
    default: Source,
    tool_use: Option<Source>,
    rag: Option<Source>,
    special_tokens: Vec<(String, String)>,
    control: ControlTexts,
}

/// A template's text and its file.
#[derive(Debug)]
struct Source {
    file: PathBuf,
    text: String,
}

/// A template in a model's files.
pub(crate) struct NamedTemplate {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    pub(crate) text: String,
}

impl Source {
    /// The text as Jinja reads it, after a check.
    fn read(file: &Path, text: &str) -> Result<Source, ModelError> {
        let text = without_generation_marks(&with_plain_line_ends(text));
        sandbox::check(file, &text)?;
        let file = file.to_owned();
        Ok(Source { file, text })
    }

    fn broken(&self, problem: String) -> ModelError {
        ModelError::Template {
            file: self.file.clone(),
            problem,
        }
    }
}

impl ChatTemplate {
    /// Checks a template; `special_tokens` are variables it may use, such as `bos_token`.
    ///
    /// # Errors
    /// [`ModelError::Template`] for invalid templates, [`ModelError::TemplateLimit`] for too long ones.
    pub fn new(source: &str, special_tokens: Vec<(String, String)>) -> Result<ChatTemplate, ModelError> {
        Ok(ChatTemplate {
            default: Source::read(Path::new(TEMPLATE_FILE), source)?,
            tool_use: None,
            rag: None,
            special_tokens,
            control: ControlTexts::default(),
        })
    }

    /// The templates of a model; the first counts as `default` if none has this name. `None` if there is none.
    pub(crate) fn of_templates(
        templates: &[NamedTemplate],
        special_tokens: Vec<(String, String)>,
    ) -> Result<Option<ChatTemplate>, ModelError> {
        let named = |name: &str| templates.iter().find(|template| template.name == name);
        let read = |template: &NamedTemplate| Source::read(&template.file, &template.text);
        let Some(default) = named(DEFAULT_NAME).or(templates.first()) else {
            return Ok(None);
        };
        Ok(Some(ChatTemplate {
            default: read(default)?,
            tool_use: named("tool_use").map(read).transpose()?,
            rag: named("rag").map(read).transpose()?,
            special_tokens,
            control: ControlTexts::default(),
        }))
    }

    /// The templates of a directory: chat_template.jinja and additional_chat_templates, else tokenizer_config.json's.
    pub(crate) fn from_directory(
        directory: &Path,
        settings: TokenizerSettings,
    ) -> Result<Option<ChatTemplate>, ModelError> {
        let templates = named_templates(directory, &settings)?;
        ChatTemplate::of_templates(&templates, settings.special_tokens)
    }

    /// Names and texts of the templates of a directory.
    pub(crate) fn sources(directory: &Path, settings: TokenizerSettings) -> Result<Vec<(String, String)>, ModelError> {
        let templates = named_templates(directory, &settings)?;
        Ok(templates
            .into_iter()
            .map(|template| (template.name, template.text))
            .collect())
    }

    /// Adds the model's tokenizer, so that control tokens spelt in messages stay text. Without a tokenizer, a
    /// template has no control tokens.
    pub fn with_tokenizer(mut self, tokenizer: &Tokenizer) -> ChatTemplate {
        self.control = ControlTexts::new(tokenizer.control_texts());
        self
    }

    /// True if one of the model's templates contains a text, such as the name of a variable or a tag.
    pub fn mentions(&self, text: &str) -> bool {
        self.texts().any(|own| own.contains(text))
    }

    /// The texts of the model's templates.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        let sources = [Some(&self.default), self.tool_use.as_ref(), self.rag.as_ref()];
        sources.into_iter().flatten().map(|source| source.text.as_str())
    }

    /// The template for a conversation with these variables.
    fn source(&self, variables: &serde_json::Map<String, serde_json::Value>) -> &Source {
        let is_given = |name: &str| variables.get(name).is_some_and(|value| !value.is_null());
        let tool_use = self.tool_use.as_ref().filter(|_| is_given("tools"));
        let rag = self.rag.as_ref().filter(|_| is_given("documents"));
        tool_use.or(rag).unwrap_or(&self.default)
    }

    /// The text of a conversation. With `add_generation_prompt` it ends where the assistant's answer begins.
    ///
    /// # Errors
    /// As [`render_until`](Self::render_until).
    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<ConversationText, ModelError> {
        self.render_messages_until(messages, add_generation_prompt, &mut || ControlFlow::Continue(()))
    }

    /// As [`render`](Self::render); every few milliseconds `poll` decides whether to continue.
    ///
    /// # Errors
    /// As [`render_until`](Self::render_until).
    pub fn render_messages_until(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
        poll: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ConversationText, ModelError> {
        let messages = serde_json::to_value(messages).map_err(|error| self.default.broken(error.to_string()))?;
        self.render_until(&messages, add_generation_prompt, &serde_json::Map::new(), poll)
    }

    /// The text of a conversation. Its messages may have fields beside role and content. There may be further
    /// variables, such as `tools` or `enable_thinking`.
    ///
    /// # Errors
    /// As [`render_until`](Self::render_until).
    pub fn render_with(
        &self,
        messages: &serde_json::Value,
        add_generation_prompt: bool,
        variables: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<ConversationText, ModelError> {
        self.render_until(messages, add_generation_prompt, variables, &mut || {
            ControlFlow::Continue(())
        })
    }

    /// As [`render_with`](Self::render_with); every few milliseconds `poll` decides whether to continue.
    ///
    /// # Errors
    /// [`ModelError::Template`] when the template refuses the messages or fails, [`ModelError::TemplateLimit`] when
    /// it takes too long or too much memory, [`ModelError::TemplateInterrupted`] when `poll` breaks.
    pub fn render_until(
        &self,
        messages: &serde_json::Value,
        add_generation_prompt: bool,
        variables: &serde_json::Map<String, serde_json::Value>,
        poll: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ConversationText, ModelError> {
        let source = self.source(variables);
        let mut context = variables.clone();
        context.insert("messages".into(), messages.clone());
        let sentinel = self.control.mark(&mut context, &[&source.text]);
        let sentinel = sentinel.map_err(|problem| source.broken(problem))?;
        for (name, text) in &self.special_tokens {
            context.entry(name).or_insert_with(|| text.clone().into());
        }
        for name in ["tools", "documents"] {
            context.entry(name).or_insert(serde_json::Value::Null);
        }
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let text = sandbox::render(&source.file, &source.text, context, sentinel, poll)?;
        Ok(match sentinel {
            Some(sentinel) => ConversationText::without_sentinels(&text, sentinel),
            None => text.into(),
        })
    }
}

/// Normalises line ends as Jinja does: each becomes a line feed, and one at the end of the template is dropped.
fn with_plain_line_ends(source: &str) -> String {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    source
}

/// Removes `{% generation %}`, which marks the assistant's text for training and has no effect here.
fn without_generation_marks(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        // The end must come after the start: `{%}` is not a tag.
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
/// The templates of a directory: chat_template.jinja and additional_chat_templates, else tokenizer_config.json's.
fn named_templates(directory: &Path, settings: &TokenizerSettings) -> Result<Vec<NamedTemplate>, ModelError> {
    let mut templates = Vec::new();
    let folder = directory.join(TEMPLATE_FOLDER);
    for (name, path) in [
        (DEFAULT_NAME, directory.join(TEMPLATE_FILE)),
        ("tool_use", folder.join("tool_use.jinja")),
        ("rag", folder.join("rag.jinja")),
    ] {
        let Some(bytes) = read_text_file(&path)? else { continue };
        let text = String::from_utf8(bytes).map_err(|_| ModelError::Template {
            file: path.clone(),
            problem: "it is not valid UTF-8".to_owned(),
        })?;
        templates.push(NamedTemplate {
            name: name.to_owned(),
            file: path,
            text,
        });
    }
    let has_default = templates.iter().any(|template| template.name == DEFAULT_NAME);
    let of_settings = settings.chat_templates.iter().cloned();
    if !has_default {
        // Files come before the list, so that they take precedence.
        templates.extend(of_settings.map(|(name, text)| NamedTemplate {
            name,
            file: settings.path.clone(),
            text,
        }))
    }
    Ok(templates)
}
