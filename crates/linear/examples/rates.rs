//! Compares rates of weight formats with the machine's limits, in turns within one run: `cargo run --release -p
//! riffle-linear --example rates [-- SIZE.. FORMAT.. tokens=COUNT.. rounded]`

use std::hint::black_box;
use std::time::Instant;

use riffle_linear::{Activations, PackedMatrix, WeightFormat};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let sizes: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![2048, 4096] } else { sizes };
    let named = |format: &WeightFormat| words.iter().any(|word| word == format.name());
    let all = !WeightFormat::ALL.iter().any(named);
    let counts: Vec<usize> = words
        .iter()
        .filter_map(|word| word.strip_prefix("tokens=")?.parse().ok())
        .collect();
    let counts = if counts.is_empty() { vec![1, 8, 64, 512] } else { counts };
    let activations = if words.iter().any(|word| word == Activations::Rounded.name()) {
        Activations::Rounded
    } else {
        Activations::Exact
    };
    let mut limits = Limits {
        peak: multiply_add_peak(),
        memory: Memory::new(),
    };
    println!("threads {}", rayon::current_num_threads());
    println!("multiply-add peak, f32: {:.0} GFLOP/s", limits.peak);
    println!(
        "{:>6} {:>6} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "format", "size", "tokens", "µs", "GFLOP/s", "GB/s", "of limit"
    );
    for &format in WeightFormat::ALL.iter().filter(|format| all || named(format)) {
        for &size in &sizes {
            let matrices = copies(format, size, activations);
            for &tokens in &counts {
                limits.compare(&matrices, tokens);
            }
        }
    }
}

/// A square matrix, in enough copies that one token finds no weights in a cache.
fn copies(format: WeightFormat, size: usize, activations: Activations) -> Vec<PackedMatrix> {
    let row_bytes = format.row_bytes(size).expect("whole blocks");
    // Small numbers in every format. Rates do not depend on the values, except for subnormal ones.
    let mut bytes: Vec<u8> = (0..size * row_bytes)
        .map(|index| if index % 2 == 1 { 0x2c } else { index as u8 })
        .collect();
    if format == WeightFormat::Mxfp4 {
        bytes
            .iter_mut()
            .step_by(format.block_bytes())
            .for_each(|scale| *scale = 120);
    }
    let copies = (192 << 20) / bytes.len() + 1;
    (0..copies)
        .map(|_| PackedMatrix::pack(format, size, size, &bytes).expect("the bytes fit the shape"))
        .map(|matrix| matrix.with_activations(activations))
        .collect()
}

/// The limits of the machine: its peak rate and its memory.
struct Limits {
    /// GFLOP/s.
    peak: f64,
    memory: Memory,
}

impl Limits {
    /// Prints the rates of products of `tokens` rows beside the tighter limit.
    fn compare(&mut self, matrices: &[PackedMatrix], tokens: usize) {
        let (format, size) = (matrices[0].format(), matrices[0].in_features());
        let input: Vec<f32> = (0..tokens * size).map(|index| (index % 17) as f32 - 8.0).collect();
        let mut output = vec![0.0; tokens * size];
        let mut next = 0;
        let mut product = || {
            matrices[next % matrices.len()].matmul(black_box(&input), black_box(&mut output));
            next += 1;
        };
        // One token is limited by memory, whose rate varies with other load, so measurements alternate.
        let mut read_seconds = f64::INFINITY;
        let seconds = best_seconds(|| {
            if tokens == 1 {
                read_seconds = read_seconds.min(seconds_of(|| self.memory.read_part()));
            }
            seconds_of(&mut product)
        });
        let rate = 2.0 * (tokens * size * size) as f64 / seconds / 1e9;
        let row_bytes = format.row_bytes(size).expect("whole blocks");
        let bytes_rate = (size * row_bytes) as f64 / seconds;
        let share = match tokens {
            1 => bytes_rate / (PART_BYTES as f64 / read_seconds),
            _ => rate / self.peak,
        };
        println!(
            "{:>6} {size:>6} {tokens:>7} {:>9.1} {rate:>9.1} {:>9.1} {:>8.0}%",
            format.name(),
            seconds * 1e6,
            bytes_rate / 1e9,
            100.0 * share
        );
    }
}

fn seconds_of(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// The fastest repetition: other programs only slow a run down.
fn best_seconds(mut seconds: impl FnMut() -> f64) -> f64 {
    seconds();
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    let mut runs = 0;
    while runs < 5 || begin.elapsed().as_secs_f64() < 0.5 {
        best = best.min(seconds());
        runs += 1;
    }
    best
}

/// GFLOP/s of independent multiply-adds in registers on every thread.
fn multiply_add_peak() -> f64 {
    const STEPS: usize = 1 << 20;
    let seconds = best_seconds(|| {
        seconds_of(|| {
            rayon::broadcast(|_| black_box(spin(STEPS)));
        })
    });
    2.0 * (STEPS * CHAINS * rayon::current_num_threads()) as f64 * 16.0 / seconds / 1e9
}

const CHAINS: usize = 12;

fn spin(steps: usize) -> f32 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: AVX-512 F was detected.
            return unsafe { spin_avx512(steps) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: AVX2 and FMA were detected.
            return unsafe { spin_avx2(steps) };
        }
    }
    spin_plain(steps)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn spin_avx512(steps: usize) -> f32 {
    use core::arch::x86_64::*;
    let factor = _mm512_set1_ps(black_box(0.999));
    let mut sums = [factor; CHAINS];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, factor);
        }
    }
    sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn spin_avx2(steps: usize) -> f32 {
    use core::arch::x86_64::*;
    let factor = _mm256_set1_ps(black_box(0.999));
    let mut sums = [[factor; 2]; CHAINS / 2];
    for _ in 0..2 * steps {
        for sum in sums.as_flattened_mut() {
            *sum = _mm256_fmadd_ps(*sum, factor, factor);
        }
    }
    sums.as_flattened().iter().map(|sum| _mm256_cvtss_f32(*sum)).sum()
}

fn spin_plain(steps: usize) -> f32 {
    let factor = black_box(0.999f32);
    let mut sums = [[factor; 16]; CHAINS];
    for _ in 0..steps {
        for sum in sums.as_flattened_mut() {
            *sum = sum.mul_add(factor, factor);
        }
    }
    sums.as_flattened().iter().sum()
}

/// Bytes of a part: enough to time a pass, and so few that at least one pass is not interrupted.
const PART_BYTES: usize = 32 << 20;

/// 512 MiB in huge pages, read in parts by all threads.
struct Memory {
    mapping: memmap2::MmapMut,
    part: usize,
}

impl Memory {
    fn new() -> Memory {
        let mut mapping = memmap2::MmapMut::map_anon(512 << 20).expect("memory for the bandwidth test");
        riffle_system::memory::prefer_huge_pages(&mapping);
        mapping.fill(1);
        Memory { mapping, part: 0 }
    }

    fn read_part(&mut self) {
        let parts: Vec<&[u8]> = self.mapping.chunks_exact(PART_BYTES).collect();
        let words: &[u64] = bytemuck::cast_slice(parts[self.part % parts.len()]);
        self.part += 1;
        let share = words.len() / rayon::current_num_threads();
        black_box(rayon::broadcast(|thread| {
            read(&words[thread.index() * share..][..share])
        }));
    }
}

fn read(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: AVX-512 F was detected.
        return unsafe { read_avx512(words) };
    }
    read_plain(words)
}

/// Loads and prefetches as the kernels do.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn read_avx512(words: &[u64]) -> u64 {
    use core::arch::x86_64::*;
    let mut sums = [_mm512_setzero_si512(); 4];
    for lines in words.as_chunks::<32>().0 {
        for (sum, line) in sums.iter_mut().zip(lines.as_chunks::<8>().0) {
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast::<i8>().wrapping_add(8192));
            *sum = _mm512_xor_si512(*sum, bytemuck::must_cast(*line));
        }
    }
    sums.into_iter()
        .fold(0, |all, sum| all ^ _mm512_reduce_add_epi64(sum) as u64)
}

#[inline(always)]
fn read_plain(words: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for chunk in words.as_chunks::<32>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum ^= word;
        }
    }
    sums.iter().fold(0, |a, b| a ^ b)
}
