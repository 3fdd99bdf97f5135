//! Keys in four bits, for estimates that read a quarter of the bytes of f16 keys.

use riffle_attention::{Format, LANES, PageView, Plane, PlaneMut, write_keys};

use crate::keys::for_each_rows;

/// The keys `0..tokens` as a plane of `q4_0`.
#[derive(Default)]
pub(crate) struct LowBitKeys {
    tokens: usize,
    data: Vec<u8>,
}

impl LowBitKeys {
    /// Adds the keys `self.tokens..tokens`.
    pub(crate) fn extend(&mut self, pages: &[PageView<'_>], head_dim: usize, tokens: usize) {
        /// Tokens converted together.
        const STEP: usize = 256;
        let needed = Format::Q4_0.plane_len(tokens.next_multiple_of(LANES), head_dim);
        if self.data.len() < needed {
            self.data.resize(needed, 0);
        }
        for_each_rows(pages, head_dim, self.tokens..tokens, STEP, |first, rows| {
            let (mut plane, count) = (PlaneMut::Q4_0(&mut self.data), rows.len() / head_dim);
            write_keys(&mut plane, head_dim, first, count, &*rows, head_dim)
                .expect("the plane is long enough, and pages are of the queries' head_dim");
            self.tokens = first + count;
        });
    }

    pub(crate) fn plane(&self) -> Plane<'_> {
        Plane::Q4_0(&self.data)
    }

    /// Removes keys at and after `tokens`.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(tokens);
    }
}
