//! The queues of the emulated device: the work of its streams and the order of its execution.

use std::alloc::Layout;
use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, c_void};
use std::time::Instant;

use libloading::Library;

use super::EmulatedOptions;
use super::module::{Function, LaunchData};
use crate::CudaError;
use crate::driver::Grid;

/// Bytes of canary at both ends of an allocation.
pub(super) const CANARY_BYTES: usize = 256;
pub(super) const CANARY: u8 = 0xa5;
const ALIGNMENT: usize = 256;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) random: u64,
    pub(super) next_handle: u64,
    pub(super) launches: usize,
    pub(super) allocated: usize,
    pub(super) used_bytes: usize,
    /// Allocated bytes by address.
    pub(super) allocations: HashMap<u64, usize>,
    pub(super) streams: HashMap<u64, VecDeque<Work>>,
    pub(super) events: HashMap<u64, EventState>,
    pub(super) modules: Vec<Library>,
    pub(super) functions: Vec<Function>,
    /// First failure of queued work. Later calls fail.
    pub(super) failed: Option<CudaError>,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct EventState {
    pub(super) recorded: usize,
    pub(super) passed: usize,
    pub(super) at: Option<Instant>,
}

#[derive(Debug)]
pub(super) enum Work {
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

impl State {
    pub(super) fn check(&self) -> Result<(), CudaError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    pub(super) fn handle(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle
    }

    pub(super) fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 16
    }

    /// Runs queued work of any stream until `done` returns true.
    pub(super) fn run_until(
        &mut self,
        options: &EmulatedOptions,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), CudaError> {
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

    pub(super) fn run_all(&mut self, options: &EmulatedOptions) -> Result<(), CudaError> {
        self.run_until(options, |state| state.streams.values().all(VecDeque::is_empty))
    }

    fn run(&mut self, options: &EmulatedOptions, work: Work) -> Result<(), CudaError> {
        match work {
            // SAFETY: the caller that queued the copy keeps both ranges valid until it has run.
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
                // SAFETY: the arguments have the sizes of the kernel's parameters, and the caller that queued the
                // launch keeps the memory they name valid.
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

pub(super) fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes + 2 * CANARY_BYTES, ALIGNMENT).expect("memory is below half of the address space")
}
