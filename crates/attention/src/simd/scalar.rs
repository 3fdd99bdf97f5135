use super::Simd;
use crate::half::{bf16_to_f32, f16_to_f32};

/// Plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

#[inline(always)]
fn map2(a: [f32; 16], b: [f32; 16], f: impl Fn(f32, f32) -> f32) -> [f32; 16] {
    core::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Scalar {
    type V = [f32; 16];
    type I = [i32; 16];
    type B = [u8; 64];
    type Factors = [u8; 64];
    type Sums = [i32; 16];
    type Pairs = [i32; 16];
    const WIDE: bool = false;
    const INTEGER_ROWS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; 16]
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Self::V {
        *x
    }
    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; 16]) {
        *out = v;
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; 16]) -> Self::V {
        x.map(f16_to_f32)
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; 16]) -> Self::V {
        x.map(bf16_to_f32)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        core::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn max_abs(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |a, b| if a > b.abs() { a } else { b.abs() })
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        const MAGIC: f32 = 12_582_912.0;
        a.map(|x| (x + MAGIC) - MAGIC)
    }
    #[inline(always)]
    fn scale_pow2(self, v: Self::V, n: Self::V) -> Self::V {
        map2(v, n, |v, n| {
            v * f32::from_bits(((n.max(-127.0) as i32 + 127) as u32) << 23)
        })
    }
    #[inline(always)]
    fn select(self, mask: u16, a: Self::V, b: Self::V) -> Self::V {
        core::array::from_fn(|i| if mask & (1 << i) != 0 { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn at_least(self, a: Self::V, b: Self::V) -> u16 {
        (0..16).fold(0, |bits, i| bits | u16::from(a[i] >= b[i]) << i)
    }
    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        v.iter().fold(f32::NEG_INFINITY, |m, x| if *x > m { *x } else { m })
    }
    #[inline(always)]
    fn reduce_add(self, v: Self::V) -> f32 {
        v.iter().sum()
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> Self::B {
        *x
    }
    #[inline(always)]
    fn low_nibbles(self, b: Self::B) -> Self::B {
        b.map(|x| x & 15)
    }
    #[inline(always)]
    fn high_nibbles(self, b: Self::B) -> Self::B {
        b.map(|x| x >> 4)
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 64], index: Self::B) -> Self::B {
        index.map(|index| table[usize::from(index & 15)])
    }
    #[inline(always)]
    fn add_bytes(self, a: Self::B, b: Self::B) -> Self::B {
        core::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn add_to_words(self, sums: [Self::B; 2], b: Self::B) -> [Self::B; 2] {
        let mut sums = sums;
        for (part, sums) in sums.iter_mut().enumerate() {
            for (word, bytes) in sums.as_chunks_mut::<2>().0.iter_mut().zip(b.as_chunks::<2>().0) {
                *word = u16::from_le_bytes(*word)
                    .wrapping_add(u16::from(bytes[part]))
                    .to_le_bytes();
            }
        }
        sums
    }
    #[inline(always)]
    fn words_to_f32(self, words: Self::B) -> [Self::V; 2] {
        let words = words.as_chunks::<2>().0;
        [0, 1].map(|odd| core::array::from_fn(|i| f32::from(u16::from_le_bytes(words[2 * i + odd]))))
    }
    #[inline(always)]
    fn byte_to_f32<const N: u32>(self, b: Self::B) -> Self::V {
        core::array::from_fn(|i| f32::from(b[4 * i + N as usize]))
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        [x; 16]
    }
    #[inline(always)]
    fn factors(self, b: Self::B) -> Self::Factors {
        b
    }
    #[inline(always)]
    fn zero_sums(self) -> Self::Sums {
        [0; 16]
    }
    #[inline(always)]
    fn dot4(self, sums: Self::Sums, b: Self::Factors, words: [i32; 2]) -> Self::Sums {
        let x = [
            words[0] as i16,
            (words[0] >> 16) as i16,
            words[1] as i16,
            (words[1] >> 16) as i16,
        ];
        let dot = |i: usize| (0..4).map(|n| i32::from(b[4 * i + n]) * i32::from(x[n])).sum::<i32>();
        core::array::from_fn(|i| sums[i] + dot(i))
    }
    #[inline(always)]
    fn sums_to_i32(self, sums: Self::Sums) -> Self::I {
        sums
    }
    #[inline(always)]
    fn i32_to_f32(self, x: Self::I) -> Self::V {
        x.map(|x| x as f32)
    }
    #[inline(always)]
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I {
        core::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn reduce_add_i32(self, x: Self::I) -> i32 {
        x.iter().sum()
    }
    #[inline(always)]
    fn to_i32(self, v: Self::V) -> Self::I {
        self.round(v).map(|x| x as i32)
    }
    #[inline(always)]
    fn pack_words(self, x: Self::I, out: &mut [i32; 16]) {
        super::pack_neighbours(&x, out);
    }
    #[inline(always)]
    fn load_pairs(self, x: &[i32; 16]) -> Self::Pairs {
        *x
    }
    #[inline(always)]
    fn dot2(self, sums: Self::I, pairs: Self::Pairs, word: i32) -> Self::I {
        let product = |a: i32, b: i32| i32::from(a as i16) * i32::from(b as i16);
        let both = |i: usize| product(pairs[i], word).wrapping_add(product(pairs[i] >> 16, word >> 16));
        // Lanes without a token have any value.
        core::array::from_fn(|i| sums[i].wrapping_add(both(i)))
    }
    #[inline(always)]
    fn pair(self, low: Self::I, high: Self::I) -> Self::I {
        core::array::from_fn(|i| (low[i] & 0xffff) | high[i] << 16)
    }
    #[inline(always)]
    fn store_words(self, x: Self::I, out: &mut [i32; 16]) {
        *out = x;
    }
    #[inline(always)]
    fn narrow(self, x: Self::I, out: &mut [i32; 8]) {
        *out = core::array::from_fn(|i| (x[2 * i] & 0xffff) | x[2 * i + 1] << 16);
    }
    #[inline(always)]
    fn prefetch<T>(self, _: &[T], _: usize) {}
    #[inline(always)]
    fn prefetch_line(self, _: *const u8) {}
}
