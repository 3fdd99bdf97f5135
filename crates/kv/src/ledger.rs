//! Budgets of bytes with several holders.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::KvError;

/// A hard budget: the sum of all holders' bytes never exceeds it.
#[derive(Debug)]
pub(crate) struct Ledger {
    budget_bytes: Option<u64>,
    used_bytes: AtomicU64,
}

/// Bytes taken from a ledger, returned on drop.
#[derive(Debug)]
pub(crate) struct Taken {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Ledger {
    pub(crate) fn new(budget_bytes: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            budget_bytes,
            used_bytes: AtomicU64::new(0),
        })
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes.unwrap_or(u64::MAX)
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.budget_bytes().saturating_sub(self.used_bytes())
    }

    /// Takes all the bytes, or none and returns false.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let taken = self
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= self.budget_bytes())
            });
        taken.is_ok()
    }

    pub(crate) fn give(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Taken {
    /// Takes bytes from the ledger until the value is dropped.
    ///
    /// # Errors
    /// [`KvError::NearBudget`] if the ledger has too little.
    pub(crate) fn take(ledger: &Arc<Ledger>, bytes: u64, what: &'static str) -> Result<Self, KvError> {
        if !ledger.take(bytes) {
            return Err(KvError::NearBudget {
                what,
                needed_bytes: bytes,
                near_bytes: ledger.free_bytes(),
                sequences: 0,
            });
        }
        Ok(Self {
            ledger: Arc::clone(ledger),
            bytes,
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.ledger.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_the_budget_and_what_is_dropped_comes_back() {
        let ledger = Ledger::new(Some(100));
        let first = Taken::take(&ledger, 60, "planes").unwrap();
        assert!(!ledger.take(41));
        assert!(matches!(
            Taken::take(&ledger, 41, "planes"),
            Err(KvError::NearBudget { near_bytes: 40, .. })
        ));
        assert!(ledger.take(40));
        drop(first);
        assert_eq!((ledger.used_bytes(), ledger.free_bytes()), (40, 60));
    }
}
