//! The inner loops, written once over [`Simd`](crate::simd::Simd).
//!
//! A *tile* is `R` query rows (positions × heads of a group) against a *block* of up to 128 keys of one page. Scores
//! of a tile have the shape `[R, KEY_BLOCK]`; only the block's active stripes are stored, packed in slots.

mod accumulate;
mod ahead;
mod antidiagonal;
mod diagonal;
mod gather;
mod int8;
mod maxima;
mod pack;
mod pairs;
mod quantised_values;
mod rows;
mod score;
mod signs;
mod softmax;
mod weigh;
mod widen;

pub(crate) use accumulate::{Accumulate, WeighedRows};
pub(crate) use ahead::{Ahead, Fetch, with_lead};
pub(crate) use antidiagonal::{Antidiagonal, LONG_ROWS};
pub(crate) use diagonal::{Diagonal, DiagonalOutput};
pub(crate) use gather::{FetchTokens, Gather, GatherQuantised, GatherRows};
pub(crate) use int8::{Int8Queries, ScoreInt8};
pub(crate) use maxima::{ByteKeys, ByteQueries, Maxima, RoundKeys, RoundQueries, TOGETHER};
pub(crate) use pack::{FetchRows, Pack, TurnStripes, pack};
pub(crate) use pairs::{
    AccumulatePairs, PairKeys, PairQueries, PairTile, PairValues, PairWeights, RoundPairKeys, RoundPairValues,
    ScorePairs, WeighPairs,
};
pub(crate) use quantised_values::{AccumulateInt8, AccumulateQuantised, QuantisedTile};
pub(crate) use rows::{AccumulateRows, AheadRows, ScoreRows, StripeRows, WidenRows};
pub(crate) use score::score;
pub(crate) use signs::{
    GROUP, LARGEST, Line, MarkSigns, SEGMENT, STRIPE, ScoreSigns, SignGroup, SignQueries, TABLE_BIAS, UNIT, byte_of,
};
pub(crate) use softmax::{AddMass, Softmax};
pub(crate) use weigh::{AddRows, Exponentiate, MarkHeavy, Top};
pub(crate) use widen::{
    WidenKeys, WidenValues, widen_keys, widen_quantised_keys, widen_quantised_values, widen_values,
};

use crate::LANES;
use crate::format::Element;
use crate::simd::{Level, Simd};

/// Keys of a page that are scored, exponentiated and accumulated together.
pub(crate) const KEY_BLOCK: usize = 128;

/// Stripes of a block.
pub(crate) const STRIPES: usize = KEY_BLOCK / LANES;

/// Rows of the widest tile that multiplies integers, and the most rows of a tile that waits for memory.
pub(crate) const LONE_ROWS: usize = 8;

/// Magnitude of the integers for queries and weights; a larger one would not fit in two signed bytes.
pub(crate) const LARGEST_INTEGER: f32 = 32511.0;

/// Number of rows that the kernel computes for a tile of `rows` rows, at most 12.
pub(crate) fn tile_width(level: Level, rows: usize, integers: bool) -> usize {
    match rows {
        // Two vectors do not fit in registers there, and one does not hide the latency of a multiply-add.
        3 if !integers && !level.is_wide() => 4,
        0..=4 => rows.max(1),
        5 | 6 => 6,
        7 | 8 => 8,
        _ => 12,
    }
}

/// One active stripe of a block.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Slot {
    /// Stripe within the block.
    pub(crate) stripe: usize,
    /// Number of valid tokens, 1..=16.
    pub(crate) tokens: usize,
}

/// Bits of 16 halves from bytes.
#[inline(always)]
pub(crate) fn halves(bytes: &[u8; 32]) -> [u16; 16] {
    core::array::from_fn(|i| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]))
}

/// The smallest exponent of a non-zero weight. Smaller weights change no f32 sum, and their products can be
/// subnormal, which processors multiply a hundred times more slowly.
const LEAST_EXPONENT: f32 = -100.0;

/// v·2ⁿ for integral n ≤ 127, as a weight: zero where n is below [`LEAST_EXPONENT`].
#[inline(always)]
fn weight<S: Simd>(simd: S, v: S::V, n: S::V) -> S::V {
    let below = simd.fma(n, simd.splat(-256.0), simd.splat(256.0 * LEAST_EXPONENT));
    simd.scale_pow2(v, simd.sub(n, simd.max(below, simd.splat(0.0))))
}

/// e^x for x ≤ 0, exactly 1 at 0 and exactly 0 below [`LEAST_EXPONENT`]; relative error below 2e-7.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::V) -> S::V {
    let t = simd.mul(x, simd.splat(core::f32::consts::LOG2_E));
    let t = simd.max(t, simd.splat(-160.0));
    let n = simd.round(t);
    let f = simd.sub(t, n);
    // Minimax polynomial of 2^f on −0.5..0.5, relative error 9e-8. Its linear term is fitted, not ln 2.
    let mut p = simd.splat(0.001_326_472_7);
    #[allow(clippy::approx_constant)]
    let coefficients = [0.009_671_513, 0.055_507_336, 0.240_222_42, 0.693_147, 1.0];
    for c in coefficients {
        p = simd.fma(p, f, simd.splat(c));
    }
    weight(simd, p, n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Kernel, Level};

    struct Exponential([f32; 16]);

    impl Kernel for Exponential {
        type Output = [f32; 16];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [f32; 16] {
            let mut out = [0.0; 16];
            simd.store(exp(simd, simd.load(&self.0)), &mut out);
            out
        }
    }

    #[test]
    fn weights_are_exponentials_or_zero_and_never_subnormal() {
        for level in Level::all() {
            for first in 0..200 {
                let logits = core::array::from_fn(|lane| -(first as f32) - lane as f32 / 16.0);
                for (logit, weight) in logits.iter().zip(level.run(Exponential(logits))) {
                    let exact = f64::from(*logit).exp();
                    let is_close = (f64::from(weight) / exact - 1.0).abs() < 1e-5;
                    let is_least = exact < 2f64.powf(f64::from(LEAST_EXPONENT) + 0.6);
                    assert!(is_close || weight == 0.0 && is_least, "e^{logit} is {weight}");
                }
            }
        }
        assert_eq!(Level::best().run(Exponential([f32::NEG_INFINITY; 16])), [0.0; 16]);
    }
}
