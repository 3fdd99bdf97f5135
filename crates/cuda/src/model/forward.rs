//! A batch in a decoder in a device's memory.

use std::ops::Range;
use std::sync::Arc;

use riffle_device::HostRows;
use riffle_model::{
    Batch, CutGrid, Forward, LayerProgress, ModelError, Projected, RecurrentLayer, RecurrentState, Rows,
};

use super::buffers::{Buffers, HostBuffers, LOGIT_ROWS, ROW_BLOCK, Sizes, floats, host_floats, host_floats_mut};
use super::recurrence::{DeviceMixer, MixerRows, Recurrence};
use super::rows::DeviceRows;
use super::weights::{DeviceAttention, DeviceLayer, DeviceMlp, DeviceModel, DeviceNorm, DeviceStep};
use crate::ops::{self, HeadRows};
use crate::{CudaError, Region, Stream};

/// Blocks are counted from a segment's first row. The delta rule's kernels sum the remaining rows of a call in another
/// order. A block with another end would therefore change bits.
const CUT_GRID: CutGrid = CutGrid::Rows(ROW_BLOCK);

/// A batch on a device: hidden states stay there. [`Forward`] copies queries, keys and values to main memory and the
/// output back. A caller that attends on the device leaves them there:
///
/// 1. [`project_rows`](Self::project_rows) projects rows of a layer into the [`rows`](Self::rows) on the device,
/// 2. [`bring_queries`](Self::bring_queries) copies their queries to main memory, where policies choose by them
///    ([`host_rows`](Self::host_rows)),
/// 3. the result is written to the rows by a [call](DeviceRows::call), or to main memory and
///    [copied](Self::send_attended) from there,
/// 4. [`Forward::finish`] continues from the rows.
///
/// The rounding of a product depends on its number of rows. Linear work therefore always uses the same blocks of up to
/// 1024 rows, and [`Forward::row_blocks`] are adjacent ones of these blocks: `most` is raised to the longest of them,
/// and a batch of up to 1024 rows is one block.
///
/// For the same reason verified drafts have the bits of single tokens only in batches of up to eight rows, over all
/// segments. In longer batches they differ by rounding.
pub struct DeviceForward {
    model: Arc<DeviceModel>,
    stream: Arc<Stream>,
    batch_tokens: usize,
    batch: Option<Batch>,
    /// The blocks of rows of linear work.
    blocks: Vec<Range<usize>>,
    progress: LayerProgress,
    rows: DeviceRows,
    buffers: Buffers,
    host: HostBuffers,
    recurrence: Option<Recurrence>,
    /// For each rotation, true if its table has the positions of the batch.
    turned: Vec<bool>,
    /// True if the layer's attention runs in main memory; its rows are copied from there when they are finished.
    attended_in_memory: bool,
}

impl DeviceForward {
    /// Memory for batches of up to `batch_tokens` tokens. Work is queued on `stream`.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], a lost device.
    pub fn new(
        model: &Arc<DeviceModel>,
        stream: &Arc<Stream>,
        batch_tokens: usize,
    ) -> Result<DeviceForward, CudaError> {
        let sizes = Sizes::new(&model.config, batch_tokens);
        let scratch = model.scratch_bytes(sizes.block.max(LOGIT_ROWS));
        Ok(DeviceForward {
            rows: DeviceRows::new(&model.gpu, stream, &model.config, batch_tokens)?,
            buffers: Buffers::new(&model.gpu, &sizes, scratch)?,
            host: HostBuffers::new(&model.gpu, &sizes)?,
            recurrence: Recurrence::new(&model.gpu, &model.config, sizes.block)?,
            turned: vec![false; sizes.rotations],
            stream: Arc::clone(stream),
            model: Arc::clone(model),
            batch_tokens,
            batch: None,
            blocks: Vec::new(),
            progress: LayerProgress::default(),
            attended_in_memory: false,
        })
    }

    /// Queries, keys and values of the layer projected last, and its attention output.
    pub fn rows(&self) -> &DeviceRows {
        &self.rows
    }

    /// Projects some rows of a layer into the [`rows`](Self::rows), in the order of [`Forward::project`]. Returns
    /// false for a recurrent layer, which has no attention. The caller writes the attention output to the rows, or
    /// [copies](Self::send_attended) it there.
    ///
    /// # Errors
    /// [`ModelError::NoSuchLayer`], [`ModelError::RowsOutOfOrder`], a failed device.
    pub fn project_rows(&mut self, layer: usize, rows: Range<usize>) -> Result<bool, ModelError> {
        let model = Arc::clone(&self.model);
        let own = layer_of(&model, layer)?;
        self.progress.project(layer, &rows)?;
        self.attended_in_memory = false;
        let Some(attention) = &own.attention else {
            return Ok(false);
        };
        self.project_attention(attention, &rows).map_err(model_error)?;
        Ok(true)
    }

    /// Copies the queries of some rows of the batch to main memory.
    ///
    /// # Errors
    /// A lost device.
    pub fn bring_queries(&mut self, rows: Range<usize>) -> Result<(), CudaError> {
        let width = self.rows.heads * self.rows.head_dim;
        let from = floats(&self.rows.queries, rows.start * width, rows.len() * width);
        self.stream
            .from_device(&mut self.host.queries, 4 * rows.start * width, from)?;
        self.stream.synchronize()
    }

    /// The projected rows, with queries [copied](Self::bring_queries) to main memory.
    pub fn host_rows(&mut self) -> HostRows<'_> {
        let projected = self.progress.under_way().map_or(0, |(_, rows)| rows);
        let count = projected * self.rows.heads * self.rows.head_dim;
        HostRows {
            queries: host_floats(&self.host.queries, count),
            attended: host_floats_mut(&mut self.host.attended, count),
            rows: &self.rows,
        }
    }

    /// Copies [`HostRows::attended`] for some rows of the batch to the device.
    ///
    /// # Errors
    /// A lost device.
    pub fn send_attended(&mut self, rows: Range<usize>) -> Result<(), CudaError> {
        let width = self.rows.heads * self.rows.head_dim;
        let to = floats(&self.rows.attended, rows.start * width, rows.len() * width);
        self.stream.to_device(to, &self.host.attended, 4 * rows.start * width)
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), CudaError> {
        let tokens = batch.tokens();
        let (model, stream, buffers) = (&*self.model, &*self.stream, &self.buffers);
        // The copy of the previous batch has run, because its logits or its last layer were waited for.
        stream.synchronize()?;
        let ids: &mut [u8] = &mut self.host.ids.bytes_mut()[..4 * tokens.len()];
        ids.copy_from_slice(bytemuck::cast_slice(tokens));
        stream.to_device(buffers.ids.region(0..4 * tokens.len()), &self.host.ids, 0)?;
        let hidden = floats(&buffers.hidden, 0, tokens.len() * model.config.hidden_size);
        model
            .embedding
            .gather(stream, hidden, buffers.ids.all(), tokens.len())?;
        if let Some(scale) = model.embedding_scale {
            ops::multiply(stream, hidden, scale, tokens.len() * model.config.hidden_size)?;
        }
        self.turned.fill(false);
        Ok(())
    }

    /// Normalises, projects and rotates.
    fn project_attention(&mut self, attention: &DeviceAttention, rows: &Range<usize>) -> Result<(), CudaError> {
        self.prepare_turns(attention)?;
        let (stream, buffers, to, config) = (&*self.stream, &self.buffers, &self.rows, &self.model.config);
        let (width, head_dim) = (config.hidden_size, config.head_dim);
        let (query_width, kv_width) = (config.heads * head_dim, config.kv_heads * head_dim);
        let scratch = buffers.scratch.all();
        for block in self.blocks_in(rows) {
            let rows = block.len();
            let at = |buffer, width| floats(buffer, block.start * width, rows * width);
            let normed = floats(&buffers.normed, 0, rows * width);
            attention
                .norm
                .apply(stream, normed, at(&buffers.hidden, width), rows, width)?;
            let queries = at(&to.queries, query_width);
            let keys = at(&to.keys, kv_width);
            attention.query.apply(stream, queries, normed, rows, scratch)?;
            attention.key.apply(stream, keys, normed, rows, scratch)?;
            let values = at(&to.values, kv_width);
            attention.value.apply(stream, values, normed, rows, scratch)?;
            let dim = attention.rotary.dim();
            let turns = at(&buffers.turns[attention.rotary_table], dim);
            for (data, heads, norm) in [
                (queries, config.heads, &attention.query_norm),
                (keys, config.kv_heads, &attention.key_norm),
            ] {
                if let Some(norm) = norm {
                    norm_heads(norm, stream, data, rows * heads, head_dim)?;
                }
                let stride = heads * head_dim;
                let heads = HeadRows {
                    data,
                    rows,
                    heads,
                    head_dim,
                    stride,
                };
                ops::rotary(stream, &heads, turns, dim)?;
            }
        }
        Ok(())
    }

    /// Copies keys and values of some rows of the batch to main memory.
    fn bring_keys_and_values(&mut self, rows: &Range<usize>) -> Result<(), CudaError> {
        let (stream, from, host) = (&*self.stream, &self.rows, &mut self.host);
        let width = from.kv_heads * from.head_dim;
        let (first, count) = (rows.start * width, rows.len() * width);
        stream.from_device(&mut host.keys, 4 * first, floats(&from.keys, first, count))?;
        stream.from_device(&mut host.values, 4 * first, floats(&from.values, first, count))
    }

    /// Uploads the cosines and sines of the batch, unless they are on the device.
    fn prepare_turns(&mut self, attention: &DeviceAttention) -> Result<(), CudaError> {
        let table = attention.rotary_table;
        let Some(batch) = self.batch.as_ref().filter(|_| !self.turned[table]) else {
            return Ok(());
        };
        let rows = batch.rows();
        let dim = attention.rotary.dim();
        let mut angles = vec![0.0; rows * dim];
        attention.rotary.batch_angles(batch, &mut angles);
        // The copy that reads the buffer may still be queued.
        self.stream.synchronize()?;
        let host = &mut self.host.turns[table];
        let turns: &mut [f32] = bytemuck::cast_slice_mut(&mut host.bytes_mut()[..4 * rows * dim]);
        for (turns, angles) in turns.chunks_exact_mut(dim).zip(angles.chunks_exact(dim)) {
            let (cosines, sines) = angles.split_at(dim / 2);
            for ((turn, cosine), sine) in turns.chunks_exact_mut(2).zip(cosines).zip(sines) {
                turn.copy_from_slice(&[*cosine, *sine]);
            }
        }
        let to = floats(&self.buffers.turns[table], 0, rows * dim);
        self.stream.to_device(to, host, 0)?;
        self.turned[table] = true;
        Ok(())
    }

    /// The blocks with some of these rows of the batch.
    fn blocks_in(&self, rows: &Range<usize>) -> Vec<Range<usize>> {
        let cut = |block: &Range<usize>| block.start.max(rows.start)..block.end.min(rows.end);
        self.blocks.iter().map(cut).filter(|block| !block.is_empty()).collect()
    }

    fn step(
        &mut self,
        layer: usize,
        step: &DeviceStep,
        block: &Range<usize>,
        states: &mut [Option<RecurrentLayer<'_>>],
    ) -> Result<(), CudaError> {
        let (stream, buffers) = (&*self.stream, &self.buffers);
        let (rows, width) = (block.len(), self.model.config.hidden_size);
        let of = |rows: Rows| self.region(rows, block);
        match step {
            DeviceStep::Recur(mixer) => self.recur(layer, mixer, block, states),
            DeviceStep::Normalise { norm, from, to } => norm.apply(stream, of(*to), of(*from), rows, width),
            DeviceStep::Project { projection, from, to } => {
                projection.apply(stream, of(*to), of(*from), rows, buffers.scratch.all())
            }
            DeviceStep::FeedForward(mlp) => self.feed_forward(mlp, block),
            DeviceStep::OpenGate { norm, gate } => {
                let normed = of(Rows::Normed);
                norm.apply(stream, normed, of(Rows::Hidden), rows, width)?;
                let attended = of(Rows::Attended);
                let opening = buffers.gate.region(0..attended.bytes());
                gate.apply(stream, opening, normed, rows, buffers.scratch.all())?;
                let count = attended.bytes() / 4;
                ops::gate_product(stream, opening, attended, ops::Activation::Sigmoid, count)?;
                stream.copy_on_device(attended, opening)
            }
            DeviceStep::Add(term) => ops::add(stream, of(Rows::Hidden), of(*term), rows * width),
        }
    }

    /// Reads a block's rows, segment by segment, into the recurrent states of a layer.
    fn recur(
        &mut self,
        layer: usize,
        mixer: &DeviceMixer,
        block: &Range<usize>,
        states: &mut [Option<RecurrentLayer<'_>>],
    ) -> Result<(), CudaError> {
        let (Some(recurrence), Some(batch)) = (&mut self.recurrence, &self.batch) else {
            unreachable!("a model with recurrent layers has memory for them");
        };
        let count = block.len() * self.model.config.hidden_size;
        let rows = MixerRows {
            first: block.start,
            rows: block.len(),
            input: floats(&self.buffers.normed, 0, count),
            output: floats(&self.buffers.branch, 0, count),
            scratch: self.buffers.scratch.all(),
        };
        recurrence.project(&self.stream, mixer, &rows)?;
        for part in batch.parts(block.clone()) {
            let Some(state) = &mut states[part.segment] else {
                continue;
            };
            let whole = &batch.segments()[part.segment].rows;
            if part.rows.start == whole.start {
                recurrence.begin(&self.stream, layer, state)?;
            }
            recurrence.read(&self.stream, layer, mixer, &rows, &part)?;
            if part.rows.end == whole.end {
                recurrence.end(&self.stream, layer, state, whole.len())?;
            }
        }
        recurrence.write(&self.stream, mixer, &rows)
    }

    fn feed_forward(&self, mlp: &DeviceMlp, block: &Range<usize>) -> Result<(), CudaError> {
        let (stream, buffers) = (&*self.stream, &self.buffers);
        let (rows, scratch) = (block.len(), buffers.scratch.all());
        let count = rows * self.model.config.intermediate_size;
        let (input, output) = (self.region(Rows::Normed, block), self.region(Rows::Branch, block));
        let up = floats(&buffers.inner, 0, count);
        mlp.up.apply(stream, up, input, rows, scratch)?;
        match &mlp.gate {
            Some(gate) => {
                let opening = floats(&buffers.inner_gate, 0, count);
                gate.apply(stream, opening, input, rows, scratch)?;
                ops::gate_product(stream, opening, up, mlp.activation, count)?;
                mlp.down.apply(stream, output, opening, rows, scratch)
            }
            None => {
                ops::activate(stream, up, mlp.activation, count)?;
                mlp.down.apply(stream, output, up, rows, scratch)
            }
        }
    }

    fn region(&self, rows: Rows, block: &Range<usize>) -> Region<'_> {
        let config = &self.model.config;
        let (hidden, attended) = (config.hidden_size, config.heads * config.head_dim);
        let count = block.len();
        match rows {
            Rows::Hidden => floats(&self.buffers.hidden, block.start * hidden, count * hidden),
            Rows::Attended => floats(&self.rows.attended, block.start * attended, count * attended),
            Rows::Normed => floats(&self.buffers.normed, 0, count * hidden),
            Rows::Branch => floats(&self.buffers.branch, 0, count * hidden),
        }
    }

    fn head(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), CudaError> {
        let (model, stream, buffers) = (&*self.model, &*self.stream, &self.buffers);
        let (width, vocab) = (model.config.hidden_size, model.config.vocab_size);
        let head = model.head.as_ref().unwrap_or(&model.embedding);
        let most = LOGIT_ROWS.min(self.batch_tokens.max(1));
        for (rows, out) in rows.chunks(most).zip(out.chunks_mut(most * vocab)) {
            let (count, mut done) = (rows.len(), 0);
            for run in rows.chunk_by(|row, next| row + 1 == *next) {
                let normed = floats(&buffers.normed, done * width, run.len() * width);
                let hidden = floats(&buffers.hidden, run[0] * width, run.len() * width);
                model.final_norm.apply(stream, normed, hidden, run.len(), width)?;
                done += run.len();
            }
            let normed = floats(&buffers.normed, 0, count * width);
            let logits = floats(&buffers.logits, 0, count * vocab);
            head.multiply(stream, logits, normed, count, buffers.scratch.all())?;
            if let Some(bias) = &model.head_bias {
                ops::add_to_rows(stream, logits, bias.all(), count, vocab)?;
            }
            if let Some(cap) = model.logit_cap {
                ops::soft_cap(stream, logits, cap, count * vocab)?;
            }
            stream.from_device(&mut self.host.logits, 0, logits)?;
            stream.synchronize()?;
            out.copy_from_slice(bytemuck::cast_slice(&self.host.logits.bytes()[..4 * out.len()]));
        }
        Ok(())
    }
}

impl Forward for DeviceForward {
    fn batch_tokens(&self) -> usize {
        self.batch_tokens
    }

    fn embed(&mut self, batch: &Batch) -> Result<(), ModelError> {
        batch.check(self.model.config.vocab_size, self.batch_tokens)?;
        self.batch = Some(batch.clone());
        self.blocks = batch.row_blocks(0..batch.rows(), ROW_BLOCK, CUT_GRID);
        self.progress = LayerProgress::new(batch.rows());
        self.begin(batch).map_err(model_error)
    }

    fn row_blocks(&self, most: usize) -> Vec<Range<usize>> {
        let mut joined: Vec<Range<usize>> = Vec::new();
        for block in &self.blocks {
            match joined.last_mut() {
                Some(last) if block.end - last.start <= most => last.end = block.end,
                _ => joined.push(block.clone()),
            }
        }
        joined
    }

    fn project(&mut self, layer: usize, rows: Range<usize>) -> Result<bool, ModelError> {
        if !self.project_rows(layer, rows.clone())? {
            return Ok(false);
        }
        self.attended_in_memory = true;
        self.bring_keys_and_values(&rows).map_err(model_error)?;
        self.bring_queries(rows).map_err(model_error)?;
        Ok(true)
    }

    fn projected(&mut self) -> Option<Projected<'_>> {
        let (_, projected) = self.progress.under_way().filter(|_| self.attended_in_memory)?;
        let (rows, host) = (&self.rows, &mut self.host);
        let (query_count, kv_count) = (projected * rows.heads, projected * rows.kv_heads);
        Some(Projected {
            queries: host_floats_mut(&mut host.queries, query_count * rows.head_dim),
            keys: host_floats_mut(&mut host.keys, kv_count * rows.head_dim),
            values: host_floats_mut(&mut host.values, kv_count * rows.head_dim),
            attended: host_floats_mut(&mut host.attended, query_count * rows.head_dim),
            index: None,
        })
    }

    fn finish(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        states: &mut [&mut RecurrentState],
    ) -> Result<(), ModelError> {
        let model = Arc::clone(&self.model);
        let own = layer_of(&model, layer)?;
        let Some(batch) = &self.batch else {
            return Ok(());
        };
        batch.check_states(states.len())?;
        self.progress.finish(layer, &rows)?;
        // A state in main memory does not change until its segment's last row is read.
        let segments = batch.segments().iter().zip(states);
        let states = segments.map(|(segment, state)| {
            if segment.rows.start < rows.end && rows.start < segment.rows.end {
                state.layer(&model.config, layer, segment.position)
            } else {
                Ok(None)
            }
        });
        let mut states: Vec<_> = states.collect::<Result<_, _>>()?;
        let mut work = || {
            if self.attended_in_memory {
                self.send_attended(rows.clone())?;
            }
            for block in self.blocks_in(&rows) {
                for step in &own.steps {
                    self.step(layer, step, &block, &mut states)?;
                }
            }
            Ok(())
        };
        work().map_err(model_error)
    }

    fn may_leave_out_rows(&self, _: usize) -> bool {
        false
    }

    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), ModelError> {
        let vocab_size = self.model.config.vocab_size;
        ModelError::check_length("out", rows.len() * vocab_size, out.len())?;
        self.head(rows, out).map_err(model_error)
    }
}

fn layer_of(model: &DeviceModel, layer: usize) -> Result<&DeviceLayer, ModelError> {
    model.layers.get(layer).ok_or(ModelError::NoSuchLayer {
        layer,
        layers: model.layers.len(),
    })
}

fn norm_heads(
    norm: &DeviceNorm,
    stream: &Stream,
    data: Region<'_>,
    count: usize,
    head_dim: usize,
) -> Result<(), CudaError> {
    // Heads are contiguous, so each is a row.
    norm.apply(stream, data, data, count, head_dim)
}

fn model_error(error: CudaError) -> ModelError {
    ModelError::Device(error.into())
}
