use std::borrow::Cow;

use riffle_attention::{PageView, QueryTile, Selection};

use crate::blocks::block_span;
use crate::keys::read_tokens;
use crate::ranking::top_count;
use crate::{ParameterInfo, ParameterKind, PolicyError, PolicyInfo, SelectContext, SparsePolicy};

/// Blocks whose keys could score highest.
///
/// Each block keeps its keys' smallest and largest value of every channel. No key of the block can score higher than
/// Σ max(q·min, q·max) over channels; blocks are ranked by this bound, summed over the tile's queries and the heads of
/// the group. It ranks; it does not prove that little was left out.
struct Quest {
    topk: usize,
    threshold: usize,
    budget: usize,
    block: usize,
    dense_layers: usize,
    sinks: usize,
    recent: usize,
    bounds: Bounds,
}

/// Channel bounds of the keys `0..tokens`.
#[derive(Clone, Default)]
struct Bounds {
    tokens: usize,
    /// `[blocks, 2, head_dim]`: smallest, then largest.
    values: Vec<f32>,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "quest",
    supports_prefill: false,
    supports_decode: true,
    saves: "traffic, compute",
    source: "Quest, Tang et al. 2024, arXiv:2406.10774",
    chunk_tokens: None,
    parameters: &[
        ParameterInfo::count("topk", "8", "blocks read beside the first and the latest", 0, 1 << 24),
        ParameterInfo::count("threshold", "4", "blocks up to which everything is read", 0, 1 << 24),
        ParameterInfo::tokens(
            "budget",
            "0",
            "tokens read beside the first and the latest blocks; 0 counts by topk",
        ),
        ParameterInfo {
            name: "block",
            default: "256",
            meaning: "tokens in a block",
            kind: ParameterKind::PowerOfTwo { min: 16, max: 1024 },
        },
        ParameterInfo::count("dense_layers", "2", "first layers that read everything", 0, 1 << 16),
        ParameterInfo::count("sinks", "1", "first blocks, always read", 0, 1 << 24),
        ParameterInfo::count(
            "recent",
            "2",
            "latest blocks, always read, the current one included",
            1,
            1 << 24,
        ),
    ],
    build: |parameters| {
        Box::new(Quest {
            topk: parameters.count("topk"),
            threshold: parameters.count("threshold"),
            budget: parameters.count("budget"),
            block: parameters.count("block"),
            dense_layers: parameters.count("dense_layers"),
            sinks: parameters.count("sinks"),
            recent: parameters.count("recent"),
            bounds: Bounds::default(),
        })
    },
};

impl SparsePolicy for Quest {
    fn requires_block_selection(&self) -> bool {
        true
    }

    fn summarize(&mut self, page: &PageView<'_>, head_dim: usize) {
        let end = page.start + page.tokens;
        // A page ahead of what is known waits for the pages between.
        if page.start <= self.bounds.tokens && end > self.bounds.tokens {
            self.bounds.extend(&[*page], head_dim, self.block, end);
        }
    }

    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) {
        if !self.reads_all(context) {
            self.bounds
                .extend(context.pages, chunk.head_dim, self.block, context.tokens);
        }
    }

    fn select(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        if self.reads_all(context) {
            return Selection::full(context.tokens);
        }
        let mut bounds = Cow::Borrowed(&self.bounds);
        if bounds.tokens < context.tokens {
            bounds
                .to_mut()
                .extend(context.pages, queries.head_dim, self.block, context.tokens);
        }
        let blocks = context.tokens.div_ceil(self.block);
        // Blocks of the tile's own queries, and those before the first of them.
        let recent = (queries.start / self.block + 1).saturating_sub(self.recent);
        let forced = |block: usize| block < self.sinks || block >= recent;
        let count = match self.budget {
            0 => self.topk,
            budget => budget.div_ceil(self.block),
        };
        let always = (0..blocks).filter(|block| forced(*block)).count();
        let scores = bounds.scores(queries, blocks);
        let chosen = top_count(&scores, always + count, forced);
        Selection::from_spans(
            chosen
                .into_iter()
                .map(|block| block_span(block, self.block, context.tokens)),
        )
    }

    fn save_state(&self) -> Vec<u8> {
        // Tokens: u64; values: f32.
        let mut state = (self.bounds.tokens as u64).to_le_bytes().to_vec();
        state.extend(self.bounds.values.iter().flat_map(|value| value.to_le_bytes()));
        state
    }

    fn restore_state(&mut self, state: &[u8]) -> Result<(), PolicyError> {
        self.reset();
        self.bounds = read_bounds(state, self.block).ok_or(PolicyError::BadState)?;
        Ok(())
    }

    fn truncate(&mut self, tokens: usize) {
        let bounds = &mut self.bounds;
        // A block that is cut within is taken in again: its bounds may come from keys that are gone.
        let blocks = tokens / self.block;
        if blocks * self.block < bounds.tokens {
            let width = bounds.values.len() / bounds.tokens.div_ceil(self.block);
            bounds.values.truncate(blocks * width);
            bounds.tokens = blocks * self.block;
        }
    }
}

impl Quest {
    fn reads_all(&self, context: &SelectContext<'_>) -> bool {
        context.layer < self.dense_layers || context.tokens.div_ceil(self.block) <= self.threshold
    }
}

impl Bounds {
    /// Takes in the keys `self.tokens..tokens`.
    fn extend(&mut self, pages: &[PageView<'_>], head_dim: usize, block: usize, tokens: usize) {
        let mut rows = Vec::new();
        while self.tokens < tokens {
            let number = self.tokens / block;
            let count = ((number + 1) * block).min(tokens) - self.tokens;
            rows.resize(count * head_dim, 0.0);
            read_tokens(pages, head_dim, self.tokens, &mut rows);
            if self.tokens.is_multiple_of(block) {
                self.values.extend(std::iter::repeat_n(f32::INFINITY, head_dim));
                self.values.extend(std::iter::repeat_n(f32::NEG_INFINITY, head_dim));
            }
            let (smallest, largest) = self.values[number * 2 * head_dim..].split_at_mut(head_dim);
            for row in rows.chunks_exact(head_dim) {
                for (channel, value) in row.iter().enumerate() {
                    smallest[channel] = smallest[channel].min(*value);
                    largest[channel] = largest[channel].max(*value);
                }
            }
            self.tokens += count;
        }
    }

    /// `[blocks]`
    fn scores(&self, queries: &QueryTile<'_>, blocks: usize) -> Vec<f32> {
        let head_dim = queries.head_dim;
        let pairs = self.values.chunks_exact(2 * head_dim).take(blocks);
        pairs
            .map(|pair| {
                let (smallest, largest) = pair.split_at(head_dim);
                let mut score = 0.0;
                for row in 0..queries.rows {
                    for head in 0..queries.group {
                        score += upper_bound(queries.query(row, head), smallest, largest);
                    }
                }
                score
            })
            .collect()
    }
}

/// Bounds as `save_state` wrote them; `None` when the bytes cannot be that.
fn read_bounds(state: &[u8], block: usize) -> Option<Bounds> {
    let (tokens, values) = state.split_first_chunk::<8>()?;
    let tokens = usize::try_from(u64::from_le_bytes(*tokens)).ok()?;
    let (values, rest) = values.as_chunks::<4>();
    let blocks = tokens.div_ceil(block);
    let whole = rest.is_empty()
        && match blocks {
            0 => values.is_empty(),
            blocks => !values.is_empty() && values.len().is_multiple_of(2 * blocks),
        };
    whole.then(|| Bounds {
        tokens,
        values: values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
    })
}

/// No key within the bounds has a larger product with the query.
fn upper_bound(query: &[f32], smallest: &[f32], largest: &[f32]) -> f32 {
    let channels = query.iter().zip(smallest.iter().zip(largest));
    channels.map(|(q, (low, high))| (q * low).max(q * high)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_bound_is_above_every_key_of_the_block(
            keys in proptest::collection::vec(proptest::collection::vec(-9i8..9, 16), 1..20),
            query in proptest::collection::vec(-9i8..9, 16),
        ) {
            // Small whole numbers: every product and sum is exact.
            let query: Vec<f32> = query.into_iter().map(f32::from).collect();
            let (mut smallest, mut largest) = (vec![f32::INFINITY; 16], vec![f32::NEG_INFINITY; 16]);
            for key in &keys {
                for (channel, value) in key.iter().enumerate() {
                    smallest[channel] = smallest[channel].min(f32::from(*value));
                    largest[channel] = largest[channel].max(f32::from(*value));
                }
            }
            let bound = upper_bound(&query, &smallest, &largest);
            let dots = keys.iter().map(|key| key.iter().zip(&query).map(|(k, q)| f32::from(*k) * q).sum::<f32>());
            prop_assert!(dots.into_iter().all(|dot| dot <= bound));
        }
    }
}
