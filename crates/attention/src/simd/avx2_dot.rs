//! Products of bytes in 256 bits: as 16-bit integers, or by the dot products of AVX-VNNI.

use core::arch::x86_64::*;

use super::avx2::{Dot, Lanes};

// SAFETY of every operation below: the token proves the instructions exist, and stores take references to arrays of their size.

/// By AVX2 alone.
#[derive(Clone, Copy)]
pub(super) struct Words(pub(super) ());

impl Dot for Words {
    /// Bytes 0 and 2 of every four as 16-bit integers, then bytes 1 and 3.
    type Factors = [Lanes; 2];
    type Sums = Lanes;
    /// In 16 bits, of two bytes each.
    type ByteSums = Lanes;
    const HIGH_UNIT: i32 = 256;

    #[inline(always)]
    fn factors(self, b: Lanes) -> Self::Factors {
        // SAFETY: see above.
        unsafe {
            [
                b.map(|b| _mm256_and_si256(b, _mm256_set1_epi16(255))),
                b.map(|b| _mm256_srli_epi16::<8>(b)),
            ]
        }
    }
    #[inline(always)]
    fn sums_from(self, start: i32) -> Self::Sums {
        // SAFETY: see above.
        unsafe { [_mm256_set1_epi32(start); 2] }
    }
    #[inline(always)]
    fn dot4(self, sums: Self::Sums, b: Self::Factors, words: [i32; 2]) -> Self::Sums {
        // SAFETY: see above.
        unsafe {
            let words = words.map(|words| _mm256_set1_epi32(words));
            let add = |n: usize| {
                let even = _mm256_madd_epi16(b[0][n], words[0]);
                let odd = _mm256_madd_epi16(b[1][n], words[1]);
                _mm256_add_epi32(_mm256_add_epi32(sums[n], even), odd)
            };
            [add(0), add(1)]
        }
    }
    #[inline(always)]
    fn dot4_high(self, sums: Lanes, b: Self::Factors, words: [i32; 2]) -> Lanes {
        self.dot4(sums, b, words)
    }
    #[inline(always)]
    fn sums_to_i32(self, sums: Self::Sums) -> Lanes {
        sums
    }
    #[inline(always)]
    fn pack_words(self, x: Lanes, out: &mut [i32; 16]) {
        // SAFETY: see above.
        unsafe {
            // The low halves of lanes 0 and 2, then of lanes 1 and 3: the order of `factors`.
            let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_shuffle_epi8(x[0], order));
            _mm256_storeu_si256(out[8..].as_mut_ptr().cast(), _mm256_shuffle_epi8(x[1], order));
        }
    }
    #[inline(always)]
    fn pack_two(self, x: [Lanes; 2], out: &mut [i32; 16]) {
        // SAFETY: see above.
        unsafe {
            // Lanes 0 and 2, then 1 and 3, as in `pack_words`.
            let order =
                _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
            for half in 0..2 {
                let both = _mm256_shuffle_epi8(_mm256_packs_epi32(x[0][half], x[1][half]), order);
                _mm256_storeu_si256(out[8 * half..].as_mut_ptr().cast(), both);
            }
        }
    }
    #[inline(always)]
    fn byte_sums_from(self, start: i32) -> Self::ByteSums {
        // In the first half of each lane. It may pass the range of 16 bits on the way, and comes back.
        // SAFETY: see above.
        unsafe { [_mm256_set1_epi32(start & 0xffff); 2] }
    }
    #[inline(always)]
    fn dot_bytes(self, sums: Self::ByteSums, b: Lanes, word: i32) -> Self::ByteSums {
        // SAFETY: see above.
        unsafe {
            let word = _mm256_set1_epi32(word);
            [
                _mm256_add_epi16(sums[0], _mm256_maddubs_epi16(b[0], word)),
                _mm256_add_epi16(sums[1], _mm256_maddubs_epi16(b[1], word)),
            ]
        }
    }
    #[inline(always)]
    fn settle(self, total: Lanes, sums: Self::ByteSums) -> (Lanes, Self::ByteSums) {
        (add(total, self.byte_sums_to_i32(sums)), self.byte_sums_from(0))
    }
    #[inline(always)]
    fn byte_sums_to_i32(self, sums: Self::ByteSums) -> Lanes {
        // SAFETY: see above.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            [_mm256_madd_epi16(sums[0], ones), _mm256_madd_epi16(sums[1], ones)]
        }
    }
}

/// By dot products of unsigned with signed bytes.
#[derive(Clone, Copy)]
pub(super) struct Vnni<E>(pub(super) E);

/// How the instruction is encoded.
pub(super) trait Encoding: Copy {
    /// Adds to each lane Σ of its four unsigned bytes times four signed ones.
    fn dot(self, sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i;
}

/// As AVX-VNNI has it.
#[derive(Clone, Copy)]
pub(super) struct Vex(pub(super) ());

/// As AVX-512 has it.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(super) struct Evex(pub(super) ());

impl Encoding for Vex {
    #[inline(always)]
    fn dot(self, sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_dpbusd_avx_epi32(sums, unsigned, signed) }
    }
}

#[cfg(test)]
impl Encoding for Evex {
    #[inline(always)]
    fn dot(self, sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_dpbusd_epi32(sums, unsigned, signed) }
    }
}

impl<E: Encoding> Vnni<E> {
    #[inline(always)]
    fn dot(self, sums: Lanes, b: Lanes, word: i32) -> Lanes {
        // SAFETY: see above.
        let word = unsafe { _mm256_set1_epi32(word) };
        [self.0.dot(sums[0], b[0], word), self.0.dot(sums[1], b[1], word)]
    }
}

impl<E: Encoding> Dot for Vnni<E> {
    type Factors = Lanes;
    /// By the high bytes of the integers, then by the low ones.
    type Sums = [Lanes; 2];
    type ByteSums = Lanes;
    const HIGH_UNIT: i32 = 1;

    #[inline(always)]
    fn factors(self, b: Lanes) -> Self::Factors {
        b
    }
    #[inline(always)]
    fn sums_from(self, start: i32) -> Self::Sums {
        // SAFETY: see above.
        unsafe { [[_mm256_setzero_si256(); 2], [_mm256_set1_epi32(start); 2]] }
    }
    #[inline(always)]
    fn dot4(self, sums: Self::Sums, b: Self::Factors, words: [i32; 2]) -> Self::Sums {
        [self.dot(sums[0], b, words[0]), self.dot(sums[1], b, words[1])]
    }
    #[inline(always)]
    fn dot4_high(self, sums: Lanes, b: Self::Factors, words: [i32; 2]) -> Lanes {
        // The first word holds the high bytes, and the low ones are zero.
        self.dot(sums, b, words[0])
    }
    #[inline(always)]
    fn sums_to_i32(self, sums: Self::Sums) -> Lanes {
        // SAFETY: see above.
        let high = unsafe { [_mm256_slli_epi32::<8>(sums[0][0]), _mm256_slli_epi32::<8>(sums[0][1])] };
        add(high, sums[1])
    }
    #[inline(always)]
    fn pack_words(self, x: Lanes, out: &mut [i32; 16]) {
        self.pack_two([x, x], out);
    }
    #[inline(always)]
    fn pack_two(self, x: [Lanes; 2], out: &mut [i32; 16]) {
        // SAFETY: see above.
        unsafe {
            // As 256·high + low: with 128 added, the second byte is the high plane and the first the low one plus 128.
            let order =
                _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 3, 5, 7, 0, 2, 4, 6, 9, 11, 13, 15, 8, 10, 12, 14));
            let low = 0x8080_8080u32 as i32;
            let lower = _mm256_broadcastsi128_si256(_mm_setr_epi32(0, low, 0, low));
            for half in 0..2 {
                let both = _mm256_packs_epi32(x[0][half], x[1][half]);
                let raised = _mm256_add_epi16(both, _mm256_set1_epi16(128));
                let planes = _mm256_xor_si256(_mm256_shuffle_epi8(raised, order), lower);
                _mm256_storeu_si256(out[8 * half..].as_mut_ptr().cast(), planes);
            }
        }
    }
    #[inline(always)]
    fn byte_sums_from(self, start: i32) -> Self::ByteSums {
        // SAFETY: see above.
        unsafe { [_mm256_set1_epi32(start); 2] }
    }
    #[inline(always)]
    fn dot_bytes(self, sums: Self::ByteSums, b: Lanes, word: i32) -> Self::ByteSums {
        self.dot(sums, b, word)
    }
    #[inline(always)]
    fn settle(self, total: Lanes, sums: Self::ByteSums) -> (Lanes, Self::ByteSums) {
        (total, sums)
    }
    #[inline(always)]
    fn byte_sums_to_i32(self, sums: Self::ByteSums) -> Lanes {
        sums
    }
}

#[inline(always)]
fn add(a: Lanes, b: Lanes) -> Lanes {
    // SAFETY: called by methods of the tokens alone.
    unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
}
