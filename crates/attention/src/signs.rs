use alloc::vec;
use alloc::vec::Vec;

use crate::attend::check_options;
use crate::error::expect_equal;
use crate::half::{f16_to_f32, f32_to_f16};
use crate::kernel::{LARGEST, MEAN_STRIPE, SEGMENT, STRIPE, ScoreSigns, SignStripes, TABLE_BIAS, Top, UNIT, byte_of};
use crate::simd::Level;
use crate::{AttendError, AttendOptions, QueryTile, rotate_heads};

/// An index of keys with one bit per element.
///
/// Keys are rotated by [`rotate_heads`]. The mean of every [`SEGMENT`](Self::SEGMENT) keys is subtracted and stored in
/// f16. The index stores the signs of the remainders, and a scale in f16 with the least squared error: the mean
/// magnitude of the remainder's elements. A key of 128 elements takes 22 bytes, compared with 256 bytes in f16.
///
/// A segment enters the index whole, so the bits of an index follow from the keys alone.
///
/// Signs of rotated vectors as in RaBitQ (Gao and Long 2024, arXiv:2405.12497); signs of keys as an index as in
/// Self-Indexing Attention (arXiv:2609.13205); sums by byte shuffles as in FAISS's fast scan.
///
/// ```
/// # use riffle_attention::*;
/// # let noise = |count: usize| (0..count).map(|n| ((n * n + 7 * n) % 201) as f32 / 100.0 - 1.0).collect::<Vec<f32>>();
/// let mut keys: Vec<f32> = noise(2 * SignIndex::SEGMENT * 32);
/// let query: Vec<f32> = keys[20 * 32..21 * 32].to_vec();
/// let mut index = SignIndex::default();
/// index.push(&mut keys[..SignIndex::SEGMENT * 32], 32)?;
/// index.push(&mut keys[SignIndex::SEGMENT * 32..], 32)?;
/// let queries = QueryTile { data: &query, rows: 1, row_stride: 32, group: 1, head_dim: 32, start: 200 };
/// let mut scorer = SignScorer::default();
/// scorer.run(&queries, &index, &AttendOptions::new(1.0))?;
/// // Key 20 is in the second unit of 16 keys.
/// let row = scorer.row_mut(0);
/// assert!((0..8).all(|unit| row[unit] <= row[1]));
/// # Ok::<(), AttendError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct SignIndex {
    head_dim: usize,
    tokens: usize,
    // Shapes as in `SignStripes`.
    signs: Vec<[u8; 64]>,
    scales: Vec<[u16; 16]>,
    means: Vec<[u16; 16]>,
}

impl SignIndex {
    /// Keys of a segment: they share a mean and enter the index together.
    pub const SEGMENT: usize = SEGMENT;

    /// Keys of a unit; [`SignScorer`] returns the largest estimate of each unit.
    pub const UNIT: usize = UNIT;

    /// Number of keys in the index, a multiple of [`SEGMENT`](Self::SEGMENT).
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Bytes of the index per key of `head_dim` elements.
    pub fn bytes_per_token(head_dim: usize) -> f64 {
        head_dim as f64 / 8.0 + 2.0 + 2.0 * head_dim as f64 / SEGMENT as f64
    }

    /// Adds the next [`SEGMENT`](Self::SEGMENT) keys, `[SEGMENT, head_dim]`. Overwrites them as scratch.
    ///
    /// # Errors
    /// A width that is no multiple of 16 or differs from the earlier keys' width; another number of keys.
    pub fn push(&mut self, keys: &mut [f32], head_dim: usize) -> Result<(), AttendError> {
        crate::format::check_head_dim(head_dim)?;
        if self.tokens == 0 {
            *self = Self {
                head_dim,
                ..Self::default()
            };
        }
        expect_equal("head_dim of keys and of the index", self.head_dim, head_dim)?;
        expect_equal("keys and a segment", SEGMENT * head_dim, keys.len())?;
        if self.tokens.is_multiple_of(STRIPE) {
            let stripes = self.tokens / STRIPE + 1;
            self.signs.resize(stripes * STRIPE / 64 * head_dim / 8, [0; 64]);
            self.scales.resize(stripes * UNIT, [0; 16]);
        }
        if self.tokens.is_multiple_of(MEAN_STRIPE) {
            self.means.resize((self.tokens / MEAN_STRIPE + 1) * head_dim, [0; 16]);
        }
        rotate_heads(keys, head_dim);
        let mean = self.push_mean(keys);
        for (n, key) in keys.chunks_exact_mut(head_dim).enumerate() {
            key.iter_mut().zip(&mean).for_each(|(key, mean)| *key -= mean);
            self.write_signs(self.tokens + n, key);
        }
        self.tokens += SEGMENT;
        Ok(())
    }

    /// Removes segments with keys at or after `tokens`.
    pub fn truncate(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(tokens / SEGMENT * SEGMENT);
        let stripes = self.tokens.div_ceil(STRIPE);
        self.signs.truncate(stripes * STRIPE / 64 * self.head_dim / 8);
        self.scales.truncate(stripes * UNIT);
        self.means.truncate(self.tokens.div_ceil(MEAN_STRIPE) * self.head_dim);
    }

    /// Stores the mean of the next segment and returns it in its rounded form.
    fn push_mean(&mut self, keys: &[f32]) -> Vec<f32> {
        let mut mean = vec![0.0f32; self.head_dim];
        for key in keys.chunks_exact(self.head_dim) {
            mean.iter_mut().zip(key).for_each(|(sum, key)| *sum += key);
        }
        let means = &mut self.means[self.tokens / MEAN_STRIPE * self.head_dim..];
        let segment = self.tokens % MEAN_STRIPE / SEGMENT;
        for (mean, stored) in mean.iter_mut().zip(means) {
            stored[segment] = finite_f16(*mean / SEGMENT as f32);
            *mean = f16_to_f32(stored[segment]);
        }
        mean
    }

    /// Stores the signs and the scale of a centred key.
    fn write_signs(&mut self, token: usize, key: &[f32]) {
        let (stripe, unit, number) = (token / STRIPE, token % STRIPE / UNIT, token % UNIT);
        let magnitude: f32 = key.iter().map(|value| value.abs()).sum();
        self.scales[stripe * UNIT + number][unit] = finite_f16(magnitude / self.head_dim as f32);
        let vectors = self.head_dim / 8;
        let signs = &mut self.signs[(4 * stripe + number / 4) * vectors..][..vectors];
        let byte = byte_of(number, unit);
        for (signs, eight) in signs.iter_mut().zip(key.as_chunks::<8>().0) {
            signs[byte] = (0..8).fold(0, |bits, n| bits | u8::from(eight[n] >= 0.0) << n);
        }
    }
}

/// Rounds to f16; larger numbers become the largest f16.
fn finite_f16(value: f32) -> u16 {
    const MOST: f32 = 65504.0;
    f32_to_f16(value.clamp(-MOST, MOST))
}

/// The largest estimated logit of every query in each unit of a [`SignIndex`].
///
/// Queries are rotated and rounded to integers from −7 to 7. Sums of integers with signs are exact, and the rest is
/// computed in one order. Estimates therefore have the same bits on every machine.
#[derive(Debug, Default)]
pub struct SignScorer {
    /// Number of units before each query.
    visible: Vec<usize>,
    width: usize,
    // Shapes as in `ScoreSigns`.
    tables: Vec<[u8; 16]>,
    rotated: Vec<f32>,
    steps: Vec<f32>,
    maxima: Vec<f32>,
}

impl SignScorer {
    /// Estimates the logits of a tile's queries. Under a causal mask a query sees the segments that end at or before
    /// its own segment; without one it sees all.
    ///
    /// # Errors
    /// Shapes that disagree, slices that are too short.
    pub fn run(&mut self, queries: &QueryTile, index: &SignIndex, options: &AttendOptions) -> Result<(), AttendError> {
        self.run_at(Level::best(), queries, index, options)
    }

    fn run_at(
        &mut self,
        level: Level,
        queries: &QueryTile,
        index: &SignIndex,
        options: &AttendOptions,
    ) -> Result<(), AttendError> {
        /// Queries scored together. The longest row determines the number of scored units.
        const TOGETHER: usize = 16;
        check_options(queries, options)?;
        if index.tokens > 0 {
            expect_equal("head_dim of queries and of the index", index.head_dim, queries.head_dim)?;
        }
        self.round(queries, options.scale);
        let units = |query: usize| {
            let end = (queries.start + query / queries.group) / SEGMENT * SEGMENT;
            let end = if options.causal { end } else { index.tokens };
            end.min(index.tokens) / UNIT
        };
        self.visible.clear();
        self.visible.extend((0..self.steps.len()).map(units));
        self.width = self.visible.iter().copied().max().unwrap_or(0).next_multiple_of(16);
        self.maxima.resize(self.steps.len() * self.width, f32::NEG_INFINITY);
        let keys = SignStripes {
            signs: &index.signs,
            scales: &index.scales,
            means: &index.means,
        };
        for first in (0..self.steps.len()).step_by(TOGETHER) {
            let end = (first + TOGETHER).min(self.steps.len());
            level.run(ScoreSigns {
                keys,
                head_dim: queries.head_dim,
                tables: &self.tables[first * queries.head_dim / 4..end * queries.head_dim / 4],
                rotated: &self.rotated[first * queries.head_dim..end * queries.head_dim],
                steps: &self.steps[first..end],
                units: self.visible[first..end].iter().copied().max().unwrap_or(0),
                width: self.width,
                out: &mut self.maxima[first * self.width..end * self.width],
            });
        }
        if options.soft_cap.is_some() {
            let (logits, soft_cap) = (&mut self.maxima[..], options.soft_cap);
            level.run(Top { logits, soft_cap });
        }
        Ok(())
    }

    /// Queries: rows × group.
    pub fn queries(&self) -> usize {
        self.steps.len()
    }

    /// The largest estimates of query `row · group + head`: one for each unit that it sees.
    ///
    /// # Panics
    /// If there is no such query.
    pub fn row_mut(&mut self, query: usize) -> &mut [f32] {
        &mut self.maxima[query * self.width..][..self.visible[query]]
    }

    /// Rotates and rounds the queries.
    fn round(&mut self, queries: &QueryTile, scale: f32) {
        self.rotated.clear();
        self.tables.clear();
        self.steps.clear();
        for row in 0..queries.rows {
            for head in 0..queries.group {
                let query = queries.query(row, head).iter().map(|value| value * scale);
                self.rotated.extend(query);
            }
        }
        rotate_heads(&mut self.rotated, queries.head_dim);
        for query in self.rotated.chunks_exact(queries.head_dim) {
            let (integers, step) = round_to_integers(query);
            self.steps.push(step);
            self.tables.extend(integers.as_chunks::<4>().0.iter().map(table));
        }
    }
}

/// A vector in integers, and the value of one unit of them.
fn round_to_integers(vector: &[f32]) -> (Vec<i32>, f32) {
    /// Magnitude below which a query counts as zero: its inverse would overflow.
    const LEAST: f32 = 1e-30;
    /// Adding and subtracting this number rounds a small number to an integer, ties to even.
    const ROUNDING: f32 = 12_582_912.0;
    let largest = vector.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let inverse = if largest > LEAST { LARGEST as f32 / largest } else { 0.0 };
    let rounded = vector
        .iter()
        .map(|value| (value * inverse + ROUNDING - ROUNDING) as i32);
    let integers = rounded.map(|integer| integer.clamp(-LARGEST, LARGEST)).collect();
    (integers, largest / LARGEST as f32)
}

/// For each pattern of four signs, the sum of the signed integers, with a bias. A set bit is a positive sign.
fn table(integers: &[i32; 4]) -> [u8; 16] {
    core::array::from_fn(|pattern| {
        let signed = integers.iter().enumerate();
        let signed = signed.map(|(bit, integer)| if pattern >> bit & 1 == 1 { *integer } else { -integer });
        (signed.sum::<i32>() + TABLE_BIAS) as u8
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::testing::noise;

    /// An index of the keys `[tokens, head_dim]`, without the keys after the last whole segment.
    fn index_of(keys: &[f32], head_dim: usize) -> SignIndex {
        let mut index = SignIndex::default();
        for segment in keys.chunks_exact(SEGMENT * head_dim) {
            index.push(&mut segment.to_vec(), head_dim).unwrap();
        }
        index
    }

    fn tile(data: &[f32], head_dim: usize, group: usize, start: usize) -> QueryTile<'_> {
        QueryTile {
            data,
            rows: data.len() / head_dim / group,
            row_stride: group * head_dim,
            group,
            head_dim,
            start,
        }
    }

    fn rows_at(level: Level, queries: &QueryTile, index: &SignIndex, options: &AttendOptions) -> Vec<Vec<f32>> {
        let mut scorer = SignScorer::default();
        scorer.run_at(level, queries, index, options).unwrap();
        (0..scorer.queries())
            .map(|query| scorer.row_mut(query).to_vec())
            .collect()
    }

    /// The product of integers with signs, from bit counts in four planes of the integers plus 8.
    fn product_by_counts(integers: &[i32], key: &[f32]) -> i32 {
        let count = |bit: i32| {
            let pairs = integers.iter().zip(key);
            let set = pairs.filter(|(integer, _)| (**integer + 8) >> bit & 1 == 1);
            let (all, positive) = set.fold((0, 0), |(all, positive), (_, key)| {
                (all + 1, positive + i32::from(*key >= 0.0))
            });
            2 * positive - all
        };
        let planes: i32 = (0..4).map(|bit| count(bit) << bit).sum();
        let signs: i32 = key.iter().map(|key| if *key >= 0.0 { 1 } else { -1 }).sum();
        planes - 8 * signs
    }

    /// The largest estimate in every unit by its definition, for a scaled query.
    fn estimates_of(query: &[f32], keys: &[f32], head_dim: usize) -> Vec<f64> {
        let (mut query, mut keys) = (query.to_vec(), keys.to_vec());
        rotate_heads(&mut query, head_dim);
        rotate_heads(&mut keys, head_dim);
        let (integers, step) = round_to_integers(&query);
        let half = |value: f64| f64::from(f16_to_f32(f32_to_f16(value as f32)));
        let mut estimates = Vec::new();
        for segment in keys.chunks_exact(SEGMENT * head_dim) {
            let mean_of = |n: usize| {
                segment
                    .iter()
                    .skip(n)
                    .step_by(head_dim)
                    .map(|key| f64::from(*key))
                    .sum::<f64>()
            };
            let mean: Vec<f64> = (0..head_dim).map(|n| half(mean_of(n) / SEGMENT as f64)).collect();
            let offset: f64 = query
                .iter()
                .zip(&mean)
                .map(|(query, mean)| f64::from(*query) * mean)
                .sum();
            for key in segment.chunks_exact(head_dim) {
                let rest: Vec<f32> = key.iter().zip(&mean).map(|(key, mean)| key - *mean as f32).collect();
                let magnitude: f64 = rest.iter().map(|value| f64::from(value.abs())).sum();
                let product = f64::from(product_by_counts(&integers, &rest)) * half(magnitude / head_dim as f64);
                estimates.push(product * f64::from(step) + offset);
            }
        }
        let units = estimates.chunks(UNIT);
        units
            .map(|unit| unit.iter().copied().fold(f64::NEG_INFINITY, f64::max))
            .collect()
    }

    #[test]
    fn estimates_are_counts_of_bits_times_scales_plus_products_of_means() {
        for (case, head_dim) in [16, 48, 64, 80, 128, 576].into_iter().enumerate() {
            for tokens in [64, 200, 1024, 1300] {
                let keys = noise(case as u64, tokens * head_dim);
                let queries = noise(case as u64 + 50, 7 * head_dim);
                let scale = 0.5;
                let rows = rows_at(
                    Level::best(),
                    &tile(&queries, head_dim, 7, tokens),
                    &index_of(&keys, head_dim),
                    &AttendOptions::new(scale),
                );
                for (row, query) in rows.iter().zip(queries.chunks(head_dim)) {
                    let query: Vec<f32> = query.iter().map(|value| value * scale).collect();
                    let expected = estimates_of(&query, &keys, head_dim);
                    assert_eq!(row.len(), expected.len(), "{head_dim} {tokens}");
                    for (found, expected) in row.iter().zip(expected) {
                        assert!((f64::from(*found) - expected).abs() < 2e-3, "{found} for {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_and_any_queries_beside_give_the_same_bits() {
        for head_dim in [16, 96, 128] {
            let (keys, queries) = (noise(5, 1500 * head_dim), noise(6, 18 * head_dim));
            let index = index_of(&keys, head_dim);
            let tile = tile(&queries, head_dim, 3, 1400);
            let bits = |rows: Vec<Vec<f32>>| -> Vec<Vec<u32>> {
                rows.iter()
                    .map(|row| row.iter().map(|value| value.to_bits()).collect())
                    .collect()
            };
            let options = AttendOptions::new(0.3);
            let expected = bits(rows_at(Level::SCALAR, &tile, &index, &options));
            for level in Level::all() {
                assert_eq!(
                    bits(rows_at(level, &tile, &index, &options)),
                    expected,
                    "{}",
                    level.name()
                );
                for row in 0..6 {
                    let alone = QueryTile {
                        data: &queries[row * 3 * head_dim..],
                        rows: 1,
                        start: 1400 + row,
                        ..tile
                    };
                    let found = bits(rows_at(level, &alone, &index, &options));
                    assert_eq!(found, expected[3 * row..3 * row + 3], "{} row {row}", level.name());
                }
            }
        }
    }

    #[test]
    fn a_query_sees_the_segments_before_its_own() {
        let keys = noise(7, 640 * 32);
        let index = index_of(&keys, 32);
        let queries = noise(8, 130 * 32);
        let mut scorer = SignScorer::default();
        scorer
            .run(&tile(&queries, 32, 1, 60), &index, &AttendOptions::new(1.0))
            .unwrap();
        for query in 0..130 {
            assert_eq!(scorer.row_mut(query).len(), (60 + query) / 64 * 4);
        }
        scorer
            .run(&tile(&queries, 32, 1, 5000), &index, &AttendOptions::new(1.0))
            .unwrap();
        assert_eq!(scorer.row_mut(129).len(), 40);
        scorer
            .run(
                &tile(&queries, 32, 1, 60),
                &SignIndex::default(),
                &AttendOptions::new(1.0),
            )
            .unwrap();
        assert!(scorer.row_mut(129).is_empty());
    }

    #[test]
    fn segments_that_were_cut_off_leave_nothing_behind() {
        let head_dim = 48;
        let (keys, other) = (noise(9, 1280 * head_dim), noise(10, 1280 * head_dim));
        let queries = noise(11, 2 * head_dim);
        let tile = tile(&queries, head_dim, 2, 2000);
        let options = AttendOptions::new(0.2);
        let expected = rows_at(Level::best(), &tile, &index_of(&keys, head_dim), &options);
        for kept in [0, 63, 64, 250, 256, 1023, 1100] {
            let whole = kept / SEGMENT * SEGMENT * head_dim;
            let mut index = index_of(&[&keys[..whole], &other[whole..]].concat(), head_dim);
            index.truncate(kept);
            assert_eq!(index.tokens(), kept / SEGMENT * SEGMENT);
            for segment in keys[whole..].chunks_exact(SEGMENT * head_dim) {
                index.push(&mut segment.to_vec(), head_dim).unwrap();
            }
            assert_eq!(rows_at(Level::best(), &tile, &index, &options), expected, "{kept}");
        }
    }

    #[test]
    fn a_key_like_the_query_has_the_largest_estimate() {
        let head_dim = 128;
        let mut keys = noise(12, 2048 * head_dim);
        let query = noise(13, head_dim);
        keys[700 * head_dim..701 * head_dim].copy_from_slice(&query);
        // Without centring, a part that all keys share would hide the signs of the rest.
        for key in keys.chunks_mut(head_dim) {
            key.iter_mut()
                .zip(0..)
                .for_each(|(value, n)| *value += if n % 3 == 0 { 5.0 } else { -2.0 });
        }
        let tile = tile(&query, head_dim, 1, 2048);
        let rows = rows_at(
            Level::best(),
            &tile,
            &index_of(&keys, head_dim),
            &AttendOptions::new(1.0),
        );
        let best = (0..rows[0].len()).max_by(|a, b| rows[0][*a].total_cmp(&rows[0][*b]));
        assert_eq!(best, Some(700 / UNIT));
    }

    #[test]
    fn wrong_shapes_are_refused() {
        let mut index = SignIndex::default();
        assert!(index.push(&mut vec![0.0; 64 * 20], 20).is_err());
        assert!(index.push(&mut vec![0.0; 63 * 32], 32).is_err());
        index.push(&mut vec![0.0; 64 * 32], 32).unwrap();
        assert!(index.push(&mut vec![0.0; 64 * 48], 48).is_err());
        let queries = [0.0; 48];
        let mut scorer = SignScorer::default();
        let refused = scorer.run(&tile(&queries, 48, 1, 99), &index, &AttendOptions::new(1.0));
        assert!(refused.is_err());
    }
}
