//! A chunk of a layer: its tiles and what they may read.

use std::ops::Range;
use std::sync::Arc;

use riffle_attention::{AttendOptions, KvView, PageView, QueryTile, Selection};
use riffle_kv::PageReader;
use riffle_policy::{LentScan, Phase, SelectContext};

use crate::attention::counters::PairCount;
use crate::attention::delta::DenseRow;
use crate::attention::evicted::head_slot;
use crate::attention::layer_rows::LayerRows;
use crate::attention::reading;
use crate::attention::rotation::Rotation;
use crate::attention::slots::HeadSlot;
use crate::attention::tiles::{Heads, Tile};

/// Settings of one layer in one pass, the same for all chunks of a sequence.
#[derive(Debug, Clone)]
pub(crate) struct LayerStep {
    pub(crate) phase: Phase,
    pub(crate) layers: usize,
    pub(crate) heads: Heads,
    /// Tokens the layer will hold when the prompt has been read.
    pub(crate) total_tokens: usize,
    pub(crate) page_tokens: usize,
    /// Tokens that have left each KV head of the layer.
    pub(crate) evicted_tokens: Vec<usize>,
    /// Tokens that the layer looks back at most; such a layer is sparse by design and no policy acts on it. A layer that reads the keys
    /// of another looks back at all of them: policies choose by what their own layer reads.
    pub(crate) window: Option<usize>,
    pub(crate) rotation: Rotation,
    /// A logit of each query head that takes part in its softmax and has no value, where the layer has such.
    pub(crate) sinks: Option<Arc<[f32]>>,
    /// True if the layer has keys and values of its own, which are appended before they are read.
    pub(crate) appends: bool,
    /// True if the pages that the next layer is expected to read are brought to the device behind this one.
    pub(crate) reads_ahead: bool,
    pub(crate) options: AttendOptions<'static>,
}

impl LayerStep {
    /// Tokens `tokens` of a batch as one tile of one KV head.
    pub(crate) fn tile<'q>(&self, input: &LayerRows<'q>, tokens: Range<usize>, kv_head: usize) -> QueryTile<'q> {
        let tile = self.heads.tile(input, tokens, kv_head);
        QueryTile {
            start: tile.start - self.evicted_tokens[kv_head],
            ..tile
        }
    }

    /// The sinks of a KV head's group.
    pub(crate) fn sinks_of(&self, kv_head: usize) -> Option<&[f32]> {
        let group = self.heads.group;
        self.sinks
            .as_ref()
            .map(|sinks| &sinks[kv_head * group..(kv_head + 1) * group])
    }

    /// The place of a token of the rows in a KV head.
    pub(crate) fn head_slot(&self, input: &LayerRows<'_>, token: usize, kv_head: usize) -> usize {
        let HeadSlot(slot) = head_slot(input.slot.after(token), self.evicted_tokens[kv_head]);
        slot
    }
}

/// One chunk of a layer, ready to be attended to.
pub(crate) struct Chunk<'a> {
    pub(crate) layer: usize,
    pub(crate) heads: Heads,
    /// Which of the sequence's rows it holds.
    pub(crate) tokens: Range<usize>,
    /// The rows of the batch in which they lie.
    pub(crate) batch_rows: Range<usize>,
    /// The tokens that may be read, by KV head.
    pub(crate) contexts: Vec<SelectContext<'a>>,
    /// KV head by KV head.
    pub(crate) tiles: Vec<Tile<'a>>,
}

/// A chunk and what its tiles read.
pub(crate) struct Chosen<'q> {
    pub(crate) chunk: Chunk<'q>,
    /// By tile.
    pub(crate) selections: Vec<Selection>,
    /// Selections of the first of two phases, by tile; empty where there is one phase.
    pub(crate) own: Vec<Selection>,
    /// Rows that also read everything and correct those after them.
    pub(crate) dense_rows: Vec<DenseRow>,
    /// Key scores that policies computed, by KV head.
    pub(crate) scans: Vec<Option<LentScan>>,
    /// By KV head.
    pub(crate) counts: Vec<PairCount>,
    /// The layer of the cache that is attended to after this chunk.
    pub(crate) next: usize,
    /// Tokens in the blocks whose means the device reads, by KV head; empty where it reads none.
    pub(crate) device_means: Vec<Option<usize>>,
    /// True if the result stays on the device that attends.
    pub(crate) stays_on_device: bool,
}

impl Chosen<'_> {
    /// The selections of the tiles, in one phase or two.
    pub(crate) fn phases(&self) -> [&[Selection]; 2] {
        [&self.own, &self.selections]
    }

    /// The keys that its tiles read, where scans of policies do not give them.
    pub(crate) fn reads(&self) -> reading::Reads<'_> {
        reading::Reads::new(&self.chunk, &self.selections, &self.scans)
    }
}

impl<'a> Chunk<'a> {
    /// Tokens `tokens` of the rows. Contexts show no pages: [`showing`](Self::showing) adds them.
    pub(crate) fn new(step: &LayerStep, input: &LayerRows<'a>, tokens: Range<usize>) -> Self {
        let contexts = (0..step.heads.kv_heads).map(|kv_head| SelectContext {
            phase: step.phase,
            layer: input.cache_layer,
            layers: step.layers,
            kv_head,
            chunk_start: step.head_slot(input, tokens.start, kv_head),
            tokens: step.head_slot(input, tokens.end, kv_head),
            total_tokens: step.total_tokens - step.evicted_tokens[kv_head],
            page_tokens: step.page_tokens,
            scale: step.options.scale,
            soft_cap: step.options.soft_cap,
            pages: &[],
        });
        let mut tiles = step.heads.tiles(input, tokens.clone());
        for tile in &mut tiles {
            tile.queries.start -= step.evicted_tokens[tile.kv_head];
        }
        Self {
            layer: input.cache_layer,
            heads: step.heads,
            contexts: contexts.collect(),
            tiles,
            batch_rows: input.batch_rows(&tokens),
            tokens,
        }
    }

    /// Its contexts with the pages of each KV head.
    pub(crate) fn showing<'p>(&self, pages: &'p [Vec<PageView<'p>>]) -> Vec<SelectContext<'p>> {
        let contexts = self.contexts.iter();
        let shown = contexts.map(|context| SelectContext {
            pages: &pages[context.kv_head],
            ..*context
        });
        shown.collect()
    }

    /// One past the last position of the KV head that holds most.
    pub(crate) fn end(&self) -> usize {
        self.contexts.iter().map(|context| context.tokens).max().unwrap_or(0)
    }

    /// The keys and values of a tile among the pages of each KV head.
    pub(crate) fn kv<'p>(&self, tile: &Tile<'_>, pages: &'p [Vec<PageView<'p>>]) -> KvView<'p> {
        KvView {
            head_dim: self.heads.key_width,
            pages: &pages[tile.kv_head],
        }
    }
}

/// The pages of each KV head from the one on that holds its token `from`, cut at the end of the chunk.
pub(crate) fn pages<'c>(
    reader: &'c PageReader<'_>,
    chunk: &Chunk<'_>,
    from: impl Fn(usize) -> usize,
) -> Vec<Vec<PageView<'c>>> {
    let of_head = |context: &SelectContext<'_>| {
        let end = context.tokens;
        let pages = reader
            .pages_from(context.layer, context.kv_head, from(context.kv_head))
            .take_while(|page| page.start < end);
        let cut = pages.map(|page| PageView {
            tokens: page.tokens.min(end - page.start),
            ..page
        });
        cut.collect()
    };
    chunk.contexts.iter().map(of_head).collect()
}
