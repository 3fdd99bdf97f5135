//! Scratch memory of a forward pass, allocated once with a known size.

use std::ops::Range;

use riffle_linear::Columns;

use crate::blocks::{ExpertScratch, IndexedRows, Indexer, RotaryTable, expert_scratch_bytes};
use crate::config::IndexerShape;
use crate::layer::Rows;
use crate::{AttentionShape, Batch, CutGrid, ModelConfig, Projected, ProjectedIndex};

/// Tokens per block of linear work: enough rows to read each weight once for many, few enough to keep scratch small.
pub(crate) const ROW_BLOCK: usize = 256;

/// Recurrent layers read chunks that end at multiples of 64 positions; blocks of rows end with them.
pub(crate) const CUT_GRID: CutGrid = CutGrid::Positions(Columns::COUNT);

/// Scratch for batches of up to a fixed number of tokens.
///
/// Queries, keys, values, attention results, and inputs and sums of experts have the batch's length; all other
/// buffers have a row block's.
pub(crate) struct Workspace {
    batch_tokens: usize,
    sizes: Sizes,
    // [tokens, heads, key_width]
    pub(crate) queries: Vec<f32>,
    // [tokens, kv_heads, key_width]
    pub(crate) keys: Vec<f32>,
    // [tokens, kv_heads, value_width]
    pub(crate) values: Vec<f32>,
    // [tokens, heads, value_width]
    pub(crate) attended: Vec<f32>,
    pub(crate) indexed: Indexed,
    // [block rows, hidden]
    pub(crate) normed: Vec<f32>,
    // [block rows, hidden]
    branch: Vec<f32>,
    // [block rows, intermediate]
    inner: Vec<f32>,
    // [block rows, intermediate]
    inner_gate: Vec<f32>,
    // [block rows, mixer]
    pub(crate) mixer: Vec<f32>,
    // [tokens, layers, width of a layer's input]
    pub(crate) layer_inputs: Vec<f32>,
    // [tokens, streams, hidden]; empty with one stream
    streams: Vec<f32>,
    pub(crate) experts: ExpertScratch,
    // one for each rotation of the model
    pub(crate) rotary_tables: Vec<RotaryTable>,
}

/// Results of indexers for a batch.
pub(crate) struct Indexed {
    // [tokens, heads, width]
    queries: Vec<f32>,
    // [tokens, heads]
    weights: Vec<f32>,
    // [tokens, width]
    keys: Vec<f32>,
}

/// Values per token of each kind of buffer, in the layer that needs most.
#[derive(Clone, Copy)]
struct Sizes {
    queries: usize,
    keys: usize,
    values: usize,
    attended: usize,
    /// Queries, weights and keys of an indexer.
    indexed: [usize; 3],
    hidden: usize,
    intermediate: usize,
    mixer: usize,
    layer_inputs: usize,
    streams: usize,
    rotary_dim: usize,
    rotary_tables: usize,
}

impl Sizes {
    fn for_model(config: &ModelConfig) -> Sizes {
        let most = |width: fn(&AttentionShape) -> usize| {
            let layers = 0..config.layers.max(1);
            layers
                .map(|layer| width(&config.attention_of(layer)))
                .max()
                .unwrap_or(0)
        };
        Sizes {
            queries: most(AttentionShape::query_width),
            keys: most(AttentionShape::keys_width),
            values: most(AttentionShape::values_width),
            attended: most(AttentionShape::attended_width),
            indexed: IndexerShape::largest(config),
            hidden: config.hidden_size,
            intermediate: config
                .intermediate_size
                .max(config.experts.map_or(0, |experts| experts.shared_width))
                .max(config.layer_input_width),
            mixer: config.mixer_width(),
            layer_inputs: config.layer_input_width * config.layers,
            streams: if config.streams > 1 {
                config.streams * config.hidden_size
            } else {
                0
            },
            rotary_dim: config.rotary_dim,
            rotary_tables: config.rotary_tables,
        }
    }
}

impl Workspace {
    /// Scratch for batches of up to `batch_tokens` tokens.
    pub(crate) fn new(config: &ModelConfig, batch_tokens: usize) -> Workspace {
        let sizes = Sizes::for_model(config);
        let rows = batch_tokens.clamp(1, ROW_BLOCK);
        Workspace {
            batch_tokens,
            sizes,
            queries: vec![0.0; batch_tokens * sizes.queries],
            keys: vec![0.0; batch_tokens * sizes.keys],
            values: vec![0.0; batch_tokens * sizes.values],
            attended: vec![0.0; batch_tokens * sizes.attended],
            indexed: Indexed::new(sizes.indexed, batch_tokens),
            normed: vec![0.0; rows * sizes.hidden],
            branch: vec![0.0; rows * sizes.hidden],
            inner: vec![0.0; rows * sizes.intermediate],
            inner_gate: vec![0.0; rows * sizes.intermediate],
            mixer: vec![0.0; rows * sizes.mixer],
            experts: ExpertScratch::new(config.experts.as_ref(), sizes.hidden, [batch_tokens, rows]),
            layer_inputs: vec![0.0; batch_tokens * sizes.layer_inputs],
            streams: vec![0.0; batch_tokens * sizes.streams],
            rotary_tables: (0..sizes.rotary_tables)
                .map(|_| RotaryTable::with_capacity(batch_tokens, sizes.rotary_dim))
                .collect(),
        }
    }

    /// The longest batch for this workspace.
    pub(crate) fn batch_tokens(&self) -> usize {
        self.batch_tokens
    }

    /// Bytes in memory, equal to [`scratch_bytes`] of its configuration.
    pub(crate) fn bytes(&self) -> u64 {
        let buffers = [
            &self.queries,
            &self.keys,
            &self.values,
            &self.attended,
            &self.indexed.queries,
            &self.indexed.weights,
            &self.indexed.keys,
            &self.normed,
            &self.branch,
            &self.inner,
            &self.inner_gate,
            &self.mixer,
            &self.layer_inputs,
            &self.streams,
        ];
        let tables: u64 = self.rotary_tables.iter().map(RotaryTable::bytes).sum();
        4 * buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>() + tables + self.experts.bytes()
    }

    /// Queries, keys and values of the first `rows` rows of a layer, and the buffer for attention's result.
    pub(crate) fn projected<'a>(
        &'a mut self,
        layer: &AttentionShape,
        indexer: Option<&'a Indexer>,
        rows: usize,
    ) -> Projected<'a> {
        Projected {
            index: indexer.map(|indexer| self.indexed.projected(indexer, rows)),
            queries: &mut self.queries[..rows * layer.query_width()],
            keys: &mut self.keys[..rows * layer.keys_width()],
            values: &mut self.values[..rows * layer.values_width()],
            attended: &mut self.attended[..rows * layer.attended_width()],
        }
    }

    /// Some rows of a batch, with the `attended_width` values of attention's result per row, and scratch.
    pub(crate) fn row_block<'a>(
        &'a mut self,
        batch: &'a Batch,
        hidden: &'a mut [f32],
        rows: Range<usize>,
        attended_width: usize,
    ) -> RowBlock<'a> {
        let (sizes, count) = (self.sizes, rows.len());
        let width = sizes.layer_inputs;
        RowBlock {
            tokens: &batch.tokens()[rows.clone()],
            hidden: &mut hidden[rows.start * sizes.hidden..][..count * sizes.hidden],
            attended: &mut self.attended[rows.start * attended_width..][..count * attended_width],
            normed: &mut self.normed[..count * sizes.hidden],
            branch: &mut self.branch[..count * sizes.hidden],
            inner: &mut self.inner[..count * sizes.intermediate],
            inner_gate: &mut self.inner_gate[..count * sizes.intermediate],
            mixer: &mut self.mixer[..count * sizes.mixer],
            experts: &mut self.experts,
            streams: &mut self.streams[rows.start * sizes.streams..][..count * sizes.streams],
            layer_inputs: &self.layer_inputs[rows.start * width..][..count * width],
        }
    }
}

/// Bytes of scratch of a [`HostForward`](crate::HostForward) for batches of `batch_tokens`, known before allocation.
pub fn scratch_bytes(config: &ModelConfig, batch_tokens: usize) -> u64 {
    let sizes = Sizes::for_model(config);
    let indexed: usize = sizes.indexed.iter().sum();
    let of_heads = sizes.queries + sizes.keys + sizes.values + sizes.attended + indexed;
    let per_token = of_heads + sizes.layer_inputs + sizes.streams + sizes.rotary_dim * sizes.rotary_tables;
    let per_row = 2 * sizes.hidden + 2 * sizes.intermediate + sizes.mixer;
    let (batch_tokens, rows) = (batch_tokens as u64, batch_tokens.clamp(1, ROW_BLOCK) as u64);
    let batch = [batch_tokens as usize, rows as usize];
    let experts = expert_scratch_bytes(config.experts.as_ref(), sizes.hidden, batch);
    batch_tokens
        .saturating_mul(per_token as u64)
        .saturating_add(rows.saturating_mul(per_row as u64))
        .saturating_mul(4)
        .saturating_add(experts)
}

impl IndexerShape {
    /// Values of all queries, of all weights and of the key of a token.
    fn widths(&self) -> [usize; 3] {
        [self.heads * self.width, self.heads, self.width]
    }

    /// The largest of each of [`widths`](Self::widths) over the model's layers.
    fn largest(config: &ModelConfig) -> [usize; 3] {
        let widths = config.indexers.iter().flatten().map(IndexerShape::widths);
        widths.fold([0; 3], |most, own| [0, 1, 2].map(|part| most[part].max(own[part])))
    }
}

impl Indexed {
    fn new(widths: [usize; 3], batch_tokens: usize) -> Indexed {
        let [queries, weights, keys] = widths.map(|width| vec![0.0; batch_tokens * width]);
        Indexed { queries, weights, keys }
    }

    /// Buffers for some rows of a batch.
    pub(crate) fn rows(&mut self, indexer: &IndexerShape, rows: Range<usize>) -> IndexedRows<'_> {
        let [queries, weights, keys] = indexer.widths().map(|width| rows.start * width..rows.end * width);
        IndexedRows {
            queries: &mut self.queries[queries],
            weights: &mut self.weights[weights],
            keys: &mut self.keys[keys],
        }
    }

    fn projected<'a>(&'a self, indexer: &'a Indexer, rows: usize) -> ProjectedIndex<'a> {
        let [queries, weights, keys] = indexer.shape.widths().map(|width| rows * width);
        ProjectedIndex {
            queries: &self.queries[..queries],
            weights: &self.weights[..weights],
            keys: &self.keys[..keys],
            block_keys: indexer.block_keys(),
        }
    }
}

/// Some rows of a batch and scratch for them.
pub(crate) struct RowBlock<'a> {
    // [rows]
    pub(crate) tokens: &'a [u32],
    // [rows, hidden], the residual stream
    pub(crate) hidden: &'a mut [f32],
    // [rows, heads, value_width], attention's result
    pub(crate) attended: &'a mut [f32],
    // [rows, hidden]
    pub(crate) normed: &'a mut [f32],
    // [rows, hidden]
    pub(crate) branch: &'a mut [f32],
    // [rows, intermediate]
    pub(crate) inner: &'a mut [f32],
    // [rows, intermediate]
    pub(crate) inner_gate: &'a mut [f32],
    // [rows, mixer], which the parts of a token mixer split among themselves
    pub(crate) mixer: &'a mut [f32],
    pub(crate) experts: &'a mut ExpertScratch,
    // [rows, streams, hidden]
    pub(crate) streams: &'a mut [f32],
    // [rows, layers, width of a layer's input]
    pub(crate) layer_inputs: &'a [f32],
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
