//! Gated DeltaNet layers on a device. Main memory holds their states, where sessions copy, fork and store them. For
//! each segment of a batch a layer loads its state, reads its rows and copies the state back. A lost device therefore
//! loses no state. A state that is still on the device, in main memory's version, is not copied again.

use riffle_model::{GatedDeltaNet, ModelConfig, RecurrentLayer, SegmentPart};

use super::weights::{DeviceNorm, DeviceProjection, Upload};
use crate::ops::{self, DeltaGates, DeltaShape, DeltaTokens, Rows};
use crate::{CudaError, DeviceBuffer, Gpu, PinnedBuffer, Region, Stream};

/// The weights of one layer's mixer.
pub(super) struct DeviceMixer {
    shape: DeltaShape,
    kernel: usize,
    taps: DeviceBuffer,
    pub(super) mixed: DeviceProjection,
    pub(super) gate: DeviceProjection,
    pub(super) strength: DeviceProjection,
    pub(super) decay: DeviceProjection,
    pub(super) output: DeviceProjection,
    decay_rates: DeviceBuffer,
    decay_biases: DeviceBuffer,
    norm: DeviceNorm,
}

/// The sizes of a model's recurrent layers; `None` if it has none.
fn sizes(config: &ModelConfig) -> Option<(DeltaShape, usize)> {
    let shape = config.gated_delta_net()?;
    let delta = DeltaShape {
        key_heads: shape.key_heads,
        value_heads: shape.value_heads,
        key_dim: shape.key_dim,
        value_dim: shape.value_dim,
        heads_tiled: false,
    };
    Some((delta, shape.kernel))
}

impl DeviceMixer {
    pub(super) fn upload(
        upload: &mut Upload<'_>,
        config: &ModelConfig,
        mixer: &GatedDeltaNet,
    ) -> Result<Self, CudaError> {
        let Some((shape, kernel)) = sizes(config) else {
            unreachable!("a model with recurrent layers says their sizes");
        };
        Ok(Self {
            shape: DeltaShape {
                heads_tiled: mixer.heads_tiled(),
                ..shape
            },
            kernel,
            taps: upload.vector(mixer.taps())?,
            mixed: upload.projection(&mixer.mixed)?,
            gate: upload.projection(&mixer.gate)?,
            strength: upload.projection(&mixer.strength)?,
            decay: upload.projection(&mixer.decay)?,
            output: upload.projection(&mixer.output)?,
            decay_rates: upload.vector(&mixer.decay_rates)?,
            decay_biases: upload.vector(&mixer.decay_biases)?,
            norm: DeviceNorm::Rms {
                weight: upload.vector(&mixer.norm)?,
                epsilon: mixer.norm_epsilon,
            },
        })
    }
}

/// Memory of the recurrent layers of a batch: their states, and scratch for a block of rows. All f32.
pub(super) struct Recurrence {
    // by layer of the model; `None` for attention layers
    layers: Vec<Option<LayerState>>,
    // [block, channels]
    raw: DeviceBuffer,
    // [block, channels]
    mixed: DeviceBuffer,
    // [block, value_heads, value_dim]
    gated: DeviceBuffer,
    // [block, value_heads, value_dim]
    read: DeviceBuffer,
    // [block, value_heads]
    strength: DeviceBuffer,
    // [block, value_heads]
    decay: DeviceBuffer,
    scratch: DeviceBuffer,
    // Staging memory of one layer's state.
    convolution: PinnedBuffer,
    memory: PinnedBuffer,
}

/// A block of a batch's rows in a mixer.
pub(super) struct MixerRows<'a> {
    /// The first row.
    pub(super) first: usize,
    pub(super) rows: usize,
    // [rows, hidden_size]
    pub(super) input: Region<'a>,
    // [rows, hidden_size]
    pub(super) output: Region<'a>,
    /// Scratch memory of products.
    pub(super) scratch: Region<'a>,
}

/// State of one layer after the latest rows of a segment.
struct LayerState {
    // [kernel - 1, channels]
    convolution: DeviceBuffer,
    // [value_heads, key_dim, value_dim]
    memory: DeviceBuffer,
    /// [`RecurrentLayer::version`] of the state on the device; `None` during a change.
    version: Option<u64>,
}

impl Recurrence {
    /// Bytes of device memory for blocks of up to `block` rows.
    pub(super) fn bytes(config: &ModelConfig, block: usize) -> usize {
        let Some((shape, kernel)) = sizes(config) else {
            return 0;
        };
        let value_width = shape.value_heads * shape.value_dim;
        let row = 2 * (shape.channels() + value_width + shape.value_heads);
        let kept = (kernel - 1) * shape.channels() + shape.memory_values();
        let layers = config.state_layers().count();
        4 * (block * row + layers * kept) + ops::delta_scratch_bytes(&shape, block)
    }

    pub(super) fn new(gpu: &Gpu, config: &ModelConfig, block: usize) -> Result<Option<Self>, CudaError> {
        let Some((shape, kernel)) = sizes(config) else {
            return Ok(None);
        };
        let floats = |count: usize| gpu.allocate(4 * count);
        let (channels, value_width) = (shape.channels(), shape.value_heads * shape.value_dim);
        let kept = || {
            Ok(LayerState {
                convolution: floats((kernel - 1) * channels)?,
                memory: floats(shape.memory_values())?,
                version: None,
            })
        };
        let layers = config.states.iter().map(|state| state.map(|_| kept()).transpose());
        Ok(Some(Self {
            layers: layers.collect::<Result<_, CudaError>>()?,
            raw: floats(block * channels)?,
            mixed: floats(block * channels)?,
            gated: floats(block * value_width)?,
            read: floats(block * value_width)?,
            strength: floats(block * shape.value_heads)?,
            decay: floats(block * shape.value_heads)?,
            scratch: gpu.allocate(ops::delta_scratch_bytes(&shape, block))?,
            convolution: gpu.allocate_host(4 * (kernel - 1) * channels)?,
            memory: gpu.allocate_host(4 * shape.memory_values())?,
        }))
    }

    /// Copies a segment's state of a layer to the device if it is not there.
    pub(super) fn begin(&mut self, stream: &Stream, layer: usize, state: &RecurrentLayer<'_>) -> Result<(), CudaError> {
        let Some(Some(kept)) = self.layers.get_mut(layer) else {
            return Ok(());
        };
        // A failed copy leaves a mixed state, so the version is set after all copies are queued.
        if kept.version.take() == Some(state.version()) {
            return Ok(());
        }
        // Earlier copies may still read the buffers.
        stream.synchronize()?;
        let convolution: &[u8] = bytemuck::cast_slice(state.convolution());
        self.convolution.bytes_mut()[..convolution.len()].copy_from_slice(convolution);
        let memory = &mut self.memory.bytes_mut()[..kept.memory.bytes()];
        state.copy_memory(bytemuck::cast_slice_mut(memory));
        stream.to_device(kept.convolution.all(), &self.convolution, 0)?;
        stream.to_device(kept.memory.all(), &self.memory, 0)
    }

    /// Computes the projections of a block's rows for its segments.
    pub(super) fn project(&self, stream: &Stream, mixer: &DeviceMixer, rows: &MixerRows<'_>) -> Result<(), CudaError> {
        let (shape, count, heads) = (&mixer.shape, rows.rows, mixer.shape.value_heads);
        let (input, scratch) = (rows.input, rows.scratch);
        let raw = floats(&self.raw, count * shape.channels());
        let (strength, decay) = (
            floats(&self.strength, count * heads),
            floats(&self.decay, count * heads),
        );
        mixer.mixed.apply(stream, raw, input, count, scratch)?;
        mixer.strength.apply(stream, strength, input, count, scratch)?;
        mixer.decay.apply(stream, decay, input, count, scratch)?;
        let (rates, biases) = (mixer.decay_rates.all(), mixer.decay_biases.all());
        let gates = DeltaGates {
            strength,
            decay,
            rows: count,
            heads,
        };
        ops::delta_gates(stream, &gates, rates, biases)
    }

    /// Reads the batch's rows `part`, which are within a block, into the state of a layer on the device.
    pub(super) fn read(
        &self,
        stream: &Stream,
        layer: usize,
        mixer: &DeviceMixer,
        rows: &MixerRows<'_>,
        part: &SegmentPart,
    ) -> Result<(), CudaError> {
        let Some(Some(kept)) = self.layers.get(layer) else {
            return Ok(());
        };
        let (shape, count) = (&mixer.shape, part.rows.len());
        let of = |buffer, width: usize| {
            let first = part.rows.start - rows.first;
            DeviceBuffer::region(buffer, 4 * first * width..4 * (first + count) * width)
        };
        let (raw, mixed) = (of(&self.raw, shape.channels()), of(&self.mixed, shape.channels()));
        let (before, taps) = (kept.convolution.all(), mixer.taps.all());
        let raw = Rows {
            data: raw,
            rows: count,
            width: shape.channels(),
        };
        ops::convolve(stream, mixed, &raw, before, taps, mixer.kernel)?;
        let tokens = DeltaTokens {
            rows: count,
            one_by_one: part.one_by_one,
            mixed,
            strength: of(&self.strength, shape.value_heads),
            decay: of(&self.decay, shape.value_heads),
        };
        let read = of(&self.read, shape.value_heads * shape.value_dim);
        ops::delta_rule(stream, shape, read, kept.memory.all(), &tokens, self.scratch.all())
    }

    /// Computes the mixer's output for a block after its rows were read.
    pub(super) fn write(&self, stream: &Stream, mixer: &DeviceMixer, rows: &MixerRows<'_>) -> Result<(), CudaError> {
        let (shape, count) = (&mixer.shape, rows.rows);
        let width = shape.value_heads * shape.value_dim;
        let (gated, read) = (floats(&self.gated, count * width), floats(&self.read, count * width));
        let heads = count * shape.value_heads;
        mixer.norm.apply(stream, read, read, heads, shape.value_dim)?;
        mixer.gate.apply(stream, gated, rows.input, count, rows.scratch)?;
        ops::gate_product(stream, gated, read, ops::Activation::Silu, count * width)?;
        mixer.output.apply(stream, rows.output, gated, count, rows.scratch)
    }

    /// Copies a segment's state of a layer to main memory after `tokens` more tokens.
    pub(super) fn end(
        &mut self,
        stream: &Stream,
        layer: usize,
        state: &mut RecurrentLayer<'_>,
        tokens: usize,
    ) -> Result<(), CudaError> {
        let Some(Some(kept)) = self.layers.get_mut(layer) else {
            return Ok(());
        };
        stream.from_device(&mut self.convolution, 0, kept.convolution.all())?;
        stream.from_device(&mut self.memory, 0, kept.memory.all())?;
        stream.synchronize()?;
        let convolution = bytemuck::cast_slice(&self.convolution.bytes()[..kept.convolution.bytes()]);
        let memory = bytemuck::cast_slice(&self.memory.bytes()[..kept.memory.bytes()]);
        kept.version = Some(state.renew(tokens, convolution, memory));
        Ok(())
    }
}

/// The first `count` floats of a buffer.
fn floats(buffer: &DeviceBuffer, count: usize) -> Region<'_> {
    buffer.region(0..4 * count)
}
