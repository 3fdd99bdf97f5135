//! Bounds of each block's keys: the smallest and the largest value per channel.

use riffle_attention::{LANES, PageView, Plane, QueryTile, Scorer, Span};

use crate::keys::for_each_rows;
use crate::state;

/// Channel bounds of the keys `0..tokens`.
///
/// A block is stored as a key of twice the width: its largest values, then its smallest. The bound of a query is Σ
/// max(q·smallest, q·largest). It is one product of this key with the query's positive elements, followed by its
/// negative ones. The bound summed over many queries is also one product.
#[derive(Clone, Default)]
pub(crate) struct Bounds {
    tokens: usize,
    head_dim: usize,
    /// `[blocks / 16, 2, head_dim, 16]`
    values: Vec<f32>,
}

impl Bounds {
    /// Adds the keys `self.tokens..tokens`.
    pub(crate) fn extend(&mut self, pages: &[PageView<'_>], head_dim: usize, block: usize, tokens: usize) {
        self.head_dim = head_dim;
        let (mut largest, mut smallest) = (vec![0.0; head_dim], vec![0.0; head_dim]);
        for_each_rows(pages, head_dim, self.tokens..tokens, block, |first, rows| {
            let number = first / block;
            largest.fill(f32::NEG_INFINITY);
            smallest.fill(f32::INFINITY);
            for row in rows.chunks_exact(head_dim) {
                for ((largest, smallest), value) in largest.iter_mut().zip(&mut smallest).zip(row) {
                    *largest = if *value > *largest { *value } else { *largest };
                    *smallest = if *value < *smallest { *value } else { *smallest };
                }
            }
            let begins = first.is_multiple_of(block);
            if begins && number.is_multiple_of(LANES) {
                self.values.resize(self.values.len() + 2 * head_dim * LANES, 0.0);
            }
            for (known, largest) in self.lanes(number, 0).zip(&largest) {
                *known = if begins { *largest } else { known.max(*largest) };
            }
            for (known, smallest) in self.lanes(number, 1).zip(&smallest) {
                *known = if begins { *smallest } else { known.min(*smallest) };
            }
            self.tokens = first + rows.len() / head_dim;
        });
    }

    /// Number of tokens with bounded keys.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Removes keys at and after `tokens`.
    pub(crate) fn truncate(&mut self, block: usize, tokens: usize) {
        // A block that is cut in the middle is added again: its bounds may come from removed keys.
        let blocks = tokens / block;
        if blocks * block < self.tokens {
            self.values.truncate(blocks.div_ceil(LANES) * 2 * self.head_dim * LANES);
            self.tokens = blocks * block;
        }
    }

    /// `[blocks, 2, head_dim]`: smallest, then largest.
    pub(crate) fn save(&mut self, block: usize) -> Vec<u8> {
        let mut rows = Vec::new();
        for number in 0..self.tokens.div_ceil(block) {
            rows.extend(self.lanes(number, 1).map(|value| *value));
            rows.extend(self.lanes(number, 0).map(|value| *value));
        }
        state::write(&[self.tokens], &rows)
    }

    /// The bounds that `save` wrote; `None` for other bytes.
    pub(crate) fn restore(bytes: &[u8], block: usize) -> Option<Self> {
        let (numbers, rows) = state::read(bytes)?;
        let [tokens] = numbers[..] else { return None };
        let blocks = tokens.div_ceil(block);
        if blocks == 0 {
            return rows.is_empty().then(Self::default);
        }
        if rows.is_empty() || !rows.len().is_multiple_of(2 * blocks) {
            return None;
        }
        let head_dim = rows.len() / (2 * blocks);
        let mut bounds = Self {
            tokens,
            head_dim,
            values: vec![0.0; blocks.div_ceil(LANES) * 2 * head_dim * LANES],
        };
        for (number, row) in rows.chunks_exact(2 * head_dim).enumerate() {
            let (smallest, largest) = row.split_at(head_dim);
            bounds.lanes(number, 0).zip(largest).for_each(|(to, from)| *to = *from);
            bounds.lanes(number, 1).zip(smallest).for_each(|(to, from)| *to = *from);
        }
        Some(bounds)
    }

    /// The bound of each block, summed over the tile's queries and the heads of the group: `[blocks]`.
    pub(crate) fn scores(&self, tile: &QueryTile<'_>, blocks: usize) -> Vec<f32> {
        let mut scores = vec![0.0; blocks];
        if blocks == 0 {
            return scores;
        }
        let mut parts = vec![0.0; 2 * self.head_dim];
        let (positive, negative) = parts.split_at_mut(self.head_dim);
        for row in 0..tile.rows {
            for head in 0..tile.group {
                for ((positive, negative), q) in positive.iter_mut().zip(&mut *negative).zip(tile.query(row, head)) {
                    *positive += q.max(0.0);
                    *negative += q.min(0.0);
                }
            }
        }
        let mut scorer = Scorer::default();
        let scored = scorer.set([&parts[..]], parts.len(), 1.0).and_then(|()| {
            scorer.score(
                &Plane::F32(&self.values),
                Span::new(0, blocks),
                None,
                &mut scores,
                blocks,
            )
        });
        scored.expect("a block of bounds is as wide as two queries");
        scores
    }

    /// The values of one block by channel: the largest (0) or the smallest (1).
    fn lanes(&mut self, number: usize, part: usize) -> impl Iterator<Item = &mut f32> {
        let first = (number / LANES * 2 + part) * self.head_dim * LANES;
        self.values[first..first + self.head_dim * LANES]
            .iter_mut()
            .skip(number % LANES)
            .step_by(LANES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use riffle_attention::{PlaneMut, write_keys};

    proptest! {
        #[test]
        fn no_key_of_a_block_scores_above_its_bound(
            keys in proptest::collection::vec(proptest::collection::vec(-9i8..9, 16), 1..90),
            queries in proptest::collection::vec(proptest::collection::vec(-9i8..9, 16), 1..4),
        ) {
            // Small integers: every product and sum is exact.
            let floats = |rows: &[Vec<i8>]| -> Vec<f32> { rows.iter().flatten().map(|x| f32::from(*x)).collect() };
            let (count, keys) = (keys.len(), floats(&keys));
            let mut plane = vec![0.0; 96 * 16];
            write_keys(&mut PlaneMut::F32(&mut plane), 16, 0, count, &keys, 16).unwrap();
            let page = PageView { start: 0, tokens: count, keys: Plane::F32(&plane), values: Plane::F32(&plane) };
            let mut bounds = Bounds::default();
            // Two steps, so that a block grows.
            bounds.extend(&[page], 16, 4, count / 2);
            bounds.extend(&[page], 16, 4, count);
            let data = floats(&queries);
            let tile = |from: usize, rows: usize| QueryTile {
                data: &data[from * 16..], rows, row_stride: 16, group: 1, head_dim: 16, start: count,
            };
            let blocks = count.div_ceil(4);
            let mut sums = vec![0.0; blocks];
            for query in 0..queries.len() {
                let scores = bounds.scores(&tile(query, 1), blocks);
                for (token, key) in keys.chunks(16).enumerate() {
                    let dot: f32 = key.iter().zip(&data[query * 16..]).map(|(k, q)| k * q).sum();
                    prop_assert!(dot <= scores[token / 4]);
                }
                sums.iter_mut().zip(&scores).for_each(|(sum, score)| *sum += score);
            }
            prop_assert_eq!(bounds.scores(&tile(0, queries.len()), blocks), sums);
            let restored = Bounds::restore(&bounds.save(4), 4).unwrap();
            prop_assert_eq!(restored.values, bounds.values);
        }
    }
}
