//! Bounds of the keys of each block, channel by channel.

use riffle_attention::{PageView, QueryTile};

use crate::keys::read_tokens;
use crate::state;

/// Channel bounds of the keys `0..tokens`.
#[derive(Clone, Default)]
pub(crate) struct Bounds {
    tokens: usize,
    /// `[blocks, 2, head_dim]`: smallest, then largest.
    values: Vec<f32>,
}

impl Bounds {
    /// Takes in the keys `self.tokens..tokens`.
    pub(crate) fn extend(&mut self, pages: &[PageView<'_>], head_dim: usize, block: usize, tokens: usize) {
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

    /// Tokens whose keys are known.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Forgets keys at and after `tokens`.
    pub(crate) fn truncate(&mut self, block: usize, tokens: usize) {
        // A block that is cut within is taken in again: its bounds may come from keys that are gone.
        let blocks = tokens / block;
        if blocks * block < self.tokens {
            let width = self.values.len() / self.tokens.div_ceil(block);
            self.values.truncate(blocks * width);
            self.tokens = blocks * block;
        }
    }

    pub(crate) fn save(&self) -> Vec<u8> {
        state::write(&[self.tokens], &self.values)
    }

    /// Bounds as `save` wrote them; `None` where the bytes cannot be that.
    pub(crate) fn restore(bytes: &[u8], block: usize) -> Option<Self> {
        let (numbers, values) = state::read(bytes)?;
        let [tokens] = numbers[..] else { return None };
        let whole = match tokens.div_ceil(block) {
            0 => values.is_empty(),
            blocks => !values.is_empty() && values.len().is_multiple_of(2 * blocks),
        };
        whole.then_some(Self { tokens, values })
    }

    /// The bound of each block, summed over the tile's queries and the heads of the group: `[blocks]`.
    pub(crate) fn scores(&self, queries: &QueryTile<'_>, blocks: usize) -> Vec<f32> {
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
