use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(feature = "emulated")]
use super::emulated::{EmulatedDriver, EmulatedOptions};
use super::guarded::GuardedBuffers;
use super::{DeviceBuffer, DeviceInfo, Driver, Event, Kernel, KernelCache, ModuleSource, PinnedBuffer, Region, Stream};
use crate::CudaError;
use crate::ops::PrefillChoice;

/// A device, shared by its memory, streams and kernels.
#[derive(Clone)]
pub struct Gpu {
    inner: Arc<Inner>,
}

struct Inner {
    driver: Box<dyn Driver>,
    /// Functions by module and name. A module itself has the empty name.
    handles: Mutex<HashMap<(ModuleSource, &'static str), u64>>,
    /// Stream of copies that the caller waits for.
    own_stream: Mutex<Option<u64>>,
    guarded: Mutex<GuardedBuffers>,
    /// Choice of prefill instructions for each kernel.
    prefill_choices: Mutex<HashMap<ModuleSource, PrefillChoice>>,
}

impl Gpu {
    /// The NVIDIA device of this number.
    ///
    /// # Errors
    /// No driver (or a build without the feature `cuda`), no such device, or a device that is too old.
    #[cfg(feature = "cuda")]
    pub fn open(ordinal: usize, cache: KernelCache) -> Result<Self, CudaError> {
        Ok(Self::new(Box::new(super::nvidia::NvidiaDriver::open(ordinal, cache)?)))
    }

    /// The NVIDIA device of this number.
    ///
    /// # Errors
    /// Always, because this build is without the feature `cuda`.
    #[cfg(not(feature = "cuda"))]
    pub fn open(_ordinal: usize, _cache: KernelCache) -> Result<Self, CudaError> {
        Err(CudaError::NoDriver {
            reason: "riffle-cuda was built without its feature cuda".to_owned(),
        })
    }

    /// A device emulated on the CPU: the same kernels, compiled by g++. It is slow; tests use it for the code around
    /// kernels.
    ///
    /// # Errors
    /// No compiler, a compute capability below 8.0.
    #[cfg(feature = "emulated")]
    pub fn emulated(options: EmulatedOptions, cache: KernelCache) -> Result<Self, CudaError> {
        Ok(Self::new(Box::new(EmulatedDriver::new(options, cache)?)))
    }

    fn new(driver: Box<dyn Driver>) -> Self {
        let (handles, own_stream, guarded, prefill_choices) = Default::default();
        Self {
            inner: Arc::new(Inner {
                driver,
                handles,
                own_stream,
                guarded,
                prefill_choices,
            }),
        }
    }

    /// Properties of the device.
    pub fn info(&self) -> &DeviceInfo {
        self.driver().info()
    }

    /// Describes the implementation of products of 16-bit weights with many rows: a library found at run time, or this
    /// crate's kernels and the reason.
    pub fn products(&self) -> String {
        match self.driver().blas() {
            Ok(name) => name.to_owned(),
            Err(reason) => format!("own kernels ({reason})"),
        }
    }

    /// True if a library multiplies 16-bit matrices.
    pub(crate) fn has_blas(&self) -> bool {
        self.driver().blas().is_ok()
    }

    /// Free bytes of device memory.
    ///
    /// # Errors
    /// A lost device.
    pub fn free_bytes(&self) -> Result<usize, CudaError> {
        self.driver().free_bytes()
    }

    /// Uninitialised device memory.
    ///
    /// # Errors
    /// Too little memory; the error gives the free bytes.
    pub fn allocate(&self, bytes: usize) -> Result<DeviceBuffer, CudaError> {
        DeviceBuffer::new(self.clone(), bytes)
    }

    /// Pinned main memory, filled with zeros, that copies access without the CPU.
    ///
    /// # Errors
    /// Too little memory.
    pub fn allocate_host(&self, bytes: usize) -> Result<PinnedBuffer, CudaError> {
        PinnedBuffer::new(self.clone(), bytes)
    }

    /// Device memory with these elements. Returns after the copy.
    ///
    /// # Errors
    /// Too little memory, a lost device.
    pub fn upload<T: bytemuck::Pod>(&self, elements: &[T]) -> Result<DeviceBuffer, CudaError> {
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        let buffer = self.allocate(bytes.len())?;
        if !bytes.is_empty() {
            let mut host = self.allocate_host(bytes.len())?;
            host.bytes_mut().copy_from_slice(bytes);
            let stream = self.own_stream()?;
            stream.to_device(buffer.all(), &host, 0)?;
            stream.synchronize()?;
        }
        Ok(buffer)
    }

    /// The elements of a region, after everything queued on `after` has run.
    ///
    /// # Errors
    /// A lost device; bytes that are not a whole number of elements.
    pub fn download<T: bytemuck::Pod>(&self, region: Region<'_>, after: &Stream) -> Result<Vec<T>, CudaError> {
        let mut host = self.allocate_host(region.bytes())?;
        after.from_device(&mut host, 0, region)?;
        after.synchronize()?;
        if !region.bytes().is_multiple_of(size_of::<T>()) {
            return Err(CudaError::Mismatch {
                what: "bytes of a download",
                expected: region.bytes().next_multiple_of(size_of::<T>()),
                found: region.bytes(),
            });
        }
        Ok(bytemuck::pod_collect_to_vec(host.bytes()))
    }

    /// A new queue of work.
    ///
    /// # Errors
    /// A lost device.
    pub fn stream(&self) -> Result<Stream, CudaError> {
        Stream::new(self.clone())
    }

    /// A new event, not yet recorded.
    ///
    /// # Errors
    /// A lost device.
    pub fn event(&self) -> Result<Event, CudaError> {
        Event::new(self.clone())
    }

    /// A kernel of a module, compiled on first use and kept.
    ///
    /// # Errors
    /// No compiler, a source that does not compile.
    pub fn kernel(&self, source: &ModuleSource, name: &'static str) -> Result<Kernel, CudaError> {
        let mut handles = self.inner.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = handles.get(&(source.clone(), name)) {
            return Ok(Kernel::new(*function, name));
        }
        let module = match handles.get(&(source.clone(), "")) {
            Some(module) => *module,
            None => {
                let module = self.driver().load(source)?;
                handles.insert((source.clone(), ""), module);
                module
            }
        };
        let function = self.driver().function(module, name)?;
        handles.insert((source.clone(), name), function);
        Ok(Kernel::new(function, name))
    }

    /// The stored choice for a kernel, or the result of `choose`, which is then stored.
    pub(crate) fn prefill_choice(
        &self,
        kernel: &ModuleSource,
        choose: impl FnOnce() -> Result<PrefillChoice, CudaError>,
    ) -> Result<PrefillChoice, CudaError> {
        let choices = &self.inner.prefill_choices;
        let mut choices = choices.lock().unwrap_or_else(PoisonError::into_inner);
        match choices.get(kernel) {
            Some(choice) => Ok(choice.clone()),
            None => Ok(choices.entry(kernel.clone()).or_insert(choose()?).clone()),
        }
    }

    pub(super) fn driver(&self) -> &dyn Driver {
        &*self.inner.driver
    }

    pub(super) fn guarded(&self) -> MutexGuard<'_, GuardedBuffers> {
        self.inner.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own_stream(&self) -> Result<Stream, CudaError> {
        let mut own = self.inner.own_stream.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = match *own {
            Some(handle) => handle,
            None => *own.insert(self.driver().create_stream()?),
        };
        Ok(Stream::borrowed(self.clone(), handle))
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(self.info()).finish()
    }
}
