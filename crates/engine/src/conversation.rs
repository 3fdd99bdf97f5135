//! Messages as the text that the model reads.

use std::ops::ControlFlow;

use riffle_model::{ChatMessage, ConversationText};

use crate::{Engine, EngineError};

impl Engine {
    /// The text up to where the answer to `message` begins, behind `turns` of a message and its answer. The model's chat template makes it;
    /// `poll` is asked whether to go on rendering. Without a template messages and answers follow one another as they are, and a line
    /// ends behind each answer. Special tokens that messages and answers spell are text:
    /// [`Tokenizer::encode_conversation`](riffle_model::Tokenizer::encode_conversation) keeps them so.
    ///
    /// # Errors
    /// [`EngineError::NoChatTemplate`] for instructions (`system`) to a model without a template; failures of the template.
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
