//! A device on the CPU. Kernels are the same CUDA C++, compiled by g++ over `kernels/emulated`, which runs the threads
//! of a block as fibers. Streams are queues that run when someone waits for them, in an order drawn at random among
//! those that events allow, so that a missing wait shows. New memory is filled with 0xff, which is NaN in every float
//! format, and lies between canaries.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, c_char, c_void};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use libloading::Library;

use super::{Argument, DeviceInfo, Direction, Driver, Grid, KernelCache, ModuleSource};
use crate::CudaError;

const HEAD: &str = "#define RIFFLE_EMULATED 1";
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O1",
    "-w",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fcf-protection=none",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
];
/// Bytes of canary at both ends of an allocation.
const CANARY_BYTES: usize = 256;
const CANARY: u8 = 0xa5;
const ALIGNMENT: usize = 256;

/// Whether there is a compiler for emulated kernels (`CXX`, or `g++`).
pub fn has_compiler() -> bool {
    Command::new(compiler())
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned())
}

/// What the emulated device is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmulatedOptions {
    /// Bytes of device memory.
    pub memory_bytes: usize,
    /// Seed of the order in which streams and threads run; `None` runs everything at once when it is queued.
    pub seed: Option<u64>,
    /// The device is lost at this launch, counted from zero.
    pub lost_at_launch: Option<usize>,
}

impl Default for EmulatedOptions {
    /// 1 GiB, streams in a random order.
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            seed: Some(1),
            lost_at_launch: None,
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

#[derive(Debug, Default)]
struct State {
    random: u64,
    next_handle: u64,
    launches: usize,
    used_bytes: usize,
    /// Bytes by address.
    allocations: HashMap<u64, usize>,
    streams: HashMap<u64, VecDeque<Work>>,
    events: HashMap<u64, EventState>,
    modules: Vec<Library>,
    functions: Vec<Function>,
    /// What the first piece of work that failed ran into; the device is of no use after it.
    failed: Option<CudaError>,
}

#[derive(Debug, Default, Clone, Copy)]
struct EventState {
    recorded: usize,
    passed: usize,
    at: Option<Instant>,
}

#[derive(Debug)]
enum Work {
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    Fill {
        to: u64,
        byte: u8,
        bytes: usize,
    },
    Launch {
        function: usize,
        grid: Grid,
        arguments: Vec<[u8; 8]>,
    },
    Record {
        event: u64,
        number: usize,
    },
    Wait {
        event: u64,
        number: usize,
    },
}

type LaunchFunction = unsafe extern "C" fn(*const LaunchData, *const *const c_void) -> *const c_char;
type ParametersFunction = unsafe extern "C" fn() -> *const u32;

#[derive(Debug, Clone)]
struct Function {
    name: &'static str,
    launch: LaunchFunction,
    parameter_bytes: Vec<usize>,
}

/// `emulated::Launch`.
#[repr(C)]
struct LaunchData {
    blocks: [u32; 3],
    threads: [u32; 3],
    shared_bytes: u32,
    unused: u32,
    seed: u64,
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
            capability: (8, 0),
            multiprocessors: 4,
            shared_bytes_per_block: 163 * 1024,
            memory_bytes: options.memory_bytes,
        };
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

impl State {
    fn check(&self) -> Result<(), CudaError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn handle(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 16
    }

    /// Runs work of any stream until `done`.
    fn run_until(&mut self, options: &EmulatedOptions, done: impl Fn(&Self) -> bool) -> Result<(), CudaError> {
        self.check()?;
        while !done(self) {
            let mut ready: Vec<u64> = self
                .streams
                .iter()
                .filter(|(_, queue)| match queue.front() {
                    Some(Work::Wait { event, number }) => {
                        self.events.get(event).is_none_or(|event| event.passed >= *number)
                    }
                    front => front.is_some(),
                })
                .map(|(stream, _)| *stream)
                .collect();
            ready.sort_unstable();
            if ready.is_empty() {
                break;
            }
            let stream = ready[(self.random() % ready.len() as u64) as usize];
            let work = self.streams.get_mut(&stream).and_then(VecDeque::pop_front);
            if let Err(error) = self.run(options, work.expect("its front is ready")) {
                self.failed = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    fn run_all(&mut self, options: &EmulatedOptions) -> Result<(), CudaError> {
        self.run_until(options, |state| state.streams.values().all(VecDeque::is_empty))
    }

    fn run(&mut self, options: &EmulatedOptions, work: Work) -> Result<(), CudaError> {
        match work {
            // SAFETY: whoever queued the copy answers for both ranges until it has run.
            Work::Copy { to, from, bytes } => unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) },
            // SAFETY: as above.
            Work::Fill { to, byte, bytes } => unsafe { std::ptr::write_bytes(to as *mut u8, byte, bytes) },
            Work::Record { event, number } => {
                if let Some(event) = self.events.get_mut(&event) {
                    (event.passed, event.at) = (number, Some(Instant::now()));
                }
            }
            Work::Wait { .. } => {}
            Work::Launch {
                function,
                grid,
                arguments,
            } => {
                let number = self.launches;
                self.launches += 1;
                let function = self.functions[function].clone();
                if options.lost_at_launch.is_some_and(|lost| number >= lost) {
                    let what = format!("{} (emulated)", function.name);
                    return Err(CudaError::DeviceLost { what });
                }
                let data = LaunchData {
                    blocks: grid.blocks,
                    threads: grid.threads,
                    shared_bytes: grid.shared_bytes,
                    unused: 0,
                    seed: self.random(),
                };
                let pointers: Vec<*const c_void> = arguments.iter().map(|bytes| bytes.as_ptr().cast()).collect();
                // SAFETY: the arguments have the sizes of the kernel's parameters, and whoever queued the launch
                // answers for the memory they name.
                let fault = unsafe { (function.launch)(&data, pointers.as_ptr()) };
                if !fault.is_null() {
                    // SAFETY: a fault is a string literal of the library, which stays loaded.
                    let message = unsafe { CStr::from_ptr(fault) }.to_string_lossy().into_owned();
                    return Err(CudaError::driver(function.name, message));
                }
                self.check_canaries(function.name)?;
            }
        }
        Ok(())
    }

    fn check_canaries(&self, kernel: &str) -> Result<(), CudaError> {
        for (address, bytes) in &self.allocations {
            let at = *address as *const u8;
            // SAFETY: an allocation has a canary before and behind it.
            let intact = unsafe {
                let before = std::slice::from_raw_parts(at.sub(CANARY_BYTES), CANARY_BYTES);
                let behind = std::slice::from_raw_parts(at.add(*bytes), CANARY_BYTES);
                before.iter().chain(behind).all(|byte| *byte == CANARY)
            };
            if !intact {
                let message = format!("it wrote beside an allocation of {bytes} bytes");
                return Err(CudaError::driver(kernel, message));
            }
        }
        Ok(())
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes + 2 * CANARY_BYTES, ALIGNMENT).expect("memory is below half of the address space")
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
        if bytes > free_bytes {
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
        // A failure is kept and reported by the next call.
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

    fn load(&self, source: &ModuleSource) -> Result<u64, CudaError> {
        let text = source.text(HEAD);
        let compiler = compiler();
        let ingredients = [&text, &FLAGS.join(" "), compiler.as_str()];
        let path = self.cache.find_or_build(&ingredients, "so", |target| {
            let input = target.with_extension("cpp");
            let failed = |error: std::io::Error| CudaError::Cache {
                path: input.display().to_string(),
                message: error.to_string(),
            };
            std::fs::write(&input, &text).map_err(failed)?;
            let output = Command::new(&compiler)
                .args(FLAGS)
                .arg("-o")
                .arg(target)
                .arg(&input)
                .output();
            std::fs::remove_file(&input).ok();
            let output = output.map_err(failed)?;
            if !output.status.success() {
                let log = String::from_utf8_lossy(&output.stderr);
                let line = log.lines().find(|line| line.contains("error")).or(log.lines().next());
                return Err(CudaError::Compile {
                    kernel: source.name(),
                    line: line.unwrap_or("the compiler says nothing").to_owned(),
                });
            }
            Ok(())
        })?;
        // SAFETY: the library was compiled from this crate's sources and runs nothing when it is loaded.
        let library = unsafe { Library::new(&path) }.map_err(|error| CudaError::driver("loading a module", error))?;
        let mut state = self.state();
        state.modules.push(library);
        Ok(state.modules.len() as u64 - 1)
    }

    fn function(&self, module: u64, name: &'static str) -> Result<u64, CudaError> {
        let mut state = self.state();
        let library = &state.modules[module as usize];
        let missing = |error: libloading::Error| CudaError::driver(name, error);
        // SAFETY: `EXPORT` defines both symbols with these types; the library stays loaded.
        let (launch, parameters) = unsafe {
            let launch = *library
                .get::<LaunchFunction>(format!("riffle_launch_{name}"))
                .map_err(missing)?;
            let parameters = library
                .get::<ParametersFunction>(format!("riffle_parameters_{name}"))
                .map_err(missing)?;
            (launch, parameters())
        };
        let mut parameter_bytes = Vec::new();
        // SAFETY: the list ends with a zero.
        unsafe {
            while *parameters.add(parameter_bytes.len()) != 0 {
                parameter_bytes.push(*parameters.add(parameter_bytes.len()) as usize);
            }
        }
        state.functions.push(Function {
            name,
            launch,
            parameter_bytes,
        });
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
