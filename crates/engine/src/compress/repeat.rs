//! The prompt that asks a model to repeat a chunk of its text.

use std::ops::Range;

use riffle_model::ChatMessage;

use crate::{Engine, EngineError};

/// Last tokens of the previous chunk, which show the model where to begin.
const LEAD_TOKENS: usize = 8;

const WHOLE: &str = "\n\nRepeat the previous context exactly.";
const PART: &str = "\n\nRepeat the part of the previous context exactly, starting with";

/// The tokens of a prompt that asks a model to repeat a chunk of its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepeatPrompt {
    /// The request for the first chunk.
    pub first: Vec<u32>,
    /// The request for a later chunk; the last tokens of the previous chunk follow.
    pub later: Vec<u32>,
    /// Text between the request and the chunk.
    pub behind: Vec<u32>,
}

impl RepeatPrompt {
    /// The words of the reference implementation of KVzip. Between the request and the chunk is a line feed. With a
    /// chat template, there are the tags that end the user's message and begin the answer.
    ///
    /// # Errors
    /// [`EngineError::NoTokenizer`], and errors of a chat template.
    pub fn for_engine(engine: &Engine) -> Result<Self, EngineError> {
        let tokenizer = engine.tokenizer()?;
        let behind = match engine.chat_template() {
            None => None,
            Some(template) => {
                let message = WHOLE.trim();
                let text = template.render(&[ChatMessage::new("user", message)], true)?.into_text();
                text.rsplit_once(message).map(|(_, behind)| behind.to_owned())
            }
        };
        let encode = |text: &str| tokenizer.encode(text, false);
        Ok(Self {
            first: encode(WHOLE)?,
            later: encode(PART)?,
            behind: encode(behind.as_deref().unwrap_or("\n"))?,
        })
    }

    /// The request for a chunk of a text, and the chunk itself.
    pub(crate) fn tokens(&self, text: &[u32], chunk: Range<usize>) -> Vec<u32> {
        let (request, lead) = match chunk.start {
            0 => (&self.first, 0..0),
            start => (&self.later, start.saturating_sub(LEAD_TOKENS)..start),
        };
        [request, &text[lead], &self.behind, &text[chunk]].concat()
    }
}
