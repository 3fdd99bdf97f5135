//! Scores of blocks by the bounds of their keys.

use super::pool::PagePool;
use super::summaries::Summaries;
use crate::ops::{self, Queries};
use crate::{CudaError, DeviceBuffer, Gpu, PinnedBuffer};

/// The bounds of every layer.
pub(super) struct KeyBounds {
    pub(super) summaries: Summaries,
    // f32 [kv_heads, blocks]
    scores: DeviceBuffer,
    host_scores: PinnedBuffer,
}

impl KeyBounds {
    pub(super) fn new(gpu: &Gpu, shape: &riffle_kv::CacheShape, bytes: u64) -> Result<Self, CudaError> {
        Ok(Self {
            summaries: Summaries::new(gpu, shape, bytes)?,
            scores: gpu.allocate(0)?,
            host_scores: gpu.allocate_host(0)?,
        })
    }
}

impl PagePool {
    /// Of every KV head the bound of each block of its first `tokens` tokens, all of them
    /// [known](Self::summaries_known), summed over `queries` and the heads of the group; equal to the CPU's to the bit.
    ///
    /// # Errors
    /// A lost device, too little memory: the pool has forgotten every page then.
    pub fn bound_scores(
        &mut self,
        layer: usize,
        queries: Queries<'_>,
        tokens: &[usize],
    ) -> Result<Vec<Vec<f32>>, CudaError> {
        let scored = self.score_bounds(layer, queries, tokens);
        if scored.is_err() {
            self.clear();
        }
        scored
    }

    fn score_bounds(
        &mut self,
        layer: usize,
        queries: Queries<'_>,
        tokens: &[usize],
    ) -> Result<Vec<Vec<f32>>, CudaError> {
        let shape = self.options.shape;
        let KeyBounds {
            summaries,
            scores,
            host_scores,
        } = &mut self.bounds;
        let Some(bounds) = summaries.of_layer(layer) else {
            return Ok(vec![Vec::new(); tokens.len()]);
        };
        let blocks_of = |tokens: &usize| tokens.div_ceil(bounds.block_tokens);
        let blocks = tokens.iter().map(blocks_of).max().unwrap_or(0);
        if blocks == 0 {
            return Ok(vec![Vec::new(); tokens.len()]);
        }
        let bytes = 4 * shape.kv_heads * blocks;
        if scores.bytes() < bytes {
            *host_scores = self.gpu.allocate_host(bytes.next_power_of_two())?;
            *scores = self.gpu.allocate(bytes.next_power_of_two())?;
        }
        let to = scores.region(0..bytes);
        let (heads, group) = ((shape.kv_heads, shape.head_dim), self.options.heads / shape.kv_heads);
        ops::bound_scores(&self.compute, to, &bounds, &queries, heads, group, blocks)?;
        self.compute.from_device(host_scores, 0, to)?;
        self.compute.synchronize()?;
        let found: &[f32] = bytemuck::cast_slice(&host_scores.bytes()[..bytes]);
        let of_head = |(found, tokens): (&[f32], &usize)| found[..blocks_of(tokens)].to_vec();
        Ok(found.chunks_exact(blocks).zip(tokens).map(of_head).collect())
    }
}
