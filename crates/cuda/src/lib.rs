//! Riffle on an NVIDIA GPU: kernels, the memory they read, and the streams they run on.
//!
//! - A [`Gpu`] is a device, from [`Gpu::open`] (an NVIDIA driver found at run time, feature `cuda`) or
//!   `Gpu::emulated` (the same kernels compiled by g++ for the CPU, thread by thread, to test everything around them, feature `emulated`).
//!   It is a [`riffle_device::ComputeDevice`], which the engine takes.
//! - [`DeviceBuffer`], [`PinnedBuffer`], [`Stream`] and [`Event`] own memory and order work.
//! - [`ops`] launches the kernels: it checks shapes and queues. Attention reads pages in place through page tables
//!   ([`ops::Pages`]) under selections flattened by [`ops::Reads`]; planes lie as `kernels/pages.cuh` says, byte for byte
//!   what the CPU's hold ([`ops::plane_to_device`]). Scores that choose (beside x86 CPUs that fuse product and sum), appended
//!   planes and gathered embeddings are equal to the CPU's to the bit; attention and products of many rows round to 16 or 8
//!   bits on the way into the tensor cores.
//! - A [`DeviceModel`] is a decoder whose weights lie on the device, a [`DeviceForward`] takes batches through it; recurrent
//!   layers bring the state of each segment from main memory and take it back. A [`DeviceRoom`] keeps within a budget what it can of caches that
//!   lie whole in [`PinnedMemory`], a [`PagedCall`] attends to pages wherever they are, a [`KeyScan`] estimates over keys.
//! - Kernels are compiled at first use, by NVRTC or g++, and kept in a [`KernelCache`]. `scripts/check-kernels` compiles all
//!   of `kernels/variants.txt` without a GPU.
//!
//! ```
//! use riffle_cuda::{EmulatedOptions, Gpu, KernelCache};
//!
//! # #[cfg(feature = "emulated")] {
//! # if !riffle_cuda::has_compiler() { return Ok(()) }
//! let gpu = Gpu::emulated(EmulatedOptions::default(), KernelCache::of_user())?;
//! let stream = gpu.stream()?;
//! let numbers = gpu.upload(&[1.0f32, 2.0, 3.0])?;
//! assert_eq!(gpu.download::<f32>(numbers.all(), &stream)?, [1.0, 2.0, 3.0]);
//! # }
//! # Ok::<(), riffle_cuda::CudaError>(())
//! ```

// A build without a driver has only the drivers' common parts.
#![cfg_attr(not(any(feature = "cuda", feature = "emulated")), allow(dead_code))]

mod compute;
mod driver;
mod error;
mod model;
pub mod ops;
mod pages;

pub use driver::{
    Argument, DeviceBuffer, DeviceInfo, Event, Gpu, Grid, Kernel, KernelCache, ModuleSource, PinnedBuffer, Region,
    Stream, variants,
};
#[cfg(feature = "emulated")]
pub use driver::{EmulatedOptions, has_compiler};
pub use error::CudaError;
pub use model::{DeviceForward, DeviceModel, DeviceRows, forward_bytes};
pub use pages::{CallRows, DeviceRoom, KeyScan, PagedCall, PagedMass, PinnedMemory, RoomBytes};
pub use riffle_device::{
    AppendedTokens, HostRows, LayerPages, PagedTile, RoomOptions, ScannedHead, SequenceId, SummaryKind, TransferCount,
};
