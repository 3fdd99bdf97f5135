//! The largest attention weight of every key of a chunk, over the queries that repeat it.

use std::ops::Range;

use rayon::prelude::*;
use riffle_attention::{LANES, Partial, Plane, PlaneMut, Scorer, Selection, Span, exponentiate, read_keys, write_keys};
use riffle_kv::KvCache;

use crate::EngineError;
use crate::attention::{Chosen, Chunk, QueryObserver, Tile};
use crate::compress::HeadScores;

/// Sums a reconstruction, one chunk of the text at a time.
///
/// A query's weights are its softmax over the sinks before the chunk, the chunk, and the tokens from the text's end to
/// the query. Other parts of the text take no weight from the chunk.
pub(crate) struct Reconstruction {
    /// Scores in the order of the given heads; heads of a layer are adjacent.
    pub(super) heads: Vec<HeadScores>,
    sink_tokens: usize,
    /// The repeated tokens, counted from the first one with a score.
    pub(super) chunk: Range<usize>,
}

/// Keys of one KV head that the queries of a round see: the sinks, the chunk, and the tokens after the text.
struct SeenKeys {
    /// Stripes of f32 keys, in the layout of a page.
    plane: Vec<f32>,
    tokens: usize,
}

impl QueryObserver for Reconstruction {
    fn observe(&mut self, cache: &mut KvCache, chosen: &Chosen<'_>, _: Option<&[Partial]>) -> Result<(), EngineError> {
        let chunk = &chosen.chunk;
        let Some(first) = self.heads.iter().position(|head| head.layer == chunk.layer) else {
            return Ok(());
        };
        let heads = &self.heads[first..first + chunk.heads.kv_heads];
        let seen = self.seen_keys(cache, chunk, heads)?;
        let tiles = chunk.tiles.par_iter();
        let largest: Result<Vec<Vec<f32>>, EngineError> = tiles
            .map(|tile| self.largest_weights(tile, &seen[tile.kv_head], &heads[tile.kv_head], chunk))
            .collect();
        for (tile, largest) in chunk.tiles.iter().zip(largest?) {
            let scores = &mut self.heads[first + tile.kv_head].scores[self.chunk.clone()];
            for (score, weight) in scores.iter_mut().zip(largest) {
                *score = score.max(weight);
            }
        }
        Ok(())
    }
}

impl Reconstruction {
    /// For the given heads, whose scores are zero.
    pub(super) fn new(heads: Vec<HeadScores>, sink_tokens: usize) -> Self {
        Self {
            heads,
            sink_tokens,
            chunk: 0..0,
        }
    }

    /// Spans of a head's slots whose keys are visible at the end of a round.
    fn spans(&self, head: &HeadScores, end: usize) -> [Span; 3] {
        let (first, last) = (head.before + self.chunk.start, head.before + self.chunk.end);
        [
            Span::new(0, self.sink_tokens.min(first)),
            Span::new(first, last),
            Span::new(head.before + head.scores.len(), end),
        ]
    }

    /// The keys that a round sees, by KV head, from any tier.
    fn seen_keys(
        &self,
        cache: &mut KvCache,
        chunk: &Chunk<'_>,
        heads: &[HeadScores],
    ) -> Result<Vec<SeenKeys>, EngineError> {
        let (page_tokens, head_dim) = (cache.shape().page_tokens, chunk.heads.key_width);
        let spans = heads.iter().zip(&chunk.contexts);
        let spans: Vec<[Span; 3]> = spans.map(|(head, context)| self.spans(head, context.tokens)).collect();
        let pages_of = |spans: &[Span; 3]| {
            let pages = spans.iter().filter(|span| !span.is_empty());
            let pages = pages.map(|span| Span::new(span.start / page_tokens, span.end.div_ceil(page_tokens)));
            Selection::from_spans(pages).spans().to_vec()
        };
        let wanted: Vec<Vec<Span>> = spans.iter().map(pages_of).collect();
        let tokens: Vec<usize> = spans.iter().map(|spans| spans.iter().map(Span::len).sum()).collect();
        // [tokens, head_dim]
        let mut rows: Vec<Vec<f32>> = tokens.iter().map(|tokens| vec![0.0; tokens * head_dim]).collect();
        cache.stream::<EngineError>(chunk.layer, Some(&wanted), None, &mut |pages| {
            rows.par_iter_mut()
                .zip(&spans)
                .zip(pages)
                .try_for_each(|((rows, spans), pages)| {
                    for page in pages {
                        let mut at = 0;
                        for span in spans {
                            let part = span.intersect(&Span::new(page.start, page.start + page.tokens));
                            if !part.is_empty() {
                                let out = &mut rows[(at + part.start - span.start) * head_dim..];
                                let slot = part.start - page.start;
                                read_keys(&page.keys, head_dim, slot, part.len(), out, head_dim)?;
                            }
                            at += span.len();
                        }
                    }
                    Ok::<(), EngineError>(())
                })
        })?;
        let planes = rows.par_iter().zip(tokens).map(|(rows, tokens)| {
            let mut plane = vec![0.0; tokens.next_multiple_of(LANES) * head_dim];
            write_keys(&mut PlaneMut::F32(&mut plane), head_dim, 0, tokens, rows, head_dim)?;
            Ok(SeenKeys { plane, tokens })
        });
        planes.collect()
    }

    /// The largest weight that any query of a tile gives to each key of the chunk.
    fn largest_weights(
        &self,
        tile: &Tile<'_>,
        seen: &SeenKeys,
        head: &HeadScores,
        chunk: &Chunk<'_>,
    ) -> Result<Vec<f32>, EngineError> {
        let (queries, context) = (&tile.queries, &chunk.contexts[tile.kv_head]);
        let rows = (0..queries.rows).flat_map(|row| (0..queries.group).map(move |head| queries.query(row, head)));
        let mut scorer = Scorer::default();
        scorer.set(rows, queries.head_dim, context.scale)?;
        let mut logits = vec![0.0; queries.rows * queries.group * seen.tokens];
        let keys = Plane::F32(&seen.plane);
        scorer.score(&keys, Span::new(0, seen.tokens), None, &mut logits, seen.tokens)?;
        let [sinks, repeated, _] = self.spans(head, context.tokens).map(|span| span.len());
        let mut largest = vec![0.0f32; repeated];
        for (query, logits) in logits.chunks_exact_mut(seen.tokens).enumerate() {
            let own = queries.start + query / queries.group + 1 - head.before - head.scores.len();
            let visible = &mut logits[..sinks + repeated + own];
            if let Some(cap) = context.soft_cap {
                visible
                    .iter_mut()
                    .for_each(|logit| *logit = cap * (*logit / cap).tanh());
            }
            let factor = (1.0 / exponentiate(visible)) as f32;
            for (largest, weight) in largest.iter_mut().zip(&visible[sinks..]) {
                *largest = largest.max(weight * factor);
            }
        }
        Ok(largest)
    }
}
