//! Rates of Riffle on an NVIDIA GPU: kernels beside the device's limits, layers by the place of their pages, policies
//! including their selection.
//!
//! [`measure_device`] measures all of it by events of the device and returns a [`riffle_eval::DeviceReport`], which the
//! laboratory records like its own.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use riffle_cuda::{Gpu, KernelCache};
//! use riffle_cuda_rates::{DeviceCeilings, measure_device};
//! use riffle_eval::{Journal, device_cases};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gpu = Gpu::open(0, KernelCache::of_user())?;
//! let (sizes, mut journal) = (DeviceCeilings::default(), Journal::none());
//! let report = measure_device(&gpu, &device_cases(), &sizes, &mut journal, &mut |_| ControlFlow::Continue(()))?;
//! println!("{}: products at {:.0} TFLOP/s", report.device, report.matmul_teraflops);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod kernels;
mod layer;

pub use kernels::{DeviceCeilings, measure_device};
