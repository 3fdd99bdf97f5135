//! A chunk of a layer: its tiles and what they may read.

use std::ops::Range;

use riffle_attention::{AttendJob, KvView, PageView, QueryTile, Selection};
use riffle_kv::PageReader;
use riffle_policy::{LentScan, Phase, SelectContext};

use crate::pass::delta::DenseRow;
use crate::pass::layer_rows::LayerRows;
use crate::pass::reading;
use crate::pass::tiles::{Heads, Tile};
use crate::sequence::eviction::Evicted;
use crate::sequence::placement::HeadSlot;
use crate::sequence::statistics::PairCount;

/// What the chunks of a sequence share in one pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step<'a> {
    pub(crate) phase: Phase,
    pub(crate) layers: usize,
    pub(crate) heads: Heads,
    /// Tokens the layer will hold when the prompt has been read.
    pub(crate) total_tokens: usize,
    pub(crate) page_tokens: usize,
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
    /// Tokens that heads do not hold any more: they count without them.
    pub(crate) evicted: &'a Evicted,
}

impl Step<'_> {
    /// Tokens `tokens` of a batch as one tile of one KV head.
    pub(crate) fn tile<'q>(&self, input: &LayerRows<'q>, tokens: Range<usize>, kv_head: usize) -> QueryTile<'q> {
        let tile = self.heads.tile(input, tokens, kv_head);
        QueryTile {
            start: tile.start - self.evicted_tokens(input.cache_layer, kv_head),
            ..tile
        }
    }

    /// Tokens that a KV head has evicted.
    pub(crate) fn evicted_tokens(&self, layer: usize, kv_head: usize) -> usize {
        self.evicted.evicted_tokens(layer, self.heads.kv_heads, kv_head)
    }

    /// Where a token of the rows stands in a KV head.
    pub(crate) fn head_slot(&self, input: &LayerRows<'_>, token: usize, kv_head: usize) -> usize {
        let slot = input.slot.after(token);
        let HeadSlot(slot) = self
            .evicted
            .head_slot(slot, input.cache_layer, self.heads.kv_heads, kv_head);
        slot
    }
}

/// One chunk of a layer, ready to be attended to.
pub(crate) struct Chunk<'a> {
    pub(crate) layer: usize,
    pub(crate) group: usize,
    pub(crate) head_dim: usize,
    /// Which of the sequence's rows it holds.
    pub(crate) tokens: Range<usize>,
    /// The rows of the batch in which they lie.
    pub(crate) batch_rows: Range<usize>,
    /// What may be read, by KV head.
    pub(crate) contexts: Vec<SelectContext<'a>>,
    /// KV head by KV head.
    pub(crate) tiles: Vec<Tile<'a>>,
}

/// A chunk and what its tiles read.
pub(crate) struct Chosen<'q> {
    pub(crate) chunk: Chunk<'q>,
    /// By tile.
    pub(crate) selections: Vec<Selection>,
    /// What the first of two phases has read, by tile; empty where there is one.
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
    /// Whether the result stays on the device that attends.
    pub(crate) stays_on_device: bool,
}

impl Chosen<'_> {
    /// What the tiles read in one phase or two.
    pub(crate) fn phases(&self) -> [&[Selection]; 2] {
        [&self.own, &self.selections]
    }

    /// What its tiles read of keys, where scans of policies do not give it.
    pub(crate) fn reads(&self) -> reading::Reads<'_> {
        reading::Reads::new(&self.chunk, &self.selections, &self.scans)
    }
}

impl<'a> Chunk<'a> {
    /// Tokens `tokens` of the rows, without pages: for pages that come and go while they are read.
    pub(crate) fn new(step: &Step<'_>, input: &LayerRows<'a>, tokens: Range<usize>) -> Self {
        Self::over(step, input, tokens, None)
    }

    /// Tokens `tokens` of the rows, with the pages of each KV head up to their end.
    pub(crate) fn with_pages(
        step: &Step<'_>,
        input: &LayerRows<'a>,
        tokens: Range<usize>,
        pages: &'a [Vec<PageView<'a>>],
    ) -> Self {
        Self::over(step, input, tokens, Some(pages))
    }

    fn over(
        step: &Step<'_>,
        input: &LayerRows<'a>,
        tokens: Range<usize>,
        pages: Option<&'a [Vec<PageView<'a>>]>,
    ) -> Self {
        let contexts = (0..step.heads.kv_heads).map(|kv_head| SelectContext {
            phase: step.phase,
            layer: input.cache_layer,
            layers: step.layers,
            kv_head,
            chunk_start: step.head_slot(input, tokens.start, kv_head),
            tokens: step.head_slot(input, tokens.end, kv_head),
            total_tokens: step.total_tokens - step.evicted_tokens(input.cache_layer, kv_head),
            page_tokens: step.page_tokens,
            scale: step.scale,
            soft_cap: step.soft_cap,
            pages: pages.map_or(&[], |pages| &pages[kv_head]),
        });
        let mut tiles = step.heads.tiles(input, tokens.clone());
        for tile in &mut tiles {
            tile.queries.start -= step.evicted_tokens(input.cache_layer, tile.kv_head);
        }
        Self {
            layer: input.cache_layer,
            group: step.heads.group,
            head_dim: step.heads.head_dim,
            contexts: contexts.collect(),
            tiles,
            batch_rows: input.first_row + tokens.start..input.first_row + tokens.end,
            tokens,
        }
    }

    /// One past the last position of the KV head that holds most.
    pub(crate) fn end(&self) -> usize {
        self.contexts.iter().map(|context| context.tokens).max().unwrap_or(0)
    }

    pub(crate) fn job<'j>(&'j self, tile: &Tile<'a>, selection: &'j Selection) -> AttendJob<'j> {
        AttendJob {
            queries: tile.queries,
            kv: self.kv(tile),
            selection,
        }
    }

    pub(crate) fn kv(&self, tile: &Tile<'_>) -> KvView<'a> {
        KvView {
            head_dim: self.head_dim,
            pages: self.contexts[tile.kv_head].pages,
        }
    }
}

/// The pages of each KV head from the one on that holds its token `from`, cut at the end of the chunk.
pub(crate) fn pages<'c>(
    reader: &'c PageReader<'_>,
    input: &LayerRows<'_>,
    step: &Step<'_>,
    tokens: &Range<usize>,
    from: impl Fn(usize) -> usize,
) -> Vec<Vec<PageView<'c>>> {
    let of_head = |kv_head: usize| {
        let end = step.head_slot(input, tokens.end, kv_head);
        let pages = reader
            .pages_from(input.cache_layer, kv_head, from(kv_head))
            .take_while(|page| page.start < end);
        let cut = pages.map(|page| PageView {
            tokens: page.tokens.min(end - page.start),
            ..page
        });
        cut.collect()
    };
    (0..step.heads.kv_heads).map(of_head).collect()
}
