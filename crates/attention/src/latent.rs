//! Latent pages: each value is a prefix of its key.
//!
//! Keys lie in stripes of 16 tokens, as dot products need; weighted sums of values need row order. The values of a
//! block are therefore transposed into rows once, in scratch, for all rows of a tile.

use alloc::vec::Vec;

use crate::block::{Block, aligned};
use crate::call::Call;
use crate::kernel::{KEY_BLOCK, Slot, TurnStripes, widen_keys};
use crate::simd::Level;
use crate::visible::Visible;
use crate::workspace::Workspace;
use crate::{LANES, Plane};

impl<V: Visible> Call<'_, V> {
    /// Fills the workspace's values, `[tokens, value_dim]`, from the keys of a latent block. `keys_widened` is true
    /// if the workspace holds the slots' keys as f32.
    pub(crate) fn turn_values(&self, workspace: &mut Workspace, block: &Block, slots: &[Slot], keys_widened: bool) {
        let (key_dim, value_dim) = self.widths();
        let widened = aligned(&mut workspace.keys, KEY_BLOCK * key_dim);
        let keys = match block.keys {
            Plane::F32(keys) => keys,
            keys => {
                if !keys_widened {
                    widen_keys(self.level, keys, slots, key_dim, widened);
                }
                widened
            }
        };
        self.level.run(TurnStripes {
            keys,
            slots,
            key_dim,
            value_dim,
            out: aligned(&mut workspace.values, KEY_BLOCK * value_dim),
        });
    }
}

/// Scratch for the values of one stripe.
#[derive(Default)]
pub(crate) struct LatentRows {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl LatentRows {
    /// The values of the first `tokens` tokens of a stripe of keys, `[16, value_dim]`.
    pub(crate) fn stripe(
        &mut self,
        level: Level,
        keys: Plane,
        tokens: usize,
        (key_dim, value_dim): (usize, usize),
    ) -> &[f32] {
        let slots = &[Slot { stripe: 0, tokens }];
        let widened = aligned(&mut self.keys, LANES * key_dim);
        widen_keys(level, keys, slots, key_dim, widened);
        let values = aligned(&mut self.values, LANES * value_dim);
        level.run(TurnStripes {
            keys: widened,
            slots,
            key_dim,
            value_dim,
            out: values,
        });
        values
    }
}
