use core::arch::aarch64::*;
use core::arch::asm;

use super::{Kernel, Simd};

/// Proof that NEON exists, and with `DOT` the dot products of Armv8.2; only [`run`] and [`run_dotprod`] create it.
#[derive(Clone, Copy)]
pub(super) struct Neon<const DOT: bool>(());

#[inline]
pub(super) fn has_dotprod() -> bool {
    #[cfg(feature = "std")]
    {
        std::arch::is_aarch64_feature_detected!("dotprod")
    }
    #[cfg(not(feature = "std"))]
    {
        cfg!(target_feature = "dotprod")
    }
}

#[target_feature(enable = "neon")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon::<false>(()))
}

#[target_feature(enable = "neon,dotprod")]
pub(super) fn run_dotprod<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon::<true>(()))
}

/// Adds four signed bytes times four signed bytes to each sum.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sums: int32x4_t, a: uint8x16_t, b: int32x4_t) -> int32x4_t {
    // SAFETY: the instruction touches these registers alone. The intrinsic is not stable yet.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Widens eight binary16: the lower four and the upper four.
#[inline(always)]
fn widen_halves(bits: uint16x8_t) -> [float32x4_t; 2] {
    let (low, high);
    // SAFETY: the instructions touch these registers alone, and NEON is part of the aarch64 baseline. The type that the
    // intrinsics take is not stable yet.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {bits:v}.4h",
            "fcvtl2 {high:v}.4s, {bits:v}.8h",
            low = out(vreg) low,
            high = lateout(vreg) high,
            bits = in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    [low, high]
}

// SAFETY of every operation below: the token proves the instructions exist, and loads and stores take
// references to arrays of at least their size.
impl<const DOT: bool> Simd for Neon<DOT> {
    type V = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type B = [uint8x16_t; 4];
    type Factors = [uint8x16_t; 4];
    /// With `DOT`, sums of the high bytes and of the low bytes; otherwise only the first are used.
    type Sums = [[int32x4_t; 4]; 2];
    /// The low halves of every four words, then the high ones.
    type Pairs = [[int16x4_t; 4]; 2];
    const WIDE: bool = false;
    const INTEGER_ROWS: usize = if DOT { 3 } else { 4 };
    const FACTOR_BIAS: i32 = if DOT { 128 } else { 0 };
    const HIGH_UNIT: i32 = if DOT { 1 } else { 256 };

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: see the impl.
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            [
                vld1q_f32(x[4 * 0..].as_ptr()),
                vld1q_f32(x[4 * 1..].as_ptr()),
                vld1q_f32(x[4 * 2..].as_ptr()),
                vld1q_f32(x[4 * 3..].as_ptr()),
            ]
        }
    }
    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; 16]) {
        // SAFETY: see the impl.
        unsafe {
            vst1q_f32(out[4 * 0..].as_mut_ptr(), v[0]);
            vst1q_f32(out[4 * 1..].as_mut_ptr(), v[1]);
            vst1q_f32(out[4 * 2..].as_mut_ptr(), v[2]);
            vst1q_f32(out[4 * 3..].as_mut_ptr(), v[3]);
        }
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; 16]) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(x[4 * 0..].as_ptr()))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(x[4 * 1..].as_ptr()))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(x[4 * 2..].as_ptr()))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(x[4 * 3..].as_ptr()))),
            ]
        }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            [
                vfmaq_f32(c[0], a[0], b[0]),
                vfmaq_f32(c[1], a[1], b[1]),
                vfmaq_f32(c[2], a[2], b[2]),
                vfmaq_f32(c[3], a[3], b[3]),
            ]
        }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            [
                vaddq_f32(a[0], b[0]),
                vaddq_f32(a[1], b[1]),
                vaddq_f32(a[2], b[2]),
                vaddq_f32(a[3], b[3]),
            ]
        }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            [
                vsubq_f32(a[0], b[0]),
                vsubq_f32(a[1], b[1]),
                vsubq_f32(a[2], b[2]),
                vsubq_f32(a[3], b[3]),
            ]
        }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            [
                vmulq_f32(a[0], b[0]),
                vmulq_f32(a[1], b[1]),
                vmulq_f32(a[2], b[2]),
                vmulq_f32(a[3], b[3]),
            ]
        }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            [
                vdivq_f32(a[0], b[0]),
                vdivq_f32(a[1], b[1]),
                vdivq_f32(a[2], b[2]),
                vdivq_f32(a[3], b[3]),
            ]
        }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            [
                vmaxnmq_f32(a[0], b[0]),
                vmaxnmq_f32(a[1], b[1]),
                vmaxnmq_f32(a[2], b[2]),
                vmaxnmq_f32(a[3], b[3]),
            ]
        }
    }
    #[inline(always)]
    fn max_abs(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { core::array::from_fn(|n| vmaxnmq_f32(a[n], vabsq_f32(b[n]))) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe { [vrndnq_f32(a[0]), vrndnq_f32(a[1]), vrndnq_f32(a[2]), vrndnq_f32(a[3])] }
    }
    #[inline(always)]
    fn scale_pow2(self, v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            let n = self.max(n, self.splat(-127.0));
            let power = |n: float32x4_t| {
                vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127))))
            };
            self.mul(v, n.map(power))
        }
    }
    #[inline(always)]
    fn select(self, mask: u16, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            let bits = vld1q_u32([1, 2, 4, 8].as_ptr());
            let lanes = |shift: u32| vtstq_u32(vdupq_n_u32(u32::from(mask) >> shift), bits);
            [
                vbslq_f32(lanes(0), a[0], b[0]),
                vbslq_f32(lanes(4), a[1], b[1]),
                vbslq_f32(lanes(8), a[2], b[2]),
                vbslq_f32(lanes(12), a[3], b[3]),
            ]
        }
    }
    #[inline(always)]
    fn at_least(self, a: Self::V, b: Self::V) -> u16 {
        // SAFETY: see the impl.
        unsafe {
            let weights = vld1q_u32([1, 2, 4, 8].as_ptr());
            let bits = |n: usize| vaddvq_u32(vandq_u32(vcgeq_f32(a[n], b[n]), weights));
            (bits(0) | bits(1) << 4 | bits(2) << 8 | bits(3) << 12) as u16
        }
    }
    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        // SAFETY: see the impl.
        unsafe { vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(v[0], v[1]), vmaxnmq_f32(v[2], v[3]))) }
    }
    #[inline(always)]
    fn reduce_add(self, v: Self::V) -> f32 {
        // SAFETY: see the impl.
        unsafe { vaddvq_f32(vaddq_f32(vaddq_f32(v[0], v[1]), vaddq_f32(v[2], v[3]))) }
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> Self::B {
        // SAFETY: see the impl.
        unsafe {
            [
                vld1q_u8(x[16 * 0..].as_ptr()),
                vld1q_u8(x[16 * 1..].as_ptr()),
                vld1q_u8(x[16 * 2..].as_ptr()),
                vld1q_u8(x[16 * 3..].as_ptr()),
            ]
        }
    }
    #[inline(always)]
    fn low_nibbles(self, b: Self::B) -> Self::B {
        // SAFETY: see the impl.
        unsafe { b.map(|b| vandq_u8(b, vdupq_n_u8(15))) }
    }
    #[inline(always)]
    fn high_nibbles(self, b: Self::B) -> Self::B {
        // SAFETY: see the impl.
        unsafe { b.map(|b| vshrq_n_u8::<4>(b)) }
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 64], index: Self::B) -> Self::B {
        // SAFETY: see the impl.
        unsafe {
            let table = vld1q_u8(table.as_ptr());
            index.map(|index| vqtbl1q_u8(table, index))
        }
    }
    #[inline(always)]
    fn add_bytes(self, a: Self::B, b: Self::B) -> Self::B {
        // SAFETY: see the impl.
        unsafe { core::array::from_fn(|n| vaddq_u8(a[n], b[n])) }
    }
    #[inline(always)]
    fn add_to_words(self, sums: [Self::B; 2], b: Self::B) -> [Self::B; 2] {
        // SAFETY: see the impl.
        unsafe {
            let add = |sum, more| vreinterpretq_u8_u16(vaddq_u16(vreinterpretq_u16_u8(sum), more));
            let words = b.map(|b| vreinterpretq_u16_u8(b));
            [
                core::array::from_fn(|n| add(sums[0][n], vandq_u16(words[n], vdupq_n_u16(255)))),
                core::array::from_fn(|n| add(sums[1][n], vshrq_n_u16::<8>(words[n]))),
            ]
        }
    }
    #[inline(always)]
    fn words_to_f32(self, words: Self::B) -> [Self::V; 2] {
        // SAFETY: see the impl.
        unsafe {
            let pairs = words.map(|words| vreinterpretq_u32_u8(words));
            [
                pairs.map(|pairs| vcvtq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff)))),
                pairs.map(|pairs| vcvtq_f32_u32(vshrq_n_u32::<16>(pairs))),
            ]
        }
    }
    #[inline(always)]
    fn byte_to_f32<const N: u32>(self, b: Self::B) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            let byte = |b: uint8x16_t| {
                let shifted = vshlq_u32(vreinterpretq_u32_u8(b), vdupq_n_s32(-8 * N as i32));
                vcvtq_f32_u32(vandq_u32(shifted, vdupq_n_u32(255)))
            };
            b.map(byte)
        }
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        // SAFETY: see the impl.
        unsafe { [vdupq_n_s32(x); 4] }
    }
    #[inline(always)]
    fn factors(self, b: Self::B) -> Self::Factors {
        // SAFETY: see the impl.
        unsafe {
            if DOT {
                b.map(|b| veorq_u8(b, vdupq_n_u8(128)))
            } else {
                b
            }
        }
    }
    #[inline(always)]
    fn small_factors(self, b: Self::B) -> Self::Factors {
        b
    }
    #[inline(always)]
    fn zero_sums(self) -> Self::Sums {
        [self.splat_i32(0); 2]
    }
    #[inline(always)]
    fn dot4(self, sums: Self::Sums, b: Self::Factors, words: [i32; 2]) -> Self::Sums {
        // SAFETY: see the impl.
        unsafe {
            if DOT {
                let mut sums = sums;
                for (sums, word) in sums.iter_mut().zip(words) {
                    let word = vdupq_n_s32(word);
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = sdot(*sum, b, word);
                    }
                }
                return sums;
            }
            let four = u64::from(words[0] as u32) | u64::from(words[1] as u32) << 32;
            let x = vreinterpretq_s16_u64(vdupq_n_u64(four));
            let all = core::array::from_fn(|i| {
                let first = vmulq_s16_wide(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(b[i]))), x);
                let second = vmulq_s16_wide(vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(b[i]))), x);
                vaddq_s32(sums[0][i], vpaddq_s32(first, second))
            });
            [all, sums[1]]
        }
    }
    #[inline(always)]
    fn dot4_high(self, sums: Self::I, b: Self::Factors, words: [i32; 2]) -> Self::I {
        // With `DOT` the first word holds the high bytes, and the sums of the second, all zero, are dropped unused.
        self.dot4([sums, self.splat_i32(0)], b, words)[0]
    }
    #[inline(always)]
    fn sums_to_i32(self, sums: Self::Sums) -> Self::I {
        if !DOT {
            return sums[0];
        }
        // SAFETY: see the impl.
        unsafe { core::array::from_fn(|i| vaddq_s32(vshlq_n_s32::<8>(sums[0][i]), sums[1][i])) }
    }
    #[inline(always)]
    fn i32_to_f32(self, x: Self::I) -> Self::V {
        // SAFETY: see the impl.
        unsafe {
            [
                vcvtq_f32_s32(x[0]),
                vcvtq_f32_s32(x[1]),
                vcvtq_f32_s32(x[2]),
                vcvtq_f32_s32(x[3]),
            ]
        }
    }
    #[inline(always)]
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see the impl.
        unsafe { core::array::from_fn(|i| vaddq_s32(a[i], b[i])) }
    }
    #[inline(always)]
    fn reduce_add_i32(self, x: Self::I) -> i32 {
        // SAFETY: see the impl.
        unsafe { x.iter().map(|x| vaddvq_s32(*x)).sum() }
    }
    #[inline(always)]
    fn to_i32(self, v: Self::V) -> Self::I {
        // SAFETY: see the impl.
        unsafe { v.map(|v| vcvtnq_s32_f32(v)) }
    }
    #[inline(always)]
    fn pack_words(self, x: Self::I, out: &mut [i32; 16]) {
        if DOT {
            // As 256·high + low: with 128 added, the second byte is the high plane, and the first is the low plane
            // plus 128.
            const ORDER: [u8; 16] = [1, 5, 9, 13, 0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0];
            const LOWER: [u8; 16] = [0, 0, 0, 0, 128, 128, 128, 128, 0, 0, 0, 0, 0, 0, 0, 0];
            for (out, x) in out.as_chunks_mut::<4>().0.iter_mut().zip(x) {
                // SAFETY: see the impl.
                unsafe {
                    let raised = vreinterpretq_u8_s32(vaddq_s32(x, vdupq_n_s32(128)));
                    let planes = veorq_u8(vqtbl1q_u8(raised, vld1q_u8(ORDER.as_ptr())), vld1q_u8(LOWER.as_ptr()));
                    vst1q_s32(out.as_mut_ptr(), vreinterpretq_s32_u8(planes));
                }
            }
            return;
        }
        let mut lanes = [0; 16];
        for (lanes, x) in lanes.as_chunks_mut::<4>().0.iter_mut().zip(x) {
            // SAFETY: see the impl.
            unsafe { vst1q_s32(lanes.as_mut_ptr(), x) };
        }
        super::pack_neighbours(&lanes, out);
    }
    #[inline(always)]
    fn load_pairs(self, x: &[i32; 16]) -> Self::Pairs {
        // SAFETY: see the impl.
        unsafe {
            let words: Self::I = core::array::from_fn(|n| vld1q_s32(x[4 * n..].as_ptr()));
            [words.map(|x| vmovn_s32(x)), words.map(|x| vshrn_n_s32::<16>(x))]
        }
    }
    #[inline(always)]
    fn dot2(self, sums: Self::I, pairs: Self::Pairs, word: i32) -> Self::I {
        // SAFETY: see the impl.
        unsafe {
            core::array::from_fn(|n| {
                let sum = vmlal_n_s16(sums[n], pairs[0][n], word as i16);
                vmlal_n_s16(sum, pairs[1][n], (word >> 16) as i16)
            })
        }
    }
    #[inline(always)]
    fn pair(self, low: Self::I, high: Self::I) -> Self::I {
        // SAFETY: see the impl.
        unsafe { core::array::from_fn(|n| vsliq_n_s32::<16>(low[n], high[n])) }
    }
    #[inline(always)]
    fn store_words(self, x: Self::I, out: &mut [i32; 16]) {
        for (out, x) in out.as_chunks_mut::<4>().0.iter_mut().zip(x) {
            // SAFETY: see the impl.
            unsafe { vst1q_s32(out.as_mut_ptr(), x) };
        }
    }
    #[inline(always)]
    fn narrow(self, x: Self::I, out: &mut [i32; 8]) {
        for (out, x) in out.as_chunks_mut::<2>().0.iter_mut().zip(x) {
            // SAFETY: see the impl.
            unsafe { vst1_s32(out.as_mut_ptr(), vreinterpret_s32_s16(vmovn_s32(x))) };
        }
    }
    #[inline(always)]
    fn prefetch<T>(self, _: &[T], _: usize) {}
    #[inline(always)]
    fn prefetch_line(self, _: *const u8) {}
    #[inline(always)]
    fn load_f16(self, x: &[u16; 16]) -> Self::V {
        // SAFETY: see the impl.
        let [a, b] = unsafe { [vld1q_u16(x.as_ptr()), vld1q_u16(x[8..].as_ptr())] };
        let ([first, second], [third, fourth]) = (widen_halves(a), widen_halves(b));
        [first, second, third, fourth]
    }
}

/// Products of eight 16-bit integers, neighbours added: four sums.
#[inline(always)]
fn vmulq_s16_wide(a: int16x8_t, b: int16x8_t) -> int32x4_t {
    // SAFETY: NEON is part of the aarch64 baseline.
    unsafe { vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)) }
}
