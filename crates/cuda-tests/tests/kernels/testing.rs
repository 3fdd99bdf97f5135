//! Runs each test body on the emulated device, and on a GPU if there is one.

use std::path::PathBuf;

use riffle_cuda::{EmulatedOptions, Gpu, KernelCache, Stream, has_compiler};

/// Runs `body` on each available device, and prints which ones are missing. The emulated device has all instructions.
pub(crate) fn on_every_device(body: impl Fn(&Gpu, &Stream)) {
    let cache = KernelCache::new(cache_folder());
    if has_compiler() {
        let options = EmulatedOptions {
            capability: (9, 0),
            ..EmulatedOptions::default()
        };
        let gpu = Gpu::emulated(options, cache.clone()).expect("there is a compiler");
        body(&gpu, &gpu.stream().unwrap());
    } else {
        eprintln!("skipped on the emulated device: there is no g++");
    }
    match Gpu::open(0, cache) {
        Ok(gpu) => body(&gpu, &gpu.stream().unwrap()),
        Err(error) => eprintln!("skipped on a GPU: {error}"),
    }
}

/// The emulated device with these options, or `None` without a compiler.
pub(crate) fn emulated(options: EmulatedOptions) -> Option<Gpu> {
    if !has_compiler() {
        eprintln!("skipped: there is no g++");
        return None;
    }
    Some(Gpu::emulated(options, KernelCache::new(cache_folder())).unwrap())
}

fn cache_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels")
}

/// Pseudo-random numbers from -1 to 1.
pub(crate) fn noise(count: usize, seed: usize) -> Vec<f32> {
    (0..count)
        .map(|i| {
            let mut bits = (i as u64 + 1)
                .wrapping_add(seed as u64 * 1_000_003)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15);
            bits = (bits ^ bits >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            (bits >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Asserts that differences are at most `tolerance` times the largest expected number.
#[track_caller]
pub(crate) fn assert_near(found: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1e-30f64, |most, x| most.max(x.abs()));
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(
            error <= tolerance * largest,
            "{what}: {found} at {at}, expected {expected} (largest {largest})"
        );
    }
}
