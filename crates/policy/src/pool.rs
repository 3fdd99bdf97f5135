//! Scratch that is used again: memory that is new costs more than what an estimate writes to it.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use riffle_attention::{Antidiagonals, Scan};

/// Idle scratch that is kept at most.
const MOST: usize = 64;

pub(crate) static SCANS: Pool<Scan> = Pool::new();
pub(crate) static ANTIDIAGONALS: Pool<Antidiagonals> = Pool::new();

/// Idle scratch of one kind.
pub(crate) struct Pool<T> {
    idle: Mutex<Vec<T>>,
}

/// Scratch in use; it goes back when dropped.
pub(crate) struct Lent<T: 'static> {
    /// Taken out only by `drop`.
    scratch: Option<T>,
    home: &'static Pool<T>,
}

impl<T: Default> Pool<T> {
    const fn new() -> Self {
        Self {
            idle: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn lend(&'static self) -> Lent<T> {
        Lent {
            scratch: Some(self.idle().pop().unwrap_or_default()),
            home: self,
        }
    }
}

impl<T> Pool<T> {
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
        if let Some(scratch) = self.scratch.take().filter(|_| idle.len() < MOST) {
            idle.push(scratch);
        }
    }
}
