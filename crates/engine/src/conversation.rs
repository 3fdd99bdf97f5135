//! Messages as the text that the model reads.

use std::ops::ControlFlow;

use riffle_model::ChatMessage;

use crate::{Engine, EngineError};

impl Engine {
    /// The text up to where the answer to `message` begins, behind `turns` of a message and its answer. The model's chat template makes it;
    /// `poll` is asked whether to go on rendering. Without a template messages and answers follow one another as they are, and a line
    /// ends behind each answer.
    ///
    /// # Errors
    /// [`EngineError::NoChatTemplate`] for instructions (`system`) to a model without a template; failures of the template.
    pub fn conversation_text<'t>(
        &self,
        system: Option<&str>,
        turns: impl IntoIterator<Item = (String, &'t str)>,
        message: &str,
        poll: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<String, EngineError> {
        let Some(template) = self.chat_template() else {
            if system.is_some() {
                return Err(EngineError::NoChatTemplate(self.path().display().to_string()));
            }
            let before: String = turns
                .into_iter()
                .map(|(message, answer)| format!("{message}{answer}\n"))
                .collect();
            return Ok(before + message);
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
