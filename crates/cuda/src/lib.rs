//! Riffle on an NVIDIA GPU: kernels, their memory, and their streams.
//!
//! - A [`Gpu`] is a device, from [`Gpu::open`] (an NVIDIA driver found at run time, feature `cuda`) or `Gpu::emulated`
//!   (the same kernels compiled by g++ for the CPU, for tests, feature `emulated`). It is a
//!   [`riffle_device::ComputeDevice`] for the engine.
//! - [`DeviceBuffer`], [`PinnedBuffer`], [`Stream`] and [`Event`] own memory and order work.
//! - [`ops`] launches the kernels: it checks shapes and queues. Attention reads pages in place through page tables
//!   ([`ops::Pages`]), under selections flattened by [`ops::Reads`]. `kernels/pages.cuh` defines the layout of planes,
//!   a permutation of the CPU's bytes ([`ops::plane_to_device`]). Policy scores (compared with x86 CPUs with fused
//!   multiply-add), appended planes and gathered embeddings have the CPU's bits. Attention and products of many rows
//!   round to 16 or 8 bits for the tensor cores.
//! - A [`DeviceModel`] is a decoder with its weights on the device, and a [`DeviceForward`] takes batches through it.
//!   Recurrent layers load the state of each segment from main memory and store it back. The caches lie completely in
//!   [`PinnedMemory`]; a [`DeviceRoom`] keeps as many of their pages on the device as its budget allows. A
//!   [`PagedCall`] attends to pages in both places, and a [`KeyScan`] estimates over keys.
//! - Kernels are compiled at first use, by NVRTC or g++, and kept in a [`KernelCache`]. `scripts/check-kernels`
//!   compiles all of `kernels/variants.txt` without a GPU.
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
