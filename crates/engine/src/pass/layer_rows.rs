//! What a layer attends with: rows of a sequence as the model projected them.

use riffle_device::DeviceRows;

use crate::pass::compute::NewKeys;
use crate::sequence::placement::Slot;

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
    // [tokens, heads, head_dim]
    pub(crate) queries: &'a [f32],
    pub(crate) new_keys: NewKeys<'a>,
}

impl<'a> LayerRows<'a> {
    /// The rows of the batch where they lie on the device that attends; `None` where the CPU does.
    pub(crate) fn on_device(&self) -> Option<&'a dyn DeviceRows> {
        match self.new_keys {
            NewKeys::Host { .. } => None,
            NewKeys::Device(rows) => Some(rows),
        }
    }
}
