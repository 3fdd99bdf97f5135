//! A chunk of a layer: its tiles and the tokens that they may read.

use std::ops::Range;
use std::sync::Arc;

use riffle_attention::{AttendOptions, KvView, PageView, Selection};
use riffle_kv::PageReader;
use riffle_policy::{LentScan, Phase, SelectContext};

use crate::PairCount;
use crate::attention::{DenseRow, Heads, LayerRows, NewKeys, Rotation, SignIndexes, Tile, cut_head};

/// Settings of one layer in one pass, the same for all chunks of a sequence.
#[derive(Debug, Clone)]
pub(crate) struct LayerStep {
    pub(crate) phase: Phase,
    pub(crate) layers: usize,
    pub(crate) heads: Heads,
    /// Number of tokens in the layer after the whole prompt.
    pub(crate) total_tokens: usize,
    pub(crate) page_tokens: usize,
    /// Tokens evicted from each KV head of the layer.
    pub(crate) evicted_tokens: Vec<usize>,
    /// Window of the layer in tokens; no policy acts on such a layer. A layer that reads another layer's keys sees
    /// all of them, because policies select for the keys' own layer.
    pub(crate) window: Option<usize>,
    pub(crate) rotation: Rotation,
    /// Attention sinks of the layer, one logit per query head, if it has them.
    pub(crate) sinks: Option<Arc<[f32]>>,
    /// True if the layer has its own keys and values, which are appended before they are read.
    pub(crate) appends: bool,
    /// True if the pages expected by the next layer are loaded to the device after this one.
    pub(crate) reads_ahead: bool,
    pub(crate) options: AttendOptions<'static>,
}

/// One chunk of a layer, ready for attention.
pub(crate) struct Chunk<'a> {
    pub(crate) layer: usize,
    pub(crate) heads: Heads,
    /// Range of the chunk within the sequence's rows.
    pub(crate) tokens: Range<usize>,
    /// Rows of the chunk in the batch.
    pub(crate) batch_rows: Range<usize>,
    /// Selection context for each KV head.
    pub(crate) contexts: Vec<SelectContext<'a>>,
    /// Query tiles, ordered by KV head.
    pub(crate) tiles: Vec<Tile<'a>>,
    /// Keys and values of all rows of the sequence.
    pub(crate) new_keys: NewKeys<'a>,
    /// Sink logits, as in [`LayerStep::sinks`].
    sinks: Option<Arc<[f32]>>,
    pub(crate) options: AttendOptions<'static>,
}

/// A chunk and its tiles' selections.
pub(crate) struct Chosen<'q> {
    pub(crate) chunk: Chunk<'q>,
    /// Selections by tile.
    pub(crate) selections: Vec<Selection>,
    /// Selections of the first of two phases, by tile; empty with one phase.
    pub(crate) own: Vec<Selection>,
    /// Rows that also read everything and correct the rows after them.
    pub(crate) dense_rows: Vec<DenseRow>,
    /// Key scores that policies computed, by KV head.
    pub(crate) scans: Vec<Option<LentScan>>,
    /// Pairs read, by KV head.
    pub(crate) counts: Vec<PairCount>,
    /// The next cache layer to attend.
    pub(crate) next: usize,
    /// Tokens per block whose means the device reads, by KV head; empty if it reads none.
    pub(crate) device_means: Vec<Option<usize>>,
    /// True if the result stays on the device that attends.
    pub(crate) stays_on_device: bool,
}

impl Chosen<'_> {
    /// The selections of the tiles, in one phase or two.
    pub(crate) fn phases(&self) -> [&[Selection]; 2] {
        [&self.own, &self.selections]
    }
}

impl<'a> Chunk<'a> {
    /// A chunk of tokens `tokens` of the rows. Its contexts have no pages: [`showing`](Self::showing) adds them.
    pub(crate) fn new(input: &LayerRows<'a>, tokens: Range<usize>) -> Self {
        let step = &input.step;
        let contexts = (0..step.heads.kv_heads).map(|kv_head| SelectContext {
            phase: step.phase,
            layer: input.cache_layer,
            layers: step.layers,
            kv_head,
            chunk_start: input.head_slot(tokens.start, kv_head),
            tokens: input.head_slot(tokens.end, kv_head),
            total_tokens: step.total_tokens - step.evicted_tokens[kv_head],
            page_tokens: step.page_tokens,
            scale: step.options.scale,
            soft_cap: step.options.soft_cap,
            pages: &[],
            signs: None,
        });
        Self {
            layer: input.cache_layer,
            heads: step.heads,
            contexts: contexts.collect(),
            tiles: input.tiles(&tokens),
            batch_rows: input.batch_rows(&tokens),
            tokens,
            new_keys: input.new_keys,
            sinks: step.sinks.clone(),
            options: step.options,
        }
    }

    /// The sinks of a KV head's group.
    pub(crate) fn sinks_of(&self, kv_head: usize) -> Option<&[f32]> {
        let of_group = kv_head * self.heads.group..(kv_head + 1) * self.heads.group;
        self.sinks.as_ref().map(|sinks| &sinks[of_group])
    }

    /// The queries of each token, `[heads, key_width]`, with the token's slot in the first KV head.
    pub(crate) fn query_rows(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let width = self.heads.query_width();
        // A tile of the first KV head starts where its rows start; the other heads follow.
        let tiles = self.tiles.iter().filter(|tile| tile.kv_head == 0);
        tiles.flat_map(move |tile| {
            (0..tile.queries.rows).map(move |row| {
                let from = row * tile.queries.row_stride;
                (tile.queries.start + row, &tile.queries.data[from..from + width])
            })
        })
    }

    /// The contexts with the pages and the index of signs of each KV head.
    pub(crate) fn showing<'p>(&self, pages: &'p [Vec<PageView<'p>>], signs: &'p SignIndexes) -> Vec<SelectContext<'p>> {
        let contexts = self.contexts.iter();
        let shown = contexts.map(|context| SelectContext {
            pages: &pages[context.kv_head],
            ..signs.shown_in(context)
        });
        shown.collect()
    }

    /// One past the last position of the longest KV head.
    pub(crate) fn end(&self) -> usize {
        self.contexts.iter().map(|context| context.tokens).max().unwrap_or(0)
    }

    /// The keys and values of a KV head, from the pages of all heads.
    pub(crate) fn kv<'p>(&self, kv_head: usize, pages: &'p [Vec<PageView<'p>>]) -> KvView<'p> {
        KvView {
            head_dim: self.heads.key_width,
            pages: &pages[kv_head],
        }
    }
}

/// The pages of each KV head, from the page with token `from` on, cut at the end of the chunk.
pub(crate) fn pages<'c>(
    reader: &'c PageReader<'_>,
    chunk: &Chunk<'_>,
    from: impl Fn(usize) -> usize,
) -> Vec<Vec<PageView<'c>>> {
    let of_head = |context: &SelectContext<'_>| {
        let pages = reader.pages_from(context.layer, context.kv_head, from(context.kv_head));
        cut_head(pages, context.tokens)
    };
    chunk.contexts.iter().map(of_head).collect()
}
