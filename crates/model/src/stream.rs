//! Decodes tokens one by one.

use crate::{ModelError, Tokenizer};

const REPLACEMENT: char = '\u{fffd}';

/// Decodes tokens to text as they arrive.
///
/// Bytes of an incomplete character are held back until it is complete. The joined pieces equal [`Tokenizer::decode`]
/// of all tokens.
#[derive(Debug, Clone, Default)]
pub struct StreamDecoder {
    /// The last tokens: one whose text is already returned, as context, then the held-back ones.
    window: Vec<u32>,
    /// Bytes of the window's text already returned.
    emitted: usize,
}

impl StreamDecoder {
    /// Adds a token and returns the text that is now certain, often empty.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, ModelError> {
        // As context, a special token would look like the start of the text.
        if tokenizer.is_special(id) {
            return Ok(String::new());
        }
        self.window.push(id);
        let text = tokenizer.decode(&self.window)?;
        if tokenizer.is_open(id, &text) {
            // Only the last replacement character can belong to an incomplete character.
            let certain = if tokenizer.has_byte_runs() {
                self.emitted
            } else {
                text.len() - REPLACEMENT.len_utf8()
            };
            return Ok(self.take(&text, certain));
        }
        let piece = self.take(&text, text.len());
        let context = tokenizer.decode(&[id])?;
        if !context.is_empty() {
            self.window = vec![id];
            self.emitted = context.len();
        }
        Ok(piece)
    }

    /// Returns the held-back text and resets the decoder.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, ModelError> {
        let text = tokenizer.decode(&self.window)?;
        let rest = self.take(&text, text.len());
        self.window.clear();
        self.emitted = 0;
        Ok(rest)
    }

    /// Returns the text up to byte `end` that was not returned before.
    fn take(&mut self, text: &str, end: usize) -> String {
        let piece = text.get(self.emitted..end).unwrap_or_default().to_owned();
        self.emitted = self.emitted.max(end);
        piece
    }
}
