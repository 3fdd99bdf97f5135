use core::arch::x86_64::*;

use super::{Kernel, Simd};

/// Proof that AVX2, FMA and F16C exist; only [`run`] creates it.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

#[inline]
pub(super) fn available() -> bool {
    #[cfg(feature = "std")]
    {
        std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("f16c")
    }
    #[cfg(not(feature = "std"))]
    {
        cfg!(all(
            target_feature = "avx2",
            target_feature = "fma",
            target_feature = "f16c"
        ))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

// SAFETY of every operation below: the token proves the instructions exist, and loads and stores take
// references to arrays of at least their size.
impl Simd for Avx2 {
    type V = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];
    /// Bytes 0 and 2 of every four as 16-bit integers, then bytes 1 and 3.
    type Factors = [[__m256i; 2]; 2];
    type Sums = [__m256i; 2];
    type Pairs = [__m256i; 2];
    const WIDE: bool = false;
    const INTEGER_ROWS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: see the impl.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Self::V {
        // SAFETY: see the impl.
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x[8..].as_ptr())] }
    }
    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; 16]) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(out[8..].as_mut_ptr(), v[1]);
        }
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; 16]) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(x[8..].as_ptr().cast())),
            ]
        }
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; 16]) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(x[8..].as_ptr().cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn max_abs(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            [0, 1].map(|n| _mm256_max_ps(a[n], _mm256_andnot_ps(sign, b[n])))
        }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { [_mm256_round_ps::<8>(a[0]), _mm256_round_ps::<8>(a[1])] }
    }
    #[inline(always)]
    fn scale_pow2(self, v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            let n = self.max(n, self.splat(-127.0));
            let power = |n: __m256| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(
                    _mm256_cvtps_epi32(n),
                    _mm256_set1_epi32(127),
                )))
            };
            self.mul(v, [power(n[0]), power(n[1])])
        }
    }
    #[inline(always)]
    fn select(self, mask: u16, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let lanes = |mask: u16| {
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(
                    _mm256_and_si256(_mm256_set1_epi32(i32::from(mask)), bits),
                    bits,
                ))
            };
            [
                _mm256_blendv_ps(b[0], a[0], lanes(mask)),
                _mm256_blendv_ps(b[1], a[1], lanes(mask >> 8)),
            ]
        }
    }
    #[inline(always)]
    fn at_least(self, a: Self::V, b: Self::V) -> u16 {
        // SAFETY: see the impl.
        unsafe {
            let bits = |n: usize| _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(a[n], b[n]));
            (bits(0) | bits(1) << 8) as u16
        }
    }
    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm256_max_ps(v[0], v[1]);
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    fn reduce_add(self, v: Self::V) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm256_add_ps(v[0], v[1]);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> Self::B {
        // SAFETY: see the impl.
        unsafe {
            [
                _mm256_loadu_si256(x.as_ptr().cast()),
                _mm256_loadu_si256(x[32..].as_ptr().cast()),
            ]
        }
    }
    #[inline(always)]
    fn low_nibbles(self, b: Self::B) -> Self::B {
        // SAFETY: see the impl.
        unsafe {
            [
                _mm256_and_si256(b[0], _mm256_set1_epi8(15)),
                _mm256_and_si256(b[1], _mm256_set1_epi8(15)),
            ]
        }
    }
    #[inline(always)]
    fn high_nibbles(self, b: Self::B) -> Self::B {
        // SAFETY: see the impl.
        unsafe {
            [
                _mm256_and_si256(_mm256_srli_epi16::<4>(b[0]), _mm256_set1_epi8(15)),
                _mm256_and_si256(_mm256_srli_epi16::<4>(b[1]), _mm256_set1_epi8(15)),
            ]
        }
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 64], index: Self::B) -> Self::B {
        // SAFETY: see the impl.
        unsafe {
            let table = _mm256_loadu_si256(table.as_ptr().cast());
            index.map(|index| _mm256_shuffle_epi8(table, index))
        }
    }
    #[inline(always)]
    fn add_bytes(self, a: Self::B, b: Self::B) -> Self::B {
        // SAFETY: see the impl.
        unsafe { [_mm256_add_epi8(a[0], b[0]), _mm256_add_epi8(a[1], b[1])] }
    }
    #[inline(always)]
    fn add_to_words(self, sums: [Self::B; 2], b: Self::B) -> [Self::B; 2] {
        // SAFETY: see the impl.
        unsafe {
            let low = |n: usize| _mm256_add_epi16(sums[0][n], _mm256_and_si256(b[n], _mm256_set1_epi16(255)));
            let high = |n: usize| _mm256_add_epi16(sums[1][n], _mm256_srli_epi16::<8>(b[n]));
            [[low(0), low(1)], [high(0), high(1)]]
        }
    }
    #[inline(always)]
    fn words_to_f32(self, words: Self::B) -> [Self::V; 2] {
        // SAFETY: see the impl.
        unsafe {
            [
                words.map(|words| _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(0xffff)))),
                words.map(|words| _mm256_cvtepi32_ps(_mm256_srli_epi32::<16>(words))),
            ]
        }
    }
    #[inline(always)]
    fn byte_to_f32<const N: u32>(self, b: Self::B) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            let shift = _mm_cvtsi32_si128(8 * N as i32);
            let byte =
                |b: __m256i| _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srl_epi32(b, shift), _mm256_set1_epi32(255)));
            [byte(b[0]), byte(b[1])]
        }
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        // SAFETY: see the impl.
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    fn factors(self, b: Self::B) -> Self::Factors {
        // SAFETY: see the impl.
        unsafe {
            [
                b.map(|b| _mm256_and_si256(b, _mm256_set1_epi16(255))),
                b.map(|b| _mm256_srli_epi16::<8>(b)),
            ]
        }
    }
    #[inline(always)]
    fn zero_sums(self) -> Self::Sums {
        // SAFETY: see the impl.
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    fn dot4(self, sums: Self::Sums, b: Self::Factors, words: [i32; 2]) -> Self::Sums {
        // SAFETY: see the impl.
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
    fn sums_to_i32(self, sums: Self::Sums) -> Self::I {
        sums
    }
    #[inline(always)]
    fn i32_to_f32(self, x: Self::I) -> Self::V {
        // SAFETY: see the impl.
        unsafe { [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])] }
    }
    #[inline(always)]
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see the impl.
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }
    #[inline(always)]
    fn reduce_add_i32(self, x: Self::I) -> i32 {
        lanes(x).iter().sum()
    }
    #[inline(always)]
    fn to_i32(self, v: Self::V) -> Self::I {
        // SAFETY: see the impl.
        unsafe { [_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1])] }
    }
    #[inline(always)]
    fn pack_words(self, x: Self::I, out: &mut [i32; 16]) {
        // SAFETY: see the impl.
        unsafe {
            // The low halves of lanes 0 and 2, then of lanes 1 and 3: the order of `factors`.
            let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_shuffle_epi8(x[0], order));
            _mm256_storeu_si256(out[8..].as_mut_ptr().cast(), _mm256_shuffle_epi8(x[1], order));
        }
    }
    #[inline(always)]
    fn load_pairs(self, x: &[i32; 16]) -> Self::Pairs {
        // SAFETY: see the impl.
        unsafe {
            [
                _mm256_loadu_si256(x.as_ptr().cast()),
                _mm256_loadu_si256(x[8..].as_ptr().cast()),
            ]
        }
    }
    #[inline(always)]
    fn dot2(self, sums: Self::I, pairs: Self::Pairs, word: i32) -> Self::I {
        // SAFETY: see the impl.
        unsafe {
            let word = _mm256_set1_epi32(word);
            [
                _mm256_add_epi32(sums[0], _mm256_madd_epi16(pairs[0], word)),
                _mm256_add_epi32(sums[1], _mm256_madd_epi16(pairs[1], word)),
            ]
        }
    }
    #[inline(always)]
    fn pair(self, low: Self::I, high: Self::I) -> Self::I {
        // SAFETY: see the impl.
        unsafe {
            [
                _mm256_blend_epi16::<0xaa>(low[0], _mm256_slli_epi32::<16>(high[0])),
                _mm256_blend_epi16::<0xaa>(low[1], _mm256_slli_epi32::<16>(high[1])),
            ]
        }
    }
    #[inline(always)]
    fn store_words(self, x: Self::I, out: &mut [i32; 16]) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_si256(out.as_mut_ptr().cast(), x[0]);
            _mm256_storeu_si256(out[8..].as_mut_ptr().cast(), x[1]);
        }
    }
    #[inline(always)]
    fn narrow(self, x: Self::I, out: &mut [i32; 8]) {
        // SAFETY: see the impl.
        unsafe {
            // The integers have 16 bits, so nothing saturates; lanes of 128 bits come out interleaved.
            let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(x[0], x[1]));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), both);
        }
    }
    #[inline(always)]
    fn transpose(self, rows: [Self::V; 16]) -> [Self::V; 16] {
        let (upper, lower) = (
            [quarter(&rows, 0, 0), quarter(&rows, 0, 1)],
            [quarter(&rows, 8, 0), quarter(&rows, 8, 1)],
        );
        let mut out = rows;
        for (j, out) in out.iter_mut().enumerate() {
            *out = [upper[j / 8][j % 8], lower[j / 8][j % 8]];
        }
        out
    }
    #[inline(always)]
    fn prefetch<T>(self, data: &[T], at: usize) {
        // SAFETY: a prefetch only hints: any address is allowed, and nothing is read.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(data.as_ptr().wrapping_add(at).cast()) }
    }
    #[inline(always)]
    fn prefetch_line(self, line: *const u8) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }
}

#[inline(always)]
fn lanes(x: [__m256i; 2]) -> [i32; 16] {
    let mut lanes = [0; 16];
    // SAFETY: called by methods of the token alone, and each store covers 8 of the 16 lanes.
    unsafe {
        _mm256_storeu_si256(lanes.as_mut_ptr().cast(), x[0]);
        _mm256_storeu_si256(lanes[8..].as_mut_ptr().cast(), x[1]);
    }
    lanes
}

/// Half of eight rows, transposed. A function instead of a closure: the compiler compiles large closures separately,
/// without the caller's instructions.
#[inline(always)]
fn quarter(rows: &[[__m256; 2]; 16], first: usize, half: usize) -> [__m256; 8] {
    let mut own = [rows[first][half]; 8];
    for (own, row) in own.iter_mut().zip(&rows[first..]) {
        *own = row[half];
    }
    transpose_eight(own)
}

/// Lane `j` of vector `i` becomes lane `i` of vector `j`.
#[inline(always)]
fn transpose_eight(r: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: called by methods of the token alone.
    unsafe {
        // Within each 128-bit lane: first pairs of rows, then four rows.
        let mut fours = [_mm256_setzero_ps(); 8];
        for k in 0..2 {
            let (a, b) = (
                _mm256_unpacklo_ps(r[4 * k], r[4 * k + 1]),
                _mm256_unpackhi_ps(r[4 * k], r[4 * k + 1]),
            );
            let (c, d) = (
                _mm256_unpacklo_ps(r[4 * k + 2], r[4 * k + 3]),
                _mm256_unpackhi_ps(r[4 * k + 2], r[4 * k + 3]),
            );
            // fours[4k + j], lane q: column 4q + j of rows 4k..4k + 4.
            fours[4 * k] = _mm256_shuffle_ps::<0x44>(a, c);
            fours[4 * k + 1] = _mm256_shuffle_ps::<0xee>(a, c);
            fours[4 * k + 2] = _mm256_shuffle_ps::<0x44>(b, d);
            fours[4 * k + 3] = _mm256_shuffle_ps::<0xee>(b, d);
        }
        let mut out = [_mm256_setzero_ps(); 8];
        for j in 0..4 {
            out[j] = _mm256_permute2f128_ps::<0x20>(fours[j], fours[4 + j]);
            out[4 + j] = _mm256_permute2f128_ps::<0x31>(fours[j], fours[4 + j]);
        }
        out
    }
}
