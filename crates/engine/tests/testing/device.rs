//! Small models on a device.

use std::path::Path;
use std::sync::Arc;

use riffle_cuda::{CudaError, EmulatedOptions, Gpu, KernelCache};
use riffle_engine::{Engine, EngineError, EngineOptions, Session};
use riffle_kv::DiskTier;

use super::{fixture, go_on, largest_difference};

/// Two query heads per KV head and f32 weights, so that only attention rounds differently from the CPU.
pub const MODEL: &str = "vectors/group2-dim32-rope-parameters-f32";

/// An emulated device, or the GPU whose number RIFFLE_TEST_GPU gives.
pub fn any_device() -> Gpu {
    match std::env::var("RIFFLE_TEST_GPU") {
        Ok(number) => Gpu::open(number.parse().expect("a number"), KernelCache::of_user()).expect("a GPU"),
        Err(_) => gpu(EmulatedOptions::default()),
    }
}

pub fn gpu(options: EmulatedOptions) -> Gpu {
    Gpu::emulated(options, KernelCache::of_user()).expect("g++ compiles the kernels")
}

pub fn options(device: Option<Gpu>) -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(500))
        .with_batch_tokens(128)
        .with_chunk_tokens(64)
        .with_page_tokens(64)
        .with_device(device.map(|gpu| Arc::new(gpu) as _))
}

/// The GPU's error inside an engine's error.
pub fn gpu_error(error: &EngineError) -> Option<&CudaError> {
    match error {
        EngineError::Device(error) => error.downcast_ref(),
        _ => None,
    }
}

/// Logits after a prompt and after each of two more tokens.
pub fn logits(engine: &Arc<Engine>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut session = Session::new(engine).unwrap();
    session.prefill(tokens, &mut go_on).unwrap();
    let mut all = vec![session.logits().to_vec()];
    for token in [7, 11] {
        session.advance(token).unwrap();
        all.push(session.logits().to_vec());
    }
    all
}

pub fn load(path: &Path, options: EngineOptions) -> Arc<Engine> {
    Engine::load(path, options).unwrap()
}

/// The largest difference as a share of the largest logit.
pub fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let (a, b) = (a.concat(), b.concat());
    let largest = b.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
    largest_difference(&a, &b) / largest
}

/// Options with the fewest possible pages on the device, and `slots` pages in transit.
pub fn far(device: &Gpu, slots: usize, pages: u64) -> EngineOptions {
    let mut options = options(Some(device.clone()));
    options.cache.kv_tiers.slots = slots;
    // 2 KV heads of 32 dimensions, keys and values. The budget holds the ring's pages and `pages` more.
    let page = 64 * 32 * 2 * 2;
    options.cache.kv_tiers.device_budget_bytes = (16 + slots as u64 + pages) * page;
    options
}

/// Tiers with `leasts` times the least RAM, and a disk.
pub fn with_disk(mut options: EngineOptions, folder: &Path, leasts: u64) -> EngineOptions {
    options.cache.kv_tiers.ram_budget_bytes = Some(0);
    options.cache.kv_tiers.disk = Some(DiskTier {
        folder: folder.to_owned(),
        budget_bytes: None,
    });
    let info = riffle_model::inspect(fixture(MODEL)).unwrap();
    let least = riffle_engine::plan(&info, &options).unwrap().kv_tiers.least_near_bytes;
    options.cache.kv_tiers.ram_budget_bytes = Some(leasts * least);
    options
}
