//! The instruction sets, and the only calls of code compiled for them.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod float;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod quant;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod vendor;

use std::sync::OnceLock;

use crate::LANES;
#[cfg(target_arch = "x86_64")]
use crate::float::FloatKind;
use crate::float::{Element, GroupSums};
use crate::quant::{ActivationBlock, BlockFormat, Quant, Shape, TILE_TOKENS};

/// Stretches unpacked together when tokens share them.
#[cfg(target_arch = "x86_64")]
const SHARED_STRETCHES: usize = 8;
/// The `CALLER` of `unpack` whose tokens share unpacked weights; other callers are numbers of tokens.
#[cfg(target_arch = "x86_64")]
const SHARED: usize = TILE_TOKENS + 1;

/// An instruction set that this machine has. Only detection creates a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Isa(Set);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX2 with AVX-VNNI: products of four bytes.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with VBMI: permutations of bytes.
    #[cfg(target_arch = "x86_64")]
    Avx512Vbmi,
    /// AVX-512 with VBMI and products of bfloat16 pairs.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// NEON with dot products of bytes.
    #[cfg(target_arch = "aarch64")]
    NeonDotprod,
    /// NEON with dot products and matrix products of bytes.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
}

/// Calls a kernel of the given instruction set.
macro_rules! dispatch {
    ($isa:expr, $kernel:ident $(::<$element:ident>)? ($($argument:expr),*)) => {
        match $isa.0 {
            Set::Scalar => scalar::$kernel$(::<$element>)?($($argument),*),
            // SAFETY: the value exists only where AVX2, FMA and F16C were detected.
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => unsafe { avx2::$kernel$(::<$element>)?($($argument),*) },
            // SAFETY: the value exists only where AVX2, FMA, F16C and AVX-VNNI were detected.
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni => unsafe { avx_vnni::$kernel$(::<$element>)?($($argument),*) },
            // SAFETY: the value exists only where AVX-512 F, BW, VL and VNNI were detected.
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 | Set::Avx512Vbmi | Set::Avx512Bf16 => unsafe { avx512::$kernel$(::<$element>)?($($argument),*) },
            // SAFETY: the value exists only where NEON was detected.
            #[cfg(target_arch = "aarch64")]
            Set::Neon | Set::NeonDotprod | Set::NeonI8mm => unsafe { neon::$kernel$(::<$element>)?($($argument),*) },
        }
    };
}

impl Isa {
    /// Plain code, the reference for every other set.
    pub(crate) const SCALAR: Isa = Isa(Set::Scalar);

    /// The fastest set of this machine, or of the sets that the environment variable `RIFFLE_INSTRUCTIONS` names.
    pub(crate) fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let asked = std::env::var("RIFFLE_INSTRUCTIONS").ok();
            let mut sets = Isa::available();
            let named = sets.iter().rposition(|isa| Some(isa.name()) == asked.as_deref());
            named
                .map(|place| sets.swap_remove(place))
                .or_else(|| sets.pop())
                .unwrap_or(Isa::SCALAR)
        })
    }

    fn name(self) -> &'static str {
        match self.0 {
            Set::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 | Set::Avx512Vbmi | Set::Avx512Bf16 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Set::Neon | Set::NeonDotprod | Set::NeonI8mm => "neon",
        }
    }

    /// Every set of this machine, slowest first.
    pub(crate) fn available() -> Vec<Isa> {
        #[allow(unused_mut, reason = "some targets have only plain code")]
        let mut sets = vec![Isa::SCALAR];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                sets.push(Isa(Set::Avx2));
                if is_x86_feature_detected!("avxvnni") {
                    sets.push(Isa(Set::AvxVnni));
                }
            }
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
            {
                sets.push(Isa(Set::Avx512));
                if is_x86_feature_detected!("avx512vbmi") {
                    sets.push(Isa(Set::Avx512Vbmi));
                    if is_x86_feature_detected!("avx512bf16") {
                        sets.push(Isa(Set::Avx512Bf16));
                    }
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            sets.push(Isa(Set::Neon));
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                sets.push(Isa(Set::NeonDotprod));
                if std::arch::is_aarch64_feature_detected!("i8mm") {
                    sets.push(Isa(Set::NeonI8mm));
                }
            }
        }
        sets
    }

    /// Adds to `sums` the products of `weights`, `[steps, blocks, 16]`, with each token's row of `steps` values, panel
    /// by panel.
    pub(crate) fn float_tile<E: Element>(
        self,
        weights: &[[E::Bits; LANES]],
        blocks: usize,
        rows: &[&[E::Value]],
        sums: &mut [GroupSums],
    ) {
        #[cfg(target_arch = "x86_64")]
        if (self.0, E::KIND) == (Set::Avx512Bf16, FloatKind::RoundedBf16) {
            // SAFETY: the value exists only where AVX-512 F, BW, VL and BF16 were detected.
            return unsafe { avx512::bf16::float_tile::<E>(weights, blocks, rows, sums) };
        }
        dispatch!(self, float_tile::<E>(weights, blocks, rows, sums));
    }

    /// Prefetches bytes.
    pub(crate) fn prefetch(self, bytes: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        for line in bytes.chunks(64) {
            use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: SSE is part of x86-64, and a prefetch reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = bytes;
    }

    /// Widens weights with one input per step.
    pub(crate) fn widen<E: Element>(self, weights: &[[E::Bits; LANES]], widened: &mut [[f32; LANES]]) {
        dispatch!(self, widen::<E>(weights, widened));
    }

    /// Rounds activations to bfloat16.
    pub(crate) fn round(self, values: &[f32], rounded: &mut [u16]) {
        dispatch!(self, round(values, rounded));
    }

    /// Rounds activations to 8 bits; the length of `values` is a multiple of 32.
    pub(crate) fn quantise(self, values: &[f32], shape: Shape, blocks: &mut [ActivationBlock]) {
        dispatch!(self, quantise(values, shape, blocks));
    }

    /// Number of tokens to pass to [`quant_band`](Self::quant_band) together. It is one tile if every tile unpacks
    /// weights in registers; otherwise, as many as leave room in the second-level cache.
    pub(crate) fn band_tokens(self, format: &BlockFormat) -> usize {
        #[cfg(target_arch = "x86_64")]
        if matches!(self.0, Set::Avx512 | Set::Avx512Vbmi | Set::Avx512Bf16) && !format.is_costly {
            return TILE_TOKENS;
        }
        let _ = format;
        12 * TILE_TOKENS
    }

    /// Stretches per panel of activations; several bands are multiplied with a panel before the next. If many tokens
    /// share unpacked weights on x86-64, it is the number of stretches unpacked together: a panel then stays in the
    /// first-level cache. Otherwise it is all stretches.
    pub(crate) fn panel_stretches(self, format: &BlockFormat, tokens: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.0 != Set::Scalar && self.band_tokens(format) > TILE_TOKENS && tokens > 2 * TILE_TOKENS {
            return SHARED_STRETCHES;
        }
        let _ = (format, tokens);
        usize::MAX
    }

    /// Adds to `sums`, `[tokens, 16]`, the products of a band of 16 rows with `activations`, `[tokens, stretches]`,
    /// stretch by stretch.
    pub(crate) fn quant_band<Q: Quant>(
        self,
        weights: &[u8],
        activations: &[ActivationBlock],
        sums: &mut [[f32; LANES]],
    ) {
        #[cfg(target_arch = "x86_64")]
        if const { Q::CODES.is_costly() } && matches!(self.0, Set::Avx512Vbmi | Set::Avx512Bf16) {
            // SAFETY: the value exists only where AVX-512 F, BW, VL, VNNI and VBMI were detected.
            return unsafe { avx512::vbmi::quant_band::<Q>(weights, activations, sums) };
        }
        #[cfg(target_arch = "aarch64")]
        match self.0 {
            // SAFETY: the value exists only where NEON and its dot products were detected.
            Set::NeonDotprod => return unsafe { neon::dotprod::quant_band::<Q>(weights, activations, sums) },
            // SAFETY: the value exists only where NEON, its dot products and its matrix products were detected.
            Set::NeonI8mm => return unsafe { neon::i8mm::quant_band::<Q>(weights, activations, sums) },
            _ => {}
        }
        dispatch!(self, quant_band::<Q>(weights, activations, sums));
    }
}
