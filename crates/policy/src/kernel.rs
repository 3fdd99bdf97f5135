//! Inner loops, compiled for the vector instructions of the machine. The crate's only `unsafe`.
//!
//! Every version runs the same operations in the same order, lane by lane and without fused multiply-add, so that all
//! give the same bits.

use riffle_attention::LANES;

/// One dimension of `LANES` keys.
pub(crate) type Lanes = [f32; LANES];

/// Products of each vector of `[count, width]` with `LANES` keys of `[width, LANES]`: `[count, LANES]`.
pub(crate) fn dots(vectors: &[f32], keys: &[Lanes], out: &mut [Lanes]) {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the machine has AVX-512 F, which is all the function needs beyond its safe body.
            return unsafe { x86::dots_avx512(vectors, keys, out) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has AVX2, which is all the function needs beyond its safe body.
            return unsafe { x86::dots_avx2(vectors, keys, out) };
        }
    }
    dots_plain(vectors, keys, out);
}

/// f16 bits as f32, exactly.
pub(crate) fn widen_f16(halves: &[u16], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the machine has AVX-512 F, which is all the function needs beyond its safe body.
            return unsafe { x86::widen_f16_avx512(halves, out) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has AVX2, which is all the function needs beyond its safe body.
            return unsafe { x86::widen_f16_avx2(halves, out) };
        }
    }
    widen_f16_plain(halves, out);
}

/// Turns logits into their softmax; an empty slice stays empty.
pub(crate) fn softmax(logits: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the machine has AVX-512 F, which is all the function needs beyond its safe body.
            return unsafe { x86::softmax_avx512(logits) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has AVX2, which is all the function needs beyond its safe body.
            return unsafe { x86::softmax_avx2(logits) };
        }
    }
    softmax_plain(logits);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Lanes, dots_plain, softmax_plain, widen_f16_plain};

    #[target_feature(enable = "avx512f")]
    pub(super) fn dots_avx512(vectors: &[f32], keys: &[Lanes], out: &mut [Lanes]) {
        dots_plain(vectors, keys, out);
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn dots_avx2(vectors: &[f32], keys: &[Lanes], out: &mut [Lanes]) {
        dots_plain(vectors, keys, out);
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn widen_f16_avx512(halves: &[u16], out: &mut [f32]) {
        widen_f16_plain(halves, out);
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn widen_f16_avx2(halves: &[u16], out: &mut [f32]) {
        widen_f16_plain(halves, out);
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn softmax_avx512(logits: &mut [f32]) {
        softmax_plain(logits);
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn softmax_avx2(logits: &mut [f32]) {
        softmax_plain(logits);
    }
}

#[inline(always)]
fn dots_plain(vectors: &[f32], keys: &[Lanes], out: &mut [Lanes]) {
    let width = keys.len();
    let rest = dots_together::<8>(vectors, keys, out);
    let done = out.len() - rest;
    let rest = dots_together::<4>(&vectors[done * width..], keys, &mut out[done..]);
    let done = out.len() - rest;
    dots_together::<1>(&vectors[done * width..], keys, &mut out[done..]);
}

/// `R` vectors at a time share a load of keys, and their sums run side by side; returns how many vectors are left.
#[inline(always)]
fn dots_together<const R: usize>(vectors: &[f32], keys: &[Lanes], out: &mut [Lanes]) -> usize {
    let width = keys.len();
    let mut outs = out.chunks_exact_mut(R);
    for (block, out) in vectors.chunks_exact(R * width).zip(&mut outs) {
        let rows: [&[f32]; R] = std::array::from_fn(|row| &block[row * width..][..width]);
        let mut sums = [[0.0f32; LANES]; R];
        for (place, key) in keys.iter().enumerate() {
            for (sums, row) in sums.iter_mut().zip(rows) {
                let value = row[place];
                for lane in 0..LANES {
                    sums[lane] += value * key[lane];
                }
            }
        }
        out.copy_from_slice(&sums);
    }
    outs.into_remainder().len()
}

/// Without branches, so that it runs on vectors: the exponent is moved by a product, which also makes subnormal numbers
/// right, and infinities and NaN get theirs by a select.
#[inline(always)]
fn widen_f16_plain(halves: &[u16], out: &mut [f32]) {
    // 2^112: the difference of the exponents' offsets.
    let factor = f32::from_bits(0x7780_0000);
    for (out, half) in out.iter_mut().zip(halves) {
        let bits = u32::from(*half);
        let magnitude = (bits & 0x7fff) << 13;
        let moved = (f32::from_bits(magnitude) * factor).to_bits();
        let special = magnitude | 0x7f80_0000;
        let bits = if magnitude >= 0x0f80_0000 { special } else { moved } | (bits & 0x8000) << 16;
        *out = f32::from_bits(bits);
    }
}

#[inline(always)]
fn softmax_plain(logits: &mut [f32]) {
    let mut tops = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = logits.as_chunks_mut::<LANES>();
    for chunk in &*whole {
        for lane in 0..LANES {
            tops[lane] = if chunk[lane] > tops[lane] {
                chunk[lane]
            } else {
                tops[lane]
            };
        }
    }
    let top = tops
        .iter()
        .chain(&*rest)
        .fold(f32::NEG_INFINITY, |top, logit| top.max(*logit));
    let mut totals = [0.0f64; LANES];
    for chunk in &mut *whole {
        for lane in 0..LANES {
            chunk[lane] = exp(chunk[lane] - top);
            totals[lane] += f64::from(chunk[lane]);
        }
    }
    let mut total: f64 = totals.iter().sum();
    for logit in &mut *rest {
        *logit = exp(*logit - top);
        total += f64::from(*logit);
    }
    let factor = (1.0 / total) as f32;
    for weight in logits {
        *weight *= factor;
    }
}

/// e^x for x ≤ 0, the same bits on every machine: 2^n · p(r) with |r| ≤ ½ ln 2, relative error below 3e-7.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // To nearest by adding and subtracting 1.5 · 2^23, whose lowest bits then hold n.
    const MAGIC: f32 = 12_582_912.0;
    let x = if x > -87.0 { x } else { -87.0 };
    let shifted = x * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    // ln 2 in two parts, the first exact times n.
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let mut p = 1.0 / 720.0;
    for factor in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + factor;
    }
    let bits = shifted.to_bits().wrapping_sub(MAGIC.to_bits()).wrapping_add(127) << 23;
    p * f32::from_bits(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_widened_exactly() {
        let halves: Vec<u16> = (0..=u16::MAX).collect();
        let (mut plain, mut chosen) = (vec![0.0; halves.len()], vec![0.0; halves.len()]);
        widen_f16_plain(&halves, &mut plain);
        widen_f16(&halves, &mut chosen);
        for ((half, plain), chosen) in halves.iter().zip(plain).zip(chosen) {
            let exact = riffle_attention::f16_to_f32(*half);
            for ours in [plain, chosen] {
                assert!(
                    ours.to_bits() == exact.to_bits() || (ours.is_nan() && exact.is_nan()),
                    "{half:#x}: {ours}"
                );
            }
        }
    }

    #[test]
    fn exp_is_within_its_error() {
        for step in 0..870_000 {
            let x = -(step as f32) * 1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 3e-7, "{x}: {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn a_softmax_sums_to_one_and_of_nothing_is_nothing() {
        let mut weights = [3.0, -80.0, 2.0, 3.0];
        softmax(&mut weights);
        assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(weights[0], weights[3]);
        softmax(&mut []);
    }

    #[test]
    fn every_version_gives_the_same_bits() {
        let number = |n: usize| ((n * 7919 + 13) % 1009) as f32 / 97.0 - 5.0;
        for (count, width) in [(1, 16), (4, 64), (7, 48), (9, 1)] {
            let vectors: Vec<f32> = (0..count * width).map(number).collect();
            let keys: Vec<Lanes> = (0..width)
                .map(|n| std::array::from_fn(|lane| number(n * LANES + lane)))
                .collect();
            let mut plain = vec![[0.0; LANES]; count];
            dots_plain(&vectors, &keys, &mut plain);
            for (vector, out) in vectors.chunks(width).zip(&plain) {
                let exact: f64 = vector
                    .iter()
                    .zip(&keys)
                    .map(|(v, key)| f64::from(*v) * f64::from(key[3]))
                    .sum();
                assert!((f64::from(out[3]) - exact).abs() < 1e-3);
            }
            let mut chosen = vec![[1.0; LANES]; count];
            dots(&vectors, &keys, &mut chosen);
            assert_eq!(chosen, plain);
            let (mut a, mut b) = (vectors.clone(), vectors);
            softmax_plain(&mut a);
            softmax(&mut b);
            assert_eq!(a, b);
        }
    }
}
