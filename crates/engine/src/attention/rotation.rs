//! Heads are rotated before the cache holds them, so that fewer bits keep more of them, and results are rotated back.

use rayon::prelude::*;
use riffle_attention::rotate_heads;

/// Heads rotated in one task.
const TASK_HEADS: usize = 64;

/// Which planes of the cache hold rotated heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rotation {
    pub(crate) keys: bool,
    pub(crate) values: bool,
}

/// Rotates heads in place; the same again undoes it.
pub(crate) fn rotate(heads: &mut [f32], head_dim: usize) {
    let tasks = heads.par_chunks_mut(TASK_HEADS * head_dim);
    tasks.for_each(|heads| rotate_heads(heads, head_dim));
}
