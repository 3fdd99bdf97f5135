//! The text of a conversation with its read tokens.

use riffle_model::{ConversationText, ModelError, Tokenizer};
use serde::{Deserialize, Serialize};

/// A position in a transcript where a token and its text end together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// Bytes of the text before the mark.
    pub(crate) text: usize,
    /// Tokens before the mark.
    pub(crate) tokens: usize,
}

/// A text with its tokens, and positions where both correspond. Answers keep the tokens of the model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Transcript {
    text: String,
    tokens: Vec<u32>,
    /// Ascending; the first mark is the beginning.
    marks: Vec<Mark>,
}

impl Default for Transcript {
    fn default() -> Self {
        Self {
            text: String::new(),
            tokens: Vec::new(),
            marks: vec![Mark::default()],
        }
    }
}

impl Transcript {
    /// The last mark of the transcript.
    pub(crate) fn end(&self) -> Mark {
        self.marks.last().copied().unwrap_or_default()
    }

    /// True if lengths, marks and tokens of a loaded transcript are consistent. Tokens must be below `vocabulary`.
    pub(crate) fn is_sound(&self, vocabulary: usize) -> bool {
        let ascending = self.marks.is_sorted_by_key(|mark| (mark.text, mark.tokens));
        let fits = |mark: &Mark| mark.tokens <= self.tokens.len() && self.text.is_char_boundary(mark.text);
        let known = self.tokens.iter().all(|token| (*token as usize) < vocabulary);
        known && self.marks.first() == Some(&Mark::default()) && ascending && self.marks.iter().all(fits)
    }

    /// The tokens of `text`: the transcript's tokens for the common beginning; the rest is encoded. `add_special` is
    /// for texts without a template.
    pub(crate) fn tokens_of(
        &self,
        tokenizer: &Tokenizer,
        text: &ConversationText,
        add_special: bool,
    ) -> Result<Vec<u32>, ModelError> {
        let alike = common_bytes(&self.text, text.text());
        for mark in self.marks.iter().rev().filter(|mark| mark.text <= alike) {
            let rest = text.tail(mark.text);
            if mark.tokens == 0 {
                return tokenizer.encode_conversation(&rest, add_special);
            }
            let encoded = tokenizer.encode_conversation(&rest, false)?;
            // Some tokenizers change the beginning of a text, but this one continues another.
            if spells(tokenizer, &encoded, rest.text())? {
                return Ok([&self.tokens[..mark.tokens], &encoded].concat());
            }
        }
        tokenizer.encode_conversation(text, add_special)
    }

    /// Replaces the transcript by `text` and its `tokens`, from [`Self::tokens_of`].
    pub(crate) fn become_prompt(&mut self, text: String, tokens: Vec<u32>) {
        let alike = common_bytes(&self.text, &text);
        let same_tokens = self.tokens.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        self.marks
            .retain(|mark| mark.text <= alike && mark.tokens <= same_tokens);
        let end = Mark {
            text: text.len(),
            tokens: tokens.len(),
        };
        if self.end() != end {
            self.marks.push(end);
        }
        (self.text, self.tokens) = (text, tokens);
    }

    /// Adds an answer. If its tokens do not decode to its text, the next message encodes the text again.
    pub(crate) fn add_answer(&mut self, tokenizer: &Tokenizer, text: &str, tokens: &[u32]) -> Result<(), ModelError> {
        if tokens.is_empty() || !spells(tokenizer, tokens, text)? {
            return Ok(());
        }
        self.text.push_str(text);
        self.tokens.extend_from_slice(tokens);
        self.marks.push(Mark {
            text: self.text.len(),
            tokens: self.tokens.len(),
        });
        Ok(())
    }

    /// Forgets everything after a mark.
    pub(crate) fn cut(&mut self, mark: Mark) {
        self.marks
            .retain(|kept| kept.text <= mark.text && kept.tokens <= mark.tokens);
        let end = self.end();
        self.text.truncate(end.text);
        self.tokens.truncate(end.tokens);
    }
}

/// True if tokens in the middle of a text are exactly `text`.
fn spells(tokenizer: &Tokenizer, tokens: &[u32], text: &str) -> Result<bool, ModelError> {
    let mut rest = text.as_bytes();
    for token in tokens {
        let bytes = tokenizer.token_bytes(*token)?;
        match rest.strip_prefix(bytes.as_slice()) {
            Some(behind) => rest = behind,
            None => return Ok(false),
        }
    }
    Ok(rest.is_empty())
}

/// Length of the common beginning of two texts in bytes, up to a character boundary.
fn common_bytes(left: &str, right: &str) -> usize {
    let alike = left.bytes().zip(right.bytes()).take_while(|(a, b)| a == b).count();
    (0..=alike).rev().find(|at| left.is_char_boundary(*at)).unwrap_or(0)
}
