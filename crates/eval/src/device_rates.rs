//! Results of the device measurements of `riffle-cuda-rates`.

use serde::{Deserialize, Serialize};

/// Ceilings and rates of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// The device.
    pub device: String,
    /// Rate of this program's bf16 product of matrices of size 4096. `crates/cuda/scripts/gpu` adds a library's rate.
    pub matmul_teraflops: f64,
    /// Rate of a copy on the device, bytes read and written, in GB/s.
    pub copy_gigabytes_per_s: f64,
    /// Rate of a copy from pinned main memory to the device, in GB/s.
    pub upload_gigabytes_per_s: f64,
    /// A row for each case.
    pub rates: Vec<DeviceRate>,
    /// Dense calls with pages from main memory: a decode, and a chunk of a prompt.
    pub offload: Vec<OffloadRate>,
    /// Dense calls that alternate between two layers and copy each layer's first pages ahead: a decode, and a chunk
    /// of a prompt.
    pub ahead: Vec<AheadRate>,
    /// Calls under policies, selection included.
    pub policies: Vec<DevicePolicyRate>,
}

/// Times of a case on the device, and the limits measured in the same run.
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
    /// Rate at which the keys and values are read once, in GB/s.
    pub gigabytes_per_s: f64,
    /// Share of [`DeviceReport::copy_gigabytes_per_s`].
    pub copy_share: f64,
    /// Share of causal pairs in the selection.
    pub density: f64,
    /// Time of a sparse case divided by density times the dense case's time; `None` without a measured dense case of
    /// this shape.
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
    /// True if the device selects these instructions.
    pub is_chosen: bool,
    /// Median milliseconds, by events.
    pub median_ms: f64,
    /// Share of the rate of [`DeviceReport::matmul_teraflops`].
    pub matmul_share: f64,
    /// As [`DeviceRate::relative_error`].
    pub relative_error: f64,
}

/// A dense call with pages from pinned main memory, and the same call with pages on the device. Events around the
/// call measure the time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OffloadRate {
    /// Queries.
    pub rows: usize,
    /// Keys.
    pub tokens: usize,
    /// Median milliseconds of a call that copies every page.
    pub median_ms: f64,
    /// Median milliseconds of the same call with every page on the device.
    pub resident_ms: f64,
    /// Rate of the page copies, in GB/s.
    pub gigabytes_per_s: f64,
    /// Share of [`DeviceReport::upload_gigabytes_per_s`].
    pub upload_share: f64,
    /// Share of the shorter of copying and computing, each measured alone, that the longer one hides.
    pub overlap_share: f64,
    /// True if both calls gave the same bits.
    pub same_bits: bool,
}

/// Dense calls that alternate between two layers with other device work between them. Every page is in pinned main
/// memory, and events around all calls measure the time. One run copies a layer's first pages during the work before
/// the layer; the other run copies no pages ahead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AheadRate {
    /// Queries.
    pub rows: usize,
    /// Keys.
    pub tokens: usize,
    /// Median milliseconds of a call and the work after it.
    pub median_ms: f64,
    /// Median milliseconds without pages copied ahead.
    pub without_ms: f64,
    /// Milliseconds of only the work between calls.
    pub between_ms: f64,
    /// Share of the pages that were copied ahead.
    pub ahead_share: f64,
    /// Time saved per call, as a share of the time that copying the pages ahead takes alone.
    pub overlap_share: f64,
    /// True if both runs gave the same bits.
    pub same_bits: bool,
}

/// A call under a policy with its selection, in wall-clock time.
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
    /// True if selection and output have the same bits for every place of the pages.
    pub same_bits: bool,
}
