//! Gated DeltaNet layers on a device. Their state lies in main memory, where sessions copy, fork and store it: a layer
//! brings it, reads its rows and takes it back, so that a lost device takes nothing with it. What a layer left on the
//! device is not brought again while main memory still holds the same.

use riffle_model::{GatedDeltaNet, ModelConfig, RecurrentLayer};

use super::weights::{DeviceNorm, DeviceProjection, Upload};
use crate::ops::{self, DeltaShape, DeltaTokens};
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

/// The sizes of a model's recurrent layers; `None` where it has none.
fn sizes(config: &ModelConfig) -> Option<(DeltaShape, usize)> {
    let shape = config.recurrent.as_ref()?;
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

/// Memory of the recurrent layers of a batch: what they keep, and scratch for a block of rows. All f32.
pub(super) struct Recurrence {
    // by layer of the model; `None` for those that hold keys and values
    layers: Vec<Option<Kept>>,
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
    // on the way of one layer's state
    convolution: PinnedBuffer,
    memory: PinnedBuffer,
}

/// What one layer keeps.
struct Kept {
    // [kernel - 1, channels]
    convolution: DeviceBuffer,
    // [value_heads, key_dim, value_dim]
    memory: DeviceBuffer,
    /// [`RecurrentLayer::version`] of what lies here, unless it is being changed.
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
        let layers = config.layers - config.attention_layers();
        4 * (block * row + layers * kept) + ops::delta_scratch_bytes(&shape, block)
    }

    pub(super) fn new(gpu: &Gpu, config: &ModelConfig, block: usize) -> Result<Option<Self>, CudaError> {
        let (Some((shape, kernel)), Some(recurrent)) = (sizes(config), &config.recurrent) else {
            return Ok(None);
        };
        let floats = |count: usize| gpu.allocate(4 * count);
        let (channels, value_width) = (shape.channels(), shape.value_heads * shape.value_dim);
        let kept = || {
            Ok(Kept {
                convolution: floats((kernel - 1) * channels)?,
                memory: floats(shape.memory_values())?,
                version: None,
            })
        };
        let layers = recurrent
            .layers
            .iter()
            .map(|recurrent| recurrent.then(kept).transpose());
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

    /// Sees to it that a layer's state lies on the device before its rows are read.
    pub(super) fn begin(&mut self, stream: &Stream, layer: usize, state: &RecurrentLayer<'_>) -> Result<(), CudaError> {
        let Some(Some(kept)) = self.layers.get_mut(layer) else {
            return Ok(());
        };
        // While it is being changed nobody knows what it holds.
        if kept.version.take() == Some(state.version()) {
            return Ok(());
        }
        // Copies queued before may still read the buffers.
        stream.synchronize()?;
        let convolution: &[u8] = bytemuck::cast_slice(state.convolution());
        self.convolution.bytes_mut()[..convolution.len()].copy_from_slice(convolution);
        let memory = &mut self.memory.bytes_mut()[..kept.memory.bytes()];
        state.copy_memory(bytemuck::cast_slice_mut(memory));
        stream.to_device(kept.convolution.all(), &self.convolution, 0)?;
        stream.to_device(kept.memory.all(), &self.memory, 0)
    }

    /// `output = mixer(input)` for the next rows of a layer, both `[rows, hidden_size]`; `scratch` is of products.
    pub(super) fn apply(
        &self,
        stream: &Stream,
        layer: usize,
        mixer: &DeviceMixer,
        output: Region<'_>,
        input: Region<'_>,
        rows: usize,
        scratch: Region<'_>,
    ) -> Result<(), CudaError> {
        let Some(Some(kept)) = self.layers.get(layer) else {
            return Ok(());
        };
        let shape = &mixer.shape;
        let (heads, value_width) = (shape.value_heads, shape.value_heads * shape.value_dim);
        let (raw, mixed) = (
            floats(&self.raw, rows * shape.channels()),
            floats(&self.mixed, rows * shape.channels()),
        );
        let (gated, read) = (
            floats(&self.gated, rows * value_width),
            floats(&self.read, rows * value_width),
        );
        let (strength, decay) = (floats(&self.strength, rows * heads), floats(&self.decay, rows * heads));
        mixer.mixed.apply(stream, raw, input, rows, scratch)?;
        let (before, taps) = (kept.convolution.all(), mixer.taps.all());
        ops::convolve(stream, mixed, raw, before, taps, mixer.kernel, shape.channels(), rows)?;
        mixer.strength.apply(stream, strength, input, rows, scratch)?;
        mixer.decay.apply(stream, decay, input, rows, scratch)?;
        let (rates, biases) = (mixer.decay_rates.all(), mixer.decay_biases.all());
        ops::delta_gates(stream, strength, decay, rates, biases, rows, heads)?;
        let tokens = DeltaTokens {
            rows,
            mixed,
            strength,
            decay,
        };
        ops::delta_rule(stream, shape, read, kept.memory.all(), &tokens, self.scratch.all())?;
        mixer.norm.apply(stream, read, read, rows * heads, shape.value_dim)?;
        mixer.gate.apply(stream, gated, input, rows, scratch)?;
        ops::gate_product(stream, gated, read, ops::Activation::Silu, rows * value_width)?;
        mixer.output.apply(stream, output, gated, rows, scratch)
    }

    /// Brings a layer's state back to main memory after `tokens` more tokens.
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
