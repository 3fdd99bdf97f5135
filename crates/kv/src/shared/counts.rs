//! Counters of a shared store.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a shared store since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SharedCounts {
    /// Slices of blocks, and notes, that were fetched and used.
    pub fetched: u64,
    /// Bytes of the fetched blocks in the store.
    pub fetched_bytes: u64,
    /// Bytes of the fetched blocks as pages.
    pub fetched_raw_bytes: u64,
    /// Slices and notes with wrong contents; they were not used.
    pub bad_blocks: u64,
    /// Operations that failed or took too long.
    pub failures: u64,
    /// Slices and notes written.
    pub published: u64,
    /// Bytes of the published blocks in the store.
    pub published_bytes: u64,
    /// Bytes of the published blocks as pages.
    pub published_raw_bytes: u64,
    /// Blocks that the store already had.
    pub already_there: u64,
    /// Blocks and notes that were dropped because the store failed.
    pub dropped: u64,
    /// Bytes of pages waiting to be written.
    pub queued_bytes: u64,
    /// True if the store is paused after failures.
    pub is_paused: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`; returns the earlier value.
    pub(super) fn add(&self, count: u64) -> u64 {
        self.0.fetch_add(count, Ordering::Relaxed)
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) fetched: Counter,
    pub(super) fetched_bytes: Counter,
    pub(super) fetched_raw_bytes: Counter,
    pub(super) bad_blocks: Counter,
    pub(super) failures: Counter,
    pub(super) published: Counter,
    pub(super) published_bytes: Counter,
    pub(super) published_raw_bytes: Counter,
    pub(super) already_there: Counter,
    pub(super) dropped: Counter,
}

impl Counters {
    pub(super) fn count_fetched(&self, bytes: usize, raw_bytes: usize) {
        self.fetched.add(1);
        self.fetched_bytes.add(bytes as u64);
        self.fetched_raw_bytes.add(raw_bytes as u64);
    }

    pub(super) fn count_published(&self, bytes: usize, raw_bytes: usize) {
        self.published.add(1);
        self.published_bytes.add(bytes as u64);
        self.published_raw_bytes.add(raw_bytes as u64);
    }

    pub(super) fn read(&self, is_paused: bool, queued_bytes: u64) -> SharedCounts {
        SharedCounts {
            fetched: self.fetched.get(),
            fetched_bytes: self.fetched_bytes.get(),
            fetched_raw_bytes: self.fetched_raw_bytes.get(),
            bad_blocks: self.bad_blocks.get(),
            failures: self.failures.get(),
            published: self.published.get(),
            published_bytes: self.published_bytes.get(),
            published_raw_bytes: self.published_raw_bytes.get(),
            already_there: self.already_there.get(),
            dropped: self.dropped.get(),
            queued_bytes,
            is_paused,
        }
    }
}
