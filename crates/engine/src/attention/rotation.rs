//! Rotates heads before they are cached, so that fewer bits keep more precision, and rotates results back.

use rayon::prelude::*;
use riffle_attention::rotate_heads;
use riffle_kv::LayerShape;

/// Heads rotated per task.
const TASK_HEADS: usize = 64;

/// The cache planes that store rotated heads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rotation {
    pub(crate) keys: bool,
    pub(crate) values: bool,
}

/// Elements of a key and of a value that are rotated together. Values that are prefixes of keys use the keys' blocks.
pub(crate) fn rotated_widths(layer: &LayerShape) -> [usize; 2] {
    if !layer.is_latent {
        return [layer.key_width, layer.value_width];
    }
    [1 << (layer.key_width | layer.value_width).trailing_zeros(); 2]
}

/// Rotates heads in place; a second call undoes it.
pub(crate) fn rotate(heads: &mut [f32], head_dim: usize) {
    let tasks = heads.par_chunks_mut(TASK_HEADS * head_dim);
    tasks.for_each(|heads| rotate_heads(heads, head_dim));
}
