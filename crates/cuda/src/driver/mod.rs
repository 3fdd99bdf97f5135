//! Interface of a GPU for host code, and its two implementations: an NVIDIA driver and an emulation on the CPU.

#[cfg(feature = "cublaslt")]
mod blas;
mod cache;
#[cfg(feature = "emulated")]
mod emulated;
mod gpu;
mod guarded;
mod memory;
#[cfg(feature = "cuda")]
mod nvidia;
mod source;
mod stream;

use std::fmt::Debug;

pub use cache::KernelCache;
#[cfg(feature = "emulated")]
pub use emulated::{EmulatedOptions, has_compiler};
pub use gpu::Gpu;
pub(crate) use guarded::GuardedBuffer;
pub use memory::{DeviceBuffer, PinnedBuffer, Region};
pub use source::{ModuleSource, variants};
pub use stream::{Argument, Event, Grid, Kernel, Stream};

use crate::CudaError;

/// Properties of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name of the device.
    pub name: String,
    /// Major and minor compute capability.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Largest shared memory of a block, in bytes.
    pub shared_bytes_per_block: usize,
    /// Bytes of memory.
    pub memory_bytes: usize,
}

impl DeviceInfo {
    /// Refuses devices below compute capability 8.0, which lack asynchronous copies and the kernels' matrix
    /// instructions.
    pub(crate) fn check(&self) -> Result<(), CudaError> {
        if self.capability >= (8, 0) {
            Ok(())
        } else {
            Err(CudaError::Capability {
                name: self.name.clone(),
                found: self.capability,
            })
        }
    }
}

/// A product `output = input · weightsᵀ` of 16-bit matrices, `[rows, inputs]` and `[outputs, inputs]`, to f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Product16 {
    pub(crate) is_bf16: bool,
    pub(crate) rows: usize,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
}

/// Direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Upload,
    Download,
    Within,
}

/// Raw calls on handles. [`Gpu`] and the objects it creates own the handles.
///
/// Device addresses are numbers. Calls with an address or a handle are unsafe, because it must be live.
pub(crate) trait Driver: Debug + Send + Sync {
    fn info(&self) -> &DeviceInfo;
    /// Free bytes of device memory.
    fn free_bytes(&self) -> Result<usize, CudaError>;

    fn allocate(&self, bytes: usize) -> Result<u64, CudaError>;
    /// Frees after everything queued has run.
    ///
    /// # Safety
    /// `address` comes from `allocate` and is freed once.
    unsafe fn free(&self, address: u64);
    fn allocate_host(&self, bytes: usize) -> Result<*mut u8, CudaError>;
    /// Frees after everything queued has run.
    ///
    /// # Safety
    /// `pointer` comes from `allocate_host` with these bytes and is freed once.
    unsafe fn free_host(&self, pointer: *mut u8, bytes: usize);

    fn create_stream(&self) -> Result<u64, CudaError>;
    /// # Safety
    /// A live stream, destroyed once.
    unsafe fn destroy_stream(&self, stream: u64);
    /// # Safety
    /// A live stream.
    unsafe fn synchronize(&self, stream: u64) -> Result<(), CudaError>;

    fn create_event(&self) -> Result<u64, CudaError>;
    /// # Safety
    /// A live event, destroyed once.
    unsafe fn destroy_event(&self, event: u64);
    /// # Safety
    /// A live event and stream.
    unsafe fn record(&self, event: u64, stream: u64) -> Result<(), CudaError>;
    /// # Safety
    /// A live event and stream.
    unsafe fn wait(&self, stream: u64, event: u64) -> Result<(), CudaError>;
    /// # Safety
    /// A live event.
    unsafe fn synchronize_event(&self, event: u64) -> Result<(), CudaError>;
    /// # Safety
    /// Live events that have both passed.
    unsafe fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32, CudaError>;

    /// Queues a copy; host addresses are numbers too.
    ///
    /// # Safety
    /// Both ranges are live until the copy has run, a host range is pinned.
    unsafe fn copy(&self, stream: u64, direction: Direction, to: u64, from: u64, bytes: usize)
    -> Result<(), CudaError>;
    /// Queues a fill.
    ///
    /// # Safety
    /// The range is live until the fill has run.
    unsafe fn fill(&self, stream: u64, to: u64, byte: u8, bytes: usize) -> Result<(), CudaError>;

    /// The name of a library for products of 16-bit matrices. The error gives the reason if it is missing.
    fn blas(&self) -> Result<&'static str, &str>;
    /// Queues a product in that library; false if it has none for the shape.
    ///
    /// # Safety
    /// The matrices are live until the product has run.
    unsafe fn multiply_16_bit(
        &self,
        stream: u64,
        product: &Product16,
        output: u64,
        weights: u64,
        input: u64,
    ) -> Result<bool, CudaError>;

    /// Loads the module, compiling it if no compiled form is stored. The module stays as long as the driver.
    fn load(&self, source: &ModuleSource) -> Result<u64, CudaError>;
    /// A function of a loaded module, which may use all shared memory of a block.
    fn function(&self, module: u64, name: &'static str) -> Result<u64, CudaError>;
    /// Queues a launch.
    ///
    /// # Safety
    /// A live function and stream; arguments of the function's types whose memory is live until it has run, and with
    /// which it stays within that memory.
    unsafe fn launch(&self, stream: u64, function: u64, grid: &Grid, arguments: &[Argument]) -> Result<(), CudaError>;
}
