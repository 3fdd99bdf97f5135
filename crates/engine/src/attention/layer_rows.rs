//! Rows of a sequence in one layer, as the model projected them.

use std::ops::Range;

use riffle_device::DeviceRows;

use crate::attention::slots::Slot;

/// Queries, keys and values of one layer for consecutive tokens of a sequence, rotated as its cache holds them.
#[derive(Clone, Copy)]
pub(crate) struct LayerRows<'a> {
    /// The layer's number among those that hold keys and values.
    pub(crate) cache_layer: usize,
    /// Slot of the first token in the cache.
    pub(crate) slot: Slot,
    /// The row of the batch in which the first token lies.
    pub(crate) first_row: usize,
    /// Tokens.
    pub(crate) tokens: usize,
    // [tokens, heads, key_width]
    pub(crate) queries: &'a [f32],
    pub(crate) new_keys: NewKeys<'a>,
}

/// Keys and values that no cache holds yet.
#[derive(Clone, Copy)]
pub(crate) enum NewKeys<'a> {
    /// In main memory, `[rows, kv_heads, key_width]` and `[rows, kv_heads, value_width]`.
    Host { keys: &'a [f32], values: &'a [f32] },
    /// On the device, which attends as well and rotates them as it appends them.
    Device(&'a dyn DeviceRows),
}

impl<'a> NewKeys<'a> {
    /// Keys and values of some rows of the batch, of so many elements each. On a device the caller names the rows when it reads
    /// them.
    pub(crate) fn rows(self, rows: &Range<usize>, [key_stride, value_stride]: [usize; 2]) -> Self {
        match self {
            Self::Host { keys, values } => Self::Host {
                keys: &keys[rows.start * key_stride..rows.end * key_stride],
                values: &values[rows.start * value_stride..rows.end * value_stride],
            },
            Self::Device(_) => self,
        }
    }
}

impl LayerRows<'_> {
    /// The rows of the batch in which tokens `tokens` lie.
    pub(crate) fn batch_rows(&self, tokens: &Range<usize>) -> Range<usize> {
        self.first_row + tokens.start..self.first_row + tokens.end
    }
}
