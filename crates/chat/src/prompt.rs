//! Renders a conversation as the model's prompt.

use std::ops::ControlFlow;

use riffle_documents::framed;
use riffle_engine::Engine;
use riffle_model::ConversationText;

use crate::branch::{Document, Turn};
use crate::error::ChatError;

/// Placeholder for an unknown message.
const MESSAGE_TO_COME: &str = "\u{2}message\u{3}";

/// Called while a template renders; may stop it.
type Poll<'a> = dyn FnMut() -> ControlFlow<()> + 'a;

/// The text up to the beginning of the answer to `message`.
pub(crate) fn prompt_text(
    engine: &Engine,
    system: Option<&str>,
    turns: &[Turn],
    message: &str,
    poll: &mut Poll<'_>,
) -> Result<ConversationText, ChatError> {
    let has_template = engine.chat_template().is_some();
    let turns = turns.iter().map(|turn| {
        let message = with_documents(&turn.documents, &turn.message, has_template);
        (message, turn.answer.as_str())
    });
    Ok(engine.conversation_text(system, turns, message, poll)?)
}

/// The text up to the message after `documents`; `None` if the template changes it with the message.
pub(crate) fn text_before_message(
    engine: &Engine,
    system: Option<&str>,
    turns: &[Turn],
    documents: &[Document],
    poll: &mut Poll<'_>,
) -> Result<Option<ConversationText>, ChatError> {
    let message = with_documents(documents, MESSAGE_TO_COME, engine.chat_template().is_some());
    let mut text = prompt_text(engine, system, turns, &message, poll)?;
    let at = text.text().rfind(MESSAGE_TO_COME);
    Ok(at.map(|at| {
        text.truncate(at);
        text
    }))
}

/// A message after its documents.
pub(crate) fn with_documents(documents: &[Document], message: &str, has_template: bool) -> String {
    let documents = documents.iter();
    let text = documents.map(|document| framed(&document.name, &document.text, has_template));
    text.collect::<String>() + message
}
