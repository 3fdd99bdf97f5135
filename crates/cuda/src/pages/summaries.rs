//! A pair of vectors for each block of tokens, kept on the device of the whole sequence: pages leave it, these do not.

use riffle_attention::PageView;

use super::list::DeviceList;
use super::pool::{PagePool, Place};
use super::staging::PageKey;
use super::transfer::in_order;
use crate::ops::{self, BlockSummaries, Pages};
use crate::{CudaError, DeviceBuffer, Gpu};

/// What is kept of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SummaryKind {
    /// The smallest and the largest of keys, within [`PagePoolOptions::bound_bytes`](super::PagePoolOptions).
    Bounds,
    /// The mean of keys and that of values, within [`PagePoolOptions::mean_bytes`](super::PagePoolOptions).
    Means,
}

/// Summaries of one kind, of every layer.
pub(super) struct Summaries {
    layers: Vec<LayerSummaries>,
    ranges: DeviceList,
    /// Blocks of each KV head of each layer that there is room for.
    capacity: usize,
}

#[derive(Default)]
struct LayerSummaries {
    // f32 [kv_heads, capacity, 2, head_dim]
    memory: Option<DeviceBuffer>,
    /// Tokens in a block.
    block: usize,
    /// By KV head, the tokens that are taken in.
    known: Vec<usize>,
}

impl Summaries {
    pub(super) fn new(gpu: &Gpu, shape: &riffle_kv::CacheShape, bytes: u64) -> Result<Self, CudaError> {
        let block = 8 * shape.head_dim * shape.kv_heads * shape.layers;
        Ok(Self {
            layers: (0..shape.layers).map(|_| LayerSummaries::default()).collect(),
            ranges: DeviceList::new(gpu)?,
            capacity: usize::try_from(bytes / block.max(1) as u64).unwrap_or(usize::MAX),
        })
    }

    /// Forgets tokens behind the first `tokens` of one KV head of a layer, or of all.
    pub(super) fn truncate(&mut self, layer: Option<(usize, usize)>, tokens: usize) {
        for (number, summaries) in self.layers.iter_mut().enumerate() {
            for (kv_head, known) in summaries.known.iter_mut().enumerate() {
                // A block that is cut within is taken in again: it may hold something of tokens that are gone.
                if layer.is_none_or(|layer| layer == (number, kv_head)) && *known > tokens {
                    *known = tokens / summaries.block * summaries.block;
                }
            }
        }
    }

    /// Bytes of device memory that are held.
    pub(super) fn bytes(&self) -> usize {
        let layers = self.layers.iter().filter_map(|layer| layer.memory.as_ref());
        layers.map(DeviceBuffer::bytes).sum()
    }

    /// The summaries of a layer, where there are any.
    pub(super) fn of_layer(&self, layer: usize) -> Option<BlockSummaries<'_>> {
        let layer = &self.layers[layer];
        layer.memory.as_ref().map(|memory| BlockSummaries {
            data: memory.all(),
            capacity: self.capacity,
            block_tokens: layer.block,
        })
    }

    /// Tokens that are taken in, by KV head.
    pub(super) fn known(&self, layer: usize) -> &[usize] {
        &self.layers[layer].known
    }
}

impl PagePool {
    fn summaries(&mut self, kind: SummaryKind) -> &mut Summaries {
        match kind {
            SummaryKind::Bounds => &mut self.bounds.summaries,
            SummaryKind::Means => &mut self.means.summaries,
        }
    }

    /// By KV head, how many tokens of a layer are in its summaries of blocks of `block` tokens; `None` where there is no room
    /// for those of `tokens` tokens.
    pub fn summaries_known(
        &mut self,
        kind: SummaryKind,
        layer: usize,
        block: usize,
        tokens: usize,
    ) -> Option<Vec<usize>> {
        let kv_heads = self.options.shape.kv_heads;
        let summaries = self.summaries(kind);
        if block == 0 || tokens.div_ceil(block) > summaries.capacity {
            return None;
        }
        let of_layer = &mut summaries.layers[layer];
        if of_layer.block != block {
            (of_layer.block, of_layer.known) = (block, vec![0; kv_heads]);
        }
        Some(of_layer.known.clone())
    }

    /// Takes the tokens of pages, shown by KV head in order from the one on that holds the first token that is not
    /// [known](Self::summaries_known), into the summaries of a layer.
    ///
    /// # Errors
    /// A lost device, too little memory: the pool has forgotten every page then.
    pub fn extend_summaries(
        &mut self,
        kind: SummaryKind,
        layer: usize,
        shown: &[Vec<PageView<'_>>],
    ) -> Result<(), CudaError> {
        let taken = self.take_into_summaries(kind, layer, shown);
        if taken.is_err() {
            self.clear();
        }
        taken
    }

    fn take_into_summaries(
        &mut self,
        kind: SummaryKind,
        layer: usize,
        shown: &[Vec<PageView<'_>>],
    ) -> Result<(), CudaError> {
        let (shape, gpu) = (self.options.shape, self.gpu.clone());
        let summaries = self.summaries(kind);
        if summaries.layers[layer].memory.is_none() {
            let bytes = 8 * shape.head_dim * shape.kv_heads * summaries.capacity;
            summaries.layers[layer].memory = Some(gpu.allocate(bytes)?);
        }
        let mut ends = summaries.layers[layer].known.clone();
        let pages = shown.iter().filter_map(|shown| shown.last());
        let pages = pages.map(|page| page.start / shape.page_tokens + 1).max().unwrap_or(0);
        let mut table = vec![0u64; shown.len() * pages];
        let (mut waiting, mut visitors) = (Vec::new(), 0);
        for (page, kv_head, view) in in_order(shown, shape.page_tokens) {
            let place = match self.settle(layer, page, kv_head, &view, &mut waiting)? {
                Some(place) => place,
                None => {
                    if visitors == self.options.visitors() {
                        self.transfer(&mut waiting)?;
                        self.summarise(kind, layer, &table, pages, &ends)?;
                        visitors = 0;
                    }
                    let place = Place::Visitor(visitors);
                    visitors += 1;
                    let key = PageKey { layer, page, kv_head };
                    self.bring(key, place, 0, &view, &mut waiting)?;
                    place
                }
            };
            table[kv_head * pages + page] = self.store.at(place).address();
            ends[kv_head] = ends[kv_head].max(view.start + view.tokens);
        }
        self.transfer(&mut waiting)?;
        self.summarise(kind, layer, &table, pages, &ends)
    }

    /// Queues the summaries of tokens up to `ends`, whose pages are in the table.
    fn summarise(
        &mut self,
        kind: SummaryKind,
        layer: usize,
        table: &[u64],
        pages: usize,
        ends: &[usize],
    ) -> Result<(), CudaError> {
        let shape = self.options.shape;
        let values: Vec<u64> = match kind {
            SummaryKind::Means => table.iter().map(|keys| keys + self.layout.values_at as u64).collect(),
            // They are not read.
            SummaryKind::Bounds => table.to_vec(),
        };
        let [key_table, value_table] = &mut self.tables;
        let pages = Pages {
            keys: key_table.set(&self.compute, table)?,
            values: value_table.set(&self.compute, &values)?,
            kv_heads: shape.kv_heads,
            pages_per_head: pages,
            page_tokens: shape.page_tokens,
            head_dim: shape.head_dim,
            key_format: shape.key_format,
            value_format: shape.value_format,
        };
        let summaries = match kind {
            SummaryKind::Bounds => &mut self.bounds.summaries,
            SummaryKind::Means => &mut self.means.summaries,
        };
        let of_layer = &summaries.layers[layer];
        let spans = || of_layer.known.iter().zip(ends);
        let longest = spans().map(|(known, end)| end - known).max();
        let ranges: Vec<u32> = spans().flat_map(|(known, end)| [*known as u32, *end as u32]).collect();
        let ranges = summaries.ranges.set(&self.compute, &ranges)?;
        let (Some(longest @ 1..), Some(memory)) = (longest, &of_layer.memory) else {
            return Ok(());
        };
        let blocks = BlockSummaries {
            data: memory.all(),
            capacity: summaries.capacity,
            block_tokens: of_layer.block,
        };
        match kind {
            SummaryKind::Bounds => ops::key_bounds(&self.compute, &blocks, &pages, ranges, longest)?,
            SummaryKind::Means => ops::block_means(&self.compute, &blocks, &pages, ranges, longest)?,
        }
        summaries.layers[layer].known.copy_from_slice(ends);
        Ok(())
    }
}
