//! Heads are rotated before the cache holds them, so that fewer bits keep more of them, and results are rotated back.

use rayon::prelude::*;
use riffle_attention::rotate_heads;
use riffle_kv::LayerShape;

/// Heads rotated in one task.
const TASK_HEADS: usize = 64;

/// Which planes of the cache hold rotated heads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rotation {
    pub(crate) keys: bool,
    pub(crate) values: bool,
}

/// Elements of a key and of a value that are rotated together. Values that are the beginning of their keys turn in the blocks of these.
pub(crate) fn rotated_widths(layer: &LayerShape) -> [usize; 2] {
    if !layer.is_latent {
        return [layer.key_width, layer.value_width];
    }
    [1 << (layer.key_width | layer.value_width).trailing_zeros(); 2]
}

/// Rotates heads in place; the same again undoes it.
pub(crate) fn rotate(heads: &mut [f32], head_dim: usize) {
    let tasks = heads.par_chunks_mut(TASK_HEADS * head_dim);
    tasks.for_each(|heads| rotate_heads(heads, head_dim));
}
