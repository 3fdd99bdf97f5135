use super::quantised::round;
use super::{ElementPlace, Quant};
use crate::simd::Simd;

/// 4 bits with an offset of 8. Keys are `[width / 8, 16, 4]` bytes: of eight dimensions, low halves hold 0..4 and
/// high halves 4..8. Values are `[2, width, 4]`: of eight tokens, low halves hold the first four.
pub(crate) struct Q4_0;

impl Quant for Q4_0 {
    const BITS: usize = 4;
    const OFFSET: i32 = 8;
    const GAINS_BY_ROTATION: bool = true;

    /// The element of largest magnitude maps to −8, as in GGUF's Q4_0.
    fn scale(block: &[f32]) -> f32 {
        block.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m }) / -8.0
    }

    #[inline]
    fn code(scaled: f32) -> u8 {
        (round(scaled) + 8.0).clamp(0.0, 15.0) as u8
    }

    #[inline]
    fn get(block: &[u8], place: ElementPlace) -> u8 {
        let byte = block[place.byte(8)];
        if place.is_upper_half() { byte >> 4 } else { byte & 15 }
    }

    #[inline]
    fn set(block: &mut [u8], place: ElementPlace, code: u8) {
        let byte = &mut block[place.byte(8)];
        *byte = if place.is_upper_half() {
            (*byte & 15) | (code << 4)
        } else {
            (*byte & 0xf0) | code
        };
    }

    #[inline(always)]
    fn eight_dimensions<S: Simd>(simd: S, bytes: &[u8]) -> [S::B; 2] {
        let bytes = simd.load_bytes(&bytes.as_chunks::<64>().0[0]);
        [simd.low_nibbles(bytes), simd.high_nibbles(bytes)]
    }

    #[inline(always)]
    fn four_tokens<S: Simd, const N: usize>(simd: S, block: &[u8], four: usize, n: usize) -> S::B {
        let both = simd.load_bytes(&block.as_chunks::<64>().0[four / 2 * N + n]);
        if four.is_multiple_of(2) {
            simd.low_nibbles(both)
        } else {
            simd.high_nibbles(both)
        }
    }
}
