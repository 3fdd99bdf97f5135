//! An index of the signs of a head's keys; estimates read a tenth of the bytes of f16 keys.

use riffle_attention::{PageView, SignIndex};

use crate::keys::for_each_rows;

/// The signs of a head's keys up to the last whole segment ([`SignIndex`]), and the latest keys themselves.
///
/// A caller keeps one for a layer and KV head, extends it as pages fill, and passes it to the policies of both phases
/// ([`SelectContext::signs`](crate::SelectContext::signs)). A clone shares the memory of earlier keys.
#[derive(Debug, Default, Clone)]
pub struct SignKeys {
    index: SignIndex,
    head_dim: usize,
    /// The last keys, `[tokens, head_dim]`, from the beginning of a segment on: at most those of the last whole segment
    /// and of the incomplete one.
    latest: Vec<f32>,
}

impl SignKeys {
    /// Adds the keys `self.tokens()..tokens`, of `head_dim` elements, from pages in order. Pages with earlier keys alone
    /// may be missing.
    pub fn extend(&mut self, pages: &[PageView<'_>], head_dim: usize, tokens: usize) {
        self.head_dim = head_dim;
        for_each_rows(pages, head_dim, self.tokens()..tokens, SignIndex::SEGMENT, |_, rows| {
            self.latest.extend_from_slice(rows);
            if self.rest() == 0 {
                self.latest.drain(..self.latest.len() - SignIndex::SEGMENT * head_dim);
                let pushed = self.index.push(&mut self.latest.clone(), head_dim);
                pushed.expect("these keys are a segment, and pages are of one head_dim");
            }
        });
    }

    /// Number of tokens with added keys.
    pub fn tokens(&self) -> usize {
        self.index.tokens() + self.rest()
    }

    /// Most bytes for `tokens` keys of `head_dim` elements: the index, and the latest keys in f32.
    pub fn most_bytes(tokens: usize, head_dim: usize) -> f64 {
        let latest = (2 * SignIndex::SEGMENT).min(tokens) * head_dim * size_of::<f32>();
        SignIndex::bytes_per_token(head_dim) * tokens as f64 + latest as f64
    }

    /// The keys from the beginning of the segment of `position` up to `position`, `[tokens, head_dim]`. `None` if they
    /// are no longer kept: at least the latest segment is.
    pub fn own_segment(&self, position: usize) -> Option<&[f32]> {
        let first = position / SignIndex::SEGMENT * SignIndex::SEGMENT;
        let kept = self.first_kept();
        let range = first.checked_sub(kept)? * self.head_dim..(position + 1 - kept) * self.head_dim;
        self.latest.get(range)
    }

    /// Position of the first key that is kept.
    fn first_kept(&self) -> usize {
        self.tokens() - self.kept()
    }

    /// Number of keys that are kept.
    fn kept(&self) -> usize {
        self.latest.len() / self.head_dim.max(1)
    }

    /// Number of keys in the incomplete segment.
    fn rest(&self) -> usize {
        self.kept() % SignIndex::SEGMENT
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
            head_dim,
            ..Self::default()
        })
    }

    /// The index of the whole segments.
    pub fn index(&self) -> &SignIndex {
        &self.index
    }

    /// Removes keys at and after `tokens`. Keys of a segment that becomes incomplete are read again, if they are no
    /// longer kept.
    pub fn truncate(&mut self, tokens: usize) {
        if tokens >= self.tokens() {
            return;
        }
        let kept = self.first_kept();
        self.index.truncate(tokens);
        if kept <= self.index.tokens() {
            self.latest.truncate((tokens - kept) * self.head_dim);
        } else {
            self.latest.clear();
        }
    }
}
