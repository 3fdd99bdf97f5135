//! Projected rows of a sequence in one layer.

use std::ops::Range;

use riffle_attention::QueryTile;
use riffle_device::DeviceRows;

use crate::attention::{LayerIndex, LayerStep, Slot, Tile};

/// Queries, keys and values of one layer for consecutive tokens of a sequence, rotated to the cache's form.
#[derive(Clone)]
pub(crate) struct LayerRows<'a> {
    pub(crate) step: LayerStep,
    /// The layer's index among layers with keys and values.
    pub(crate) cache_layer: usize,
    /// Slot of the first token in the cache.
    pub(crate) slot: Slot,
    /// Row of the first token in the batch.
    pub(crate) first_row: usize,
    /// Tokens.
    pub(crate) tokens: usize,
    // [tokens, heads, key_width]
    pub(crate) queries: &'a [f32],
    pub(crate) new_keys: NewKeys<'a>,
    /// The trained indexer's selections, for layers with one.
    pub(crate) index: Option<LayerIndex<'a>>,
}

/// Keys and values that are not in a cache yet.
#[derive(Clone, Copy)]
pub(crate) enum NewKeys<'a> {
    /// Rows in main memory, `[rows, kv_heads, key_width]` and `[rows, kv_heads, value_width]`.
    Host { keys: &'a [f32], values: &'a [f32] },
    /// Rows on the device. The device also attends, and rotates the rows when it appends them.
    Device(&'a dyn DeviceRows),
}

impl<'a> NewKeys<'a> {
    /// Keys and values of some rows of the batch, with these strides. On a device, the caller names the rows when it
    /// reads them.
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

impl<'a> LayerRows<'a> {
    /// The rows of the batch for tokens `tokens`.
    pub(crate) fn batch_rows(&self, tokens: &Range<usize>) -> Range<usize> {
        self.first_row + tokens.start..self.first_row + tokens.end
    }

    /// The head slot of one of the rows' tokens: evicted tokens before it are not counted.
    pub(crate) fn head_slot(&self, token: usize, kv_head: usize) -> usize {
        self.slot.after(token).0 - self.step.evicted_tokens[kv_head]
    }

    /// Tokens `tokens` as one tile of one KV head.
    pub(crate) fn tile(&self, tokens: Range<usize>, kv_head: usize) -> QueryTile<'a> {
        let heads = self.step.heads;
        QueryTile {
            data: &self.queries[tokens.start * heads.query_width() + kv_head * heads.group * heads.key_width..],
            rows: tokens.len(),
            row_stride: heads.query_width(),
            group: heads.group,
            head_dim: heads.key_width,
            start: self.head_slot(tokens.start, kv_head),
        }
    }

    /// The tiles of tokens `tokens`, KV head by KV head.
    pub(crate) fn tiles(&self, tokens: &Range<usize>) -> Vec<Tile<'a>> {
        let step = self.step.heads.tile_rows();
        let firsts = |kv_head: usize| tokens.clone().step_by(step).map(move |first| (kv_head, first));
        let tile = |(kv_head, first): (usize, usize)| Tile {
            kv_head,
            first_row: first - tokens.start,
            queries: self.tile(first..(first + step).min(tokens.end), kv_head),
        };
        (0..self.step.heads.kv_heads).flat_map(firsts).map(tile).collect()
    }
}
