//! Reusable scratch: fresh memory costs more than the estimate that is written to it.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use riffle_attention::{Antidiagonals, BlockMaxima, Scan, SignScorer};

/// The most idle scratch to keep.
const MOST_IDLE: usize = 64;

static SCANS: ScratchPool<Scan> = ScratchPool::new();
static ANTIDIAGONALS: ScratchPool<Antidiagonals> = ScratchPool::new();
static MAXIMA: ScratchPool<BlockMaxima> = ScratchPool::new();
static SIGN_SCORERS: ScratchPool<SignScorer> = ScratchPool::new();

/// Idle scratch of one kind.
struct ScratchPool<T> {
    idle: Mutex<Vec<T>>,
}

/// Scratch in use; dropping returns it to its pool.
pub struct Lent<T: 'static> {
    /// Some until `drop`.
    scratch: Option<T>,
    home: &'static ScratchPool<T>,
}

/// The scratch of one scan; dropping makes it reusable.
pub type LentScan = Lent<Scan>;

pub(crate) type LentAntidiagonals = Lent<Antidiagonals>;

pub(crate) type LentMaxima = Lent<BlockMaxima>;

pub(crate) type LentSignScorer = Lent<SignScorer>;

impl Default for Lent<Scan> {
    fn default() -> Self {
        SCANS.lend()
    }
}

impl Default for Lent<Antidiagonals> {
    fn default() -> Self {
        ANTIDIAGONALS.lend()
    }
}

impl Default for Lent<BlockMaxima> {
    fn default() -> Self {
        MAXIMA.lend()
    }
}

impl Default for Lent<SignScorer> {
    fn default() -> Self {
        SIGN_SCORERS.lend()
    }
}

impl<T> ScratchPool<T> {
    const fn new() -> Self {
        Self {
            idle: Mutex::new(Vec::new()),
        }
    }

    fn lend(&'static self) -> Lent<T>
    where
        T: Default,
    {
        Lent {
            scratch: Some(self.idle().pop().unwrap_or_default()),
            home: self,
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<T>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.scratch.as_ref().expect("it is there until it is dropped")
    }
}

impl<T> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.scratch.as_mut().expect("it is there until it is dropped")
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        let mut idle = self.home.idle();
        if let Some(scratch) = self.scratch.take().filter(|_| idle.len() < MOST_IDLE) {
            idle.push(scratch);
        }
    }
}
