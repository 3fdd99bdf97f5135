//! Bounds of the keys of blocks, kept on the device of the whole sequence: pages leave it, these do not.

use riffle_attention::PageView;

use super::list::DeviceList;
use super::pool::{PagePool, Place};
use super::transfer::in_order;
use crate::ops::{self, BlockSummaries, Pages, Queries};
use crate::{CudaError, DeviceBuffer, Gpu, PinnedBuffer};

/// The bounds of every layer, within [`PagePoolOptions::bound_bytes`](super::PagePoolOptions).
pub(super) struct KeyBounds {
    layers: Vec<LayerBounds>,
    ranges: DeviceList,
    // f32 [kv_heads, blocks]
    scores: DeviceBuffer,
    host_scores: PinnedBuffer,
}

#[derive(Default)]
struct LayerBounds {
    // f32 [kv_heads, capacity, 2, head_dim]
    memory: Option<DeviceBuffer>,
    /// Tokens in a block.
    block: usize,
    /// By KV head, the tokens whose keys are taken in.
    known: Vec<usize>,
}

impl KeyBounds {
    pub(super) fn new(gpu: &Gpu, layers: usize) -> Result<Self, CudaError> {
        Ok(Self {
            layers: (0..layers).map(|_| LayerBounds::default()).collect(),
            ranges: DeviceList::new(gpu)?,
            scores: gpu.allocate(0)?,
            host_scores: gpu.allocate_host(0)?,
        })
    }

    /// Forgets keys behind the first `tokens` of one KV head of a layer, or of all.
    pub(super) fn truncate(&mut self, layer: Option<(usize, usize)>, tokens: usize) {
        for (number, bounds) in self.layers.iter_mut().enumerate() {
            for (kv_head, known) in bounds.known.iter_mut().enumerate() {
                // A block that is cut within is taken in again: its bounds may come from keys that are gone.
                if layer.is_none_or(|layer| layer == (number, kv_head)) && *known > tokens {
                    *known = tokens / bounds.block * bounds.block;
                }
            }
        }
    }

    /// Bytes of device memory that are held.
    pub(super) fn bytes(&self) -> usize {
        let layers = self.layers.iter().filter_map(|layer| layer.memory.as_ref());
        layers.map(DeviceBuffer::bytes).sum()
    }
}

impl PagePool {
    /// Blocks of each KV head of each layer whose bounds there is room for.
    fn bound_capacity(&self) -> usize {
        let shape = &self.options.shape;
        let block = 8 * shape.head_dim * shape.kv_heads * shape.layers;
        usize::try_from(self.options.bound_bytes / block.max(1) as u64).unwrap_or(usize::MAX)
    }

    /// By KV head, how many tokens of a layer are in its bounds of blocks of `block` tokens; `None` where there is no room
    /// for those of `tokens` tokens.
    pub fn bounds_known(&mut self, layer: usize, block: usize, tokens: usize) -> Option<Vec<usize>> {
        if block == 0 || tokens.div_ceil(block) > self.bound_capacity() {
            return None;
        }
        let kv_heads = self.options.shape.kv_heads;
        let bounds = &mut self.bounds.layers[layer];
        if bounds.block != block {
            (bounds.block, bounds.known) = (block, vec![0; kv_heads]);
        }
        Some(bounds.known.clone())
    }

    /// Takes the keys of pages, shown by KV head in order from the one on that holds the first token that is not
    /// [known](Self::bounds_known), into the bounds of a layer.
    ///
    /// # Errors
    /// A lost device, too little memory: the pool has forgotten every page then.
    pub fn extend_bounds(&mut self, layer: usize, shown: &[Vec<PageView<'_>>]) -> Result<(), CudaError> {
        let taken = self.take_into_bounds(layer, shown);
        if taken.is_err() {
            self.clear();
        }
        taken
    }

    fn take_into_bounds(&mut self, layer: usize, shown: &[Vec<PageView<'_>>]) -> Result<(), CudaError> {
        let shape = self.options.shape;
        let capacity = self.bound_capacity();
        if self.bounds.layers[layer].memory.is_none() {
            let bytes = 8 * shape.head_dim * shape.kv_heads * capacity;
            self.bounds.layers[layer].memory = Some(self.gpu.allocate(bytes)?);
        }
        let pages = shown.iter().filter_map(|shown| shown.last());
        let pages = pages.map(|page| page.start / shape.page_tokens + 1).max().unwrap_or(0);
        let mut table = vec![0u64; shown.len() * pages];
        let mut ends = self.bounds.layers[layer].known.clone();
        let (mut waiting, mut visitors) = (Vec::new(), 0);
        for (page, kv_head, view) in in_order(shown, shape.page_tokens) {
            let place = match self.settle(layer, page, kv_head, &view, &mut waiting)? {
                Some(place) => place,
                None => {
                    if visitors == self.options.visitors() {
                        self.transfer(&mut waiting)?;
                        self.bound(layer, &table, pages, &ends)?;
                        visitors = 0;
                    }
                    let place = Place::Visitor(visitors);
                    visitors += 1;
                    self.bring(place, 0, &view, &mut waiting)?;
                    place
                }
            };
            table[kv_head * pages + page] = self.store.at(place).address();
            ends[kv_head] = ends[kv_head].max(view.start + view.tokens);
        }
        self.transfer(&mut waiting)?;
        self.bound(layer, &table, pages, &ends)
    }

    /// Queues the bounds of keys up to `ends`, whose pages are in the table.
    fn bound(&mut self, layer: usize, table: &[u64], pages: usize, ends: &[usize]) -> Result<(), CudaError> {
        let (shape, capacity) = (self.options.shape, self.bound_capacity());
        let bounds = &mut self.bounds.layers[layer];
        let ranges: Vec<u32> = bounds
            .known
            .iter()
            .zip(ends)
            .flat_map(|(known, end)| [*known as u32, *end as u32])
            .collect();
        let longest = bounds.known.iter().zip(ends).map(|(known, end)| end - known).max();
        let (Some(longest @ 1..), Some(memory)) = (longest, &bounds.memory) else {
            return Ok(());
        };
        let table = self.tables[0].set(&self.compute, table)?;
        let pages = Pages {
            keys: table,
            // Values are not read.
            values: table,
            kv_heads: shape.kv_heads,
            pages_per_head: pages,
            page_tokens: shape.page_tokens,
            head_dim: shape.head_dim,
            key_format: shape.key_format,
            value_format: shape.value_format,
        };
        let summaries = BlockSummaries {
            data: memory.all(),
            capacity,
            block_tokens: bounds.block,
        };
        let ranges = self.bounds.ranges.set(&self.compute, &ranges)?;
        ops::key_bounds(&self.compute, &summaries, &pages, ranges, longest)?;
        bounds.known.copy_from_slice(ends);
        Ok(())
    }

    /// Of every KV head the bound of each block of its first `tokens` tokens, all of them known, summed over `queries` and the heads
    /// of the group; equal to the CPU's to the bit.
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
        let (shape, capacity) = (self.options.shape, self.bound_capacity());
        let KeyBounds {
            layers,
            scores,
            host_scores,
            ..
        } = &mut self.bounds;
        let bounds = &layers[layer];
        let blocks = tokens
            .iter()
            .map(|tokens| tokens.div_ceil(bounds.block))
            .max()
            .unwrap_or(0);
        let bytes = 4 * shape.kv_heads * blocks;
        let Some(memory) = bounds.memory.as_ref().filter(|_| blocks > 0) else {
            return Ok(vec![Vec::new(); tokens.len()]);
        };
        if scores.bytes() < bytes {
            *host_scores = self.gpu.allocate_host(bytes.next_power_of_two())?;
            *scores = self.gpu.allocate(bytes.next_power_of_two())?;
        }
        let summaries = BlockSummaries {
            data: memory.all(),
            capacity,
            block_tokens: bounds.block,
        };
        let to = scores.region(0..bytes);
        let (heads, group) = ((shape.kv_heads, shape.head_dim), self.options.heads / shape.kv_heads);
        ops::bound_scores(&self.compute, to, &summaries, &queries, heads, group, blocks)?;
        self.compute.from_device(host_scores, 0, to)?;
        self.compute.synchronize()?;
        let found: &[f32] = bytemuck::cast_slice(&host_scores.bytes()[..bytes]);
        let of_head = |(found, tokens): (&[f32], &usize)| found[..tokens.div_ceil(bounds.block)].to_vec();
        Ok(found.chunks_exact(blocks).zip(tokens).map(of_head).collect())
    }
}
