//! A batch on its way through a decoder in a device's memory.

use std::ops::Range;
use std::sync::Arc;

use riffle_model::{
    Attended, AttentionInput, AttentionStep, Forward, ModelConfig, ModelError, OnDevice, RecurrentState, Rows,
};

use super::recurrence::Recurrence;
use super::rows::DeviceRows;
use super::weights::{DeviceAttention, DeviceLayer, DeviceMlp, DeviceModel, DeviceNorm, DeviceStep};
use crate::ops::{self, HeadRows};
use crate::{CudaError, DeviceBuffer, Gpu, PinnedBuffer, Region, Stream};

/// Rows whose linear work is done at a time: enough to read each weight once for many, few enough that scratch stays
/// small.
const ROW_BLOCK: usize = 1024;

/// A batch on a device: hidden states stay there, queries come to main memory, where policies choose by them. Keys, values and
/// attention's result stay as well where the attention step [takes](AttentionStep::meet) and [leaves](Attended) them there.
pub struct DeviceForward {
    model: Arc<DeviceModel>,
    stream: Arc<Stream>,
    batch_tokens: usize,
    context_tokens: usize,
    tokens: usize,
    rows: DeviceRows,
    buffers: Buffers,
    host: HostBuffers,
    recurrence: Option<Recurrence>,
    /// For each rotation which positions its table holds: first, tokens.
    turned: Vec<Option<(usize, usize)>>,
}

/// f32 unless said otherwise.
struct Buffers {
    // [batch], u32
    ids: DeviceBuffer,
    // [batch, hidden]
    hidden: DeviceBuffer,
    // [block, hidden]
    normed: DeviceBuffer,
    // [block, hidden]
    branch: DeviceBuffer,
    // [block, intermediate]
    inner: DeviceBuffer,
    // [block, intermediate]
    inner_gate: DeviceBuffer,
    // [block, heads, head_dim]
    gate: DeviceBuffer,
    // [rotations][batch, dim / 2, 2]
    turns: Vec<DeviceBuffer>,
    // [logit rows, vocab]
    logits: DeviceBuffer,
    // bytes of a product's scratch
    scratch: DeviceBuffer,
}

/// Main memory that copies read and write by themselves.
struct HostBuffers {
    ids: PinnedBuffer,
    queries: PinnedBuffer,
    keys: PinnedBuffer,
    values: PinnedBuffer,
    attended: PinnedBuffer,
    turns: Vec<PinnedBuffer>,
    logits: PinnedBuffer,
}

/// Rows of logits that are computed at a time.
const LOGIT_ROWS: usize = 64;

/// Bytes of device memory a batch takes, with the scratch of products.
pub fn forward_bytes(config: &ModelConfig, batch_tokens: usize) -> u64 {
    let sizes = Sizes::new(config, batch_tokens);
    let widest = config.hidden_size.max(config.intermediate_size).max(sizes.query_width);
    let value_width = config
        .recurrent
        .as_ref()
        .map_or(0, |shape| shape.value_heads * shape.value_dim);
    let widest = widest.max(value_width);
    // Activations in 16 bits, or in 8 with scales.
    let scratch = sizes.block.max(LOGIT_ROWS) * 2 * widest;
    (4 * sizes.floats() + scratch + Recurrence::bytes(config, sizes.block)) as u64
}

struct Sizes {
    batch: usize,
    block: usize,
    hidden: usize,
    heads: usize,
    query_width: usize,
    kv_width: usize,
    inner: usize,
    rotary: usize,
    rotations: usize,
    logits: usize,
}

impl Sizes {
    fn new(config: &ModelConfig, batch_tokens: usize) -> Sizes {
        Sizes {
            batch: batch_tokens,
            block: batch_tokens.clamp(1, ROW_BLOCK),
            hidden: config.hidden_size,
            heads: config.heads,
            query_width: config.heads * config.head_dim,
            kv_width: config.kv_heads * config.head_dim,
            inner: config.intermediate_size,
            rotary: config.rotary_dim,
            rotations: config.rotary_tables,
            logits: batch_tokens.clamp(1, LOGIT_ROWS) * config.vocab_size,
        }
    }

    fn floats(&self) -> usize {
        // Queries and what attention returned, with its log-sum-exp.
        let rows = 2 * self.query_width + 2 * self.kv_width + self.heads;
        let per_token = 1 + self.hidden + rows + self.rotary * self.rotations;
        let per_row = 2 * self.hidden + 2 * self.inner + self.query_width;
        self.batch * per_token + self.block * per_row + self.logits
    }
}

impl DeviceForward {
    /// Memory for batches of up to `batch_tokens` tokens in a context of up to `context_tokens`; work is queued on
    /// `stream`.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], a lost device.
    pub fn new(
        model: &Arc<DeviceModel>,
        stream: &Arc<Stream>,
        batch_tokens: usize,
        context_tokens: usize,
    ) -> Result<DeviceForward, CudaError> {
        let sizes = Sizes::new(&model.config, batch_tokens);
        let scratch = model.scratch_bytes(sizes.block.max(LOGIT_ROWS));
        Ok(DeviceForward {
            rows: DeviceRows::new(&model.gpu, stream, &model.config, batch_tokens)?,
            buffers: Buffers::new(&model.gpu, &sizes, scratch)?,
            host: HostBuffers::new(&model.gpu, &sizes)?,
            recurrence: Recurrence::new(&model.gpu, &model.config, sizes.block)?,
            turned: vec![None; sizes.rotations],
            stream: Arc::clone(stream),
            model: Arc::clone(model),
            batch_tokens,
            context_tokens,
            tokens: 0,
        })
    }

    fn begin(&mut self, tokens: &[u32]) -> Result<(), CudaError> {
        let (model, stream, buffers) = (&*self.model, &*self.stream, &self.buffers);
        // The copy of the batch before has run: its logits or its last layer were waited for.
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
        (self.tokens, self.rows.tokens) = (tokens.len(), tokens.len());
        Ok(())
    }

    /// Normalises, projects and turns.
    fn project(&mut self, attention: &DeviceAttention, start_position: usize) -> Result<(), CudaError> {
        self.prepare_turns(attention, start_position)?;
        let (stream, buffers, to, config) = (&*self.stream, &self.buffers, &self.rows, &self.model.config);
        let (width, head_dim) = (config.hidden_size, config.head_dim);
        let (query_width, kv_width) = (config.heads * head_dim, config.kv_heads * head_dim);
        let scratch = buffers.scratch.all();
        for block in blocks(self.tokens) {
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

    /// Brings queries to main memory, and keys and values unless they are taken from where they lie.
    fn bring_rows(&mut self, with_keys_and_values: bool) -> Result<(), CudaError> {
        let (stream, rows, host) = (&*self.stream, &self.rows, &mut self.host);
        let (query_width, kv_width) = (rows.heads * rows.head_dim, rows.kv_heads * rows.head_dim);
        stream.from_device(
            &mut host.queries,
            0,
            floats(&rows.queries, 0, rows.tokens * query_width),
        )?;
        if with_keys_and_values {
            stream.from_device(&mut host.keys, 0, floats(&rows.keys, 0, rows.tokens * kv_width))?;
            stream.from_device(&mut host.values, 0, floats(&rows.values, 0, rows.tokens * kv_width))?;
        }
        stream.synchronize()
    }

    /// Brings the cosines and sines of the batch, unless they are there.
    fn prepare_turns(&mut self, attention: &DeviceAttention, start_position: usize) -> Result<(), CudaError> {
        let table = attention.rotary_table;
        let wanted = Some((start_position, self.tokens));
        if self.turned[table] == wanted {
            return Ok(());
        }
        let dim = attention.rotary.dim();
        let mut angles = vec![0.0; self.tokens * dim];
        attention
            .rotary
            .angles(self.context_tokens, start_position, &mut angles);
        // The copy that reads the buffer may still be queued.
        self.stream.synchronize()?;
        let host = &mut self.host.turns[table];
        let turns: &mut [f32] = bytemuck::cast_slice_mut(&mut host.bytes_mut()[..4 * self.tokens * dim]);
        for (turns, angles) in turns.chunks_exact_mut(dim).zip(angles.chunks_exact(dim)) {
            let (cosines, sines) = angles.split_at(dim / 2);
            for ((turn, cosine), sine) in turns.chunks_exact_mut(2).zip(cosines).zip(sines) {
                turn.copy_from_slice(&[*cosine, *sine]);
            }
        }
        let to = floats(&self.buffers.turns[table], 0, self.tokens * dim);
        self.stream.to_device(to, host, 0)?;
        self.turned[table] = wanted;
        Ok(())
    }

    fn steps(&self, number: usize, layer: &DeviceLayer) -> Result<(), CudaError> {
        for block in blocks(self.tokens) {
            for step in &layer.steps {
                self.step(number, step, &block)?;
            }
        }
        Ok(())
    }

    fn step(&self, layer: usize, step: &DeviceStep, block: &Range<usize>) -> Result<(), CudaError> {
        let (stream, buffers) = (&*self.stream, &self.buffers);
        let (rows, width) = (block.len(), self.model.config.hidden_size);
        let of = |rows: Rows| self.rows(rows, block);
        match step {
            DeviceStep::Normalise { norm, from, to } => norm.apply(stream, of(*to), of(*from), rows, width),
            DeviceStep::Project { projection, from, to } => {
                projection.apply(stream, of(*to), of(*from), rows, buffers.scratch.all())
            }
            DeviceStep::FeedForward(mlp) => self.feed_forward(mlp, block),
            DeviceStep::Recur(mixer) => {
                let (branch, normed) = (of(Rows::Branch), of(Rows::Normed));
                let scratch = buffers.scratch.all();
                let Some(recurrence) = &self.recurrence else {
                    unreachable!("a model with recurrent layers has memory for them");
                };
                recurrence.apply(stream, layer, mixer, branch, normed, rows, scratch)
            }
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

    fn feed_forward(&self, mlp: &DeviceMlp, block: &Range<usize>) -> Result<(), CudaError> {
        let (stream, buffers) = (&*self.stream, &self.buffers);
        let (rows, scratch) = (block.len(), buffers.scratch.all());
        let count = rows * self.model.config.intermediate_size;
        let (input, output) = (self.rows(Rows::Normed, block), self.rows(Rows::Branch, block));
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

    fn rows(&self, rows: Rows, block: &Range<usize>) -> Region<'_> {
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

    fn head(&mut self, rows: Range<usize>, out: &mut [f32]) -> Result<(), CudaError> {
        let (model, stream, buffers) = (&*self.model, &*self.stream, &self.buffers);
        let (width, vocab) = (model.config.hidden_size, model.config.vocab_size);
        let head = model.head.as_ref().unwrap_or(&model.embedding);
        let most = LOGIT_ROWS.min(self.batch_tokens.max(1));
        for (number, out) in out.chunks_mut(most * vocab).enumerate() {
            let (first, count) = (rows.start + number * most, out.len() / vocab);
            let normed = floats(&buffers.normed, 0, count * width);
            let hidden = floats(&buffers.hidden, first * width, count * width);
            model.final_norm.apply(stream, normed, hidden, count, width)?;
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

    fn embed(&mut self, tokens: &[u32]) -> Result<(), ModelError> {
        let vocab_size = self.model.config.vocab_size;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(ModelError::TokenOutOfRange { token, vocab_size });
        }
        if tokens.len() > self.batch_tokens {
            return Err(ModelError::BatchTooLarge {
                tokens: tokens.len(),
                batch_tokens: self.batch_tokens,
            });
        }
        self.begin(tokens).map_err(model_error)
    }

    fn layer(
        &mut self,
        layer: usize,
        start_position: usize,
        attention: &mut dyn AttentionStep,
        recurrent: &mut RecurrentState,
    ) -> Result<(), ModelError> {
        let model = Arc::clone(&self.model);
        let Some(own) = model.layers.get(layer) else {
            return Err(ModelError::NoSuchLayer {
                layer,
                layers: model.layers.len(),
            });
        };
        if let Some(projected) = &own.attention {
            self.project(projected, start_position).map_err(model_error)?;
            let taken = attention.meet(&self.rows).map_err(ModelError::Attention)?;
            self.bring_rows(!taken).map_err(model_error)?;
            let (config, tokens) = (&model.config, self.tokens);
            let (query_width, kv_width) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
            let (host, brought) = (&mut self.host, if taken { 0 } else { tokens * kv_width });
            let input = AttentionInput {
                layer,
                cache_layer: config.cache_layer(layer).unwrap_or(layer),
                start_position,
                tokens,
                queries: host_floats(&host.queries, tokens * query_width),
                keys: host_floats(&host.keys, brought),
                values: host_floats(&host.values, brought),
                on_device: taken.then_some(&self.rows as &OnDevice),
            };
            let attended = &mut host.attended.bytes_mut()[..4 * tokens * query_width];
            let output = bytemuck::cast_slice_mut(attended);
            if attention.attend(input, output).map_err(ModelError::Attention)? == Attended::InOutput {
                let to = floats(&self.rows.attended, 0, tokens * query_width);
                self.stream.to_device(to, &host.attended, 0).map_err(model_error)?;
            }
        }
        let mut state = recurrent.layer(&model.config, layer, start_position)?;
        let mut work = || {
            if let (Some(state), Some(recurrence)) = (&state, &mut self.recurrence) {
                recurrence.begin(&self.stream, layer, state)?;
            }
            self.steps(layer, own)?;
            match (&mut state, &mut self.recurrence) {
                (Some(state), Some(recurrence)) => recurrence.end(&self.stream, layer, state, self.tokens),
                _ => Ok(()),
            }
        };
        work().map_err(model_error)
    }

    fn logits(&mut self, rows: Range<usize>, out: &mut [f32]) -> Result<(), ModelError> {
        self.head(rows, out).map_err(model_error)
    }
}

fn norm_heads(
    norm: &DeviceNorm,
    stream: &Stream,
    data: Region<'_>,
    count: usize,
    head_dim: usize,
) -> Result<(), CudaError> {
    // Heads lie side by side: each is a row of its own.
    norm.apply(stream, data, data, count, head_dim)
}

fn model_error(error: CudaError) -> ModelError {
    ModelError::Device(error.into())
}

fn blocks(tokens: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (0..tokens).step_by(ROW_BLOCK);
    step.map(move |first| first..(first + ROW_BLOCK).min(tokens))
}

/// `count` floats of a buffer from number `first` on.
fn floats(buffer: &DeviceBuffer, first: usize, count: usize) -> Region<'_> {
    buffer.region(4 * first..4 * (first + count))
}

fn host_floats(buffer: &PinnedBuffer, count: usize) -> &[f32] {
    bytemuck::cast_slice(&buffer.bytes()[..4 * count])
}

impl Buffers {
    fn new(gpu: &Gpu, sizes: &Sizes, scratch_bytes: usize) -> Result<Buffers, CudaError> {
        let floats = |count: usize| gpu.allocate(4 * count);
        let turns = (0..sizes.rotations).map(|_| floats(sizes.batch * sizes.rotary));
        Ok(Buffers {
            ids: floats(sizes.batch)?,
            hidden: floats(sizes.batch * sizes.hidden)?,
            normed: floats(sizes.block * sizes.hidden)?,
            branch: floats(sizes.block * sizes.hidden)?,
            inner: floats(sizes.block * sizes.inner)?,
            inner_gate: floats(sizes.block * sizes.inner)?,
            gate: floats(sizes.block * sizes.query_width)?,
            turns: turns.collect::<Result<_, _>>()?,
            logits: floats(sizes.logits)?,
            scratch: gpu.allocate(scratch_bytes)?,
        })
    }
}

impl HostBuffers {
    fn new(gpu: &Gpu, sizes: &Sizes) -> Result<HostBuffers, CudaError> {
        let floats = |count: usize| gpu.allocate_host(4 * count);
        let turns = (0..sizes.rotations).map(|_| floats(sizes.batch * sizes.rotary));
        Ok(HostBuffers {
            ids: floats(sizes.batch)?,
            queries: floats(sizes.batch * sizes.query_width)?,
            keys: floats(sizes.batch * sizes.kv_width)?,
            values: floats(sizes.batch * sizes.kv_width)?,
            attended: floats(sizes.batch * sizes.query_width)?,
            turns: turns.collect::<Result<_, _>>()?,
            logits: floats(sizes.logits)?,
        })
    }
}
