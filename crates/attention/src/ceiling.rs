//! Limits of this machine, to compare kernel speeds with.

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

/// Peak rate of one thread's products of query elements with signs of keys, in billions per second: the best of several
/// tries. A look-up of 64 bytes computes 256 of them.
pub fn sign_gproducts() -> f64 {
    const ROUNDS: usize = 20_000;
    let best = best_of_thread_time(40, || {
        black_box(Level::best().run(LookUps { rounds: ROUNDS }));
    });
    (ROUNDS * PEAK_CHAINS * 256) as f64 / best.as_secs_f64() / 1e9
}

/// Reads `data` once, as fast as one thread can.
pub fn read_once(data: &[f32]) {
    black_box(Level::best().run(Read { data: black_box(data) }));
}

/// Shortest of `tries` runs, in wall time.
fn best_of(tries: usize, mut work: impl FnMut()) -> Duration {
    let run = |_| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..tries.max(1)).map(run).min().unwrap_or_default()
}

/// Shortest of `tries` runs by this thread's processor time where the system reports it (Linux), so that other
/// programs disturb less. Only for work on one thread.
pub fn best_of_thread_time(tries: usize, mut work: impl FnMut()) -> Duration {
    if thread_time().is_none() {
        return best_of(tries, work);
    }
    // The system counts in ticks of some milliseconds. Runs much shorter than a time slice are timed by the wall
    // clock; longer ones are repeated until a tick matters little.
    let once = best_of(1, &mut work);
    if once < Duration::from_millis(3) {
        return best_of(tries, work).min(once);
    }
    let mut run = |repeats: u32| {
        let start = thread_time().unwrap_or_default();
        for _ in 0..repeats {
            work();
        }
        thread_time().unwrap_or_default().saturating_sub(start)
    };
    // Wall time cannot give the length of one run: other programs may have used the processor.
    let (mut repeats, mut spent) = (1, run(1));
    while spent < MANY_TICKS {
        repeats *= 2;
        spent = run(repeats);
    }
    let more = tries.div_ceil(repeats as usize).max(3) - 1;
    (0..more).map(|_| run(repeats)).fold(spent, Duration::min) / repeats
}

/// Run time that makes one clock tick negligible.
const MANY_TICKS: Duration = Duration::from_millis(100);

fn thread_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

const PEAK_CHAINS: usize = 12;

/// Prefetch distance of the read ceiling, in f32.
const AHEAD: usize = 4096;

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

struct LookUps {
    rounds: usize,
}

impl Kernel for LookUps {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let bytes = black_box([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]);
        let table = core::array::from_fn(|n| bytes[n % 16]);
        let mut found = [simd.load_bytes(black_box(&[7; 64])); PEAK_CHAINS];
        for _ in 0..self.rounds {
            for found in &mut found {
                *found = simd.look_up(&table, *found);
            }
        }
        let sum = found.into_iter().reduce(|a, b| simd.add_bytes(a, b));
        sum.map_or(0.0, |sum| simd.reduce_max(simd.byte_to_f32::<0>(sum)))
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
        for (at, lines) in self.data.as_chunks::<16>().0.as_chunks::<4>().0.iter().enumerate() {
            // Prefetch as the kernels do: without it one thread reads at half the rate.
            for line in 0..4 {
                simd.prefetch(self.data, 64 * at + 16 * line + AHEAD);
            }
            for (sum, line) in sums.iter_mut().zip(lines) {
                *sum = simd.add(*sum, simd.load(line));
            }
        }
        sums.iter().map(|sum| simd.reduce_add(*sum)).sum()
    }
}
