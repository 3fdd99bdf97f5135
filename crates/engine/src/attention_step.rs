//! One layer's attention: append to the cache, let the policy select, attend, write out.

use std::error::Error;
use std::ops::ControlFlow;

use rayon::prelude::*;
use riffle_attention::{AttendJob, AttendOptions, KvView, PageView, Partial, QueryTile, Selection, attend_batch};
use riffle_kv::KvCache;
use riffle_model::{AttentionInput, AttentionStep};
use riffle_policy::{Phase, PolicySet, SelectContext};

use serde::{Deserialize, Serialize};

use crate::EngineError;

/// Rows of query heads in one tile: enough to share every K and V load, few enough for a selection to be specific.
const TILE_HEAD_ROWS: usize = 128;

/// Pairs of query and key that were read, and that dense attention would have read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PairCount {
    pub(crate) read: u64,
    pub(crate) causal: u64,
}

/// The engine's side of [`AttentionStep`]: it owns the order of append, select and attend, and never knows which
/// policy is on.
pub(crate) struct LayerAttention<'a> {
    pub(crate) cache: &'a mut KvCache,
    pub(crate) policies: &'a mut PolicySet,
    pub(crate) phase: Phase,
    /// Tokens the layer will hold when the prompt has been read.
    pub(crate) total_tokens: usize,
    /// Tokens each layer of the model looks back at most; such a layer is sparse by design and no policy acts on it.
    pub(crate) window: &'a dyn Fn(usize) -> Option<usize>,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) chunk_tokens: usize,
    pub(crate) options: AttendOptions<'a>,
    pub(crate) partials: &'a mut Vec<Partial>,
    pub(crate) pairs: &'a mut PairCount,
    /// Called after each chunk with (layer, tokens of the batch attended); may ask to stop.
    pub(crate) after_chunk: &'a mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    /// The typed error behind a failed [`AttentionStep::attend`].
    pub(crate) failure: Option<EngineError>,
}

impl AttentionStep for LayerAttention<'_> {
    fn attend(&mut self, input: AttentionInput<'_>, output: &mut [f32]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut first = 0;
        while first < input.tokens {
            let tokens = self.chunk_tokens.min(input.tokens - first);
            if let Err(error) = self.chunk(&input, first, tokens, output) {
                let message = error.to_string();
                self.failure = Some(error);
                return Err(message.into());
            }
            first += tokens;
            if (self.after_chunk)(input.layer, first).is_break() {
                return Err("interrupted".into());
            }
        }
        Ok(())
    }
}

impl LayerAttention<'_> {
    /// Attends tokens `first..first + tokens` of the batch.
    fn chunk(
        &mut self,
        input: &AttentionInput<'_>,
        first: usize,
        tokens: usize,
        output: &mut [f32],
    ) -> Result<(), EngineError> {
        let kv_width = self.kv_heads * self.head_dim;
        let kv_range = first * kv_width..(first + tokens) * kv_width;
        self.cache
            .append(input.layer, &input.keys[kv_range.clone()], &input.values[kv_range])?;

        let group = self.heads / self.kv_heads;
        let width = self.heads * self.head_dim;
        let tile_rows = (TILE_HEAD_ROWS / group).max(1);
        let pages: Vec<Vec<PageView<'_>>> = (0..self.kv_heads)
            .map(|kv_head| self.cache.pages(input.layer, kv_head).collect())
            .collect();
        let contexts: Vec<SelectContext<'_>> = pages
            .iter()
            .enumerate()
            .map(|(kv_head, pages)| SelectContext {
                phase: self.phase,
                layer: input.layer,
                layers: self.layers,
                kv_head,
                chunk_start: input.start_position + first,
                tokens: input.start_position + first + tokens,
                total_tokens: self.total_tokens,
                page_tokens: self.cache.shape().page_tokens,
                scale: self.options.scale,
                pages,
            })
            .collect();
        let tiles = tiles(input, first, tokens, tile_rows, self.kv_heads, group, self.head_dim);
        let window = (self.window)(input.layer);
        let (kv_heads, head_dim) = (self.kv_heads, self.head_dim);
        if window.is_none() {
            let policies = self.policies.layer_mut(input.layer).par_iter_mut();
            policies.zip(&contexts).for_each(|(policy, context)| {
                let chunk = tile(input, first, tokens, context.kv_head, kv_heads, group, head_dim);
                policy.prepare(&chunk, context);
            });
        }
        let policies = self.policies.layer(input.layer);
        let selections: Vec<Selection> = tiles
            .par_iter()
            .map(|(kv_head, _, queries)| match window {
                Some(window) => Selection::none().with_row_window(window),
                None => policies[*kv_head].select(queries, &contexts[*kv_head]),
            })
            .collect();
        for ((_, _, queries), selection) in tiles.iter().zip(&selections) {
            let rows = queries.rows as u64;
            let before = queries.start as u64;
            self.pairs.read += selection.pair_count(queries.start, queries.rows) as u64;
            self.pairs.causal += rows * before + rows * (rows + 1) / 2;
        }
        let jobs: Vec<AttendJob<'_>> = tiles
            .iter()
            .zip(&selections)
            .map(|((kv_head, _, queries), selection)| AttendJob {
                queries: *queries,
                kv: KvView {
                    head_dim: self.head_dim,
                    pages: &pages[*kv_head],
                },
                selection,
            })
            .collect();
        self.partials.resize_with(jobs.len(), || Partial::new(0, 0, 0));
        for (partial, job) in self.partials.iter_mut().zip(&jobs) {
            partial.reset(job.queries.rows, group, self.head_dim);
        }
        attend_batch(&jobs, &self.options, self.partials)?;
        for ((kv_head, row, _), partial) in tiles.iter().zip(self.partials.iter()) {
            let at = (first + row) * width + kv_head * group * self.head_dim;
            partial.finish_into(&mut output[at..], width, None)?;
        }
        Ok(())
    }
}

/// Cuts a chunk's queries into `(kv_head, first row in the chunk, tile)`.
fn tiles<'q>(
    input: &AttentionInput<'q>,
    first: usize,
    tokens: usize,
    tile_rows: usize,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
) -> Vec<(usize, usize, QueryTile<'q>)> {
    let mut tiles = Vec::with_capacity(kv_heads * tokens.div_ceil(tile_rows));
    for kv_head in 0..kv_heads {
        for row in (0..tokens).step_by(tile_rows) {
            let rows = tile_rows.min(tokens - row);
            tiles.push((
                kv_head,
                row,
                tile(input, first + row, rows, kv_head, kv_heads, group, head_dim),
            ));
        }
    }
    tiles
}

/// Queries of one KV head's group: `rows` rows from token `first` of the batch on.
fn tile<'q>(
    input: &AttentionInput<'q>,
    first: usize,
    rows: usize,
    kv_head: usize,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
) -> QueryTile<'q> {
    let width = kv_heads * group * head_dim;
    QueryTile {
        data: &input.queries[first * width + kv_head * group * head_dim..],
        rows,
        row_stride: width,
        group,
        head_dim,
        start: input.start_position + first,
    }
}
