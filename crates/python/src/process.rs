//! Values that belong to the process that made them. Threads do not survive `os.fork()`, so a child may neither use nor free what
//! they share.

use std::sync::{Arc, Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};
use riffle_engine::max_threads;

use crate::failure::{Class, Failure};

/// A value that only the process that made it uses and frees.
pub(crate) struct OfProcess<T> {
    /// There until it is dropped.
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

    /// The value; an error in a child that `os.fork()` made.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        self.value.as_ref().filter(|_| self.is_here()).ok_or_else(stayed_behind)
    }

    /// The value; an error in a child that `os.fork()` made.
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
        // A lock that a thread of the parent held would never be freed in a child: there the memory stays until it ends.
        if !self.is_here() {
            std::mem::forget(self.value.take());
        }
    }
}

/// Thread pool of the package, separate from torch's and other libraries'.
pub(crate) struct Threads(OfProcess<ThreadPool>);

/// The threads that arrays and engines without a number of their own share.
static SHARED: Mutex<Option<(u32, Arc<Threads>)>> = Mutex::new(None);

impl Threads {
    /// So many threads; every core for 0.
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

    /// The threads of this process that calls on arrays share, and engines without a number of their own.
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

    /// Replaces the shared threads; engines that were loaded before keep theirs.
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
