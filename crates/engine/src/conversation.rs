//! Renders messages as the model's input text.

use std::ops::ControlFlow;

use riffle_model::{ChatMessage, ConversationText};

use crate::{Engine, EngineError};

impl Engine {
    /// The text up to the start of the answer to `message`, after `turns` of messages and answers. The model's chat
    /// template renders it; `poll` decides whether to continue. Without a template, messages and answers are
    /// concatenated, with a line feed after each answer. Special tokens spelt in messages and answers stay text in
    /// [`Tokenizer::encode_conversation`](riffle_model::Tokenizer::encode_conversation).
    ///
    /// # Errors
    /// [`EngineError::NoChatTemplate`] for instructions (`system`) to a model without a template; failures of the
    /// template.
    pub fn conversation_text<'t>(
        &self,
        system: Option<&str>,
        turns: impl IntoIterator<Item = (String, &'t str)>,
        message: &str,
        poll: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ConversationText, EngineError> {
        let Some(template) = self.chat_template() else {
            if system.is_some() {
                return Err(EngineError::NoChatTemplate(self.path().display().to_string()));
            }
            let mut text = ConversationText::default();
            for (message, answer) in turns {
                text.push_content(&format!("{message}{answer}\n"));
            }
            text.push_content(message);
            return Ok(text);
        };
        let system = system.map(|system| ChatMessage::new("system", system));
        let mut messages: Vec<ChatMessage> = system.into_iter().collect();
        for (message, answer) in turns {
            messages.push(ChatMessage::new("user", message));
            messages.push(ChatMessage::new("assistant", answer));
        }
        messages.push(ChatMessage::new("user", message));
        Ok(template.render_messages_until(&messages, true, poll)?)
    }
}
