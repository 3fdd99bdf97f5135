//! `--device`: CUDA devices, in builds with the feature `cuda`.

use std::sync::Arc;

use riffle_engine::{ComputeDevice, DeviceError};
use riffle_eval::{AttentionCase, DeviceReport, EvalError, Journal, StepWatch};

/// A CUDA device.
#[cfg(feature = "cuda")]
pub(crate) use riffle_cuda::Gpu;

/// A CUDA device; this build has none.
#[cfg(not(feature = "cuda"))]
pub(crate) enum Gpu {}

/// Opens the CUDA device of a number.
#[cfg(feature = "cuda")]
pub(crate) fn gpu(ordinal: usize) -> Result<Gpu, DeviceError> {
    Ok(Gpu::open(ordinal, riffle_cuda::KernelCache::of_user())?)
}

/// Refuses: this build has no CUDA devices.
#[cfg(not(feature = "cuda"))]
pub(crate) fn gpu(_ordinal: usize) -> Result<Gpu, DeviceError> {
    Err(DeviceError::new(
        "this riffle was built without CUDA: build it with `cargo install --path crates/cli --features cuda`, or use --device cpu",
    ))
}

/// The CUDA device with this number, for an engine.
pub(crate) fn open(ordinal: usize) -> Result<Arc<dyn ComputeDevice>, DeviceError> {
    #[cfg(feature = "cuda")]
    return Ok(Arc::new(gpu(ordinal)?));
    #[cfg(not(feature = "cuda"))]
    match gpu(ordinal)? {}
}

/// Measures cases of attention on a GPU, for `riffle bench attention`.
pub(crate) fn measure(
    gpu: &Gpu,
    cases: &[AttentionCase],
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<DeviceReport, EvalError> {
    #[cfg(feature = "cuda")]
    return riffle_cuda_rates::measure_device(gpu, cases, &Default::default(), journal, watch);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (cases, journal, watch);
        match *gpu {}
    }
}
