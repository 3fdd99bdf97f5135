//! Scratch memory of a forward pass, allocated once and of known size.

use crate::blocks::RotaryTable;
use crate::language_model::AttentionStep;
use crate::layer::Rows;
use crate::recurrent::LayerState;
use crate::{ModelConfig, ModelError};

/// Tokens whose linear work is done at a time: enough rows to read each weight once for many, few enough that scratch
/// stays small.
pub(crate) const ROW_BLOCK: usize = 256;

/// Scratch for batches of up to a fixed number of tokens.
///
/// Queries, keys, values and attention results are as long as the batch; everything else is as long as a row block.
#[derive(Debug)]
pub struct Workspace {
    batch_tokens: usize,
    pub(crate) context_tokens: usize,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    pub fn new(config: &ModelConfig, batch_tokens: usize) -> Workspace {
        let sizes = Sizes::of(config);
        let rows = batch_tokens.clamp(1, ROW_BLOCK);
        Workspace {
            batch_tokens,
            context_tokens: config.max_position,
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

    /// The same workspace for a context of up to `context_tokens` tokens.
    ///
    /// Models with LongRoPE turn heads otherwise in long contexts than in short ones, and a session must stay with one
    /// way. Without this call the context is taken to be as long as the model allows.
    pub fn for_context(mut self, context_tokens: usize) -> Workspace {
        self.context_tokens = context_tokens;
        self
    }

    /// The longest batch this workspace serves.
    pub fn batch_tokens(&self) -> usize {
        self.batch_tokens
    }

    /// Bytes it holds, equal to [`scratch_bytes`] of its configuration.
    pub fn bytes(&self) -> u64 {
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

    /// Refuses a model or a batch this workspace was not made for.
    pub(crate) fn check(&self, config: &ModelConfig, tokens: usize) -> Result<(), ModelError> {
        if self.sizes != Sizes::of(config) {
            return Err(ModelError::WrongWorkspace);
        }
        if tokens > self.batch_tokens {
            return Err(ModelError::BatchTooLarge {
                tokens,
                batch_tokens: self.batch_tokens,
            });
        }
        Ok(())
    }
}

/// Bytes a [`Workspace`] for batches of `batch_tokens` takes, known before anything is allocated.
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

/// One layer's work on one batch.
pub(crate) struct Pass<'a> {
    pub(crate) layer: usize,
    pub(crate) start_position: usize,
    pub(crate) tokens: usize,
    pub(crate) attention: &'a mut dyn AttentionStep,
    /// The state of a recurrent layer.
    pub(crate) recurrent: Option<&'a mut LayerState>,
    pub(crate) workspace: &'a mut Workspace,
}

/// Some rows of a batch and scratch for them.
pub(crate) struct RowBlock<'a> {
    /// Position of the first row.
    pub(crate) start_position: usize,
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

impl Pass<'_> {
    /// Calls `work` for the batch's rows, block by block.
    pub(crate) fn for_row_blocks(&mut self, hidden: &mut [f32], mut work: impl FnMut(&mut RowBlock<'_>)) {
        let workspace = &mut *self.workspace;
        let sizes = workspace.sizes;
        for start in (0..self.tokens).step_by(ROW_BLOCK) {
            let rows = ROW_BLOCK.min(self.tokens - start);
            work(&mut RowBlock {
                start_position: self.start_position + start,
                hidden: &mut hidden[start * sizes.hidden..][..rows * sizes.hidden],
                attended: &mut workspace.attended[start * sizes.query_width..][..rows * sizes.query_width],
                normed: &mut workspace.normed[..rows * sizes.hidden],
                branch: &mut workspace.branch[..rows * sizes.hidden],
                inner: &mut workspace.inner[..rows * sizes.intermediate],
                inner_gate: &mut workspace.inner_gate[..rows * sizes.intermediate],
                mixer: &mut workspace.mixer[..rows * sizes.mixer],
            });
        }
    }
}
