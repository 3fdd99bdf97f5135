use std::fmt;
use std::sync::Arc;

use super::guarded::Readers;
use super::{Direction, Gpu, PinnedBuffer, Product16, Region};
use crate::CudaError;

/// A queue of work. Work of one stream runs in order, concurrently with other streams.
pub struct Stream {
    gpu: Gpu,
    handle: u64,
    owned: bool,
}

impl Stream {
    pub(super) fn new(gpu: Gpu) -> Result<Self, CudaError> {
        let handle = gpu.driver().create_stream()?;
        let owned = true;
        Ok(Self { gpu, handle, owned })
    }

    pub(super) fn borrowed(gpu: Gpu, handle: u64) -> Self {
        let owned = false;
        Self { gpu, handle, owned }
    }

    /// The device of this stream.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns when everything queued has run.
    ///
    /// # Errors
    /// The failure of a queued kernel or copy.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.gpu.driver().synchronize(self.handle) }
    }

    /// Queues a mark; `event` passes when everything queued before has run.
    ///
    /// # Errors
    /// A lost device.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both live for the call, which is all the driver needs.
        unsafe { self.gpu.driver().record(event.handle, self.handle) }
    }

    /// Makes later work of this stream wait until the event's latest mark has passed.
    ///
    /// # Errors
    /// A lost device.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: as in `record`.
        unsafe { self.gpu.driver().wait(self.handle, event.handle) }
    }

    /// Queues a copy of `from[offset..]` that fills `to`. The buffer must not be written before it has run.
    ///
    /// # Errors
    /// A buffer that is too short, a lost device.
    pub fn to_device(&self, to: Region<'_>, from: &PinnedBuffer, offset: usize) -> Result<(), CudaError> {
        check_host(from, offset, to.bytes())?;
        let source = from.address() + offset as u64;
        // SAFETY: both ranges were checked; buffers are freed only after everything queued has run.
        unsafe { self.copy(Direction::Upload, to.address(), source, to.bytes()) }
    }

    /// Copies slices of main memory to regions of the same size, and returns after the copies. The device reads
    /// slices of pinned memory itself, one after another without a pause.
    ///
    /// # Errors
    /// Different sizes, a lost device.
    pub fn upload_all(&self, copies: &[(Region<'_>, &[u8])]) -> Result<(), CudaError> {
        for (to, from) in copies {
            check_bytes(to.bytes(), from.len())?;
        }
        let queued = copies.iter().try_for_each(|(to, from)| {
            // SAFETY: the sizes agree, and neither side is freed before the copies have run or failed.
            unsafe { self.copy(Direction::Upload, to.address(), from.as_ptr() as u64, from.len()) }
        });
        let run = self.synchronize();
        queued.and(run)
    }

    /// Queues copies of slices of main memory to regions of their size and then `done`, and returns at once. A
    /// [`GuardedBuffer`](super::GuardedBuffer) owns the memory and waits for `done` before it changes or frees it.
    /// Returns false and queues nothing if a slice has another owner.
    pub(crate) fn upload_behind(&self, copies: &[(Region<'_>, &[u8])], done: &Arc<Event>) -> Result<bool, CudaError> {
        for (to, from) in copies {
            check_bytes(to.bytes(), from.len())?;
        }
        let readers = {
            let guarded = self.gpu.guarded();
            let readers = copies.iter().map(|(_, from)| guarded.readers_of(from));
            readers.collect::<Option<Vec<Arc<Readers>>>>()
        };
        let Some(readers) = readers else { return Ok(false) };
        let queued = copies.iter().try_for_each(|(to, from)| {
            // SAFETY: the sizes agree. Before the borrow of `from` ends its owner is told to wait for the mark, or the
            // copies have run; regions lie in buffers that are freed only after everything queued has run.
            unsafe { self.copy(Direction::Upload, to.address(), from.as_ptr() as u64, from.len()) }
        });
        let marked = queued.and_then(|()| self.record(done));
        match &marked {
            Ok(()) => readers.iter().for_each(|readers| readers.add(done)),
            // A lost device does not copy any more.
            Err(_) => drop(self.synchronize()),
        }
        marked.map(|()| true)
    }

    /// Queues a copy of `from` to `to[offset..]`; the bytes are valid after the stream was waited for.
    ///
    /// # Errors
    /// A buffer that is too short, a lost device.
    pub fn from_device(&self, to: &mut PinnedBuffer, offset: usize, from: Region<'_>) -> Result<(), CudaError> {
        check_host(to, offset, from.bytes())?;
        let target = to.address() + offset as u64;
        // SAFETY: as in `to_device`.
        unsafe { self.copy(Direction::Download, target, from.address(), from.bytes()) }
    }

    /// Queues a copy from region to region of the same size.
    ///
    /// # Errors
    /// Sizes that differ, a lost device.
    pub fn copy_on_device(&self, to: Region<'_>, from: Region<'_>) -> Result<(), CudaError> {
        check_bytes(to.bytes(), from.bytes())?;
        // SAFETY: as in `to_device`.
        unsafe { self.copy(Direction::Within, to.address(), from.address(), to.bytes()) }
    }

    /// Queues a fill with a byte.
    ///
    /// # Errors
    /// A lost device.
    pub fn fill(&self, to: Region<'_>, byte: u8) -> Result<(), CudaError> {
        if to.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: the region lies in a buffer that is freed only after everything queued has run.
        unsafe { self.gpu.driver().fill(self.handle, to.address(), byte, to.bytes()) }
    }

    /// Queues a product of 16-bit matrices in the library; false if there is no library or it has none for the shape.
    /// Wrappers in `ops` have checked that the regions hold the matrices.
    pub(crate) fn multiply_16_bit(
        &self,
        product: &Product16,
        output: Region<'_>,
        weights: Region<'_>,
        input: Region<'_>,
    ) -> Result<bool, CudaError> {
        let (output, weights, input) = (output.address(), weights.address(), input.address());
        // SAFETY: the wrapper has checked the sizes; buffers are freed only after everything queued has run.
        unsafe {
            self.gpu
                .driver()
                .multiply_16_bit(self.handle, product, output, weights, input)
        }
    }

    /// Queues a kernel; a grid without blocks does nothing. Wrappers in `ops` have checked that the kernel stays within
    /// the regions of its arguments.
    pub(crate) fn launch(&self, kernel: &Kernel, grid: Grid, arguments: &[Argument]) -> Result<(), CudaError> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let limits = [i32::MAX as u32, 65_535, 65_535];
        for (value, limit) in grid.blocks.into_iter().zip(limits) {
            if value > limit {
                return Err(CudaError::Unsupported {
                    what: "blocks of a kernel",
                    value: value as usize,
                    requirement: "at most 65535 in y and z",
                });
            }
        }
        // SAFETY: the module of the kernel stays loaded, its wrapper gives the arguments of its signature and has
        // checked the sizes; buffers are freed only after everything queued has run.
        unsafe { self.gpu.driver().launch(self.handle, kernel.function, &grid, arguments) }
    }

    unsafe fn copy(&self, direction: Direction, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller keeps the contract of this call.
        unsafe { self.gpu.driver().copy(self.handle, direction, to, from, bytes) }
    }
}

fn check_bytes(expected: usize, found: usize) -> Result<(), CudaError> {
    let what = "bytes of a copy";
    if expected == found {
        Ok(())
    } else {
        Err(CudaError::Mismatch { what, expected, found })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: the handle is live and destroyed here alone.
            unsafe { self.gpu.driver().destroy_stream(self.handle) }
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

fn check_host(buffer: &PinnedBuffer, offset: usize, bytes: usize) -> Result<(), CudaError> {
    let needed_bytes = offset.saturating_add(bytes);
    if needed_bytes > buffer.bytes().len() {
        return Err(CudaError::Short {
            what: "pinned buffer",
            needed_bytes,
            found_bytes: buffer.bytes().len(),
        });
    }
    Ok(())
}

/// A point in a stream.
pub struct Event {
    gpu: Gpu,
    handle: u64,
}

impl Event {
    pub(super) fn new(gpu: Gpu) -> Result<Self, CudaError> {
        let handle = gpu.driver().create_event()?;
        Ok(Self { gpu, handle })
    }

    /// Returns when the latest mark has passed.
    ///
    /// # Errors
    /// The failure of the work queued before it.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives as long as `self`.
        unsafe { self.gpu.driver().synchronize_event(self.handle) }
    }

    /// Milliseconds from `start` to this mark; both have passed.
    ///
    /// # Errors
    /// Marks that have not passed.
    pub fn elapsed_ms_since(&self, start: &Event) -> Result<f32, CudaError> {
        // SAFETY: both live for the call; the driver refuses marks that have not passed.
        unsafe { self.gpu.driver().elapsed_ms(start.handle, self.handle) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is live and destroyed here alone.
        unsafe { self.gpu.driver().destroy_event(self.handle) }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

/// A compiled kernel.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    pub(super) function: u64,
    name: &'static str,
}

impl Kernel {
    pub(super) fn new(function: u64, name: &'static str) -> Self {
        Self { function, name }
    }

    /// The kernel's name in the source.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block in x, y and z; their product is a multiple of 32.
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
}

impl Grid {
    /// `blocks` blocks in x, with `threads` threads each.
    pub fn line(blocks: usize, threads: u32) -> Self {
        Self::new([blocks, 1, 1], threads)
    }

    /// Blocks in three dimensions, with `threads` threads each. A launch refuses numbers that are too large for a
    /// kernel.
    pub fn new(blocks: [usize; 3], threads: u32) -> Self {
        Self {
            blocks: blocks.map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
            threads: [threads, 1, 1],
            shared_bytes: 0,
        }
    }

    /// Sets the bytes of dynamic shared memory.
    pub fn with_shared(mut self, bytes: usize) -> Self {
        self.shared_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self
    }
}

/// An argument of a kernel, by value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Argument {
    /// A device address; zero if the kernel allows none.
    Address(u64),
    /// A 64-bit number.
    U64(u64),
    /// A 32-bit number.
    U32(u32),
    /// A float.
    F32(f32),
}

impl Argument {
    pub(super) fn bytes(&self) -> ([u8; 8], usize) {
        let mut bytes = [0; 8];
        match self {
            Self::Address(value) | Self::U64(value) => bytes = value.to_ne_bytes(),
            Self::U32(value) => bytes[..4].copy_from_slice(&value.to_ne_bytes()),
            Self::F32(value) => bytes[..4].copy_from_slice(&value.to_ne_bytes()),
        }
        let width = if matches!(self, Self::Address(_) | Self::U64(_)) {
            8
        } else {
            4
        };
        (bytes, width)
    }
}

impl From<Region<'_>> for Argument {
    fn from(region: Region<'_>) -> Self {
        Self::Address(region.address())
    }
}

impl From<Option<Region<'_>>> for Argument {
    fn from(region: Option<Region<'_>>) -> Self {
        Self::Address(region.map_or(0, |region| region.address()))
    }
}

impl From<f32> for Argument {
    fn from(value: f32) -> Self {
        Self::F32(value)
    }
}

impl From<u32> for Argument {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<u64> for Argument {
    fn from(value: u64) -> Self {
        Self::U64(value)
    }
}
