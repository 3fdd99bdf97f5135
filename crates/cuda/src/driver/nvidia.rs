//! The NVIDIA driver, found at run time. Kernels are compiled by NVRTC to machine code at first use and kept on disk.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::fs;
use std::sync::Mutex;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};

use super::{Argument, DeviceInfo, Direction, Driver, Grid, KernelCache, ModuleSource, Product16};
use crate::CudaError;

#[derive(Debug)]
pub(super) struct NvidiaDriver {
    info: DeviceInfo,
    device: sys::CUdevice,
    context: sys::CUcontext,
    cache: KernelCache,
    #[cfg(feature = "cublaslt")]
    blas: Result<super::blas::Blas, String>,
    /// Names of functions, for errors.
    names: Mutex<HashMap<u64, &'static str>>,
}

// SAFETY: a context may be used from any thread once it is made current there, which every call does.
unsafe impl Send for NvidiaDriver {}
// SAFETY: as above; the driver's calls are thread-safe.
unsafe impl Sync for NvidiaDriver {}

/// Machine code of a module for this compute capability, by NVRTC.
pub(super) fn compile(
    source: &ModuleSource,
    capability: (u32, u32),
    cache: &KernelCache,
) -> Result<Vec<u8>, CudaError> {
    // SAFETY: the call only tries to load the library.
    if !unsafe { nvrtc_sys::is_culib_present() } {
        return Err(CudaError::NoCompiler {
            reason: "NVRTC (libnvrtc) is not installed; it comes with the CUDA toolkit or the wheel nvidia-cuda-nvrtc"
                .to_owned(),
        });
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both point to integers.
    unsafe { nvrtc_sys::nvrtcVersion(&mut major, &mut minor) }
        .result()
        .map_err(nvrtc_failed)?;
    let text = source.text("");
    let options = [
        format!("--gpu-architecture={}", source.architecture(capability)),
        "--std=c++17".to_owned(),
        // Without this option NVRTC 13.0 compiles a generic lambda of a kernel for the host.
        "--device-as-default-execution-space".to_owned(),
    ];
    let version = format!("nvrtc {major}.{minor}");
    let path = cache.find_or_build(&[&text, &options.join(" "), &version], "cubin", |target| {
        let cubin = cubin(&source.name(), &text, &options)?;
        fs::write(target, cubin).map_err(|error| CudaError::Cache {
            path: target.display().to_string(),
            message: error.to_string(),
        })
    })?;
    fs::read(&path).map_err(|error| CudaError::Cache {
        path: path.display().to_string(),
        message: error.to_string(),
    })
}

/// Compiles a source with NVRTC to machine code.
fn cubin(name: &str, text: &str, options: &[String; 3]) -> Result<Vec<u8>, CudaError> {
    let code = CString::new(text).expect("sources hold no zero byte");
    let c_name = CString::new(name).expect("names hold no zero byte");
    let program = nvrtc::create_program(&code, Some(&c_name)).map_err(nvrtc_failed)?;
    // SAFETY: the program and its texts live until it is destroyed below; the buffer has the size NVRTC gave.
    unsafe {
        let cubin = match nvrtc::compile_program(program, options) {
            Ok(()) => {
                let mut bytes = 0;
                let size = nvrtc_sys::nvrtcGetCUBINSize(program, &mut bytes)
                    .result()
                    .map_err(nvrtc_failed);
                size.and_then(|()| {
                    let mut cubin = vec![0u8; bytes];
                    nvrtc_sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast())
                        .result()
                        .map_err(nvrtc_failed)?;
                    Ok(cubin)
                })
            }
            Err(error) => {
                let log = nvrtc::get_program_log(program).unwrap_or_default();
                let log: Vec<u8> = log.into_iter().map(|c| c as u8).filter(|c| *c != 0).collect();
                let log = String::from_utf8_lossy(&log);
                let line = log.lines().find(|line| line.contains("error")).map(str::to_owned);
                Err(CudaError::Compile {
                    kernel: name.to_owned(),
                    line: line.unwrap_or_else(|| error.to_string()),
                })
            }
        };
        nvrtc::destroy_program(program).ok();
        cubin
    }
}

fn nvrtc_failed(error: nvrtc::NvrtcError) -> CudaError {
    CudaError::driver("NVRTC", error)
}

impl NvidiaDriver {
    pub(super) fn open(ordinal: usize, cache: KernelCache) -> Result<Self, CudaError> {
        // SAFETY: the call only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver {
                reason: "no CUDA driver (libcuda) is installed".to_owned(),
            });
        }
        result::init().map_err(|error| CudaError::NoDriver {
            reason: format!("the CUDA driver does not start: {}", message(&error)),
        })?;
        let found = result::device::get_count().map_err(|error| failed("counting devices", error))?;
        let found = usize::try_from(found).unwrap_or(0);
        if ordinal >= found {
            return Err(CudaError::NoDevice { ordinal, found });
        }
        let call = |what: &'static str| move |error: DriverError| failed(what, error);
        let device = result::device::get(ordinal as i32).map_err(call("opening the device"))?;
        let attribute = |attribute| {
            // SAFETY: the device is one the driver has given.
            let value = unsafe { result::device::get_attribute(device, attribute) };
            value
                .map(|value| u32::try_from(value).unwrap_or(0))
                .map_err(call("reading an attribute"))
        };
        use sys::CUdevice_attribute as Attribute;
        let info = DeviceInfo {
            name: result::device::get_name(device).map_err(call("reading the name"))?,
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_bytes_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?
                as usize,
            // SAFETY: as above.
            memory_bytes: unsafe { result::device::total_mem(device) }.map_err(call("reading the memory"))?,
        };
        info.check()?;
        // SAFETY: as above; released when the driver is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(call("opening a context"))?;
        #[cfg(feature = "cublaslt")]
        let blas = {
            // SAFETY: the context was retained above; the library's handle is of the current one.
            unsafe { result::ctx::set_current(context) }.map_err(call("entering the context"))?;
            super::blas::Blas::open()
        };
        Ok(Self {
            info,
            device,
            context,
            cache,
            #[cfg(feature = "cublaslt")]
            blas,
            names: Mutex::default(),
        })
    }

    /// Makes the context current in this thread.
    fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as the driver lives.
        unsafe { result::ctx::set_current(self.context) }.map_err(|error| failed("entering the context", error))
    }
}

impl Drop for NvidiaDriver {
    fn drop(&mut self) {
        #[cfg(feature = "cublaslt")]
        {
            // The library's handle is destroyed before its context.
            self.blas = Err(String::new());
        }
        // SAFETY: nothing outlives the driver; modules, streams and events go with the context.
        unsafe { result::primary_ctx::release(self.device) }.ok();
    }
}

fn message(error: &DriverError) -> String {
    match error.error_string() {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => format!("{:?}", error.0),
    }
}

/// The typed error of a failed call.
fn failed(what: &str, error: DriverError) -> CudaError {
    use sys::CUresult as Code;
    match error.0 {
        Code::CUDA_ERROR_ILLEGAL_ADDRESS
        | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | Code::CUDA_ERROR_MISALIGNED_ADDRESS
        | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | Code::CUDA_ERROR_INVALID_PC
        | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
        | Code::CUDA_ERROR_ASSERT
        | Code::CUDA_ERROR_LAUNCH_FAILED
        | Code::CUDA_ERROR_LAUNCH_TIMEOUT
        | Code::CUDA_ERROR_ECC_UNCORRECTABLE
        | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | Code::CUDA_ERROR_DEVICE_UNAVAILABLE
        | Code::CUDA_ERROR_DEINITIALIZED => CudaError::DeviceLost {
            what: format!("{what} ({})", message(&error)),
        },
        _ => CudaError::driver(what, message(&error)),
    }
}

impl Driver for NvidiaDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_bytes(&self) -> Result<usize, CudaError> {
        self.enter()?;
        let (free, _) = result::mem_get_info().map_err(|error| failed("reading free memory", error))?;
        Ok(free)
    }

    fn allocate(&self, bytes: usize) -> Result<u64, CudaError> {
        self.enter()?;
        // SAFETY: the driver's context is current. The caller never reads the memory before it is written.
        unsafe { result::malloc_sync(bytes) }.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => CudaError::OutOfMemory {
                place: "device",
                needed_bytes: bytes,
                free_bytes: result::mem_get_info().map_or(0, |(free, _)| free),
            },
            _ => failed("allocating", error),
        })
    }

    unsafe fn free(&self, address: u64) {
        if self.enter().is_ok() {
            // SAFETY: the caller keeps the contract of this call. The context is waited for, because work on any stream
            // may use the memory.
            unsafe {
                result::ctx::synchronize().ok();
                result::free_sync(address).ok();
            }
        }
    }

    fn allocate_host(&self, bytes: usize) -> Result<*mut u8, CudaError> {
        self.enter()?;
        // SAFETY: the memory is never read before it is written; flag 1 makes it portable to every context.
        let pointer = unsafe { result::malloc_host(bytes, 1) };
        pointer.map(|pointer| pointer.cast()).map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => CudaError::OutOfMemory {
                place: "pinned host",
                needed_bytes: bytes,
                free_bytes: 0,
            },
            _ => failed("pinning memory", error),
        })
    }

    unsafe fn free_host(&self, pointer: *mut u8, _: usize) {
        if self.enter().is_ok() {
            // SAFETY: as in `free`.
            unsafe {
                result::ctx::synchronize().ok();
                result::free_host(pointer.cast()).ok();
            }
        }
    }

    fn create_stream(&self) -> Result<u64, CudaError> {
        self.enter()?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        stream
            .map(|stream| stream as u64)
            .map_err(|error| failed("making a stream", error))
    }

    unsafe fn destroy_stream(&self, stream: u64) {
        if self.enter().is_ok() {
            // SAFETY: the caller keeps the contract of this call; the driver finishes what is queued.
            unsafe { result::stream::destroy(stream as sys::CUstream) }.ok();
        }
    }

    unsafe fn synchronize(&self, stream: u64) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: the caller keeps the contract of this call.
        let done = unsafe { result::stream::synchronize(stream as sys::CUstream) };
        done.map_err(|error| failed("waiting for a stream", error))
    }

    fn create_event(&self) -> Result<u64, CudaError> {
        self.enter()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        event
            .map(|event| event as u64)
            .map_err(|error| failed("making an event", error))
    }

    unsafe fn destroy_event(&self, event: u64) {
        if self.enter().is_ok() {
            // SAFETY: the caller keeps the contract of this call.
            unsafe { result::event::destroy(event as sys::CUevent) }.ok();
        }
    }

    unsafe fn record(&self, event: u64, stream: u64) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: the caller keeps the contract of this call.
        let done = unsafe { result::event::record(event as sys::CUevent, stream as sys::CUstream) };
        done.map_err(|error| failed("recording an event", error))
    }

    unsafe fn wait(&self, stream: u64, event: u64) -> Result<(), CudaError> {
        self.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the caller keeps the contract of this call.
        let done = unsafe { result::stream::wait_event(stream as sys::CUstream, event as sys::CUevent, flags) };
        done.map_err(|error| failed("waiting for an event", error))
    }

    unsafe fn synchronize_event(&self, event: u64) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: the caller keeps the contract of this call.
        let done = unsafe { result::event::synchronize(event as sys::CUevent) };
        done.map_err(|error| failed("waiting for an event", error))
    }

    unsafe fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32, CudaError> {
        self.enter()?;
        // SAFETY: the caller keeps the contract of this call.
        let time = unsafe { result::event::elapsed(start as sys::CUevent, end as sys::CUevent) };
        time.map_err(|error| failed("the time between events", error))
    }

    unsafe fn copy(
        &self,
        stream: u64,
        direction: Direction,
        to: u64,
        from: u64,
        bytes: usize,
    ) -> Result<(), CudaError> {
        self.enter()?;
        let stream = stream as sys::CUstream;
        // SAFETY: the caller keeps the contract of this call; host addresses are those of pinned buffers.
        let done = unsafe {
            match direction {
                Direction::Upload => {
                    result::memcpy_htod_async(to, std::slice::from_raw_parts(from as *const u8, bytes), stream)
                }
                Direction::Download => {
                    result::memcpy_dtoh_async(std::slice::from_raw_parts_mut(to as *mut u8, bytes), from, stream)
                }
                Direction::Within => result::memcpy_dtod_async(to, from, bytes, stream),
            }
        };
        done.map_err(|error| failed("copying", error))
    }

    unsafe fn fill(&self, stream: u64, to: u64, byte: u8, bytes: usize) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: the caller keeps the contract of this call.
        let done = unsafe { result::memset_d8_async(to, byte, bytes, stream as sys::CUstream) };
        done.map_err(|error| failed("filling memory", error))
    }

    #[cfg(feature = "cublaslt")]
    fn blas(&self) -> Result<&'static str, &str> {
        self.blas.as_ref().map(|_| "cuBLASLt").map_err(String::as_str)
    }

    #[cfg(not(feature = "cublaslt"))]
    fn blas(&self) -> Result<&'static str, &str> {
        Err("this riffle was built without the feature cublaslt")
    }

    #[cfg(feature = "cublaslt")]
    unsafe fn multiply_16_bit(
        &self,
        stream: u64,
        product: &Product16,
        output: u64,
        weights: u64,
        input: u64,
    ) -> Result<bool, CudaError> {
        let Ok(blas) = &self.blas else { return Ok(false) };
        self.enter()?;
        // SAFETY: the caller keeps the contract of this call.
        unsafe { blas.multiply(stream, product, output, weights, input) }
    }

    #[cfg(not(feature = "cublaslt"))]
    unsafe fn multiply_16_bit(&self, _: u64, _: &Product16, _: u64, _: u64, _: u64) -> Result<bool, CudaError> {
        Ok(false)
    }

    fn load(&self, source: &ModuleSource) -> Result<u64, CudaError> {
        let cubin = compile(source, self.info.capability, &self.cache)?;
        self.enter()?;
        // SAFETY: the image is what NVRTC made for this device.
        let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) };
        module
            .map(|module| module as u64)
            .map_err(|error| failed(&format!("loading {}", source.name()), error))
    }

    fn function(&self, module: u64, name: &'static str) -> Result<u64, CudaError> {
        use sys::CUfunction_attribute as Attribute;
        self.enter()?;
        let c_name = CString::new(name).expect("names hold no zero byte");
        // SAFETY: the module stays loaded as long as the context.
        unsafe {
            let function = result::module::get_function(module as sys::CUmodule, c_name);
            let function = function.map_err(|error| failed(name, error))?;
            let attribute = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
            let own = result::function::get_function_attribute(function, attribute);
            let own = own.map_err(|error| failed(name, error))?;
            let most = self.info.shared_bytes_per_block as i32 - own;
            let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let set = result::function::set_function_attribute(function, attribute, most);
            set.map_err(|error| failed(name, error))?;
            self.names
                .lock()
                .unwrap_or_else(|error| error.into_inner())
                .insert(function as u64, name);
            Ok(function as u64)
        }
    }

    unsafe fn launch(&self, stream: u64, function: u64, grid: &Grid, arguments: &[Argument]) -> Result<(), CudaError> {
        self.enter()?;
        let values: Vec<[u8; 8]> = arguments.iter().map(|argument| argument.bytes().0).collect();
        let mut pointers: Vec<*mut c_void> = values.iter().map(|value| value.as_ptr().cast_mut().cast()).collect();
        let ([x, y, z], [u, v, w]) = (grid.blocks, grid.threads);
        // SAFETY: the caller keeps the contract of this call; the driver copies the arguments before it returns.
        let done = unsafe {
            result::launch_kernel(
                function as sys::CUfunction,
                (x, y, z),
                (u, v, w),
                grid.shared_bytes,
                stream as sys::CUstream,
                &mut pointers,
            )
        };
        done.map_err(|error| {
            let names = self.names.lock().unwrap_or_else(|error| error.into_inner());
            failed(names.get(&function).unwrap_or(&"a launch"), error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles every file as at run time, on a machine without CUDA's headers.
    #[test]
    fn nvrtc_compiles_every_file_to_machine_code() {
        // SAFETY: the call only tries to load the library.
        if !unsafe { nvrtc_sys::is_culib_present() } {
            assert!(std::env::var_os("RIFFLE_NEEDS_NVRTC").is_none(), "there is no libnvrtc");
            eprintln!("skipped: there is no libnvrtc");
            return;
        }
        let folder = std::env::temp_dir().join(format!("riffle-nvrtc-{}", std::process::id()));
        let cache = KernelCache::new(&folder);
        let mut seen = Vec::new();
        for variant in crate::variants() {
            let source = ModuleSource::parse(variant).expect("variants name files");
            let file = variant.split(' ').next();
            if seen.contains(&file) {
                continue;
            }
            seen.push(file);
            let cubin = compile(&source, (9, 0), &cache).unwrap();
            assert_eq!(cubin[..4], *b"\x7fELF", "{variant}");
            assert_eq!(compile(&source, (9, 0), &cache).unwrap(), cubin);
        }
        let error = compile(&ModuleSource::new("decode.cu", &[("HEAD_DIM", 64)]), (9, 0), &cache).unwrap_err();
        assert!(
            matches!(&error, CudaError::Compile { line, .. } if line.contains("error")),
            "{error}"
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
