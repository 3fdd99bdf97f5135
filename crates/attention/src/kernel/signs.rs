//! Estimates of logits from the signs of keys. Four signs are an index into a table of 16 sums. One shuffle of bytes
//! therefore multiplies four elements of a query with 64 keys.

use alloc::sync::Arc;
use alloc::vec::Vec;

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

/// Queries that share each load of signs.
const SHARED: usize = 4;

/// The signs, scales and means of a group of keys. The last group of an index may have fewer stripes.
#[derive(Debug, Clone, Default)]
pub(crate) struct SignGroup {
    /// `[stripes, 4, head_dim / 8, 64]`. A byte holds eight signs of one key. The key with number `n` in the unit of
    /// lane `l` is in part `n / 4`, at the byte that [`byte_of`] gives.
    pub(crate) signs: Vec<[u8; 64]>,
    /// `[stripes, 16, 16]` in f16: index in the unit, then unit.
    pub(crate) scales: Vec<[u16; 16]>,
    /// `[head_dim, 16]` in f16: element, then segment.
    pub(crate) means: Vec<[u16; 16]>,
}

/// The byte of a key in its part of a stripe. Sums of even bytes are the units in order, and so are sums of odd bytes.
pub(crate) fn byte_of(number: usize, unit: usize) -> usize {
    let number = number % 4;
    2 * (16 * (number % 2) + unit) + number / 2
}

/// The largest estimate of each query in every unit.
pub(crate) struct ScoreSigns<'a> {
    pub(crate) keys: &'a [Arc<SignGroup>],
    pub(crate) head_dim: usize,
    /// `[queries, head_dim / 4, 16]`
    pub(crate) tables: &'a [[u8; 16]],
    /// `[queries, head_dim]`
    pub(crate) rotated: &'a [f32],
    /// For each query, the value of one unit of its integers.
    pub(crate) steps: &'a [f32],
    /// Number of units to score, from the first on.
    pub(crate) units: usize,
    /// Elements between two queries' rows of `out`: a multiple of 16, and at least `units`.
    pub(crate) width: usize,
    /// `[queries, width]`
    pub(crate) out: &'a mut [f32],
}

impl Kernel for ScoreSigns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let (count, mut query) = (self.steps.len(), 0);
        while S::WIDE && query + SHARED <= count {
            score::<S, SHARED>(simd, &mut self, query);
            query += SHARED;
        }
        while query < count {
            score::<S, 1>(simd, &mut self, query);
            query += 1;
        }
    }
}

/// The products of `P` queries from `first` on.
#[inline(always)]
fn score<S: Simd, const P: usize>(simd: S, task: &mut ScoreSigns<'_>, first: usize) {
    let head_dim = task.head_dim;
    let tables = core::array::from_fn(|p| &task.tables[(first + p) * head_dim / 4..][..head_dim / 4]);
    let stripes = task.units.div_ceil(STRIPE / UNIT);
    for (keys, stripe) in task.keys.iter().zip((0..stripes).step_by(GROUP / STRIPE)) {
        let queries = &task.rotated[first * head_dim..][..P * head_dim];
        let offsets = products_of_means::<S, P>(simd, queries, &keys.means);
        for quarter in 0..(stripes - stripe).min(GROUP / STRIPE) {
            let best = score_stripe::<S, P>(simd, keys, quarter, &tables);
            for p in 0..P {
                let offset = core::array::from_fn(|unit| offsets[p][4 * quarter + unit / (SEGMENT / UNIT)]);
                // Multiplication and addition are separate, because some machines have no fused operation.
                let estimate = simd.mul(best[p], simd.splat(task.steps[first + p]));
                let out = &mut task.out[(first + p) * task.width..][..task.width]
                    .as_chunks_mut::<16>()
                    .0;
                simd.store(simd.add(estimate, simd.load(&offset)), &mut out[stripe + quarter]);
            }
        }
    }
}

/// The products of `P` queries with the means of 16 segments.
#[inline(always)]
fn products_of_means<S: Simd, const P: usize>(simd: S, queries: &[f32], means: &[[u16; 16]]) -> [[f32; 16]; P] {
    let mut sums = [simd.splat(0.0); P];
    for (element, mean) in means.iter().enumerate() {
        let mean = simd.load_f16(mean);
        for p in 0..P {
            let query = simd.splat(queries[p * means.len() + element]);
            sums[p] = simd.add(simd.mul(query, mean), sums[p]);
        }
    }
    sums.map(|sum| {
        let mut out = [0.0; 16];
        simd.store(sum, &mut out);
        out
    })
}

/// For every unit of a stripe, the largest product of a query's integers with signs, times the key's scale.
#[inline(always)]
fn score_stripe<S: Simd, const P: usize>(
    simd: S,
    keys: &SignGroup,
    stripe: usize,
    tables: &[&[[u8; 16]]; P],
) -> [S::V; P] {
    let vectors = tables[0].len() / 2;
    let bias = simd.splat((TABLE_BIAS as usize * tables[0].len()) as f32);
    let mut best = [simd.splat(f32::NEG_INFINITY); P];
    let signs = keys.signs[4 * stripe * vectors..][..4 * vectors].chunks_exact(vectors);
    let scales = keys.scales[16 * stripe..][..16].as_chunks::<4>().0;
    for (signs, scales) in signs.zip(scales) {
        let mut sums = [[simd.load_bytes(&[0; 64]); 2]; P];
        for (n, signs) in signs.as_chunks::<2>().0.iter().enumerate() {
            let [first, second] = [simd.load_bytes(&signs[0]), simd.load_bytes(&signs[1])];
            let (first_low, first_high) = (simd.low_nibbles(first), simd.high_nibbles(first));
            let (second_low, second_high) = (simd.low_nibbles(second), simd.high_nibbles(second));
            for p in 0..P {
                let tables = &tables[p].as_chunks::<4>().0[n];
                let low = simd.add_bytes(
                    simd.look_up(&tables[0], first_low),
                    simd.look_up(&tables[1], first_high),
                );
                let high = simd.add_bytes(
                    simd.look_up(&tables[2], second_low),
                    simd.look_up(&tables[3], second_high),
                );
                sums[p] = simd.add_to_words(sums[p], simd.add_bytes(low, high));
            }
        }
        let scales: [S::V; 4] = simd.each(|n| simd.load_f16(&scales[n]));
        for p in 0..P {
            let ([a, b], [c, d]) = (simd.words_to_f32(sums[p][0]), simd.words_to_f32(sums[p][1]));
            for (product, scale) in [a, b, c, d].into_iter().zip(scales) {
                best[p] = simd.max(simd.mul(simd.sub(product, bias), scale), best[p]);
            }
        }
    }
    best
}
