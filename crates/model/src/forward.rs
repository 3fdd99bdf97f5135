//! A batch on its way through a model, wherever the model computes.

use std::ops::Range;
use std::sync::Arc;

use crate::blocks::{RotaryTable, for_rows};
use crate::workspace::{CUT_GRID, Workspace};
use crate::{Batch, Decoder, LayerProgress, ModelError, RecurrentState};

/// Hidden states of one batch after another, kept where the model computes: in main memory ([`HostForward`]) or on a
/// device.
///
/// A batch begins with [`embed`](Self::embed). Then for each layer in order the model [projects](Self::project), the caller
/// attends, the model [finishes](Self::finish) the layer. Last come the [`logits`](Self::logits) of the rows that are wanted.
///
/// A layer may be cut by rows: either step takes one of the [`row_blocks`](Self::row_blocks) after the other, so that the caller
/// can do other work in between. A block may be finished before the next is projected. Cuts change no bit.
///
/// Results of a segment are the same to the bit for every number of threads and whatever other segments are in the batch, and
/// for every split of a text into batches, as far as the caller's attention is. Recurrent layers read a prompt in chunks of 64 tokens:
/// with them, splits elsewhere than at multiples of 64 tokens change results by rounding. Tokens that are generated are read
/// one by one ([`SegmentTokens::generated`](crate::SegmentTokens::generated)), so several that are verified at once get the bits that each
/// gets alone.
///
/// A device rounds products of more than eight rows otherwise than those of few: there, rows have the bits that they have alone in
/// batches of up to eight rows.
pub trait Forward: Send {
    /// The longest batch there is memory for, in rows.
    fn batch_tokens(&self) -> usize;

    /// Begins a batch with the embeddings of its tokens.
    ///
    /// # Errors
    /// [`ModelError::TokenOutOfRange`], [`ModelError::BatchTooLarge`], a device that fails.
    fn embed(&mut self, batch: &Batch) -> Result<(), ModelError>;

    /// Rows of the batch in blocks of about `most` rows that may be projected and finished one after the other; a batch of no
    /// more rows is one block. `most` is raised to the fewest rows between which a batch can be cut without a change of bits:
    /// 64 on the CPU.
    fn row_blocks(&self, most: usize) -> Vec<Range<usize>>;

    /// Projects `rows` of the batch, one of the [`row_blocks`](Self::row_blocks) or several beside each other, in order. False for
    /// a recurrent layer, which has nothing to attend to.
    ///
    /// # Errors
    /// [`ModelError::NoSuchLayer`], [`ModelError::RowsOutOfOrder`]; a device that fails.
    fn project(&mut self, layer: usize, rows: Range<usize>) -> Result<bool, ModelError>;

    /// The queries, keys and values of the layer under way, of all rows projected so far: the same values at every call, with what the caller
    /// changed. `None` before rows are projected, for a recurrent layer, and when all rows are finished.
    fn projected(&mut self) -> Option<Projected<'_>>;

    /// Takes projected rows through the rest of a layer, blocks in order, from what was written to [`Projected::attended`] for
    /// them. A recurrent layer reads and renews its part of `states`, one for each segment of the whole batch, which must have
    /// seen the tokens before the segment when its first rows come; after an error, and between the blocks of a segment, that
    /// part is undefined.
    ///
    /// # Errors
    /// [`ModelError::NoSuchLayer`], [`ModelError::RowsOutOfOrder`], [`ModelError::WrongStates`],
    /// [`ModelError::WrongRecurrentState`], [`ModelError::RecurrentPosition`]; weights that cannot be read, a device that fails.
    fn finish(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        states: &mut [&mut RecurrentState],
    ) -> Result<(), ModelError>;

    /// As [`finish`](Self::finish), a piece of it: false where work that goes over all rows of the batch is left, which a further call with the
    /// same rows goes on with.
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

    /// True if [`finish`](Self::finish) may leave out rows of the layer: it is the last, and no row needs another there. Rows that were left
    /// out have no logits.
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

/// Queries, keys and values of one layer for the first rows of a batch, and room for what attention makes of them. The caller
/// may change all of them.
#[derive(Debug)]
pub struct Projected<'a> {
    /// `[rows, heads, key_width]`, turned to their positions.
    pub queries: &'a mut [f32],
    /// `[rows, kv_heads, key_width]`, turned to their positions; empty in a layer that reads the keys of another.
    pub keys: &'a mut [f32],
    /// `[rows, kv_heads, value_width]`; empty in a layer that reads the values of another.
    pub values: &'a mut [f32],
    /// `[rows, heads, value_width]`: the caller writes the attention result here.
    pub attended: &'a mut [f32],
    /// What the layer's own indexer computed of the rows, where it has one.
    pub index: Option<ProjectedIndex<'a>>,
}

/// Queries, weights and keys of a layer's own indexer ([`IndexerShape`](crate::IndexerShape)) for the first rows of a batch.
#[derive(Debug, Clone, Copy)]
pub struct ProjectedIndex<'a> {
    /// `[rows, heads, width]`, turned to their positions.
    pub queries: &'a [f32],
    /// `[rows, heads]`.
    pub weights: &'a [f32],
    /// `[rows, width]`, turned to their positions.
    pub keys: &'a [f32],
}

/// A batch in main memory, computed by the CPU.
pub struct HostForward {
    model: Arc<Decoder>,
    batch: Option<Batch>,
    progress: LayerProgress,
    // [rows, hidden_size]
    hidden: Vec<f32>,
    workspace: Workspace,
    /// The last rows of the layer under way are finished up to its experts, and these are not done.
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

    /// Hidden states of the batch after the layers that it has been through, `[rows, hidden_size]`.
    pub fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// Appends hidden states of some rows to `out`, `[rows, hidden_size]`, as the head gets them: after the final norm.
    pub fn append_normed(&self, rows: Range<usize>, out: &mut Vec<f32>) {
        let (width, first) = (self.model.config.hidden_size, out.len());
        out.extend_from_slice(&self.hidden[rows.start * width..rows.end * width]);
        for_rows(&mut out[first..], width, |_, row| {
            self.model.final_norm.apply_in_place(row);
        });
    }

    /// Begins a batch with hidden states, `[rows, hidden_size]`, that [`hidden`](Self::hidden) gave for its tokens. It goes on at
    /// the layer after those that they have been through.
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

    /// Bytes it holds beside the hidden states: those that [`scratch_bytes`](crate::scratch_bytes) says.
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
        let indexer = attention.indexer.as_ref().map(|indexer| &indexer.shape);
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
        // After an error the batch cannot go on.
        self.is_in_experts = matches!(is_done, Ok(false));
        is_done
    }

    fn may_leave_out_rows(&self, layer: usize) -> bool {
        // Experts take all rows of a batch together, and a mixer reads one row after the other.
        let layers = &self.model.layers;
        layer + 1 == layers.len() && layers[layer].experts().is_none() && layers[layer].mixer().is_none()
    }

    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), ModelError> {
        let vocab_size = self.model.config.vocab_size;
        ModelError::check_length("out", rows.len() * vocab_size, out.len())?;
        self.model.logits(&self.hidden, rows, out, &mut self.workspace);
        Ok(())
    }
}
