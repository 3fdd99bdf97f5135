//! The indexer of DeepSeek sparse attention (arXiv:2512.02556) and of Qwen4-Exp: small queries and keys, whose products
//! rank the tokens, or blocks of tokens, that a layer reads.

use std::sync::Arc;

use super::{Norm, Projection, Rotary};
use crate::SegmentPart;
use crate::config::IndexerShape;

/// The weights of a layer's own indexer. The caller computes scores and chooses tokens as described in
/// [`IndexerShape`].
pub struct Indexer {
    /// Sizes of the indexer.
    pub shape: IndexerShape,
    /// Projection to `[heads, width]`: from the narrow queries of latent attention
    /// ([`LatentQuery::narrow`](super::LatentQuery::narrow)), and in other layers from the normalised input.
    pub query: Projection,
    /// The norm of each query head, `[width]`.
    pub query_norm: Option<Norm>,
    /// Projection from the layer's normalised input to `[width]`.
    pub key: Projection,
    /// The form of the keys after the projection.
    pub keys: IndexerKeys,
    /// Projection from the layer's normalised input to one weight per head, `[heads]`. Without it all weights are
    /// `width^-1/2`.
    pub weights: Option<Projection>,
}

/// The form of an indexer's keys.
#[derive(Debug)]
pub enum IndexerKeys {
    /// A key per token: normalised, and rotated to its position.
    Tokens(Norm),
    /// A key per block of tokens, from the projected keys of all its tokens.
    Blocks(BlockKeys),
}

/// The key of a block: the mean of its tokens' keys, normalised and rotated to the position of the first.
#[derive(Debug)]
pub struct BlockKeys {
    /// The norm of means, `[width]`.
    pub norm: Norm,
    /// The rotation of the layer's own queries and keys, which does not depend on the length of a text.
    pub rotary: Arc<Rotary>,
}

impl BlockKeys {
    /// Writes the key of a block to `output`, `[width]`, from the keys of its tokens, `[tokens, width]`. The first
    /// token has the position `position`.
    ///
    /// # Panics
    /// When `keys` is empty or `output` has another width than the norm.
    pub fn write(&self, keys: &[f32], position: usize, output: &mut [f32]) {
        output.fill(0.0);
        for key in keys.chunks_exact(output.len()) {
            output.iter_mut().zip(key).for_each(|(sum, value)| *sum += value);
        }
        let tokens = (keys.len() / output.len()) as f32;
        output.iter_mut().for_each(|sum| *sum /= tokens);
        self.norm.apply_in_place(output);
        let mut angles = vec![0.0; self.rotary.dim()];
        self.rotary.angles(position + 1, position, &mut angles);
        let (cosines, sines) = angles.split_at(angles.len() / 2);
        Rotary::turn(output, cosines, sines);
    }
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
    /// Writes queries, weights and keys of normalised rows, `[rows, hidden]`, whose narrow queries are `[rows, rank]`.
    /// Rotates the first elements of queries, and of keys of tokens, by `angles`, `[rows, 2, rotary_dim / 2]`.
    pub(super) fn apply(
        &self,
        (input, narrow, parts): (&[f32], &[f32], &[SegmentPart]),
        (angles, rotary_dim): (&[f32], usize),
        rows: IndexedRows<'_>,
    ) {
        let width = self.shape.width;
        self.query.apply(narrow, rows.queries, parts);
        self.key.apply(input, rows.keys, parts);
        match &self.weights {
            Some(weights) => weights.apply(input, rows.weights, parts),
            None => rows.weights.fill((width as f32).sqrt().recip()),
        }
        let finish = |heads: &mut [f32], stride: usize, norm: Option<&Norm>| {
            super::rows::for_rows(heads, stride, |row, heads| {
                let (cosines, sines) = angles[row * rotary_dim..][..rotary_dim].split_at(rotary_dim / 2);
                for head in heads.chunks_exact_mut(width) {
                    if let Some(norm) = norm {
                        norm.apply_in_place(head);
                    }
                    Rotary::turn(head, cosines, sines);
                }
            });
        };
        finish(rows.queries, self.shape.heads * width, self.query_norm.as_ref());
        if let IndexerKeys::Tokens(norm) = &self.keys {
            finish(rows.keys, width, Some(norm));
        }
    }

    /// The rule for keys of blocks, if it ranks blocks.
    pub fn block_keys(&self) -> Option<&BlockKeys> {
        match &self.keys {
            IndexerKeys::Tokens(_) => None,
            IndexerKeys::Blocks(keys) => Some(keys),
        }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let (IndexerKeys::Tokens(key_norm) | IndexerKeys::Blocks(BlockKeys { norm: key_norm, .. })) = &self.keys;
        let norms = key_norm.bytes() + self.query_norm.as_ref().map_or(0, Norm::bytes);
        self.query.bytes() + self.key.bytes() + norms + self.weights.as_ref().map_or(0, Projection::bytes)
    }
}
