//! Vectors of 16 f32 for every instruction set, and the choice of a set at run time.
//!
//! A kernel is written once over [`Simd`]; [`Level::run`] instantiates it inside a function compiled for the chosen
//! instructions. All of the crate's `unsafe` is in this module: intrinsics, and the call that enters such a function.
//! Intrinsics are sound because a [`Simd`] token exists only after detection.

#[cfg(all(feature = "simd", target_arch = "x86_64"))]
mod avx2;
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
mod avx512;
#[cfg(all(feature = "simd", target_arch = "aarch64"))]
mod neon;
mod scalar;

use scalar::Scalar;

/// Operations on 16 lanes. Tokens are zero-sized proofs that the instructions exist.
pub(crate) trait Simd: Copy {
    /// 16 f32.
    type V: Copy;
    /// 16 i32.
    type I: Copy;
    /// 64 bytes.
    type B: Copy;
    /// 64 bytes, prepared for [`dot4`](Self::dot4).
    type Factors: Copy;
    /// Integer sums of 16 lanes, in the form that [`dot4`](Self::dot4) adds to.
    type Sums: Copy;
    /// 16 words of two 16-bit integers, prepared for [`dot2`](Self::dot2).
    type Pairs: Copy;
    /// True if registers suffice for tiles of 12 rows × 2 vectors.
    const WIDE: bool;
    /// The most rows of a tile whose integer sums fit in registers.
    const INTEGER_ROWS: usize;
    /// The number that [`factors`](Self::factors) subtracts from every byte.
    const FACTOR_BIAS: i32 = 0;
    /// The number that [`dot4_high`](Self::dot4_high) adds for a product of 1 with 256.
    const HIGH_UNIT: i32 = 256;

    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &[f32; 16]) -> Self::V;
    fn store(self, v: Self::V, out: &mut [f32; 16]);
    fn load_f16(self, x: &[u16; 16]) -> Self::V;
    fn load_bf16(self, x: &[u16; 16]) -> Self::V;
    /// a·b + c.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger of a and |b|.
    fn max_abs(self, a: Self::V, b: Self::V) -> Self::V;
    fn round(self, a: Self::V) -> Self::V;
    /// v·2ⁿ for integral n ≤ 127; zero when n ≤ −160.
    fn scale_pow2(self, v: Self::V, n: Self::V) -> Self::V;
    /// `a` where the mask's bit is set, else `b`.
    fn select(self, mask: u16, a: Self::V, b: Self::V) -> Self::V;
    /// A bit for each lane in which `a` ≥ `b`.
    fn at_least(self, a: Self::V, b: Self::V) -> u16;
    fn reduce_max(self, v: Self::V) -> f32;
    fn reduce_add(self, v: Self::V) -> f32;

    fn load_bytes(self, x: &[u8; 64]) -> Self::B;
    fn low_nibbles(self, b: Self::B) -> Self::B;
    fn high_nibbles(self, b: Self::B) -> Self::B;
    /// The table's byte at each index, which must be below 16. The table holds the same 16 bytes four times, because a
    /// broadcast would take the place of a look-up.
    fn look_up(self, table: &[u8; 64], index: Self::B) -> Self::B;
    fn add_bytes(self, a: Self::B, b: Self::B) -> Self::B;
    /// Adds bytes 0, 2, 4… to the first sums of 16 bits, and bytes 1, 3, 5… to the second.
    fn add_to_words(self, sums: [Self::B; 2], b: Self::B) -> [Self::B; 2];
    /// The even ones of 32 unsigned integers of 16 bits, and the odd ones.
    fn words_to_f32(self, words: Self::B) -> [Self::V; 2];
    /// Byte `n` of each group of four, unsigned, as f32.
    fn byte_to_f32<const N: u32>(self, b: Self::B) -> Self::V;
    fn splat_i32(self, x: i32) -> Self::I;
    /// Unsigned bytes less [`FACTOR_BIAS`](Self::FACTOR_BIAS).
    fn factors(self, b: Self::B) -> Self::Factors;
    /// Factors of bytes below 128, without an offset.
    #[inline(always)]
    fn small_factors(self, b: Self::B) -> Self::Factors {
        self.factors(b)
    }
    fn zero_sums(self) -> Self::Sums;
    /// Adds to each lane Σ of its four factors times four integers, packed by [`pack_words`](Self::pack_words).
    fn dot4(self, sums: Self::Sums, b: Self::Factors, words: [i32; 2]) -> Self::Sums;
    /// As [`dot4`](Self::dot4), for integers that are multiples of 256; in units of 256 /
    /// [`HIGH_UNIT`](Self::HIGH_UNIT).
    #[inline(always)]
    fn dot4_high(self, sums: Self::I, b: Self::Factors, words: [i32; 2]) -> Self::I {
        self.add_i32(sums, self.sums_to_i32(self.dot4(self.zero_sums(), b, words)))
    }
    /// The sums as integers.
    fn sums_to_i32(self, sums: Self::Sums) -> Self::I;
    fn i32_to_f32(self, x: Self::I) -> Self::V;
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I;
    fn reduce_add_i32(self, x: Self::I) -> i32;
    fn to_i32(self, v: Self::V) -> Self::I;
    /// Packs integers of magnitude up to 32512 for [`dot4`](Self::dot4): four of them in the first two words of every
    /// four lanes. The other words are undefined.
    fn pack_words(self, x: Self::I, out: &mut [i32; 16]);
    /// 16 words of two 16-bit integers.
    fn load_pairs(self, x: &[i32; 16]) -> Self::Pairs;
    /// Adds to each lane the products of its two 16-bit integers with the integers of `word`.
    fn dot2(self, sums: Self::I, pairs: Self::Pairs, word: i32) -> Self::I;
    /// Packs the low halves of two integers into one word.
    fn pair(self, low: Self::I, high: Self::I) -> Self::I;
    fn store_words(self, x: Self::I, out: &mut [i32; 16]);
    /// The low halves of 16 integers, two neighbours to a word.
    fn narrow(self, x: Self::I, out: &mut [i32; 8]);
    /// The vectors `of(0)` to `of(N - 1)`. Replaces `core::array::from_fn`, which is compiled separately if `of` is
    /// large, without the caller's instructions.
    #[inline(always)]
    fn each<const N: usize>(self, of: impl Fn(usize) -> Self::V) -> [Self::V; N] {
        let mut vectors = [self.splat(0.0); N];
        for (n, vector) in vectors.iter_mut().enumerate() {
            *vector = of(n);
        }
        vectors
    }
    /// Lane `j` of vector `i` becomes lane `i` of vector `j`.
    #[inline(always)]
    fn transpose(self, rows: [Self::V; 16]) -> [Self::V; 16] {
        let mut lanes = [[0.0; 16]; 16];
        for (lanes, row) in lanes.iter_mut().zip(rows) {
            self.store(row, lanes);
        }
        core::array::from_fn(|j| self.load(&core::array::from_fn(|i| lanes[i][j])))
    }
    /// Prefetches the cache line of `data[at]`, even if the index is out of bounds.
    fn prefetch<T>(self, data: &[T], at: usize);
    /// Prefetches the cache line at an address, which need not be valid.
    fn prefetch_line(self, line: *const u8);
}

/// [`Simd::pack_words`] with two neighbours to a word, in order.
#[inline(always)]
fn pack_neighbours(lanes: &[i32; 16], out: &mut [i32; 16]) {
    for (out, four) in out.as_chunks_mut::<4>().0.iter_mut().zip(lanes.as_chunks::<4>().0) {
        out[0] = (four[0] & 0xffff) | (four[1] << 16);
        out[1] = (four[2] & 0xffff) | (four[3] << 16);
    }
}

/// Work that can be instantiated for any instruction set. `run` must be `#[inline(always)]`.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// An instruction set of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Level(Instructions);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instructions {
    Scalar,
    #[cfg(all(feature = "simd", target_arch = "x86_64"))]
    Avx2,
    #[cfg(all(feature = "simd", target_arch = "x86_64"))]
    Avx512,
    #[cfg(all(feature = "simd", target_arch = "aarch64"))]
    Neon,
    /// NEON with the dot products of Armv8.2.
    #[cfg(all(feature = "simd", target_arch = "aarch64"))]
    NeonDotprod,
}

/// The instructions of the kernels here: `scalar`, `avx2`, `avx512` or `neon`. Two sets add in different orders, so
/// their results differ in the last bits.
#[cfg(feature = "std")]
pub fn instruction_set() -> &'static str {
    Level::best().name()
}

impl Level {
    /// Plain Rust, on every machine: the reference for the other sets.
    pub(crate) const SCALAR: Self = Self(Instructions::Scalar);

    /// The best level of this machine. The environment variable `RIFFLE_INSTRUCTIONS` can forbid higher levels.
    #[inline]
    pub(crate) fn best() -> Self {
        #[cfg(feature = "std")]
        {
            static BEST: std::sync::OnceLock<Level> = std::sync::OnceLock::new();
            *BEST.get_or_init(|| {
                let most = std::env::var("RIFFLE_INSTRUCTIONS").ok();
                // AVX-VNNI is for linear layers; attention has no kernels for it.
                let most = most.map(|name| if name == "avxvnni" { "avx2".to_owned() } else { name });
                let named = Self::all().filter(|level| Some(level.name()) == most.as_deref()).last();
                named.or_else(|| Self::all().last()).unwrap_or(Self::SCALAR)
            })
        }
        #[cfg(not(feature = "std"))]
        {
            Self::all().last().unwrap_or(Self::SCALAR)
        }
    }

    /// Every level of this machine, from the plain one to the best.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let levels = [
            Some(Instructions::Scalar),
            #[cfg(all(feature = "simd", target_arch = "x86_64"))]
            avx2::available().then_some(Instructions::Avx2),
            #[cfg(all(feature = "simd", target_arch = "x86_64"))]
            avx512::available().then_some(Instructions::Avx512),
            #[cfg(all(feature = "simd", target_arch = "aarch64"))]
            Some(Instructions::Neon),
            #[cfg(all(feature = "simd", target_arch = "aarch64"))]
            neon::has_dotprod().then_some(Instructions::NeonDotprod),
        ];
        levels.into_iter().flatten().map(Self)
    }

    #[cfg(any(test, feature = "std"))]
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Instructions::Scalar => "scalar",
            #[cfg(all(feature = "simd", target_arch = "x86_64"))]
            Instructions::Avx2 => "avx2",
            #[cfg(all(feature = "simd", target_arch = "x86_64"))]
            Instructions::Avx512 => "avx512",
            #[cfg(all(feature = "simd", target_arch = "aarch64"))]
            Instructions::Neon | Instructions::NeonDotprod => "neon",
        }
    }

    /// Rows of the widest tile.
    #[inline]
    pub(crate) fn tile_rows(self) -> usize {
        match self.0 {
            #[cfg(all(feature = "simd", target_arch = "x86_64"))]
            Instructions::Avx512 => 12,
            _ => 6,
        }
    }

    /// True if registers suffice for tiles of 12 rows × 2 vectors.
    #[inline]
    pub(crate) fn is_wide(self) -> bool {
        self.tile_rows() == 12
    }

    /// The most rows for which unwidened planes of floats are faster than a widened copy.
    #[inline]
    pub(crate) fn rows_in_place(self) -> usize {
        if self.is_wide() { 24 } else { 64 }
    }

    /// Rows of the widest tile that multiplies quantised planes without widening.
    #[inline]
    pub(crate) fn integer_rows(self) -> usize {
        match self.0 {
            #[cfg(all(feature = "simd", target_arch = "x86_64"))]
            Instructions::Avx2 => 4,
            #[cfg(all(feature = "simd", target_arch = "x86_64"))]
            Instructions::Avx512 => crate::kernel::LONE_ROWS,
            #[cfg(all(feature = "simd", target_arch = "aarch64"))]
            Instructions::NeonDotprod => 4,
            _ => self.tile_rows(),
        }
    }

    /// Prefetch distance of a plane of floats, in bytes: a whole block if several stripes are read together,
    /// otherwise the size of the nearest cache.
    #[inline]
    pub(crate) fn prefetch_distance_bytes(self) -> usize {
        match self.0 {
            #[cfg(all(feature = "simd", target_arch = "x86_64"))]
            Instructions::Avx2 => 8 << 10,
            _ => usize::MAX,
        }
    }

    /// True if a small tile multiplies quantised keys and values as integers, without widening them.
    #[inline]
    pub(crate) fn int8_dot(self) -> bool {
        match self.0 {
            #[cfg(all(feature = "simd", target_arch = "x86_64"))]
            Instructions::Avx2 | Instructions::Avx512 => true,
            #[cfg(all(feature = "simd", target_arch = "aarch64"))]
            Instructions::NeonDotprod => true,
            _ => false,
        }
    }

    #[inline(always)]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Instructions::Scalar => kernel.run(Scalar),
            // SAFETY: a level above scalar is only made after detecting its instructions.
            #[cfg(all(feature = "simd", target_arch = "x86_64"))]
            Instructions::Avx2 => unsafe { avx2::run(kernel) },
            // SAFETY: as above.
            #[cfg(all(feature = "simd", target_arch = "x86_64"))]
            Instructions::Avx512 => unsafe { avx512::run(kernel) },
            // SAFETY: NEON is part of the aarch64 baseline.
            #[cfg(all(feature = "simd", target_arch = "aarch64"))]
            Instructions::Neon => unsafe { neon::run(kernel) },
            // SAFETY: this level is only made after detecting the dot products.
            #[cfg(all(feature = "simd", target_arch = "aarch64"))]
            Instructions::NeonDotprod => unsafe { neon::run_dotprod(kernel) },
        }
    }
}
