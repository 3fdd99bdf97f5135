//! The largest attention weight of every key of a chunk, over the queries that repeat it.

use std::ops::Range;

use rayon::prelude::*;
use riffle_attention::{Partial, Span, exponentiate};
use riffle_kv::KvCache;

use crate::EngineError;
use crate::attention::{Chosen, Chunk, KeyCopy, QueryObserver, Tile};
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

impl QueryObserver for Reconstruction {
    fn observe(&mut self, cache: &mut KvCache, chosen: &Chosen<'_>, _: Option<&[Partial]>) -> Result<(), EngineError> {
        let chunk = &chosen.chunk;
        let Some(first) = self.heads.iter().position(|head| head.layer == chunk.layer) else {
            return Ok(());
        };
        let heads = &self.heads[first..first + chunk.heads.kv_heads];
        let spans = heads.iter().zip(&chunk.contexts);
        let spans: Vec<[Span; 3]> = spans.map(|(head, context)| self.spans(head, context.tokens)).collect();
        // The sinks, the chunk, and the tokens after the text.
        let seen = KeyCopy::of_heads(cache, chunk.layer, &spans)?;
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

    /// The largest weight that any query of a tile gives to each key of the chunk.
    fn largest_weights(
        &self,
        tile: &Tile<'_>,
        seen: &KeyCopy,
        head: &HeadScores,
        chunk: &Chunk<'_>,
    ) -> Result<Vec<f32>, EngineError> {
        let (queries, context) = (&tile.queries, &chunk.contexts[tile.kv_head]);
        let rows = (0..queries.rows).flat_map(|row| (0..queries.group).map(move |head| queries.query(row, head)));
        let mut logits = seen.logits(&rows.collect::<Vec<_>>(), context)?;
        let [sinks, repeated, _] = self.spans(head, context.tokens).map(|span| span.len());
        let mut largest = vec![0.0f32; repeated];
        for (query, logits) in logits.chunks_exact_mut(seen.tokens).enumerate() {
            let own = queries.start + query / queries.group + 1 - head.before - head.scores.len();
            let visible = &mut logits[..sinks + repeated + own];
            let factor = (1.0 / exponentiate(visible)) as f32;
            for (largest, weight) in largest.iter_mut().zip(&visible[sinks..]) {
                *largest = largest.max(weight * factor);
            }
        }
        Ok(largest)
    }
}
