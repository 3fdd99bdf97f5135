//! A conversation as the text that the model reads.

use std::ops::ControlFlow;

use riffle_engine::{Engine, EngineError};
use riffle_model::ChatMessage;

use crate::branch::{Document, Turn};
use crate::error::ChatError;

/// Stands for a message that is not known yet.
const MESSAGE_TO_COME: &str = "\u{2}message\u{3}";

/// Asked, while a template is rendered, whether to go on.
type Poll<'a> = dyn FnMut() -> ControlFlow<()> + 'a;

/// The text up to where the answer to `message` begins. Without a template messages and answers follow one another as they are, and a line
/// ends behind each answer.
pub(crate) fn prompt_text(
    engine: &Engine,
    system: Option<&str>,
    turns: &[Turn],
    message: &str,
    poll: &mut Poll<'_>,
) -> Result<String, ChatError> {
    let Some(template) = engine.chat_template() else {
        if system.is_some() {
            return Err(EngineError::NoChatTemplate(engine.path().display().to_string()).into());
        }
        let mut text = String::new();
        for turn in turns {
            text += &with_documents(&turn.documents, &turn.message, false);
            text += &turn.answer;
            text.push('\n');
        }
        return Ok(text + message);
    };
    let mut messages: Vec<ChatMessage> = system
        .map(|system| ChatMessage::new("system", system))
        .into_iter()
        .collect();
    for turn in turns {
        messages.push(ChatMessage::new(
            "user",
            with_documents(&turn.documents, &turn.message, true),
        ));
        messages.push(ChatMessage::new("assistant", &turn.answer));
    }
    messages.push(ChatMessage::new("user", message));
    Ok(template.render_messages_until(&messages, true, poll)?)
}

/// The text up to where the message behind `documents` will stand; `None` where the template does not leave it as it is.
pub(crate) fn text_before_message(
    engine: &Engine,
    system: Option<&str>,
    turns: &[Turn],
    documents: &[Document],
    poll: &mut Poll<'_>,
) -> Result<Option<String>, ChatError> {
    let message = with_documents(documents, MESSAGE_TO_COME, engine.chat_template().is_some());
    let mut text = prompt_text(engine, system, turns, &message, poll)?;
    let at = text.rfind(MESSAGE_TO_COME);
    Ok(at.map(|at| {
        text.truncate(at);
        text
    }))
}

/// A message behind the texts that belong to it. Their names are said where a template makes it a conversation.
pub(crate) fn with_documents(documents: &[Document], message: &str, says_names: bool) -> String {
    let mut text = String::new();
    for document in documents {
        let body = document.text.trim_end();
        text += &match says_names {
            true => format!(
                "The file {}:\n\n{body}\n\nThe end of {}.\n\n",
                document.name, document.name
            ),
            false => format!("{body}\n"),
        };
    }
    text + message
}
