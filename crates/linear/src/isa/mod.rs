//! The instruction sets, and the one place that calls code compiled for them.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod float;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod quant;
mod scalar;

use std::sync::OnceLock;

use crate::LANES;
use crate::float::{Element, GroupSums};
use crate::quant::{ActivationBlock, Expanded, Quant, STRETCH, Shape};

/// An instruction set this machine has: a value exists only for one that was detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Isa(Set);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// Calls a kernel of the instruction set at hand.
macro_rules! dispatch {
    ($isa:expr, $kernel:ident $(::<$element:ident>)? ($($argument:expr),*)) => {
        match $isa.0 {
            Set::Scalar => scalar::$kernel$(::<$element>)?($($argument),*),
            // SAFETY: the value exists only where AVX2, FMA and F16C were detected.
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => unsafe { avx2::$kernel$(::<$element>)?($($argument),*) },
            // SAFETY: the value exists only where AVX-512 F, BW, VL and VNNI were detected.
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => unsafe { avx512::$kernel$(::<$element>)?($($argument),*) },
            // SAFETY: the value exists only where NEON was detected.
            #[cfg(target_arch = "aarch64")]
            Set::Neon => unsafe { neon::$kernel$(::<$element>)?($($argument),*) },
        }
    };
}

impl Isa {
    /// The plain code every other set is compared with.
    pub(crate) const SCALAR: Isa = Isa(Set::Scalar);

    /// The fastest set of this machine.
    pub(crate) fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::available().pop().unwrap_or(Isa::SCALAR))
    }

    /// Every set of this machine, slowest first.
    pub(crate) fn available() -> Vec<Isa> {
        #[allow(unused_mut, reason = "some targets have only plain code")]
        let mut sets = vec![Isa::SCALAR];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                sets.push(Isa(Set::Avx2));
            }
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
            {
                sets.push(Isa(Set::Avx512));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            sets.push(Isa(Set::Neon));
        }
        sets
    }

    /// Adds to `sums` the products of `weights`, `[inputs, blocks, 16]`, with each token's row of `inputs` values,
    /// panel by panel.
    pub(crate) fn float_tile<E: Element>(
        self,
        weights: &[[E::Bits; LANES]],
        blocks: usize,
        rows: &[&[f32]],
        sums: &mut [GroupSums],
    ) {
        dispatch!(self, float_tile::<E>(weights, blocks, rows, sums));
    }

    /// Asks for bytes that will be read soon.
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

    /// Widens weights to f32.
    pub(crate) fn widen<E: Element>(self, weights: &[[E::Bits; LANES]], widened: &mut [[f32; LANES]]) {
        dispatch!(self, widen::<E>(weights, widened));
    }

    /// Rounds activations, `values` a multiple of 32 long.
    pub(crate) fn quantise(self, values: &[f32], shape: Shape, blocks: &mut [ActivationBlock]) {
        dispatch!(self, quantise(values, shape, blocks));
    }

    /// Unpacks blocks of 16 interleaved rows.
    pub(crate) fn expand<Q: Quant>(self, weights: &[u8], expanded: &mut [Expanded]) {
        dispatch!(self, expand::<Q>(weights, expanded));
    }

    /// Whether many tokens, too, are best multiplied by tiles of `quant_pass`: where there are registers enough for a whole
    /// stretch and it takes few operations to unpack one.
    pub(crate) fn unpacks_in_registers<Q: Quant>(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let many_registers = self.0 == Set::Avx512;
        #[cfg(not(target_arch = "x86_64"))]
        let many_registers = false;
        many_registers && Q::WEIGHTS == STRETCH
    }

    /// Unpacks `weights` and adds their products with a few tokens to `sums`.
    pub(crate) fn quant_pass<Q: Quant>(self, weights: &[u8], rows: &[&[ActivationBlock]], sums: &mut [[f32; LANES]]) {
        dispatch!(self, quant_pass::<Q>(weights, rows, sums));
    }

    /// Adds to `sums`, `[tokens, 16]` for each of two bands of outputs, the products of unpacked weights with each
    /// token's activations, stretch by stretch.
    pub(crate) fn quant_pair(
        self,
        shape: Shape,
        expanded: [&[Expanded]; 2],
        rows: &[&[ActivationBlock]],
        sums: [&mut [[f32; LANES]]; 2],
    ) {
        dispatch!(self, quant_pair(shape, expanded, rows, sums));
    }
}
