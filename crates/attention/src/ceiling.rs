//! What this machine could do at best: the figures that the kernels are measured against.

use core::hint::black_box;
use std::time::{Duration, Instant};

use crate::simd::{Kernel, Level, Simd};

/// Name of the instructions the kernels use here: `avx512`, `avx2`, `neon` or `scalar`.
pub fn instructions() -> &'static str {
    Level::best().name()
}

/// Peak rate of f32 multiply-adds of one thread at the kernels' vector width, in GFLOP/s, and the time
/// one thread needs to read a byte, best of several tries.
pub fn multiply_add_gflops() -> f64 {
    const ROUNDS: usize = 20_000;
    let best = best_of(12, || {
        black_box(Level::best().run(Peak { rounds: ROUNDS }));
    });
    (ROUNDS * PEAK_CHAINS * 32) as f64 / best.as_secs_f64() / 1e9
}

/// Rate at which one thread reads `data`, in GB/s: make it larger than the caches to measure memory.
pub fn read_gigabytes_per_second(data: &[f32]) -> f64 {
    let best = best_of(6, || {
        black_box(Level::best().run(Read { data: black_box(data) }));
    });
    (core::mem::size_of_val(data)) as f64 / best.as_secs_f64() / 1e9
}

/// Shortest of `tries` runs.
pub fn best_of(tries: usize, mut work: impl FnMut()) -> Duration {
    let run = |_| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..tries.max(1)).map(run).min().unwrap_or_default()
}

const PEAK_CHAINS: usize = 12;

struct Peak {
    rounds: usize,
}

impl Kernel for Peak {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (a, b) = (simd.splat(black_box(0.999)), simd.splat(black_box(1e-3)));
        let mut sums = [simd.splat(1.0); PEAK_CHAINS];
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = simd.fma(*sum, a, b);
            }
        }
        sums.iter().map(|sum| simd.reduce_add(*sum)).sum()
    }
}

struct Read<'a> {
    data: &'a [f32],
}

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.splat(0.0); 4];
        for lines in self.data.as_chunks::<16>().0.as_chunks::<4>().0 {
            for (sum, line) in sums.iter_mut().zip(lines) {
                *sum = simd.add(*sum, simd.load(line));
            }
        }
        sums.iter().map(|sum| simd.reduce_add(*sum)).sum()
    }
}
