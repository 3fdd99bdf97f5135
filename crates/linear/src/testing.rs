//! Helpers shared by the tests.

use crate::WeightFormat;

/// Reproducible values of about ±1, a few of them large.
pub(crate) fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count)
        .map(|_| if next() > 0.98 { 8.0 * next() } else { next() })
        .collect()
}

/// The bytes of `values` in a float format, as in a file.
pub(crate) fn float_bytes(format: WeightFormat, values: &[f32]) -> Vec<u8> {
    match format {
        WeightFormat::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        WeightFormat::F16 => values
            .iter()
            .flat_map(|&v| half::f16::from_f32(v).to_le_bytes())
            .collect(),
        WeightFormat::Bf16 => values
            .iter()
            .flat_map(|&v| half::bf16::from_f32(v).to_le_bytes())
            .collect(),
        _ => panic!("{format} is not a float"),
    }
}

/// A value, rounded to a float format.
pub(crate) fn rounded(format: WeightFormat, value: f32) -> f32 {
    match format {
        WeightFormat::F16 => half::f16::from_f32(value).to_f32(),
        WeightFormat::Bf16 => half::bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// One element of the product in f64, and the sum of the magnitudes of its terms.
pub(crate) fn exact(weights: &[f32], input: &[f32]) -> (f64, f64) {
    let terms = weights.iter().zip(input).map(|(&w, &x)| f64::from(w) * f64::from(x));
    terms.fold((0.0, 0.0), |(sum, magnitude), term| {
        (sum + term, magnitude + term.abs())
    })
}

/// The bits of every value, to compare results exactly.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Runs `work` on a pool of `threads` threads.
pub(crate) fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .expect("a thread pool")
        .install(work)
}
