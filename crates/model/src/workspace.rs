//! Scratch memory of a forward pass, allocated once and of known size.

use std::ops::Range;

use riffle_linear::Columns;

use crate::blocks::RotaryTable;
use crate::layer::Rows;
use crate::{CutGrid, ModelConfig, Projected};

/// Tokens whose linear work is done at a time: enough rows to read each weight once for many, few enough that scratch
/// stays small.
pub(crate) const ROW_BLOCK: usize = 256;

/// Recurrent layers read chunks that end at multiples of 64 positions; blocks of rows end with them.
pub(crate) const CUT_GRID: CutGrid = CutGrid::Positions(Columns::COUNT);

/// Scratch for batches of up to a fixed number of tokens.
///
/// Queries, keys, values and attention results are as long as the batch; everything else is as long as a row block.
pub(crate) struct Workspace {
    batch_tokens: usize,
    sizes: Sizes,
    // [tokens, heads, head_dim]
    pub(crate) queries: Vec<f32>,
    // [tokens, kv_heads, head_dim]
    pub(crate) keys: Vec<f32>,
    // [tokens, kv_heads, head_dim]
    pub(crate) values: Vec<f32>,
    // [tokens, heads, head_dim]
    pub(crate) attended: Vec<f32>,
    // [block rows, hidden]
    pub(crate) normed: Vec<f32>,
    // [block rows, hidden]
    branch: Vec<f32>,
    // [block rows, intermediate]
    inner: Vec<f32>,
    // [block rows, intermediate]
    inner_gate: Vec<f32>,
    // [block rows, mixer]
    mixer: Vec<f32>,
    // one for each rotation of the model
    pub(crate) rotary_tables: Vec<RotaryTable>,
}

/// Values per token of each kind of buffer.
#[derive(Clone, Copy)]
struct Sizes {
    query_width: usize,
    kv_width: usize,
    hidden: usize,
    intermediate: usize,
    mixer: usize,
    rotary_dim: usize,
    rotary_tables: usize,
}

impl Sizes {
    fn of(config: &ModelConfig) -> Sizes {
        Sizes {
            query_width: config.query_width(),
            kv_width: config.kv_width(),
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            mixer: config.mixer_width,
            rotary_dim: config.rotary_dim,
            rotary_tables: config.rotary_tables,
        }
    }
}

impl Workspace {
    /// Scratch for batches of up to `batch_tokens` tokens.
    pub(crate) fn new(config: &ModelConfig, batch_tokens: usize) -> Workspace {
        let sizes = Sizes::of(config);
        let rows = batch_tokens.clamp(1, ROW_BLOCK);
        Workspace {
            batch_tokens,
            sizes,
            queries: vec![0.0; batch_tokens * sizes.query_width],
            keys: vec![0.0; batch_tokens * sizes.kv_width],
            values: vec![0.0; batch_tokens * sizes.kv_width],
            attended: vec![0.0; batch_tokens * sizes.query_width],
            normed: vec![0.0; rows * sizes.hidden],
            branch: vec![0.0; rows * sizes.hidden],
            inner: vec![0.0; rows * sizes.intermediate],
            inner_gate: vec![0.0; rows * sizes.intermediate],
            mixer: vec![0.0; rows * sizes.mixer],
            rotary_tables: (0..sizes.rotary_tables)
                .map(|_| RotaryTable::with_capacity(batch_tokens, sizes.rotary_dim))
                .collect(),
        }
    }

    /// The longest batch this workspace serves.
    pub(crate) fn batch_tokens(&self) -> usize {
        self.batch_tokens
    }

    /// Bytes it holds, equal to [`scratch_bytes`] of its configuration.
    pub(crate) fn bytes(&self) -> u64 {
        let buffers = [
            &self.queries,
            &self.keys,
            &self.values,
            &self.attended,
            &self.normed,
            &self.branch,
            &self.inner,
            &self.inner_gate,
            &self.mixer,
        ];
        let tables: u64 = self.rotary_tables.iter().map(RotaryTable::bytes).sum();
        4 * buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>() + tables
    }

    /// Queries, keys and values of the first `rows` rows, and room for the attention result.
    pub(crate) fn projected(&mut self, rows: usize) -> Projected<'_> {
        let sizes = self.sizes;
        Projected {
            queries: &mut self.queries[..rows * sizes.query_width],
            keys: &mut self.keys[..rows * sizes.kv_width],
            values: &mut self.values[..rows * sizes.kv_width],
            attended: &mut self.attended[..rows * sizes.query_width],
        }
    }

    /// Some rows of a batch, with what attention returned for them and scratch.
    pub(crate) fn row_block<'a>(&'a mut self, hidden: &'a mut [f32], rows: Range<usize>) -> RowBlock<'a> {
        let (sizes, count) = (self.sizes, rows.len());
        RowBlock {
            hidden: &mut hidden[rows.start * sizes.hidden..][..count * sizes.hidden],
            attended: &mut self.attended[rows.start * sizes.query_width..][..count * sizes.query_width],
            normed: &mut self.normed[..count * sizes.hidden],
            branch: &mut self.branch[..count * sizes.hidden],
            inner: &mut self.inner[..count * sizes.intermediate],
            inner_gate: &mut self.inner_gate[..count * sizes.intermediate],
            mixer: &mut self.mixer[..count * sizes.mixer],
        }
    }
}

/// Bytes of scratch a [`HostForward`](crate::HostForward) for batches of `batch_tokens` takes, known before anything is allocated.
pub fn scratch_bytes(config: &ModelConfig, batch_tokens: usize) -> u64 {
    let sizes = Sizes::of(config);
    let per_token = 2 * sizes.query_width + 2 * sizes.kv_width + sizes.rotary_dim * sizes.rotary_tables;
    let per_row = 2 * sizes.hidden + 2 * sizes.intermediate + sizes.mixer;
    let (batch_tokens, rows) = (batch_tokens as u64, batch_tokens.clamp(1, ROW_BLOCK) as u64);
    batch_tokens
        .saturating_mul(per_token as u64)
        .saturating_add(rows.saturating_mul(per_row as u64))
        .saturating_mul(4)
}

/// Some rows of a batch and scratch for them.
pub(crate) struct RowBlock<'a> {
    // [rows, hidden], the residual stream
    pub(crate) hidden: &'a mut [f32],
    // [rows, heads, head_dim], what attention returned
    pub(crate) attended: &'a mut [f32],
    // [rows, hidden]
    pub(crate) normed: &'a mut [f32],
    // [rows, hidden]
    pub(crate) branch: &'a mut [f32],
    // [rows, intermediate]
    pub(crate) inner: &'a mut [f32],
    // [rows, intermediate]
    pub(crate) inner_gate: &'a mut [f32],
    // [rows, mixer], for the parts of a token mixer to share out
    pub(crate) mixer: &'a mut [f32],
}

impl<'a> RowBlock<'a> {
    /// The rows a step names.
    pub(crate) fn rows_mut(&mut self, rows: Rows) -> &mut &'a mut [f32] {
        match rows {
            Rows::Hidden => &mut self.hidden,
            Rows::Attended => &mut self.attended,
            Rows::Normed => &mut self.normed,
            Rows::Branch => &mut self.branch,
        }
    }
}
