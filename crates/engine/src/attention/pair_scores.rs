//! Scores of a sequence's pairs of keys and values, which tell how much later queries will need them. They grow while
//! a prompt is read, without a second reading. Forks copy them, and sessions store them.
//!
//! A pair's score is the largest weight that a query of its own chunk would give it, if the chunk stood once more after
//! itself. So each query is rotated forward by a chunk. It then sees the sinks, the chunk, and the repeated chunk up to
//! itself. KVzip (Kim et al. 2025, arXiv:2505.23416) has the model repeat the chunk instead. Tokens that a model can
//! repeat are found by the token before them, and its query shows this at the first reading already. EchoPress
//! (arXiv:2610.00412) has the same aim; the formula here was found by experiment.

use std::collections::BTreeMap;

use rayon::prelude::*;
use riffle_attention::{AttendError, Span, exponentiate, rotate_heads};
use riffle_kv::KvCache;
use riffle_model::ModelOutline;
use riffle_policy::{Phase, SelectContext};

use crate::EngineError;
use crate::attention::by_head::{FollowsTokens, Recorded};
use crate::attention::{ByHead, Chosen, Chunk, Heads, KeyCopy, rotated_widths};

/// The scores of a sequence's pairs.
pub(crate) type PairScores = ByHead<HeadPairScores>;

/// Scores of the pairs of one KV head by slot, NaN for a pair that was not scored.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct HeadPairScores(Vec<f32>);

/// Scores pairs while a sequence reads.
pub(crate) struct PairScorer {
    model: ModelOutline,
    /// True if the cache holds rotated keys ([`Rotation`](crate::attention::Rotation)).
    rotates_keys: bool,
    /// Tokens that are scored together.
    pub(crate) chunk_tokens: usize,
    /// A sequence length that selects the rotation ([`riffle_model::SegmentTokens::length`]).
    pub(crate) rotary_length: usize,
    /// The model's layer for each layer of the cache that sees the whole sequence.
    layers: BTreeMap<usize, usize>,
    /// Queries of incomplete chunks, by layer of the cache.
    waiting: BTreeMap<usize, Waiting>,
}

/// Consecutive queries of a layer that are not used yet.
#[derive(Default)]
struct Waiting {
    /// Slot of the first query's token in each KV head.
    slots: Vec<usize>,
    /// `[tokens, heads, key_width]`
    queries: Vec<f32>,
}

/// A chunk of queries of one layer.
struct Queries<'a> {
    heads: Heads,
    /// At their own positions, `[tokens, heads, key_width]`.
    near: &'a [f32],
    /// A chunk later.
    far: Vec<f32>,
}

impl HeadPairScores {
    pub(crate) fn by_slot(&self) -> &[f32] {
        &self.0
    }

    /// Keeps the larger of the known scores and these, of the slots from `first` on.
    fn raise(&mut self, first: usize, scores: &[f32]) {
        let end = first + scores.len();
        if self.0.len() < end {
            self.0.resize(end, f32::NAN);
        }
        // `f32::max` ignores NaN.
        let known = self.0[first..end].iter_mut();
        known.zip(scores).for_each(|(known, score)| *known = known.max(*score));
    }
}

impl FollowsTokens for HeadPairScores {
    fn tokens(&self) -> usize {
        self.0.len()
    }

    fn truncate(&mut self, tokens: usize) {
        self.0.truncate(tokens);
    }
}

impl Recorded for HeadPairScores {
    fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|score| score.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8], _: usize) -> Option<Self> {
        let (scores, []) = bytes.as_chunks::<4>() else {
            return None;
        };
        Some(Self(scores.iter().map(|score| f32::from_le_bytes(*score)).collect()))
    }
}

impl PairScorer {
    /// Tokens that are scored together. Longer chunks find no more, and take more time.
    const CHUNK_TOKENS: usize = 512;
    /// First tokens of the text, which take much of every query's weight.
    const SINKS: usize = 4;
    /// Rows of queries that a thread scores at a time.
    const TASK_ROWS: usize = 32;

    /// For the layers of a model that see the whole sequence, each with its number in the cache.
    pub(crate) fn new(
        model: &ModelOutline,
        rotates_keys: bool,
        layers: Vec<(usize, usize)>,
        rotary_length: usize,
    ) -> Self {
        Self {
            model: model.clone(),
            rotates_keys,
            chunk_tokens: Self::CHUNK_TOKENS,
            rotary_length,
            layers: layers
                .into_iter()
                .map(|(layer, cache_layer)| (cache_layer, layer))
                .collect(),
            waiting: BTreeMap::new(),
        }
    }

    /// Bytes of the scores of `tokens` pairs in heads of these layers, and of the queries that wait.
    pub(crate) fn bytes(layers: impl Iterator<Item = Heads>, tokens: usize) -> u64 {
        let waiting = Self::CHUNK_TOKENS.min(tokens);
        let of_layer = |heads: Heads| heads.kv_heads * tokens + waiting * heads.query_width();
        (layers.map(of_layer).sum::<usize>() * size_of::<f32>()) as u64
    }

    /// Scores the chunks of a prompt that are complete. The end of a prompt completes a chunk. Generated tokens have no
    /// scores.
    pub(crate) fn score(
        &mut self,
        cache: &mut KvCache,
        scores: &mut PairScores,
        chosen: &Chosen<'_>,
    ) -> Result<(), EngineError> {
        let chunk = &chosen.chunk;
        let context = &chunk.contexts[0];
        let Some(&layer) = self
            .layers
            .get(&chunk.layer)
            .filter(|_| context.phase == Phase::Prefill)
        else {
            return Ok(());
        };
        let mut waiting = self.waiting.remove(&chunk.layer).unwrap_or_default();
        waiting.take(chunk);
        let row = chunk.heads.query_width();
        let ready = match context.tokens {
            end if end >= context.total_tokens => waiting.queries.len(),
            _ => waiting.queries.len() / (self.chunk_tokens * row) * self.chunk_tokens * row,
        };
        for (number, near) in waiting.queries[..ready].chunks(self.chunk_tokens * row).enumerate() {
            let first = |slot: &usize| slot + number * self.chunk_tokens;
            let slots: Vec<usize> = waiting.slots.iter().map(first).collect();
            let queries = self.queries(layer, &chunk.heads, near, slots[0]);
            self.score_chunk(cache, scores, chunk, (&queries, &slots))?;
        }
        if ready < waiting.queries.len() {
            waiting.queries.drain(..ready);
            waiting.slots.iter_mut().for_each(|slot| *slot += ready / row);
            self.waiting.insert(chunk.layer, waiting);
        }
        Ok(())
    }

    /// Queries of tokens from the position `first` on. Rotations depend on distances alone, so a slot is as good as a
    /// position.
    fn queries<'q>(&self, layer: usize, heads: &Heads, near: &'q [f32], first: usize) -> Queries<'q> {
        let block = rotated_widths(&heads.cached())[0];
        let mut far = near.to_vec();
        let tokens = far.par_chunks_exact_mut(heads.query_width()).enumerate();
        tokens.for_each(|(token, query)| {
            let turn = |query: &mut [f32]| {
                if self.rotates_keys {
                    rotate_heads(query, block);
                }
            };
            turn(query);
            let position = first + token;
            for heads in query.chunks_exact_mut(heads.kv_heads * heads.key_width) {
                self.model
                    .move_keys(layer, heads, position, position + self.chunk_tokens, self.rotary_length);
            }
            turn(query);
        });
        Queries {
            heads: *heads,
            near,
            far,
        }
    }

    /// Scores the keys of the chunk of some queries. A short chunk is scored with the keys before it.
    fn score_chunk(
        &self,
        cache: &mut KvCache,
        scores: &mut PairScores,
        chunk: &Chunk<'_>,
        (queries, slots): (&Queries<'_>, &[usize]),
    ) -> Result<(), EngineError> {
        let tokens = queries.tokens();
        let spans = |slot: &usize| {
            let end = slot + tokens;
            let first = end.saturating_sub(self.chunk_tokens);
            [Span::new(0, Self::SINKS.min(first)), Span::new(first, end)]
        };
        let spans: Vec<[Span; 2]> = slots.iter().map(spans).collect();
        let copies = KeyCopy::of_heads(cache, chunk.layer, &spans)?;
        for (kv_head, (keys, [sinks, seen])) in copies.iter().zip(spans).enumerate() {
            let context = &chunk.contexts[kv_head];
            let rows: Vec<usize> = (0..tokens).collect();
            let tasks = rows.par_chunks(Self::TASK_ROWS);
            let largest: Result<Vec<Vec<f32>>, AttendError> = tasks
                .map(|rows| queries.largest_weights(rows, keys, sinks.len(), context))
                .collect();
            let head = scores.get_or([chunk.layer, kv_head, 0], HeadPairScores::default);
            largest?.iter().for_each(|largest| head.raise(seen.start, largest));
        }
        Ok(())
    }
}

impl Waiting {
    /// Appends the queries of a chunk. Queries of other tokens than those right before it are dropped.
    fn take(&mut self, chunk: &Chunk<'_>) {
        let row = chunk.heads.query_width();
        let tokens = self.queries.len() / row;
        let next = chunk.contexts.iter().map(|context| context.chunk_start);
        if !self.slots.iter().map(|slot| slot + tokens).eq(next.clone()) {
            self.slots = next.collect();
            self.queries.clear();
        }
        chunk
            .query_rows()
            .for_each(|(_, row)| self.queries.extend_from_slice(row));
    }
}

impl Queries<'_> {
    fn tokens(&self) -> usize {
        self.near.len() / self.heads.query_width()
    }

    /// The largest weight that any of some rows gives to each key after the sinks.
    fn largest_weights(
        &self,
        rows: &[usize],
        keys: &KeyCopy,
        sinks: usize,
        context: &SelectContext<'_>,
    ) -> Result<Vec<f32>, AttendError> {
        let (width, group) = (self.heads.key_width, self.heads.group);
        let of_rows = |queries: &[f32]| {
            let firsts = rows
                .iter()
                .map(|row| row * self.heads.query_width() + context.kv_head * group * width);
            let queries: Vec<&[f32]> = firsts
                .flat_map(|first| queries[first..first + group * width].chunks_exact(width))
                .collect();
            keys.logits(&queries, context)
        };
        let (far, near) = (of_rows(&self.far)?, of_rows(self.near)?);
        let before = keys.tokens - self.tokens();
        let mut largest = vec![0.0f32; keys.tokens - sinks];
        let mut seen = Vec::new();
        let logits = far.chunks_exact(keys.tokens).zip(near.chunks_exact(keys.tokens));
        for (query, (far, near)) in logits.enumerate() {
            seen.clear();
            seen.extend_from_slice(far);
            seen.extend_from_slice(&near[sinks..=before + rows[query / group]]);
            let factor = (1.0 / exponentiate(&mut seen)) as f32;
            let weights = largest.iter_mut().zip(&seen[sinks..]);
            weights.for_each(|(largest, weight)| *largest = largest.max(weight * factor));
        }
        Ok(largest)
    }
}
