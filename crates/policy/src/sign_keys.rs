//! An index of the signs of a head's keys; estimates read a tenth of the bytes of f16 keys.

use riffle_attention::{PageView, SignIndex};

use crate::keys::for_each_rows;

/// The signs of a head's keys up to the last whole segment ([`SignIndex`]), and the keys after it.
///
/// A caller keeps one for a layer and KV head, extends it as pages fill, and passes it to the policies of both phases
/// ([`SelectContext::signs`](crate::SelectContext::signs)). A clone shares the memory of earlier keys.
#[derive(Debug, Default, Clone)]
pub struct SignKeys {
    index: SignIndex,
    head_dim: usize,
    /// Keys of the last, incomplete segment, `[tokens, head_dim]`.
    rest: Vec<f32>,
}

impl SignKeys {
    /// Adds the keys `self.tokens()..tokens`, of `head_dim` elements, from pages in order. Pages with earlier keys alone
    /// may be missing.
    pub fn extend(&mut self, pages: &[PageView<'_>], head_dim: usize, tokens: usize) {
        self.head_dim = head_dim;
        for_each_rows(pages, head_dim, self.tokens()..tokens, SignIndex::SEGMENT, |_, rows| {
            self.rest.extend_from_slice(rows);
            if self.rest.len() == SignIndex::SEGMENT * head_dim {
                let pushed = self.index.push(&mut self.rest, head_dim);
                pushed.expect("these keys are a segment, and pages are of one head_dim");
                self.rest.clear();
            }
        });
    }

    /// Number of tokens with added keys.
    pub fn tokens(&self) -> usize {
        self.index.tokens() + self.rest.len() / self.head_dim.max(1)
    }

    /// The index as bytes. The keys after the last whole segment are read again.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.index.to_bytes()
    }

    /// Restores from the bytes of [`to_bytes`](Self::to_bytes); `None` for other bytes, or keys of another width.
    pub fn from_bytes(bytes: &[u8], head_dim: usize) -> Option<Self> {
        let index = SignIndex::from_bytes(bytes).ok()?;
        (index.tokens() == 0 || index.head_dim() == head_dim).then(|| Self {
            index,
            ..Self::default()
        })
    }

    /// The index of the whole segments.
    pub fn index(&self) -> &SignIndex {
        &self.index
    }

    /// Removes keys at and after `tokens`.
    pub fn truncate(&mut self, tokens: usize) {
        let kept = tokens.saturating_sub(self.index.tokens());
        self.rest.truncate(kept * self.head_dim);
        self.index.truncate(tokens);
    }
}
