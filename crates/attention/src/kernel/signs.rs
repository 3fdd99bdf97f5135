//! Estimates of logits from the signs of keys. Four signs are an index into a table of 16 sums. One shuffle of bytes
//! therefore multiplies four elements of a query with 64 keys.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::weigh::capped;
use crate::simd::{Kernel, Simd};

/// Keys whose signs lie in one stripe.
pub(crate) const STRIPE: usize = 256;

/// Keys per unit; a stripe has one unit per lane.
pub(crate) const UNIT: usize = 16;

/// Keys per segment; the keys of a segment share a mean.
pub(crate) const SEGMENT: usize = 64;

/// Keys of a group. Their means are stored together, one segment per lane.
pub(crate) const GROUP: usize = 16 * SEGMENT;

/// Largest magnitude of a query's integers. The sum of four tables of four elements then fits a byte.
pub(crate) const LARGEST: i32 = 7;

/// Bias of every table entry, so that none is negative.
pub(crate) const TABLE_BIAS: i32 = 4 * LARGEST;

/// The signs, scales and means of a group of keys. The last group of an index may have fewer stripes.
#[derive(Debug, Clone, Default)]
pub(crate) struct SignGroup {
    /// `[stripes, 4, head_dim / 8, 64]`. A byte holds eight signs of one key. The key with number `n` in the unit of
    /// lane `l` is in part `n / 4`, at the byte that [`byte_of`] gives.
    pub(crate) signs: Vec<Line>,
    /// `[stripes, 16, 16]` in f16: index in the unit, then unit.
    pub(crate) scales: Vec<[u16; 16]>,
    /// `[head_dim, 16]` in f16: element, then segment.
    pub(crate) means: Vec<[u16; 16]>,
}

/// A cache line. Unaligned loads of 64 bytes would read two.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Line(pub(crate) [u8; 64]);

/// The byte of a key in its part of a stripe. Each lane of four bytes holds the keys of one unit.
pub(crate) fn byte_of(number: usize, unit: usize) -> usize {
    let number = number % 4;
    4 * unit + 2 * (number % 2) + number / 2
}

/// Queries for products with signs.
#[derive(Clone, Copy)]
pub(crate) struct SignQueries<'a> {
    pub(crate) head_dim: usize,
    /// `[queries, head_dim / 4, 64]`, as in [`Simd::look_up`].
    pub(crate) tables: &'a [Line],
    /// `[queries, head_dim]`
    pub(crate) rotated: &'a [f32],
    /// For each query, the value of one unit of its integers.
    pub(crate) steps: &'a [f32],
}

/// The largest estimate of each query in every unit.
pub(crate) struct ScoreSigns<'a> {
    pub(crate) keys: &'a [Arc<SignGroup>],
    pub(crate) queries: SignQueries<'a>,
    /// Number of units to score, from the first on.
    pub(crate) units: usize,
    /// Elements between two queries' rows of `out`: a multiple of 16, and at least `units`.
    pub(crate) width: usize,
    /// `[queries, width]`
    pub(crate) out: &'a mut [f32],
}

/// Marks the keys whose estimate for some query is at least the query's `lowest`.
pub(crate) struct MarkSigns<'a> {
    pub(crate) keys: &'a [Arc<SignGroup>],
    pub(crate) queries: SignQueries<'a>,
    /// The result of [`ScoreSigns`] for these queries and keys, `[queries, width]`.
    pub(crate) maxima: &'a [f32],
    pub(crate) width: usize,
    /// Number of units before each query.
    pub(crate) visible: &'a [usize],
    pub(crate) lowest: &'a [f32],
    /// The soft cap of the estimates in `maxima`.
    pub(crate) soft_cap: Option<f32>,
    /// `[stripes, 16]`: index in the unit, then a bit for each unit.
    pub(crate) marks: &'a mut [[u16; UNIT]],
}

/// `P` queries from `first` on.
struct Few<'a, const P: usize> {
    tables: [&'a [Line]; P],
    /// `[P, head_dim]`
    rotated: &'a [f32],
    steps: [f32; P],
}

impl<'a> SignQueries<'a> {
    #[inline(always)]
    fn few<const P: usize>(&self, first: usize) -> Few<'a, P> {
        Few {
            tables: core::array::from_fn(|p| &self.tables[(first + p) * self.head_dim / 4..][..self.head_dim / 4]),
            rotated: &self.rotated[first * self.head_dim..][..P * self.head_dim],
            steps: core::array::from_fn(|p| self.steps[first + p]),
        }
    }
}

impl Kernel for ScoreSigns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let (count, mut query) = (self.queries.steps.len(), 0);
        // Queries share each load of signs, as far as registers allow.
        while query < count {
            query += match count - query {
                8.. if S::WIDE => score::<S, 8>(simd, &mut self, query),
                6.. if S::WIDE => score::<S, 6>(simd, &mut self, query),
                4.. if S::WIDE => score::<S, 4>(simd, &mut self, query),
                2.. if S::WIDE => score::<S, 2>(simd, &mut self, query),
                _ => score::<S, 1>(simd, &mut self, query),
            };
        }
    }
}

/// The largest estimates of `P` queries from `first` on. Returns their number.
#[inline(always)]
fn score<S: Simd, const P: usize>(simd: S, task: &mut ScoreSigns<'_>, first: usize) -> usize {
    let queries = task.queries.few::<P>(first);
    let stripes = task.units.div_ceil(STRIPE / UNIT);
    for (number, stripe) in (0..stripes).step_by(GROUP / STRIPE).enumerate() {
        let keys = &task.keys[number];
        let next = task.keys.get(number + 1);
        let offsets = products_of_means::<S, P>(simd, queries.rotated, &keys.means);
        for quarter in 0..(stripes - stripe).min(GROUP / STRIPE) {
            let mut best = [simd.splat(f32::NEG_INFINITY); P];
            let later = &keys.signs[(quarter + 1) * task.queries.head_dim / 2..];
            let ahead = match next {
                Some(next) if later.is_empty() => &next.signs,
                _ => later,
            };
            if let Some(next) = next {
                prefetch_quarter(simd, next, quarter);
            }
            products::<S, P>(simd, keys, ahead, quarter, &queries.tables, |_, p, product| {
                best[p] = simd.max(product, best[p]);
            });
            for p in 0..P {
                let out = &mut task.out[(first + p) * task.width..][..task.width];
                let estimate = estimate(simd, best[p], queries.steps[p], &offsets[p], quarter);
                simd.store(estimate, &mut out.as_chunks_mut::<16>().0[stripe + quarter]);
            }
        }
    }
    P
}

/// Prefetches a quarter of the means and scales of a group.
#[inline(always)]
fn prefetch_quarter<S: Simd>(simd: S, keys: &SignGroup, quarter: usize) {
    /// Means of an element, or scales, in a cache line.
    const IN_LINE: usize = 2;
    for (part, count) in [(&keys.means, keys.means.len() / 4), (&keys.scales, UNIT)] {
        (0..count)
            .step_by(IN_LINE)
            .for_each(|at| simd.prefetch(part, quarter * count + at));
    }
}

impl Kernel for MarkSigns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        for query in 0..self.queries.steps.len() {
            mark(simd, &mut self, query);
        }
    }
}

/// The marks of one query.
#[inline(always)]
fn mark<S: Simd>(simd: S, task: &mut MarkSigns<'_>, query: usize) {
    let queries = task.queries.few::<1>(query);
    let maxima = task.maxima[query * task.width..][..task.width].as_chunks::<16>().0;
    let lowest = simd.splat(task.lowest[query]);
    for (keys, stripe) in task.keys.iter().zip((0..task.marks.len()).step_by(GROUP / STRIPE)) {
        // The products of a group are computed only if it has such a key.
        let mut offsets = None;
        for quarter in 0..(task.marks.len() - stripe).min(GROUP / STRIPE) {
            let before = task.visible[query].saturating_sub(UNIT * (stripe + quarter)).min(UNIT);
            let seen = ((1u32 << before) - 1) as u16;
            let units = simd.at_least(simd.load(&maxima[stripe + quarter]), lowest) & seen;
            if units == 0 {
                continue;
            }
            let offsets = offsets.get_or_insert_with(|| products_of_means::<S, 1>(simd, queries.rotated, &keys.means));
            let marks = &mut task.marks[stripe + quarter];
            products::<S, 1>(simd, keys, &[], quarter, &queries.tables, |number, _, product| {
                let mut estimate = estimate(simd, product, queries.steps[0], &offsets[0], quarter);
                if task.soft_cap.is_some() {
                    estimate = capped(simd, estimate, task.soft_cap);
                }
                marks[number] |= simd.at_least(estimate, lowest) & units;
            });
        }
    }
}

/// Estimates of 16 keys, one of each unit of stripe `quarter`, from their products.
#[inline(always)]
fn estimate<S: Simd>(simd: S, products: S::V, step: f32, offsets: &[f32; 16], quarter: usize) -> S::V {
    let offset = core::array::from_fn(|unit| offsets[4 * quarter + unit / (SEGMENT / UNIT)]);
    // Multiplication and addition are separate, because some machines have no fused operation.
    simd.add(simd.mul(products, simd.splat(step)), simd.load(&offset))
}

/// The products of `P` queries with the means of 16 segments.
#[inline(always)]
fn products_of_means<S: Simd, const P: usize>(simd: S, queries: &[f32], means: &[[u16; 16]]) -> [[f32; 16]; P] {
    let mut sums = [simd.splat(0.0); P];
    let queries: [&[f32]; P] = core::array::from_fn(|p| &queries[p * means.len()..][..means.len()]);
    for (element, mean) in means.iter().enumerate() {
        let mean = simd.load_f16(mean);
        for p in 0..P {
            sums[p] = simd.add(simd.mul(simd.splat(queries[p][element]), mean), sums[p]);
        }
    }
    sums.map(|sum| {
        let mut out = [0.0; 16];
        simd.store(sum, &mut out);
        out
    })
}

/// Products of `P` queries' integers with the signs of a stripe, times the keys' scales. Passes `each` the key's number
/// in its unit, the query, and the products with this key of every unit. Prefetches as many signs of `ahead`.
#[inline(always)]
fn products<S: Simd, const P: usize>(
    simd: S,
    keys: &SignGroup,
    ahead: &[Line],
    stripe: usize,
    tables: &[&[Line]; P],
    mut each: impl FnMut(usize, usize, S::V),
) {
    let vectors = tables[0].len() / 2;
    let bias = simd.splat((TABLE_BIAS as usize * tables[0].len()) as f32);
    let signs = keys.signs[4 * stripe * vectors..][..4 * vectors].chunks_exact(vectors);
    // Tables and signs have the same length, so that no access in the loop is checked.
    let tables: [&[[Line; 4]]; P] = tables.map(|tables| &tables.as_chunks().0[..vectors / 2]);
    let scales = keys.scales[16 * stripe..][..16].as_chunks::<4>().0;
    for (part, (signs, scales)) in signs.zip(scales).enumerate() {
        let mut sums = [[simd.load_bytes(&[0; 64]); 2]; P];
        let signs = &signs.as_chunks::<2>().0[..vectors / 2];
        for (n, signs) in signs.iter().enumerate() {
            if !ahead.is_empty() {
                (0..2).for_each(|line| simd.prefetch(ahead, part * vectors + 2 * n + line));
            }
            let [first, second] = [simd.load_bytes(&signs[0].0), simd.load_bytes(&signs[1].0)];
            let (first_low, first_high) = (simd.low_nibbles(first), simd.high_nibbles(first));
            let (second_low, second_high) = (simd.low_nibbles(second), simd.high_nibbles(second));
            for p in 0..P {
                let tables = &tables[p][n];
                let low = simd.add_bytes(
                    simd.look_up(&tables[0].0, first_low),
                    simd.look_up(&tables[1].0, first_high),
                );
                let high = simd.add_bytes(
                    simd.look_up(&tables[2].0, second_low),
                    simd.look_up(&tables[3].0, second_high),
                );
                sums[p] = simd.add_to_words(sums[p], simd.add_bytes(low, high));
            }
        }
        let scales: [S::V; 4] = simd.each(|n| simd.load_f16(&scales[n]));
        for p in 0..P {
            let ([a, b], [c, d]) = (simd.words_to_f32(sums[p][0]), simd.words_to_f32(sums[p][1]));
            for (n, product) in [a, b, c, d].into_iter().enumerate() {
                each(4 * part + n, p, simd.mul(simd.sub(product, bias), scales[n]));
            }
        }
    }
}
