//! Gathers the tokens of sparsely read blocks. A stripe of 16 costs the same however few tokens are read, so gathered
//! tokens need fewer stripes.

use alloc::vec::Vec;

use crate::LANES;
use crate::block::aligned;
use crate::kernel::KEY_BLOCK;

/// The read tokens of one block, in order, as a separate block.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Index of each token in the block.
    places: Vec<usize>,
}

impl Gathered {
    /// True if gathering saves at least half of the work for this many active stripes.
    pub(crate) fn pays(bits: u128, stripes: usize) -> bool {
        2 * (bits.count_ones() as usize).div_ceil(LANES) <= stripes
    }

    /// Gathers the tokens of `bits` from keys `[stripes, key_dim, 16]` and, if present, values `[tokens, value_dim]`.
    /// Returns their indices in the block, keys and values.
    pub(crate) fn take(
        &mut self,
        bits: u128,
        keys: &[f32],
        values: Option<&[f32]>,
        (key_dim, value_dim): (usize, usize),
    ) -> (&[usize], &[f32], &[f32]) {
        self.places.clear();
        self.places
            .extend((0..KEY_BLOCK).filter(|place| bits >> place & 1 == 1));
        let stripe = LANES * key_dim;
        let out = aligned(&mut self.keys, KEY_BLOCK * key_dim);
        for (slot, place) in self.places.iter().enumerate() {
            let key = keys[place / LANES * stripe..][..stripe]
                .iter()
                .skip(place % LANES)
                .step_by(LANES);
            let out = &mut out[slot / LANES * stripe..][..stripe];
            for (out, key) in out.iter_mut().skip(slot % LANES).step_by(LANES).zip(key) {
                *out = *key;
            }
        }
        let values_out = aligned(&mut self.values, KEY_BLOCK * value_dim);
        if let Some(values) = values {
            for (out, place) in values_out.chunks_exact_mut(value_dim).zip(&self.places) {
                out.copy_from_slice(&values[place * value_dim..][..value_dim]);
            }
        }
        (&self.places, out, values_out)
    }
}
