//! The queries of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) in the space of latents.
//!
//! A key of a head is a matrix times the token's latent, so the product of a query and such a key is that of the latent and the
//! transposed matrix times the query. With it all heads read the latents themselves, and no keys are computed.

use super::{HeadProjection, Norm, Projection};
use crate::SegmentPart;

/// How the queries of a latent layer are computed. [`Attention::query`](super::Attention::query) gives `[heads, plain + rotated]`, of
/// which the first part carries no position; that part is taken to the width of a latent.
pub struct LatentQuery {
    /// A narrower projection of the layer's input with a norm behind it, which `query` reads; `None` where `query` reads the input.
    pub narrow: Option<(Projection, Norm)>,
    /// From the part of a query without a position to the width of a latent: the transposed matrices of keys.
    pub absorb: HeadProjection,
}

impl LatentQuery {
    /// Values of scratch that a token takes, where heads have `rotated` elements that carry positions.
    pub fn scratch_width(&self, heads: usize, rotated: usize) -> usize {
        let narrow = self.narrow.as_ref().map_or(0, |(_, norm)| norm.width());
        narrow + heads * (self.absorb.inputs() + rotated) + self.absorb.scratch_width()
    }

    /// Writes the queries of normalised rows, `input` `[rows, hidden]`, to `queries`, `[rows, heads, key_width]`. Returns the narrow
    /// queries, `[rows, rank]`, as part of `scratch`; nothing where there are none.
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
