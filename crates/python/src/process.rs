//! Values that belong to one process. Threads do not survive `os.fork()`, so a child may neither use nor free values
//! that they share.

use std::sync::{Arc, Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};
use riffle_engine::max_threads;

use crate::failure::{Class, Failure};

/// A value that only its own process uses and frees.
pub(crate) struct OfProcess<T> {
    /// `Some` until the drop.
    value: Option<T>,
    process: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Some(value),
            process: std::process::id(),
        }
    }

    /// The value; an error in a child of `os.fork()`.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        self.value.as_ref().filter(|_| self.is_here()).ok_or_else(stayed_behind)
    }

    /// The value; an error in a child of `os.fork()`.
    pub(crate) fn get_mut(&mut self) -> Result<&mut T, Failure> {
        let is_here = self.is_here();
        self.value.as_mut().filter(|_| is_here).ok_or_else(stayed_behind)
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

fn stayed_behind() -> Failure {
    Failure::new(
        Class::Process,
        "this was made before os.fork(), and its threads stayed behind: load the model in the child, or start children by \
         multiprocessing's method \"spawn\"",
    )
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        // In a child, a lock that a thread of the parent held is never released. So the child leaks the memory until it
        // ends.
        if !self.is_here() {
            std::mem::forget(self.value.take());
        }
    }
}

/// Thread pool of the package, separate from torch's and other libraries'.
pub(crate) struct Threads(OfProcess<ThreadPool>);

/// The threads for arrays and for engines without a thread count.
static SHARED: Mutex<Option<(u32, Arc<Threads>)>> = Mutex::new(None);

impl Threads {
    /// A pool of this many threads; 0 means every core.
    pub(crate) fn new(count: usize) -> Result<Arc<Self>, Failure> {
        if count > max_threads() {
            return Err(Failure::option(format!(
                "threads is {count}, but it must be a whole number from 1 to {}",
                max_threads()
            )));
        }
        let named = ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|at| format!("riffle-{at}"));
        let pool = named
            .build()
            .map_err(|error| Failure::new(Class::Riffle, format!("cannot start {count} threads: {error}")))?;
        Ok(Arc::new(Self(OfProcess::new(pool))))
    }

    /// The process's threads for arrays and for engines without a thread count.
    pub(crate) fn shared() -> Result<Arc<Self>, Failure> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((process, threads)) = &*shared
            && *process == std::process::id()
        {
            return Ok(Arc::clone(threads));
        }
        let threads = Self::new(0)?;
        *shared = Some((std::process::id(), Arc::clone(&threads)));
        Ok(threads)
    }

    /// Replaces the shared threads; engines loaded before keep theirs.
    pub(crate) fn set_shared(count: usize) -> Result<(), Failure> {
        if count == 0 {
            return Err(Failure::option("threads is 0, but it must be at least 1"));
        }
        let threads = Self::new(count)?;
        *SHARED.lock().unwrap_or_else(PoisonError::into_inner) = Some((std::process::id(), threads));
        Ok(())
    }

    pub(crate) fn pool(&self) -> Result<&ThreadPool, Failure> {
        self.0.get()
    }
}
