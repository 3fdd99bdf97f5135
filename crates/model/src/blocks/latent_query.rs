//! The queries of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) in the space of latents.
//!
//! A head's key is a matrix times the token's latent. The product of query and key therefore equals the product of
//! the latent with the transposed matrix times the query. So all heads read the latents directly, and no keys are
//! computed.

use super::{HeadProjection, Norm, Projection};
use crate::SegmentPart;

/// The query computation of a latent layer. [`Attention::query`](super::Attention::query) gives
/// `[heads, plain + rotated]`. The plain part has no position and is projected to latent width.
pub struct LatentQuery {
    /// A narrow projection of the layer's input with a norm, which is the input of `query`; `None` if `query` reads
    /// the layer's input.
    pub narrow: Option<(Projection, Norm)>,
    /// Projection from the plain part of a query to latent width: the transposed key matrices.
    pub absorb: HeadProjection,
}

impl LatentQuery {
    /// Scratch values per token, for heads with `rotated` elements with positions.
    pub fn scratch_width(&self, heads: usize, rotated: usize) -> usize {
        let narrow = self.narrow.as_ref().map_or(0, |(_, norm)| norm.width());
        narrow + heads * (self.absorb.inputs() + rotated) + self.absorb.scratch_width()
    }

    /// Writes the queries of normalised rows, `input` `[rows, hidden]`, to `queries`, `[rows, heads, key_width]`.
    /// Returns the narrow queries, `[rows, rank]`, as a part of `scratch`; `None` if there are none.
    pub(super) fn apply<'s>(
        &self,
        query: &Projection,
        (input, parts): (&[f32], &[SegmentPart]),
        (queries, key_width): (&mut [f32], usize),
        scratch: &'s mut [f32],
    ) -> &'s [f32] {
        let (plain, latent) = (self.absorb.inputs(), self.absorb.outputs());
        let (width, heads) = (plain + key_width - latent, self.absorb.input_width() / plain);
        let rows = queries.len() / (heads * key_width);
        let (expanded, scratch) = scratch.split_at_mut(rows * heads * width);
        let rank = self.narrow.as_ref().map_or(0, |(_, norm)| norm.width());
        let (narrowed, scratch) = scratch.split_at_mut(rows * rank);
        match &self.narrow {
            Some((narrow, norm)) => {
                narrow.apply(input, narrowed, parts);
                super::rows::for_rows(narrowed, rank, |_, row| norm.apply_in_place(row));
                query.apply(narrowed, expanded, parts);
            }
            None => query.apply(input, expanded, parts),
        }
        let expanded = &*expanded;
        self.absorb
            .apply((expanded, width), (&mut *queries, key_width), scratch);
        super::rows::for_rows(queries, heads * key_width, |row, queries| {
            let expanded = expanded[row * heads * width..].chunks_exact(width);
            for (query, expanded) in queries.chunks_exact_mut(key_width).zip(expanded) {
                query[latent..].copy_from_slice(&expanded[plain..]);
            }
        });
        narrowed
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let narrow = self.narrow.as_ref();
        narrow.map_or(0, |(narrow, norm)| narrow.bytes() + norm.bytes()) + self.absorb.bytes()
    }
}
