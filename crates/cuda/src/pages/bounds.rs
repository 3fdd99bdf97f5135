//! Scores of blocks by the bounds of their keys.

use riffle_device::{LayerPages, SummaryKind};

use super::heads_of;
use super::summaries::Summaries;
use crate::ops::{self, HeadShape, Queries};
use crate::{CudaError, DeviceBuffer, Gpu, PinnedBuffer, Stream};

/// The bounds of every layer.
pub(super) struct KeyBounds {
    pub(super) summaries: Summaries,
    gpu: Gpu,
    // f32 [kv_heads, blocks]
    scores: DeviceBuffer,
    host_scores: PinnedBuffer,
}

impl KeyBounds {
    pub(super) fn new(gpu: &Gpu, shape: &riffle_kv::CacheShape, bytes: u64) -> Result<Self, CudaError> {
        Ok(Self {
            summaries: Summaries::new(gpu, SummaryKind::Bounds, shape, bytes)?,
            scores: gpu.allocate(0)?,
            host_scores: gpu.allocate_host(0)?,
            gpu: gpu.clone(),
        })
    }

    /// Scores each block of every KV head by the bound of its first `tokens` tokens, summed over `queries` and the
    /// `group` heads.
    pub(super) fn score(
        &mut self,
        stream: &Stream,
        of: &LayerPages<'_>,
        queries: &Queries<'_>,
        group: usize,
        tokens: &[usize],
    ) -> Result<Vec<Vec<f32>>, CudaError> {
        let shape = self.summaries.shape();
        let Some(bounds) = self.summaries.of_layer(of) else {
            return Ok(vec![Vec::new(); tokens.len()]);
        };
        let blocks_of = |tokens: &usize| tokens.div_ceil(bounds.block_tokens);
        let blocks = tokens.iter().map(blocks_of).max().unwrap_or(0);
        if blocks == 0 {
            return Ok(vec![Vec::new(); tokens.len()]);
        }
        let bytes = 4 * heads_of(&shape).kv_heads * blocks;
        if self.scores.bytes() < bytes {
            self.host_scores = self.gpu.allocate_host(bytes.next_power_of_two())?;
            self.scores = self.gpu.allocate(bytes.next_power_of_two())?;
        }
        let to = self.scores.region(0..bytes);
        let heads = HeadShape {
            kv_heads: heads_of(&shape).kv_heads,
            group,
            head_dim: heads_of(&shape).key_width,
        };
        ops::bound_scores(stream, to, &bounds, queries, heads, blocks)?;
        stream.from_device(&mut self.host_scores, 0, to)?;
        stream.synchronize()?;
        let found: &[f32] = bytemuck::cast_slice(&self.host_scores.bytes()[..bytes]);
        let of_head = |(found, tokens): (&[f32], &usize)| found[..blocks_of(tokens)].to_vec();
        Ok(found.chunks_exact(blocks).zip(tokens).map(of_head).collect())
    }
}
