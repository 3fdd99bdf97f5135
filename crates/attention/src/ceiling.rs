//! What this machine could do at best: the figures that the kernels are measured against.

use core::hint::black_box;
use std::time::{Duration, Instant};

use crate::simd::{Kernel, Level, Simd};

/// Name of the instructions the kernels use here: `avx512`, `avx2`, `neon` or `scalar`.
pub fn instructions() -> &'static str {
    Level::best().name()
}

/// Peak rate of f32 multiply-adds of one thread at the kernels' vector width, in GFLOP/s, best of several tries.
pub fn multiply_add_gflops() -> f64 {
    const ROUNDS: usize = 20_000;
    let best = best_of_thread_time(40, || {
        black_box(Level::best().run(Peak { rounds: ROUNDS }));
    });
    (ROUNDS * PEAK_CHAINS * 32) as f64 / best.as_secs_f64() / 1e9
}

/// Rate at which one thread reads `data`, in GB/s: make it larger than the caches to measure memory.
pub fn read_gigabytes_per_second(data: &[f32]) -> f64 {
    let best = best_of_thread_time(10, || {
        black_box(Level::best().run(Read { data: black_box(data) }));
    });
    (core::mem::size_of_val(data)) as f64 / best.as_secs_f64() / 1e9
}

/// Shortest of `tries` runs, by the clock on the wall.
pub fn best_of(tries: usize, mut work: impl FnMut()) -> Duration {
    let run = |_| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..tries.max(1)).map(run).min().unwrap_or_default()
}

/// Shortest of `tries` runs by this thread's own processor time where the system tells it (Linux), so that
/// other work on the machine counts less. Only for work that stays on one thread.
pub fn best_of_thread_time(tries: usize, mut work: impl FnMut()) -> Duration {
    if thread_time().is_none() {
        return best_of(tries, work);
    }
    let run = |_| {
        let (start, wall) = (thread_time().unwrap_or_default(), Instant::now());
        work();
        let wall = wall.elapsed();
        // The system counts in ticks of some milliseconds: short runs are better timed by the wall.
        if wall < Duration::from_millis(50) {
            return wall;
        }
        thread_time().unwrap_or_default().saturating_sub(start)
    };
    (0..tries.max(1)).map(run).min().unwrap_or_default()
}

fn thread_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
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
