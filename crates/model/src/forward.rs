//! Runs a batch through a model, on the CPU or on a device.

use std::ops::Range;
use std::sync::Arc;

use crate::blocks::{BlockKeys, RotaryTable, for_rows};
use crate::workspace::{CUT_GRID, Workspace};
use crate::{Batch, Decoder, LayerProgress, ModelError, RecurrentState};

/// Runs batches through a model. Hidden states are in main memory ([`HostForward`]) or on a device.
///
/// A batch begins with [`embed`](Self::embed). Then, for each layer in order, the model [projects](Self::project),
/// the caller attends, and the model [finishes](Self::finish) the layer. Finally [`logits`](Self::logits) computes
/// the logits of chosen rows.
///
/// A layer may be split by rows: both steps accept one of the [`row_blocks`](Self::row_blocks) at a time, so that the
/// caller can do other work in between. A block may be finished before the next is projected. Splits change no bits.
///
/// A segment's results do not depend on the number of threads, other segments of the batch or the split of a text into
/// batches. The caller's attention must have this property too. Recurrent layers read a prompt in chunks of 64 tokens:
/// for them, splits at other positions change results by rounding. Generated tokens are read one by one
/// ([`SegmentTokens::generated`](crate::SegmentTokens::generated)), so verified tokens have the same bits together and
/// alone.
///
/// A device rounds products of more than eight rows differently: there, rows have the same bits as alone only in
/// batches of up to eight rows.
pub trait Forward: Send {
    /// The largest batch, in rows.
    fn batch_tokens(&self) -> usize;

    /// Starts a batch with the embeddings of its tokens.
    ///
    /// # Errors
    /// [`ModelError::TokenOutOfRange`], [`ModelError::BatchTooLarge`], a device that fails.
    fn embed(&mut self, batch: &Batch) -> Result<(), ModelError>;

    /// Splits the rows of the batch into blocks of about `most` rows that may be projected and finished one by one; a
    /// smaller batch is one block. `most` is raised to the smallest number of rows at which splits change no bits: 64
    /// on the CPU.
    fn row_blocks(&self, most: usize) -> Vec<Range<usize>>;

    /// Projects `rows` of the batch: one of the [`row_blocks`](Self::row_blocks) or several adjacent ones, in order.
    /// Returns false for a recurrent layer, which needs no attention.
    ///
    /// # Errors
    /// [`ModelError::NoSuchLayer`], [`ModelError::RowsOutOfOrder`]; a device that fails.
    fn project(&mut self, layer: usize, rows: Range<usize>) -> Result<bool, ModelError>;

    /// The queries, keys and values of the current layer, for all rows projected so far. Every call returns the same
    /// values, including the caller's changes. `None` before rows are projected, for a recurrent layer, and after all
    /// rows are finished.
    fn projected(&mut self) -> Option<Projected<'_>>;

    /// Runs projected rows through the rest of a layer, blocks in order, starting from [`Projected::attended`]. A
    /// recurrent layer updates its part of `states`, one for each segment of the batch. A segment's state must have
    /// read the tokens before the segment. After an error, and between the blocks of a segment, this part of the
    /// state is undefined.
    ///
    /// # Errors
    /// [`ModelError::NoSuchLayer`], [`ModelError::RowsOutOfOrder`], [`ModelError::WrongStates`],
    /// [`ModelError::WrongRecurrentState`], [`ModelError::RecurrentPosition`]; unreadable weights, a device that
    /// fails.
    fn finish(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        states: &mut [&mut RecurrentState],
    ) -> Result<(), ModelError>;

    /// As [`finish`](Self::finish), in pieces. Returns false if work over all rows of the batch remains; another call
    /// with the same rows continues it.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    fn finish_piece(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        states: &mut [&mut RecurrentState],
    ) -> Result<bool, ModelError> {
        self.finish(layer, rows, states).map(|()| true)
    }

    /// True if [`finish`](Self::finish) may skip rows of the layer: it is the last, and no other row needs them.
    /// Skipped rows have no logits.
    fn may_leave_out_rows(&self, layer: usize) -> bool;

    /// Writes the logits of some rows of the batch to `out`, `[rows, vocab_size]`.
    ///
    /// # Errors
    /// [`ModelError::BufferLength`] for an `out` of another length, a device that fails.
    ///
    /// # Panics
    /// For a row that the batch does not have.
    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), ModelError>;
}

/// Queries, keys and values of one layer for the first rows of a batch, and the buffer for attention's result. The
/// caller may change all of them.
#[derive(Debug)]
pub struct Projected<'a> {
    /// `[rows, heads, key_width]`, rotated to the rows' positions.
    pub queries: &'a mut [f32],
    /// `[rows, kv_heads, key_width]`, rotated to the rows' positions; empty in a layer that reads another layer's keys.
    pub keys: &'a mut [f32],
    /// `[rows, kv_heads, value_width]`; empty in a layer that reads another layer's values.
    pub values: &'a mut [f32],
    /// `[rows, heads, value_width]`: the caller writes the attention result here.
    pub attended: &'a mut [f32],
    /// The layer's own indexer's results for the rows, if it has one.
    pub index: Option<ProjectedIndex<'a>>,
}

/// Queries, weights and keys of a layer's own indexer ([`IndexerShape`](crate::IndexerShape)) for the first rows of a
/// batch.
#[derive(Debug, Clone, Copy)]
pub struct ProjectedIndex<'a> {
    /// `[rows, heads, width]`, rotated to the rows' positions.
    pub queries: &'a [f32],
    /// `[rows, heads]`.
    pub weights: &'a [f32],
    /// `[rows, width]`, rotated to the rows' positions, or not yet joined by block.
    pub keys: &'a [f32],
    /// Makes the keys of blocks from the keys of their tokens, if the indexer ranks blocks.
    pub block_keys: Option<&'a BlockKeys>,
}

/// A batch in main memory, computed by the CPU.
pub struct HostForward {
    model: Arc<Decoder>,
    batch: Option<Batch>,
    progress: LayerProgress,
    // [rows, hidden_size]
    hidden: Vec<f32>,
    workspace: Workspace,
    /// True if the last rows of the current layer are finished up to its experts, and these are still to compute.
    is_in_experts: bool,
}

impl HostForward {
    /// Memory for batches of up to `batch_tokens` tokens.
    pub fn new(model: &Arc<Decoder>, batch_tokens: usize) -> HostForward {
        HostForward {
            batch: None,
            progress: LayerProgress::default(),
            hidden: Vec::new(),
            workspace: Workspace::new(&model.config, batch_tokens),
            is_in_experts: false,
            model: Arc::clone(model),
        }
    }

    /// Hidden states of the batch after its latest layer, `[rows, hidden_size]`.
    pub fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// Appends hidden states of some rows to `out`, `[rows, hidden_size]`, in the form of the output head's input:
    /// after the final norm.
    pub fn append_normed(&self, rows: Range<usize>, out: &mut Vec<f32>) {
        let (width, first) = (self.model.config.hidden_size, out.len());
        out.extend_from_slice(&self.hidden[rows.start * width..rows.end * width]);
        for_rows(&mut out[first..], width, |_, row| {
            self.model.final_norm.apply_in_place(row);
        });
    }

    /// Marks rows of the batch as tokens of the second of two texts, for models that tell them apart. Call it after
    /// [`embed`](Forward::embed) and before the first layer, once for a row.
    ///
    /// # Panics
    /// For rows that the batch does not have.
    pub fn mark_second_text(&mut self, rows: Range<usize>) {
        if let Some(positions) = &self.model.positions {
            let width = self.model.config.hidden_size;
            positions.turn_to_second_text(&mut self.hidden[rows.start * width..rows.end * width]);
        }
    }

    /// Begins a batch with hidden states, `[rows, hidden_size]`, from [`hidden`](Self::hidden) for its tokens.
    /// Continue with the next layer after theirs.
    ///
    /// # Errors
    /// As [`Forward::embed`]; [`ModelError::BufferLength`] for states of another length.
    pub fn resume(&mut self, batch: &Batch, hidden: &[f32]) -> Result<(), ModelError> {
        batch.check(self.model.config.vocab_size, self.workspace.batch_tokens())?;
        ModelError::check_length("hidden", batch.rows() * self.model.config.hidden_size, hidden.len())?;
        self.hidden.clear();
        self.hidden.extend_from_slice(hidden);
        self.begin(batch);
        Ok(())
    }

    fn begin(&mut self, batch: &Batch) {
        self.workspace.rotary_tables.iter_mut().for_each(RotaryTable::clear);
        self.model.prepare_layer_inputs(batch, &mut self.workspace);
        self.batch = Some(batch.clone());
        self.progress = LayerProgress::new(batch.rows());
        self.is_in_experts = false;
    }

    /// Bytes of scratch without the hidden states, as given by [`scratch_bytes`](crate::scratch_bytes).
    pub fn scratch_bytes(&self) -> u64 {
        self.workspace.bytes()
    }
}

impl Forward for HostForward {
    fn batch_tokens(&self) -> usize {
        self.workspace.batch_tokens()
    }

    fn embed(&mut self, batch: &Batch) -> Result<(), ModelError> {
        batch.check(self.model.config.vocab_size, self.workspace.batch_tokens())?;
        self.hidden.resize(batch.rows() * self.model.config.hidden_size, 0.0);
        self.model.embed(batch.tokens(), &mut self.hidden);
        if let Some(positions) = &self.model.positions {
            positions.add(batch, &mut self.hidden)?;
        }
        self.model.begin_streams(batch, &mut self.hidden, &mut self.workspace);
        self.begin(batch);
        Ok(())
    }

    fn row_blocks(&self, most: usize) -> Vec<Range<usize>> {
        let batch = self.batch.as_ref();
        batch.map_or_else(Vec::new, |batch| batch.row_blocks(0..batch.rows(), most, CUT_GRID))
    }

    fn project(&mut self, layer: usize, rows: Range<usize>) -> Result<bool, ModelError> {
        let own = self.model.layer(layer)?;
        self.progress.project(layer, &rows)?;
        self.is_in_experts = false;
        let (Some(attention), Some(batch)) = (&own.attention, &self.batch) else {
            return Ok(false);
        };
        let config = &self.model.config;
        attention.project(config, batch, rows, &self.hidden, &mut self.workspace);
        Ok(true)
    }

    fn projected(&mut self) -> Option<Projected<'_>> {
        let (layer, rows) = self.progress.under_way()?;
        let attention = self.model.layers[layer].attention.as_ref()?;
        let indexer = attention.indexer.as_deref();
        Some(self.workspace.projected(&attention.shape, indexer, rows))
    }

    fn finish(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        states: &mut [&mut RecurrentState],
    ) -> Result<(), ModelError> {
        while !self.finish_piece(layer, rows.clone(), states)? {}
        Ok(())
    }

    fn finish_piece(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        states: &mut [&mut RecurrentState],
    ) -> Result<bool, ModelError> {
        let may_leave_out = self.may_leave_out_rows(layer);
        let own = self.model.layer(layer)?;
        let Some(batch) = &self.batch else {
            return Ok(true);
        };
        if !self.is_in_experts {
            batch.check_states(states.len())?;
            if may_leave_out {
                self.progress.skip_to(rows.start);
            }
            self.progress.finish(layer, &rows)?;
            let is_last = rows.end == batch.rows();
            let config = &self.model.config;
            let mut parts = batch.parts(rows.clone()).peekable();
            let states = states.iter_mut().enumerate().map(|(segment, state)| {
                match parts.next_if(|part| part.segment == segment) {
                    Some(part) => state.layer_mut(config, layer, part.position),
                    None => Ok(None),
                }
            });
            let mut states: Vec<_> = states.collect::<Result<_, _>>()?;
            own.finish(batch, rows, &mut self.hidden, &mut self.workspace, &mut states);
            if !is_last || own.experts().is_none() {
                return Ok(true);
            }
            own.begin_experts(batch, &mut self.workspace);
            self.is_in_experts = true;
        }
        let behind = self.model.layers.get(layer + 1);
        let is_done = own.advance_experts(batch, &mut self.hidden, &mut self.workspace, behind);
        // After an error the batch cannot continue.
        self.is_in_experts = matches!(is_done, Ok(false));
        is_done
    }

    fn may_leave_out_rows(&self, layer: usize) -> bool {
        // Experts take all rows of a batch together, a mixer reads rows in order, and sums over inputs count every row.
        let layers = &self.model.layers;
        let is_last = layer + 1 == layers.len();
        is_last
            && layers[layer].experts().is_none()
            && layers[layer].mixer().is_none()
            && self.model.input_sums.is_empty()
    }

    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), ModelError> {
        let vocab_size = self.model.config.vocab_size;
        ModelError::check_length("out", rows.len() * vocab_size, out.len())?;
        self.model.logits(&self.hidden, rows, out, &mut self.workspace);
        Ok(())
    }
}
