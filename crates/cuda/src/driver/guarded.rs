//! Main memory that copies may read after the borrow ends: its owner waits for them before it changes or frees the
//! memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Event, Gpu, PinnedBuffer};
use crate::CudaError;

/// Pinned memory. [`Stream::upload_behind`](super::Stream::upload_behind) reads its slices after it has returned.
pub(crate) struct GuardedBuffer {
    memory: PinnedBuffer,
    readers: Arc<Readers>,
    gpu: Gpu,
}

/// Running copies from one buffer.
#[derive(Default)]
pub(super) struct Readers {
    are_any: AtomicBool,
    done: Mutex<Vec<Arc<Event>>>,
}

/// The guarded buffers of a device by address, each with its bytes and readers.
#[derive(Default)]
pub(super) struct GuardedBuffers(BTreeMap<u64, (u64, Arc<Readers>)>);

impl GuardedBuffer {
    /// Memory filled with zeros.
    ///
    /// # Errors
    /// Too little memory.
    pub(crate) fn new(gpu: &Gpu, bytes: usize) -> Result<Self, CudaError> {
        let memory = gpu.allocate_host(bytes)?;
        let readers = Arc::<Readers>::default();
        let known = (bytes as u64, Arc::clone(&readers));
        gpu.guarded().0.insert(memory.address(), known);
        Ok(Self {
            memory,
            readers,
            gpu: gpu.clone(),
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// Bytes of the buffer, writable once queued copies from it have run.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.readers.wait();
        self.memory.bytes_mut()
    }
}

impl Drop for GuardedBuffer {
    fn drop(&mut self) {
        // The memory is freed after everything queued has run.
        self.gpu.guarded().0.remove(&self.memory.address());
    }
}

impl GuardedBuffers {
    /// Readers of the buffer that contains a slice, if any.
    pub(super) fn readers_of(&self, slice: &[u8]) -> Option<Arc<Readers>> {
        let first = slice.as_ptr() as u64;
        let (start, (bytes, readers)) = self.0.range(..=first).next_back()?;
        (first + slice.len() as u64 <= start + bytes).then(|| Arc::clone(readers))
    }
}

impl Readers {
    /// Records copies that are finished when `done` has passed. The memory stays borrowed until this returns, so that
    /// nobody writes to it in between.
    pub(super) fn add(&self, done: &Arc<Event>) {
        let mut all = self.lock();
        if !all.iter().any(|event| Arc::ptr_eq(event, done)) {
            all.push(Arc::clone(done));
        }
        self.are_any.store(true, Ordering::Release);
    }

    fn wait(&self) {
        if self.are_any.load(Ordering::Acquire) {
            for event in self.lock().drain(..) {
                // A lost device does not copy any more.
                event.synchronize().ok();
            }
            self.are_any.store(false, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Event>>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
