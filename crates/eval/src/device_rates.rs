//! Results of device measurements, which `riffle-cuda-rates` makes.

use serde::{Deserialize, Serialize};

/// Ceilings and rates of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// The device.
    pub device: String,
    /// Rate of this program's own bf16 product of matrices of 4096; a library's belongs beside it (`crates/cuda/scripts/gpu`).
    pub matmul_teraflops: f64,
    /// Rate of a copy on the device, bytes read and written, in GB/s.
    pub copy_gigabytes_per_s: f64,
    /// Rate of a copy from pinned main memory to the device, in GB/s.
    pub upload_gigabytes_per_s: f64,
    /// A row for each case.
    pub rates: Vec<DeviceRate>,
    /// Dense calls with pages that come from main memory: a decode, and a chunk of a prompt.
    pub offload: Vec<OffloadRate>,
    /// Dense calls on two layers in turn, the first pages of each read ahead: a decode, and a chunk of a prompt.
    pub ahead: Vec<AheadRate>,
    /// Calls under policies, selection included.
    pub policies: Vec<DevicePolicyRate>,
}

/// Times of a case on the device, beside the ceilings of the same run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceRate {
    /// The case: `prefill f16 512x4096 d128`.
    pub name: String,
    /// Median milliseconds of the kernels, by events.
    pub median_ms: f64,
    /// Useful arithmetic: four operations a pair and dimension, in TFLOP/s.
    pub teraflops: f64,
    /// Share of the rate of [`DeviceReport::matmul_teraflops`].
    pub matmul_share: f64,
    /// K and V read once, in GB/s.
    pub gigabytes_per_s: f64,
    /// Share of [`DeviceReport::copy_gigabytes_per_s`].
    pub copy_share: f64,
    /// Share of causal pairs that the selection reads.
    pub density: f64,
    /// Time of a sparse case divided by density times the dense case's time; `None` if no dense case of the shape was
    /// measured.
    pub over_density: Option<f64>,
    /// ‖o − ô‖ / ‖o‖ of the last query against the f64 reference on the same cache.
    pub relative_error: f64,
    /// For a prefill, one row for each kind of matrix instructions; the figures above belong to the chosen kind.
    #[serde(default)]
    pub instructions: Vec<InstructionRate>,
}

/// Time of a prefill with one kind of matrix instructions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstructionRate {
    /// `mma` or `wgmma`.
    pub name: String,
    /// True if the device takes them.
    pub is_chosen: bool,
    /// Median milliseconds, by events.
    pub median_ms: f64,
    /// Share of the rate of [`DeviceReport::matmul_teraflops`].
    pub matmul_share: f64,
    /// As [`DeviceRate::relative_error`].
    pub relative_error: f64,
}

/// A dense call whose pages come from pinned main memory, beside one whose pages lie on the device; by events around the call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OffloadRate {
    /// Queries.
    pub rows: usize,
    /// Keys.
    pub tokens: usize,
    /// Median milliseconds of a call that brings every page.
    pub median_ms: f64,
    /// Median milliseconds of the same call with every page on the device.
    pub resident_ms: f64,
    /// Pages that came, in GB/s.
    pub gigabytes_per_s: f64,
    /// Share of [`DeviceReport::upload_gigabytes_per_s`].
    pub upload_share: f64,
    /// Copying and computing are measured apart. This share of the shorter passed behind the longer.
    pub overlap_share: f64,
    /// True if both gave the same bits.
    pub same_bits: bool,
}

/// Dense calls on two layers in turn with other work of the device between them, every page in pinned main memory; by
/// events around all of them. One run copies a layer's first pages during the work before the layer; the other run
/// copies none ahead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AheadRate {
    /// Queries.
    pub rows: usize,
    /// Keys.
    pub tokens: usize,
    /// Median milliseconds of a call and the work behind it.
    pub median_ms: f64,
    /// The same with nothing read ahead.
    pub without_ms: f64,
    /// Milliseconds of the work behind a call alone.
    pub between_ms: f64,
    /// Share of the arriving pages that came ahead.
    pub ahead_share: f64,
    /// Time saved by a call, as a share of the time that copying the pages ahead takes by itself.
    pub overlap_share: f64,
    /// True if both gave the same bits.
    pub same_bits: bool,
}

/// A call under a policy, its selection included, by the wall clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DevicePolicyRate {
    /// The policy with its parameters.
    pub policy: String,
    /// Queries.
    pub rows: usize,
    /// Keys.
    pub tokens: usize,
    /// Median milliseconds with every page on the device.
    pub median_ms: f64,
    /// Milliseconds of the selection, included in `median_ms`.
    pub select_ms: f64,
    /// Median milliseconds of the dense call, every page on the device.
    pub dense_ms: f64,
    /// `dense_ms / median_ms`.
    pub speedup: f64,
    /// Median milliseconds with pages in main memory.
    pub offloaded_ms: f64,
    /// `median_ms / offloaded_ms`.
    pub offloaded_share: f64,
    /// Share of causal pairs that the selection reads.
    pub density: f64,
    /// True if what was chosen and what came of it are the same to the bit, wherever pages lie.
    pub same_bits: bool,
}
