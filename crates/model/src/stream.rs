//! Text of tokens that arrive one by one.

use crate::{ModelError, Tokenizer};

const REPLACEMENT: char = '\u{fffd}';

/// Turns tokens into text as they come.
///
/// Bytes of an unfinished character are held back until the character is whole. The pieces, joined, are exactly
/// [`Tokenizer::decode`] of all tokens.
#[derive(Debug, Clone, Default)]
pub struct StreamDecoder {
    /// The last tokens: one whose text is out already, as context, then those that are held back.
    window: Vec<u32>,
    /// Bytes of the window's text that are out already.
    emitted: usize,
}

impl StreamDecoder {
    /// Takes the next token and returns the text that is certain now, often empty.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, ModelError> {
        // As context a special token would look like the beginning of the text.
        if tokenizer.is_special(id) {
            return Ok(String::new());
        }
        self.window.push(id);
        let text = tokenizer.decode(&self.window)?;
        if tokenizer.is_open(id, &text) {
            // Only the last replacement character can stand for a character that is still unfinished.
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

    /// Returns what is still held back; the decoder is as new afterwards.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, ModelError> {
        let text = tokenizer.decode(&self.window)?;
        let rest = self.take(&text, text.len());
        self.window.clear();
        self.emitted = 0;
        Ok(rest)
    }

    /// The text from what is out already up to byte `end`.
    fn take(&mut self, text: &str, end: usize) -> String {
        let piece = text.get(self.emitted..end).unwrap_or_default().to_owned();
        self.emitted = self.emitted.max(end);
        piece
    }
}
