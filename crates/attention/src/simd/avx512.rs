use core::arch::x86_64::*;

use super::{Kernel, Simd};

/// Proof that AVX-512 F, BW, DQ, VL and VNNI exist; only [`run`] creates it.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

#[inline]
pub(super) fn available() -> bool {
    #[cfg(feature = "std")]
    {
        std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512dq")
            && std::is_x86_feature_detected!("avx512vl")
            && std::is_x86_feature_detected!("avx512vnni")
    }
    #[cfg(not(feature = "std"))]
    {
        cfg!(all(
            target_feature = "avx512f",
            target_feature = "avx512bw",
            target_feature = "avx512dq",
            target_feature = "avx512vl",
            target_feature = "avx512vnni"
        ))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

// SAFETY of every operation below: the token proves the instructions exist, and loads and stores take
// references to arrays of exactly their size.
impl Simd for Avx512 {
    type V = __m512;
    type I = __m512i;
    type B = __m512i;
    type Factors = __m512i;
    /// Sums of the high bytes of the integers, then of the low bytes.
    type Sums = [__m512i; 2];
    type Pairs = __m512i;
    const WIDE: bool = true;
    const INTEGER_ROWS: usize = 8;
    const HIGH_UNIT: i32 = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; 16]) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; 16]) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; 16]) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
                x.as_ptr().cast(),
            ))))
        }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn max_abs(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_max_ps(a, _mm512_abs_ps(b)) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_roundscale_ps::<8>(a) }
    }
    #[inline(always)]
    fn scale_pow2(self, v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_scalef_ps(v, n) }
    }
    #[inline(always)]
    fn select(self, mask: u16, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_mask_mov_ps(b, mask, a) }
    }
    #[inline(always)]
    fn at_least(self, a: Self::V, b: Self::V) -> u16 {
        // SAFETY: see the impl.
        unsafe { _mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b) }
    }
    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        // SAFETY: see the impl.
        unsafe { _mm512_reduce_max_ps(v) }
    }
    #[inline(always)]
    fn reduce_add(self, v: Self::V) -> f32 {
        // SAFETY: see the impl.
        unsafe { _mm512_reduce_add_ps(v) }
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> Self::B {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }
    #[inline(always)]
    fn low_nibbles(self, b: Self::B) -> Self::B {
        // SAFETY: see the impl.
        unsafe { _mm512_and_si512(b, _mm512_set1_epi8(15)) }
    }
    #[inline(always)]
    fn high_nibbles(self, b: Self::B) -> Self::B {
        // SAFETY: see the impl.
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(b), _mm512_set1_epi8(15)) }
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 64], index: Self::B) -> Self::B {
        // SAFETY: see the impl.
        unsafe { _mm512_shuffle_epi8(self.load_bytes(table), index) }
    }
    #[inline(always)]
    fn add_bytes(self, a: Self::B, b: Self::B) -> Self::B {
        // SAFETY: see the impl.
        unsafe { _mm512_add_epi8(a, b) }
    }
    #[inline(always)]
    fn add_to_words(self, sums: [Self::B; 2], b: Self::B) -> [Self::B; 2] {
        // SAFETY: see the impl.
        unsafe {
            [
                _mm512_add_epi16(sums[0], _mm512_and_si512(b, _mm512_set1_epi16(255))),
                _mm512_add_epi16(sums[1], _mm512_srli_epi16::<8>(b)),
            ]
        }
    }
    #[inline(always)]
    fn words_to_f32(self, words: Self::B) -> [Self::V; 2] {
        // SAFETY: see the impl.
        unsafe {
            [
                _mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32(0xffff))),
                _mm512_cvtepi32_ps(_mm512_srli_epi32::<16>(words)),
            ]
        }
    }
    #[inline(always)]
    fn byte_to_f32<const N: u32>(self, b: Self::B) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            let byte = _mm512_srlv_epi32(b, _mm512_set1_epi32(8 * N as i32));
            _mm512_cvtepi32_ps(_mm512_and_si512(byte, _mm512_set1_epi32(255)))
        }
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    fn factors(self, b: Self::B) -> Self::Factors {
        b
    }
    #[inline(always)]
    fn zero_sums(self) -> Self::Sums {
        // SAFETY: see the impl.
        unsafe { [_mm512_setzero_si512(); 2] }
    }
    #[inline(always)]
    fn dot4(self, sums: Self::Sums, b: Self::Factors, words: [i32; 2]) -> Self::Sums {
        // SAFETY: see the impl.
        unsafe {
            [
                _mm512_dpbusd_epi32(sums[0], b, _mm512_set1_epi32(words[0])),
                _mm512_dpbusd_epi32(sums[1], b, _mm512_set1_epi32(words[1])),
            ]
        }
    }
    #[inline(always)]
    fn dot4_high(self, sums: Self::I, b: Self::Factors, words: [i32; 2]) -> Self::I {
        // The first word holds the high bytes, and the low ones are zero.
        // SAFETY: see the impl.
        unsafe { _mm512_dpbusd_epi32(sums, b, _mm512_set1_epi32(words[0])) }
    }
    #[inline(always)]
    fn sums_to_i32(self, sums: Self::Sums) -> Self::I {
        // SAFETY: see the impl.
        unsafe { _mm512_add_epi32(_mm512_slli_epi32::<8>(sums[0]), sums[1]) }
    }
    #[inline(always)]
    fn i32_to_f32(self, x: Self::I) -> Self::V {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi32_ps(x) }
    }
    #[inline(always)]
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see the impl.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn reduce_add_i32(self, x: Self::I) -> i32 {
        // SAFETY: see the impl.
        unsafe { _mm512_reduce_add_epi32(x) }
    }
    #[inline(always)]
    fn to_i32(self, v: Self::V) -> Self::I {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtps_epi32(v) }
    }
    #[inline(always)]
    fn pack_words(self, x: Self::I, out: &mut [i32; 16]) {
        // SAFETY: see the impl.
        unsafe {
            // The integer is 256·high + low with a signed low byte. After adding 128, the second byte is `high` and the
            // first byte is `low` plus 128.
            let raised = _mm512_add_epi32(x, _mm512_set1_epi32(128));
            let order = _mm512_broadcast_i32x4(_mm_setr_epi8(1, 5, 9, 13, 0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0));
            let lower = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x8080_8080u32 as i32, 0, 0));
            let planes = _mm512_xor_si512(_mm512_shuffle_epi8(raised, order), lower);
            _mm512_storeu_si512(out.as_mut_ptr().cast(), planes);
        }
    }
    #[inline(always)]
    fn load_pairs(self, x: &[i32; 16]) -> Self::Pairs {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }
    #[inline(always)]
    fn dot2(self, sums: Self::I, pairs: Self::Pairs, word: i32) -> Self::I {
        // SAFETY: see the impl.
        unsafe { _mm512_dpwssd_epi32(sums, pairs, _mm512_set1_epi32(word)) }
    }
    #[inline(always)]
    fn pair(self, low: Self::I, high: Self::I) -> Self::I {
        // SAFETY: see the impl.
        unsafe { _mm512_mask_blend_epi16(0xaaaa_aaaa, low, _mm512_slli_epi32::<16>(high)) }
    }
    #[inline(always)]
    fn store_words(self, x: Self::I, out: &mut [i32; 16]) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), x) }
    }
    #[inline(always)]
    fn narrow(self, x: Self::I, out: &mut [i32; 8]) {
        // SAFETY: see the impl.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(x)) }
    }
    #[inline(always)]
    fn transpose(self, r: [Self::V; 16]) -> [Self::V; 16] {
        // SAFETY: see the impl.
        unsafe {
            // Within each 128-bit lane: first pairs of rows, then four rows.
            let mut fours = [self.splat(0.0); 16];
            for k in 0..4 {
                let (a, b) = (
                    _mm512_unpacklo_ps(r[4 * k], r[4 * k + 1]),
                    _mm512_unpackhi_ps(r[4 * k], r[4 * k + 1]),
                );
                let (c, d) = (
                    _mm512_unpacklo_ps(r[4 * k + 2], r[4 * k + 3]),
                    _mm512_unpackhi_ps(r[4 * k + 2], r[4 * k + 3]),
                );
                // fours[4k + j], lane q: column 4q + j of rows 4k..4k + 4.
                fours[4 * k] = _mm512_shuffle_ps::<0x44>(a, c);
                fours[4 * k + 1] = _mm512_shuffle_ps::<0xee>(a, c);
                fours[4 * k + 2] = _mm512_shuffle_ps::<0x44>(b, d);
                fours[4 * k + 3] = _mm512_shuffle_ps::<0xee>(b, d);
            }
            let mut out = [self.splat(0.0); 16];
            for j in 0..4 {
                let (a, b) = (fours[j], fours[4 + j]);
                let (c, d) = (fours[8 + j], fours[12 + j]);
                let (ab_low, ab_high) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
                let (cd_low, cd_high) = (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
                out[j] = _mm512_shuffle_f32x4::<0x88>(ab_low, cd_low);
                out[8 + j] = _mm512_shuffle_f32x4::<0xdd>(ab_low, cd_low);
                out[4 + j] = _mm512_shuffle_f32x4::<0x88>(ab_high, cd_high);
                out[12 + j] = _mm512_shuffle_f32x4::<0xdd>(ab_high, cd_high);
            }
            out
        }
    }
    #[inline(always)]
    fn prefetch<T>(self, data: &[T], at: usize) {
        // SAFETY: a prefetch only hints: any address is allowed, and nothing is read.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(data.as_ptr().wrapping_add(at).cast()) }
    }
    #[inline(always)]
    fn prefetch_line(self, line: *const u8) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
    }
}
