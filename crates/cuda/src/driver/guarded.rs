//! Main memory that copies may read when nobody borrows it any more: its owner waits for them before it changes or goes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Event, Gpu, PinnedBuffer};
use crate::CudaError;

/// Pinned memory whose slices [`Stream::upload_behind`](super::Stream::upload_behind) copies after it has returned.
pub(crate) struct GuardedBuffer {
    memory: PinnedBuffer,
    readers: Arc<Readers>,
    gpu: Gpu,
}

/// The copies under way from one buffer.
#[derive(Default)]
pub(super) struct Readers {
    are_any: AtomicBool,
    done: Mutex<Vec<Arc<Event>>>,
}

/// The guarded buffers of a device by their addresses: bytes, and who reads them.
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
        // The memory itself is freed when everything queued has run.
        self.gpu.guarded().0.remove(&self.memory.address());
    }
}

impl GuardedBuffers {
    /// Readers of the buffer that a slice lies in, if it lies in one.
    pub(super) fn readers_of(&self, slice: &[u8]) -> Option<Arc<Readers>> {
        let first = slice.as_ptr() as u64;
        let (start, (bytes, readers)) = self.0.range(..=first).next_back()?;
        (first + slice.len() as u64 <= start + bytes).then(|| Arc::clone(readers))
    }
}

impl Readers {
    /// Notes copies that have run when `done` has passed. The memory is borrowed until this returns, so that nobody writes to it
    /// in between.
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
                // A device that is lost copies no more.
                event.synchronize().ok();
            }
            self.are_any.store(false, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Event>>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
