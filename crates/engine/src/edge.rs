//! Between the model and the cache: heads are rotated on their way in and back on their way out, and positions become
//! places in the cache.

use std::error::Error;

use rayon::prelude::*;
use riffle_attention::rotate_heads;
use riffle_model::{Attended, AttentionInput, AttentionStep, OnDevice};

/// Heads rotated in one task.
const TASK_HEADS: usize = 64;

/// Which planes of the cache hold rotated heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rotation {
    pub(crate) keys: bool,
    pub(crate) values: bool,
}

/// Copies that are rotated, kept from layer to layer.
#[derive(Default)]
pub(crate) struct EdgeBuffers {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// An [`AttentionStep`] around the one that knows the cache.
pub(crate) struct CacheEdge<'a> {
    pub(crate) inner: &'a mut dyn AttentionStep,
    pub(crate) rotation: Rotation,
    pub(crate) head_dim: usize,
    /// Where the batch's first token stands in the cache.
    pub(crate) place: usize,
    pub(crate) buffers: &'a mut EdgeBuffers,
}

impl AttentionStep for CacheEdge<'_> {
    fn meet(&mut self, rows: &OnDevice) -> Result<bool, Box<dyn Error + Send + Sync>> {
        self.inner.meet(rows)
    }

    fn attend(
        &mut self,
        input: AttentionInput<'_>,
        output: &mut [f32],
    ) -> Result<Attended, Box<dyn Error + Send + Sync>> {
        let mut input = AttentionInput {
            start_position: self.place,
            ..input
        };
        let EdgeBuffers { queries, keys, values } = &mut *self.buffers;
        // What is taken from a device has been rotated there.
        let (rotates_keys, rotates_values) = match input.on_device {
            Some(_) => (false, false),
            None => (self.rotation.keys, self.rotation.values),
        };
        if rotates_keys {
            input.queries = rotated(input.queries, queries, self.head_dim);
            input.keys = rotated(input.keys, keys, self.head_dim);
        }
        if rotates_values {
            input.values = rotated(input.values, values, self.head_dim);
        }
        let attended = self.inner.attend(input, output)?;
        // What stays on a device is rotated back there.
        if self.rotation.values && attended == Attended::InOutput {
            rotate(output, self.head_dim);
        }
        Ok(attended)
    }
}

/// Rotates heads in place; the same again undoes it.
pub(crate) fn rotate(heads: &mut [f32], head_dim: usize) {
    let tasks = heads.par_chunks_mut(TASK_HEADS * head_dim);
    tasks.for_each(|heads| rotate_heads(heads, head_dim));
}

fn rotated<'b>(heads: &[f32], buffer: &'b mut Vec<f32>, head_dim: usize) -> &'b [f32] {
    buffer.clear();
    buffer.extend_from_slice(heads);
    rotate(buffer, head_dim);
    buffer
}
