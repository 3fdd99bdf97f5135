use super::quantised::round;
use super::{ElementPlace, Quant};
use crate::simd::Simd;

/// 8 bits: keys `[width / 4, 16, 4]` bytes, values `[4, width, 4]`, with an offset of 128.
pub(crate) struct Q8_0;

impl Quant for Q8_0 {
    const BITS: usize = 8;
    const OFFSET: i32 = 128;
    const GAINS_BY_ROTATION: bool = false;

    fn scale(block: &[f32]) -> f32 {
        block.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0
    }

    #[inline]
    fn code(scaled: f32) -> u8 {
        (round(scaled).clamp(-127.0, 127.0) as i8 as u8) ^ 0x80
    }

    #[inline]
    fn get(block: &[u8], place: ElementPlace) -> u8 {
        block[place.byte(4)]
    }

    #[inline]
    fn set(block: &mut [u8], place: ElementPlace, code: u8) {
        block[place.byte(4)] = code;
    }

    #[inline(always)]
    fn eight_dimensions<S: Simd>(simd: S, bytes: &[u8]) -> [S::B; 2] {
        let lines = bytes.as_chunks::<64>().0;
        [simd.load_bytes(&lines[0]), simd.load_bytes(&lines[1])]
    }

    #[inline(always)]
    fn four_tokens<S: Simd, const N: usize>(simd: S, block: &[u8], four: usize, n: usize) -> S::B {
        simd.load_bytes(&block.as_chunks::<64>().0[four * N + n])
    }
}
