//! Selections of layers with a trained indexer: the model ranks tokens or blocks of tokens, and policies do not act.

use std::collections::BTreeMap;
use std::ops::Range;

use rayon::prelude::*;
use riffle_attention::{PageView, Selection};
use riffle_model::{IndexerShape, ProjectedIndex};
use riffle_policy::{IndexerQueries, choose_as_torch, choose_tokens, select_tokens};

use crate::EngineError;
use crate::attention::{AttentionState, Chunk, Tile};

/// Pages whose scores one task computes.
const TASK_PAGES: usize = 16;

/// The source of a layer's selections in a model with a trained indexer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LayerIndex<'a> {
    /// Tokens chosen by the layer's own indexer.
    Own(IndexRows<'a>),
    /// The rows use the selections of the previous layer with an indexer.
    Shared,
}

/// The indexer's results in a layer for all rows of a sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexRows<'a> {
    pub(crate) shape: IndexerShape,
    /// The cache layer with the indexer's keys.
    pub(crate) cache_layer: usize,
    /// True if later layers use this layer's selections.
    pub(crate) is_shared: bool,
    pub(crate) rows: ProjectedIndex<'a>,
}

/// The latest selections, by the cache slot of a tile's first row, for later layers.
pub(crate) type LatestChoice = BTreeMap<usize, Selection>;

impl<'a> IndexRows<'a> {
    /// The part for some rows of a batch, whose indexers computed `rows`.
    pub(crate) fn of_rows(self, rows: &Range<usize>) -> Self {
        let (heads, width) = (self.shape.heads, self.shape.width);
        let part = |values: &'a [f32], width: usize| &values[rows.start * width..rows.end * width];
        Self {
            rows: ProjectedIndex {
                queries: part(self.rows.queries, heads * width),
                weights: part(self.rows.weights, heads),
                keys: part(self.rows.keys, width),
                block_keys: self.rows.block_keys,
            },
            ..self
        }
    }
}

impl AttentionState {
    /// Adds the keys of the indexer for some rows to the cache.
    pub(super) fn append_index(&mut self, index: &LayerIndex<'_>, tokens: &Range<usize>) -> Result<(), EngineError> {
        let LayerIndex::Own(index) = index else { return Ok(()) };
        if tokens.start == 0 {
            self.latest_choice.clear();
        }
        let held = self.cache.tokens(index.cache_layer);
        self.index_blocks.truncate_layer(index.cache_layer, |_| held);
        let width = index.shape.width;
        let keys = &index.rows.keys[tokens.start * width..tokens.end * width];
        Ok(self.cache.append(index.cache_layer, keys, &[])?)
    }

    /// The selection of each tile of a chunk whose rows are already appended.
    pub(super) fn select_by_index(
        &mut self,
        index: &LayerIndex<'_>,
        chunk: &Chunk<'_>,
    ) -> Result<Vec<Selection>, EngineError> {
        let index = match index {
            LayerIndex::Own(index) => index,
            LayerIndex::Shared => {
                let chosen = |tile: &Tile<'_>| self.latest_choice[&tile.queries.start].clone();
                return Ok(chunk.tiles.iter().map(chosen).collect());
            }
        };
        let choose = |pages: &[PageView<'_>]| -> Vec<Selection> {
            let tiles = chunk.tiles.par_iter();
            tiles
                .map(|tile| index.select(tile, chunk.tokens.start, pages))
                .collect()
        };
        let place = (index.cache_layer, &index.shape);
        let selections = match index.rows.block_keys {
            _ if index.reads_all(chunk.end()) => choose(&[]),
            None => self.cache.with_keys(index.cache_layer, 0, 0, choose)?,
            Some(rule) => {
                self.index_blocks.extend(&self.cache, place, rule, chunk.end())?;
                choose(&self.index_blocks.pages(index.cache_layer))
            }
        };
        if index.is_shared {
            let starts = chunk.tiles.iter().map(|tile| tile.queries.start);
            self.latest_choice.extend(starts.zip(selections.iter().cloned()));
        }
        Ok(selections)
    }
}

impl IndexRows<'_> {
    /// True if a row that sees `tokens` tokens reads all of them.
    fn reads_all(&self, tokens: usize) -> bool {
        tokens / self.shape.block <= self.shape.tokens / self.shape.block
    }

    /// The selection of a tile of the chunk that begins with row `first`. `pages` hold keys of tokens or of blocks.
    fn select(&self, tile: &Tile<'_>, first: usize, pages: &[PageView<'_>]) -> Selection {
        let (start, rows) = (tile.queries.start, tile.queries.rows);
        if self.reads_all(start + rows) {
            return Selection::full(start + rows);
        }
        let index = IndexerQueries {
            queries: self.rows.queries,
            weights: self.rows.weights,
            heads: self.shape.heads,
            width: self.shape.width,
        };
        let rows = (0..rows).into_par_iter().map(|row| {
            let seen = start + row + 1;
            if self.reads_all(seen) {
                return (0..seen).collect();
            }
            let (block, row) = (self.shape.block, first + tile.first_row + row);
            let scores = scores(&index, row, seen / block, pages);
            if block == 1 {
                return choose_tokens(&scores, self.shape.tokens);
            }
            let chosen = choose_as_torch(&scores, self.shape.tokens / block).into_iter();
            let behind = seen / block * block..seen;
            chosen
                .flat_map(|number| number * block..(number + 1) * block)
                .chain(behind)
                .collect()
        });
        select_tokens(start, &rows.collect::<Vec<Vec<usize>>>())
    }
}

/// The scores of the first `seen` tokens, or blocks, for a row.
fn scores(index: &IndexerQueries<'_>, row: usize, seen: usize, pages: &[PageView<'_>]) -> Vec<f32> {
    let mut scores = vec![0.0; seen];
    let (mut tasks, mut rest) = (Vec::new(), &mut *scores);
    for pages in pages.chunks(TASK_PAGES) {
        let tokens: usize = pages.iter().map(|page| page.tokens).sum();
        let (part, later) = rest.split_at_mut(tokens.min(rest.len()));
        tasks.push((pages, part));
        rest = later;
    }
    tasks
        .into_par_iter()
        .for_each(|(pages, part)| index.score(row, pages, part));
    scores
}
