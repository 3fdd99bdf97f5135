//! The indexer of DeepSeek sparse attention (arXiv:2512.02556): small queries and keys, whose products rank the
//! tokens that a layer reads.

use super::{Norm, Projection, Rotary};
use crate::SegmentPart;
use crate::config::IndexerShape;

/// The weights of a layer's own indexer. The caller computes scores and chooses tokens as described in
/// [`IndexerShape`].
pub struct Indexer {
    /// Its sizes.
    pub shape: IndexerShape,
    /// From the narrow queries of latent attention ([`LatentQuery::narrow`](super::LatentQuery::narrow)) to `[heads, width]`.
    pub query: Projection,
    /// From the layer's normalised input to `[width]`.
    pub key: Projection,
    /// The norm of keys.
    pub key_norm: Norm,
    /// From the layer's normalised input to one weight per head, `[heads]`.
    pub weights: Projection,
}

/// Output buffers of the indexer for some rows.
pub(crate) struct IndexedRows<'a> {
    /// `[rows, heads, width]`.
    pub(crate) queries: &'a mut [f32],
    /// `[rows, heads]`.
    pub(crate) weights: &'a mut [f32],
    /// `[rows, width]`.
    pub(crate) keys: &'a mut [f32],
}

impl Indexer {
    /// Writes queries, weights and keys of normalised rows, `[rows, hidden]`, whose narrow queries are `[rows,
    /// rank]`. Rotates the first elements of queries and keys by `angles`, `[rows, 2, rotary_dim / 2]`.
    pub(super) fn apply(
        &self,
        (input, narrow, parts): (&[f32], &[f32], &[SegmentPart]),
        (angles, rotary_dim): (&[f32], usize),
        rows: IndexedRows<'_>,
    ) {
        let width = self.shape.width;
        self.query.apply(narrow, rows.queries, parts);
        self.weights.apply(input, rows.weights, parts);
        self.key.apply(input, rows.keys, parts);
        super::rows::for_rows(rows.keys, width, |_, key| self.key_norm.apply_in_place(key));
        for (heads, stride) in [(rows.queries, self.shape.heads * width), (rows.keys, width)] {
            super::rows::for_rows(heads, stride, |row, heads| {
                let (cosines, sines) = angles[row * rotary_dim..][..rotary_dim].split_at(rotary_dim / 2);
                heads
                    .chunks_exact_mut(width)
                    .for_each(|head| Rotary::turn(head, cosines, sines));
            });
        }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.query.bytes() + self.key.bytes() + self.key_norm.bytes() + self.weights.bytes()
    }
}
