//! Prompts as tokens.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use riffle_engine::{Engine, EngineError};
use riffle_model::ConversationText;
use serde_json::{Map, Value};

use crate::app::{App, aside};
use crate::failure::Failure;
use crate::fields::{Fields, unexpected};

/// A conversation to be put into the model's words.
#[derive(Debug, Clone, Default)]
pub(crate) struct Conversation {
    /// Messages as templates take them.
    pub(crate) messages: Vec<Value>,
    /// Tools in OpenAI's shape; empty where there are none.
    pub(crate) tools: Vec<Value>,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
    /// Whether the last message is the beginning of the answer.
    pub(crate) goes_on: bool,
    /// Whether the text ends with the last message, and not where the assistant is to speak.
    pub(crate) ends_with_message: bool,
}

/// A prompt, and its end as text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Whether the prompt ends inside a thought that the answer goes on with.
    pub(crate) is_thinking: bool,
}

/// Takes `chat_template_kwargs`.
pub(crate) fn take_variables(fields: &mut Fields) -> Result<Map<String, Value>, Failure> {
    match fields.value("chat_template_kwargs") {
        None => Ok(Map::new()),
        Some(Value::Object(variables)) => Ok(variables),
        Some(other) => Err(unexpected("chat_template_kwargs", "an object", &other)),
    }
}

/// The tokens of a text.
pub(crate) async fn encode(app: &Arc<App>, text: String, add_special: bool) -> Result<Vec<u32>, Failure> {
    let engine = Arc::clone(&app.engine);
    aside(move || encode_now(&engine, &text, add_special)).await
}

pub(crate) fn encode_now(engine: &Engine, text: &str, add_special: bool) -> Result<Vec<u32>, Failure> {
    let encode = || Ok(engine.tokenizer()?.encode(text, add_special)?);
    encode().map_err(|error: EngineError| Failure::of(&error))
}

/// The text of a conversation in the model's template; without one the texts of its messages, one after the other.
pub(crate) async fn render(app: &Arc<App>, conversation: Conversation) -> Result<ConversationText, Failure> {
    let (engine, until) = (
        Arc::clone(&app.engine),
        Instant::now() + app.options.limits.request_time,
    );
    aside(move || render_now(&engine, conversation, until)).await
}

fn render_now(engine: &Engine, conversation: Conversation, until: Instant) -> Result<ConversationText, Failure> {
    let Conversation {
        mut messages,
        tools,
        mut variables,
        goes_on,
        ends_with_message,
    } = conversation;
    let Some(template) = engine.chat_template() else {
        if !tools.is_empty() {
            return Err(Failure::field(
                "tools",
                "this model has no chat template that could show it tools",
            ));
        }
        let mut text = ConversationText::default();
        for (number, message) in messages.iter().enumerate() {
            text.push_content(if number > 0 { "\n" } else { "" });
            text.push_content(message["content"].as_str().unwrap_or(""));
        }
        return Ok(text);
    };
    if !tools.is_empty() {
        if !template.mentions("tools") {
            return Err(Failure::field(
                "tools",
                "this model's chat template has no place for tools: use a model that was trained to call them",
            ));
        }
        variables.insert("tools".to_owned(), Value::Array(tools));
    }
    let beginning = match goes_on {
        true => messages.pop(),
        false => None,
    };
    let mut poll = || match Instant::now() < until {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    };
    let text = template.render_until(&Value::Array(messages), !ends_with_message, &variables, &mut poll);
    let mut text = text.map_err(|error| Failure::field("messages", error.to_string().replace('\n', " ")))?;
    if let Some(beginning) = beginning {
        text.push_content(beginning["content"].as_str().unwrap_or(""));
    }
    Ok(text)
}

/// The prompt of a conversation.
pub(crate) async fn prompt(app: &Arc<App>, conversation: Conversation) -> Result<Prompt, Failure> {
    let text = render(app, conversation).await?;
    let is_thinking = app.markup.ends_thinking(text.text());
    // A template writes the special tokens itself.
    let add_special = app.engine.chat_template().is_none();
    let engine = Arc::clone(&app.engine);
    let encode = move || Ok(engine.tokenizer()?.encode_conversation(&text, add_special)?);
    let tokens = aside(move || encode().map_err(|error: EngineError| Failure::of(&error))).await?;
    Ok(Prompt { tokens, is_thinking })
}
