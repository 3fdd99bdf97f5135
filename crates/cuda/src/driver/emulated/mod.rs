//! A device on the CPU. Kernels are the same CUDA C++, compiled by g++ over `kernels/emulated`, which runs the
//! threads of a block as fibers. Streams are queues that run when a caller waits for them. Their order is random
//! within the limits of events, so that a missing wait shows. New memory is filled with 0xff, which is NaN in every
//! float format, and lies between canaries.

mod module;
mod queue;

use std::alloc::{alloc, dealloc};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use module::has_compiler;
use module::{Function, compiler};
use queue::{CANARY, CANARY_BYTES, EventState, State, Work, layout};

use super::{Argument, DeviceInfo, Direction, Driver, Grid, KernelCache, ModuleSource, Product16};
use crate::CudaError;

/// Properties of an emulated device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmulatedOptions {
    /// Bytes of device memory.
    pub memory_bytes: usize,
    /// Major and minor compute capability.
    pub capability: (u32, u32),
    /// Seed for the order of streams and threads; `None` runs everything as soon as it is queued.
    pub seed: Option<u64>,
    /// The launch, counted from zero, at which the device is lost.
    pub lost_at_launch: Option<usize>,
    /// The allocation of device memory, counted from zero, that fails as if another program had taken the memory.
    pub short_at_allocation: Option<usize>,
}

impl Default for EmulatedOptions {
    /// 1 GiB of memory and streams in a random order.
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            capability: (8, 0),
            seed: Some(1),
            lost_at_launch: None,
            short_at_allocation: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct EmulatedDriver {
    info: DeviceInfo,
    options: EmulatedOptions,
    cache: KernelCache,
    state: Mutex<State>,
}

impl EmulatedDriver {
    pub(super) fn new(options: EmulatedOptions, cache: KernelCache) -> Result<Self, CudaError> {
        if !has_compiler() {
            return Err(CudaError::NoCompiler {
                reason: format!(
                    "the emulated device needs a C++ compiler, and {:?} does not run",
                    compiler()
                ),
            });
        }
        let info = DeviceInfo {
            name: "emulated device".to_owned(),
            capability: options.capability,
            multiprocessors: 4,
            shared_bytes_per_block: 163 * 1024,
            memory_bytes: options.memory_bytes,
        };
        info.check()?;
        let state = Mutex::new(State {
            random: options.seed.unwrap_or(0).wrapping_mul(2).wrapping_add(1),
            ..State::default()
        });
        Ok(Self {
            info,
            options,
            cache,
            state,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self, stream: u64, work: Work) -> Result<(), CudaError> {
        let mut state = self.state();
        state.check()?;
        state
            .streams
            .get_mut(&stream)
            .expect("the stream is live")
            .push_back(work);
        if self.options.seed.is_none() {
            state.run_all(&self.options)?;
        }
        Ok(())
    }
}

impl Driver for EmulatedDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_bytes(&self) -> Result<usize, CudaError> {
        let state = self.state();
        state.check()?;
        Ok(self.options.memory_bytes - state.used_bytes)
    }

    fn allocate(&self, bytes: usize) -> Result<u64, CudaError> {
        let mut state = self.state();
        state.check()?;
        let free_bytes = self.options.memory_bytes - state.used_bytes;
        let short = CudaError::OutOfMemory {
            place: "device",
            needed_bytes: bytes,
            free_bytes,
        };
        state.allocated += 1;
        if bytes > free_bytes || Some(state.allocated - 1) == self.options.short_at_allocation {
            return Err(short);
        }
        // SAFETY: the layout is not empty; the canaries and the memory between them lie within it.
        let address = unsafe {
            let start = alloc(layout(bytes));
            if start.is_null() {
                return Err(short);
            }
            start.write_bytes(CANARY, bytes + 2 * CANARY_BYTES);
            let address = start.add(CANARY_BYTES);
            address.write_bytes(0xff, bytes);
            address as u64
        };
        state.used_bytes += bytes;
        state.allocations.insert(address, bytes);
        Ok(address)
    }

    unsafe fn free(&self, address: u64) {
        let mut state = self.state();
        // The error is stored, and the next call reports it.
        state.run_all(&self.options).ok();
        let bytes = state.allocations.remove(&address).expect("the allocation is live");
        state.used_bytes -= bytes;
        // SAFETY: the allocation began a canary before its address, and nothing queued uses it.
        unsafe { dealloc((address as *mut u8).sub(CANARY_BYTES), layout(bytes)) };
    }

    fn allocate_host(&self, bytes: usize) -> Result<*mut u8, CudaError> {
        // SAFETY: the layout is not empty.
        let pointer = unsafe { alloc(layout(bytes)) };
        if pointer.is_null() {
            return Err(CudaError::OutOfMemory {
                place: "pinned host",
                needed_bytes: bytes,
                free_bytes: 0,
            });
        }
        Ok(pointer)
    }

    unsafe fn free_host(&self, pointer: *mut u8, bytes: usize) {
        self.state().run_all(&self.options).ok();
        // SAFETY: it was allocated with this layout, and nothing queued uses it.
        unsafe { dealloc(pointer, layout(bytes)) };
    }

    fn create_stream(&self) -> Result<u64, CudaError> {
        let mut state = self.state();
        state.check()?;
        let handle = state.handle();
        state.streams.insert(handle, VecDeque::new());
        Ok(handle)
    }

    unsafe fn destroy_stream(&self, stream: u64) {
        let mut state = self.state();
        state.run_all(&self.options).ok();
        state.streams.remove(&stream);
    }

    unsafe fn synchronize(&self, stream: u64) -> Result<(), CudaError> {
        self.state().run_until(&self.options, |state| {
            state.streams.get(&stream).is_none_or(VecDeque::is_empty)
        })
    }

    fn create_event(&self) -> Result<u64, CudaError> {
        let mut state = self.state();
        state.check()?;
        let handle = state.handle();
        state.events.insert(handle, EventState::default());
        Ok(handle)
    }

    unsafe fn destroy_event(&self, event: u64) {
        self.state().events.remove(&event);
    }

    unsafe fn record(&self, event: u64, stream: u64) -> Result<(), CudaError> {
        let number = {
            let mut state = self.state();
            let event = state.events.get_mut(&event).expect("the event is live");
            event.recorded += 1;
            event.recorded
        };
        self.queue(stream, Work::Record { event, number })
    }

    unsafe fn wait(&self, stream: u64, event: u64) -> Result<(), CudaError> {
        let number = self.state().events[&event].recorded;
        self.queue(stream, Work::Wait { event, number })
    }

    unsafe fn synchronize_event(&self, event: u64) -> Result<(), CudaError> {
        self.state().run_until(&self.options, |state| {
            state
                .events
                .get(&event)
                .is_none_or(|event| event.passed >= event.recorded)
        })
    }

    unsafe fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32, CudaError> {
        let state = self.state();
        state.check()?;
        let at = |event: u64| {
            let event = state.events[&event];
            event.at.filter(|_| event.passed == event.recorded)
        };
        match (at(start), at(end)) {
            (Some(start), Some(end)) => Ok(end.saturating_duration_since(start).as_secs_f32() * 1e3),
            _ => Err(CudaError::driver(
                "the time between events",
                "one of them has not passed",
            )),
        }
    }

    unsafe fn copy(&self, stream: u64, _: Direction, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        self.queue(stream, Work::Copy { to, from, bytes })
    }

    unsafe fn fill(&self, stream: u64, to: u64, byte: u8, bytes: usize) -> Result<(), CudaError> {
        self.queue(stream, Work::Fill { to, byte, bytes })
    }

    fn blas(&self) -> Result<&'static str, &str> {
        Err("the emulated device has no library")
    }

    unsafe fn multiply_16_bit(&self, _: u64, _: &Product16, _: u64, _: u64, _: u64) -> Result<bool, CudaError> {
        Ok(false)
    }

    fn load(&self, source: &ModuleSource) -> Result<u64, CudaError> {
        let library = module::load(source, &self.cache)?;
        let mut state = self.state();
        state.modules.push(library);
        Ok(state.modules.len() as u64 - 1)
    }

    fn function(&self, module: u64, name: &'static str) -> Result<u64, CudaError> {
        let mut state = self.state();
        let function = Function::find(&state.modules[module as usize], name)?;
        state.functions.push(function);
        Ok(state.functions.len() as u64 - 1)
    }

    unsafe fn launch(&self, stream: u64, function: u64, grid: &Grid, arguments: &[Argument]) -> Result<(), CudaError> {
        let function = function as usize;
        let values: Vec<([u8; 8], usize)> = arguments.iter().map(Argument::bytes).collect();
        {
            let state = self.state();
            let expected = &state.functions[function];
            let found: Vec<usize> = values.iter().map(|(_, bytes)| *bytes).collect();
            if expected.parameter_bytes != found {
                let message = format!(
                    "parameters of {:?} bytes, arguments of {found:?}",
                    expected.parameter_bytes
                );
                return Err(CudaError::driver(expected.name, message));
            }
        }
        if grid.shared_bytes as usize > self.info.shared_bytes_per_block {
            return Err(CudaError::driver(
                "a launch",
                "more shared memory than a block can have",
            ));
        }
        let arguments = values.into_iter().map(|(bytes, _)| bytes).collect();
        let grid = *grid;
        self.queue(
            stream,
            Work::Launch {
                function,
                grid,
                arguments,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gpu, Grid};

    /// Output of `kernels/hazards.cu` for one seed, without the steps in `missing`.
    fn product(missing: u32, seed: u64) -> Result<Vec<f32>, CudaError> {
        let options = EmulatedOptions {
            capability: (9, 0),
            seed: Some(seed),
            ..EmulatedOptions::default()
        };
        let gpu = Gpu::emulated(options, KernelCache::of_user())?;
        let stream = gpu.stream()?;
        let kernel = gpu.kernel(&ModuleSource::new("hazards.cu", &[("MISSING", missing)]), "hazards")?;
        // Powers of two from 1 to 8 as f16, so that every sum is exact.
        let a: Vec<u16> = (0..64 * 16).map(|i| 0x3c00 + (i * 7 % 13 % 4) * 0x400).collect();
        let b: Vec<u16> = (0..64 * 64).map(|i| 0x3c00 + (i * 5 % 11 % 4) * 0x400).collect();
        let (a, b, output) = (gpu.upload(&a)?, gpu.upload(&b)?, gpu.allocate(64 * 64 * 4)?);
        let grid = Grid::line(1, 128).with_shared(64 * 128 + 1024);
        stream.launch(&kernel, grid, &[output.all().into(), a.all().into(), b.all().into()])?;
        gpu.download(output.all(), &stream)
    }

    #[test]
    fn what_a_product_of_a_warpgroup_lacks_shows() {
        if !has_compiler() {
            eprintln!("skipped: there is no g++");
            return;
        }
        let power = |i: usize, step: usize, modulus: usize| f32::from(1u8 << (i * step % modulus % 4));
        let sum = |row: usize, column: usize| -> f32 {
            let products = (0..16).map(|k| power(row * 16 + k, 7, 13) * power(column * 64 + k, 5, 11));
            1.0 + products.sum::<f32>()
        };
        let expected: Vec<f32> = (0..64 * 64).map(|i| sum(i / 64, i % 64)).collect();
        for seed in 1..9 {
            assert_eq!(product(0, seed).as_ref(), Ok(&expected));
        }
        let what = "publishing, the barrier, the arrival, the wait, buffers, registers, the commit".split(", ");
        for (missing, what) in (1..).zip(what) {
            let shows = |seed| product(missing, seed).as_ref() != Ok(&expected);
            assert!((1..9).any(shows), "{what}");
        }
    }
}
