//! Summaries: a pair of vectors for each block of tokens of whole sequences. They stay on the device when pages leave
//! it.

use std::collections::BTreeMap;

use riffle_attention::PageView;
use riffle_device::{LayerPages, SequenceId, SummaryKind};
use riffle_kv::CacheShape;

use super::call::{CallLists, page_tables};
use super::heads_of;
use super::list::DeviceList;
use super::memory::PagePlace;
use super::traffic::Traffic;
use crate::ops::{self, BlockSummaries};
use crate::{CudaError, DeviceBuffer, Gpu, Stream};

/// Fewest blocks of a layer with memory.
const LEAST_BLOCKS: usize = 16;

/// Summaries of one kind, of every layer of sequences, within a budget. If another layer needs room, the summaries of
/// the least recently used sequence leave. They can be computed again from its pages.
pub(super) struct Summaries {
    gpu: Gpu,
    kind: SummaryKind,
    shape: CacheShape,
    budget_bytes: usize,
    layers: BTreeMap<(SequenceId, usize), LayerSummaries>,
    /// Latest use of each sequence, by a counter of calls.
    asked: BTreeMap<SequenceId, u64>,
    calls: u64,
    ranges: DeviceList,
}

struct LayerSummaries {
    // f32 [kv_heads, capacity, 2, head_dim]
    memory: DeviceBuffer,
    /// Blocks of memory per KV head.
    capacity: usize,
    /// Tokens in a block.
    block: usize,
    /// Summarised tokens, by KV head.
    known: Vec<usize>,
}

impl LayerSummaries {
    fn blocks(&self) -> BlockSummaries<'_> {
        BlockSummaries {
            data: self.memory.all(),
            capacity: self.capacity,
            block_tokens: self.block,
        }
    }
}

impl Summaries {
    pub(super) fn new(gpu: &Gpu, kind: SummaryKind, shape: &CacheShape, bytes: u64) -> Result<Self, CudaError> {
        Ok(Self {
            kind,
            shape: *shape,
            budget_bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            layers: BTreeMap::new(),
            asked: BTreeMap::new(),
            calls: 0,
            ranges: DeviceList::new(gpu)?,
            gpu: gpu.clone(),
        })
    }

    pub(super) fn shape(&self) -> CacheShape {
        self.shape
    }

    /// Bytes per block of all KV heads of a layer.
    fn block_bytes(&self) -> usize {
        8 * heads_of(&self.shape).key_width * heads_of(&self.shape).kv_heads
    }

    /// Maximum number of blocks of a layer if all layers of a sequence have the same number.
    fn most_blocks(&self) -> usize {
        self.budget_bytes / (self.block_bytes() * self.shape.layers.count()).max(1)
    }

    /// True if there is memory for the blocks of `block` tokens of a layer with `tokens` tokens.
    pub(super) fn have_room(&self, block: usize, tokens: usize) -> bool {
        block > 0 && tokens.div_ceil(block) <= self.most_blocks()
    }

    /// Reserves memory for the blocks of `block` tokens of a layer with `tokens` tokens. Returns the number of
    /// summarised tokens by KV head; `None` if there [is no memory](Self::have_room).
    pub(super) fn reserve(
        &mut self,
        stream: &Stream,
        of: &LayerPages<'_>,
        block: usize,
        tokens: usize,
    ) -> Result<Option<Vec<usize>>, CudaError> {
        if !self.have_room(block, tokens) {
            return Ok(None);
        }
        self.calls += 1;
        self.asked.insert(of.sequence, self.calls);
        let key = (of.sequence, of.layer);
        let blocks = tokens.div_ceil(block);
        let most = self.most_blocks();
        let capacity = self.layers.get(&key).map_or(0, |layer| layer.capacity);
        if capacity < blocks {
            self.grow(stream, key, blocks.next_power_of_two().max(LEAST_BLOCKS).min(most))?;
        }
        let Some(layer) = self.layers.get_mut(&key) else {
            // The layer has no tokens.
            return Ok(Some(vec![0; heads_of(&self.shape).kv_heads]));
        };
        if layer.block != block {
            (layer.block, layer.known) = (block, vec![0; heads_of(&self.shape).kv_heads]);
        }
        Ok(Some(layer.known.clone()))
    }

    /// Gives a layer memory for `capacity` blocks of each KV head, and copies its old contents if both fit.
    fn grow(&mut self, stream: &Stream, key: (SequenceId, usize), capacity: usize) -> Result<(), CudaError> {
        let bytes = self.block_bytes() * capacity;
        let mut before = self.layers.remove(&key);
        let taken = before.as_ref().map_or(0, |before| before.memory.bytes());
        if self.bytes() + taken + bytes > self.budget_bytes {
            before = None;
        }
        while self.bytes() + bytes > self.budget_bytes {
            let others = self.asked.iter().filter(|(sequence, _)| **sequence != key.0);
            let Some((sequence, _)) = others.min_by_key(|(_, asked)| **asked) else {
                break;
            };
            self.end(*sequence);
        }
        let mut after = LayerSummaries {
            memory: self.gpu.allocate(bytes)?,
            capacity,
            block: 0,
            known: vec![0; heads_of(&self.shape).kv_heads],
        };
        if let Some(before) = before {
            let (from, to) = (
                before.memory.bytes() / heads_of(&self.shape).kv_heads,
                bytes / heads_of(&self.shape).kv_heads,
            );
            for kv_head in 0..heads_of(&self.shape).kv_heads {
                let source = before.memory.region(kv_head * from..(kv_head + 1) * from);
                stream.copy_on_device(after.memory.region(kv_head * to..kv_head * to + from), source)?;
            }
            (after.block, after.known) = (before.block, before.known);
        }
        self.layers.insert(key, after);
        Ok(())
    }

    /// Forgets tokens after the first `tokens` tokens of one (layer, KV head) of a sequence, or of all.
    pub(super) fn truncate(&mut self, sequence: SequenceId, head: Option<(usize, usize)>, tokens: usize) {
        let layers = self.layers.range_mut((sequence, 0)..=(sequence, usize::MAX));
        for ((_, number), summaries) in layers {
            for (kv_head, known) in summaries.known.iter_mut().enumerate() {
                // A partly truncated block is computed again, because it may include removed tokens.
                if head.is_none_or(|head| head == (*number, kv_head)) && *known > tokens {
                    *known = tokens / summaries.block * summaries.block;
                }
            }
        }
    }

    /// Forgets a sequence.
    pub(super) fn end(&mut self, sequence: SequenceId) {
        self.asked.remove(&sequence);
        self.layers.retain(|(of, _), _| *of != sequence);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.asked.clear();
        self.layers.clear();
    }

    /// Allocated bytes of device memory.
    pub(super) fn bytes(&self) -> usize {
        self.layers.values().map(|layer| layer.memory.bytes()).sum()
    }

    /// The summaries of a layer, if it has any.
    pub(super) fn of_layer(&self, of: &LayerPages<'_>) -> Option<BlockSummaries<'_>> {
        let layer = self.layers.get(&(of.sequence, of.layer));
        layer.map(LayerSummaries::blocks)
    }

    /// Summarised tokens by KV head; empty for a layer without summaries.
    pub(super) fn known(&self, of: &LayerPages<'_>) -> &[usize] {
        let layer = self.layers.get(&(of.sequence, of.layer));
        layer.map_or(&[], |layer| &layer.known)
    }

    /// Adds tokens of pages to the summaries of a layer. The pages are shown by KV head in order, from the page of
    /// the first token that is not yet summarised.
    pub(super) fn extend(
        &mut self,
        traffic: &mut Traffic<'_>,
        lists: &mut CallLists,
        shown: &[Vec<PageView<'_>>],
    ) -> Result<(), CudaError> {
        let page_tokens = self.shape.page_tokens;
        let mut ends = self.known(&traffic.of).to_vec();
        let pages = shown.iter().filter_map(|shown| shown.last());
        let pages = pages.map(|page| page.start / page_tokens + 1).max().unwrap_or(0);
        let mut table = vec![[0; 2]; shown.len() * pages];
        let (mut waiting, mut visitors) = (Vec::new(), 0);
        for shown in traffic.in_order(shown)? {
            let place: PagePlace = match traffic.settle(&shown, &mut waiting)? {
                Some(place) => place,
                None => {
                    if visitors == traffic.residence.visitors() {
                        traffic.transfer(&mut waiting)?;
                        self.take_in(traffic, lists, &table, &ends)?;
                        visitors = 0;
                    }
                    visitors += 1;
                    traffic.visit(&shown, visitors - 1, &mut waiting)?
                }
            };
            table[shown.kv_head * pages + shown.page] = traffic.addresses(place);
            let end = shown.view.start + shown.view.tokens;
            if let Some(known) = ends.get_mut(shown.kv_head) {
                *known = end.max(*known);
            }
        }
        traffic.transfer(&mut waiting)?;
        self.take_in(traffic, lists, &table, &ends)
    }

    /// Queues the summaries of tokens up to `ends`. The table has their pages.
    fn take_in(
        &mut self,
        traffic: &Traffic<'_>,
        lists: &mut CallLists,
        table: &[[u64; 2]],
        ends: &[usize],
    ) -> Result<(), CudaError> {
        let (shape, compute) = (self.shape, traffic.compute);
        let Some(layer) = self.layers.get_mut(&(traffic.of.sequence, traffic.of.layer)) else {
            return Ok(());
        };
        let spans = || layer.known.iter().zip(ends);
        let Some(longest @ 1..) = spans().map(|(known, end)| end - known).max() else {
            return Ok(());
        };
        let ranges: Vec<u32> = spans().flat_map(|(known, end)| [*known as u32, *end as u32]).collect();
        let ranges = self.ranges.set(compute, &ranges)?;
        let pages = page_tables(&mut lists.tables, compute, table, &shape)?;
        match self.kind {
            SummaryKind::Bounds => ops::key_bounds(compute, &layer.blocks(), &pages, ranges, longest)?,
            SummaryKind::Means => ops::block_means(compute, &layer.blocks(), &pages, ranges, longest)?,
        }
        layer.known.copy_from_slice(ends);
        Ok(())
    }
}
