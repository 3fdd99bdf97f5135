//! The memory of a batch on a device and in main memory, with known sizes.

use riffle_model::ModelConfig;

use super::recurrence::Recurrence;
use crate::{CudaError, DeviceBuffer, Gpu, PinnedBuffer, Region};

/// Rows of a block of linear work: enough to share each read of a weight, and few enough for a small scratch.
pub(super) const ROW_BLOCK: usize = 1024;

/// The values are f32, unless a field names another type.
pub(super) struct Buffers {
    // [batch], u32
    pub(super) ids: DeviceBuffer,
    // [batch, hidden]
    pub(super) hidden: DeviceBuffer,
    // [block, hidden]
    pub(super) normed: DeviceBuffer,
    // [block, hidden]
    pub(super) branch: DeviceBuffer,
    // [block, intermediate]
    pub(super) inner: DeviceBuffer,
    // [block, intermediate]
    pub(super) inner_gate: DeviceBuffer,
    // [block, heads, head_dim]
    pub(super) gate: DeviceBuffer,
    // [rotations][batch, dim / 2, 2]
    pub(super) turns: Vec<DeviceBuffer>,
    // [logit rows, vocab]
    pub(super) logits: DeviceBuffer,
    // bytes of a product's scratch
    pub(super) scratch: DeviceBuffer,
}

/// Pinned main memory for copies.
pub(super) struct HostBuffers {
    pub(super) ids: PinnedBuffer,
    pub(super) queries: PinnedBuffer,
    pub(super) keys: PinnedBuffer,
    pub(super) values: PinnedBuffer,
    pub(super) attended: PinnedBuffer,
    pub(super) turns: Vec<PinnedBuffer>,
    pub(super) logits: PinnedBuffer,
}

/// Rows of logits computed at a time.
pub(super) const LOGIT_ROWS: usize = 64;

/// Bytes of device memory of a batch, including the scratch of products.
pub fn forward_bytes(config: &ModelConfig, batch_tokens: usize) -> u64 {
    let sizes = Sizes::new(config, batch_tokens);
    let widest = config.hidden_size.max(config.intermediate_size).max(sizes.query_width);
    let value_width = config.gated_delta_net().map_or(0, |shape| shape.value_width());
    let widest = widest.max(value_width);
    // Activations in 16 bits, or in 8 with scales.
    let scratch = sizes.block.max(LOGIT_ROWS) * 2 * widest;
    (4 * sizes.floats() + scratch + Recurrence::bytes(config, sizes.block)) as u64
}

pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) block: usize,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) query_width: usize,
    pub(super) kv_width: usize,
    pub(super) inner: usize,
    pub(super) rotary: usize,
    pub(super) rotations: usize,
    pub(super) logits: usize,
}

impl Sizes {
    pub(super) fn new(config: &ModelConfig, batch_tokens: usize) -> Sizes {
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

    pub(super) fn floats(&self) -> usize {
        // Queries and attention output, with its log-sum-exp.
        let rows = 2 * self.query_width + 2 * self.kv_width + self.heads;
        let per_token = 1 + self.hidden + rows + self.rotary * self.rotations;
        let per_row = 2 * self.hidden + 2 * self.inner + self.query_width;
        self.batch * per_token + self.block * per_row + self.logits
    }
}

impl Buffers {
    pub(super) fn new(gpu: &Gpu, sizes: &Sizes, scratch_bytes: usize) -> Result<Buffers, CudaError> {
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
    pub(super) fn new(gpu: &Gpu, sizes: &Sizes) -> Result<HostBuffers, CudaError> {
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

/// `count` floats of a buffer, from index `first`.
pub(super) fn floats(buffer: &DeviceBuffer, first: usize, count: usize) -> Region<'_> {
    buffer.region(4 * first..4 * (first + count))
}

pub(super) fn host_floats(buffer: &PinnedBuffer, count: usize) -> &[f32] {
    bytemuck::cast_slice(&buffer.bytes()[..4 * count])
}

pub(super) fn host_floats_mut(buffer: &mut PinnedBuffer, count: usize) -> &mut [f32] {
    bytemuck::cast_slice_mut(&mut buffer.bytes_mut()[..4 * count])
}
