//! The index of signs of a sequence's keys, for estimates that read a tenth of the bytes of f16 keys.

use riffle_attention::{PageView, SignIndex};

use crate::keys::for_each_rows;

/// Signs of the keys up to the last whole segment.
#[derive(Default, Clone)]
pub(crate) struct SignKeys {
    index: SignIndex,
}

impl SignKeys {
    /// Adds the whole segments of the keys `self.tokens()..tokens`.
    pub(crate) fn extend(&mut self, pages: &[PageView<'_>], head_dim: usize, tokens: usize) {
        let whole = self.tokens()..tokens / SignIndex::SEGMENT * SignIndex::SEGMENT;
        for_each_rows(pages, head_dim, whole, SignIndex::SEGMENT, |_, rows| {
            let pushed = self.index.push(rows, head_dim);
            pushed.expect("a step is a segment, and pages are of one head_dim");
        });
    }

    /// Number of tokens in the index.
    pub(crate) fn tokens(&self) -> usize {
        self.index.tokens()
    }

    pub(crate) fn index(&self) -> &SignIndex {
        &self.index
    }

    /// Removes keys at and after `tokens`.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        self.index.truncate(tokens);
    }
}
