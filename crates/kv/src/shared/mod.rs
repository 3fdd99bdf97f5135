//! Shares blocks of beginnings between processes or machines through a store.
//!
//! A [`SharedBlocks`] connects sequences to a [`BlockStore`]. Callers never wait for the network.
//! [`publish`](SharedBlocks::publish) copies pages into a bounded queue that threads write out.
//! [`fetch`](SharedBlocks::fetch) begins a [`SharedFetch`]: its threads read ahead while the caller takes the arrived
//! blocks.
//!
//! Blocks have the keys of [`PrefixCache`](crate::PrefixCache): hashes of the identity and of all tokens up to their
//! end. Each is checked against its name, tokens and checksum before use. A bad block is counted, never used, and
//! written again after its tokens have been computed. A failing store is paused for a while and reported in one line.

mod breaker;
mod counts;
mod envelope;
mod fetch;
mod known;
mod loading;
mod packing;
mod publish;
mod store;
mod sweep;

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use breaker::Breaker;
use counts::Counters;
pub use counts::SharedCounts;
use envelope::BlockName;
pub use fetch::{FetchRequest, SharedFetch};
use known::{KnownBlocks, Standing};
use publish::Queue;
pub use store::{BlockStore, StoreError, StoredItem};
pub use sweep::Swept;

use crate::{CacheShape, KvError};

/// Number of successive bad blocks after which a store counts as failing.
const MOST_BAD_IN_A_ROW: u32 = 3;

/// Options of a shared store.
#[derive(Debug, Clone)]
pub struct SharedOptions {
    /// Concurrent operations of a fetch.
    pub parallel: usize,
    /// Time limit of one operation.
    pub operation_time: Duration,
    /// Bytes that a fetch may load ahead of its caller.
    pub fetch_bytes: usize,
    /// Bytes of pages that may wait to be written.
    pub publish_bytes: usize,
    /// Longest wait of a fetch for the next block that another process is publishing; zero takes only existing
    /// blocks.
    pub wait: Duration,
    /// Bytes that the store may keep: the least recently used blocks are removed every few minutes. With `None` the
    /// store decides.
    pub budget_bytes: Option<u64>,
    /// Age at which blocks are removed. With `None` the store decides.
    pub expiry: Option<Duration>,
}

impl Default for SharedOptions {
    fn default() -> Self {
        Self {
            parallel: 8,
            operation_time: Duration::from_secs(3),
            fetch_bytes: 32 << 20,
            publish_bytes: 64 << 20,
            wait: Duration::ZERO,
            budget_bytes: None,
            expiry: None,
        }
    }
}

/// Finds, fetches and publishes blocks in a shared store. Clones share one state.
#[derive(Clone)]
pub struct SharedBlocks {
    inner: Arc<Inner>,
    /// Ends the publishing threads when the last clone is dropped.
    _publishers: Arc<publish::Publishers>,
}

impl fmt::Debug for SharedBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBlocks")
            .field("store", &self.inner.store)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// The state shared by fetches and publishing threads.
struct Inner {
    store: Arc<dyn BlockStore>,
    options: SharedOptions,
    breaker: Mutex<Breaker>,
    known: Mutex<KnownBlocks>,
    counts: Counters,
    bad_in_a_row: AtomicU32,
    notices: Mutex<Vec<String>>,
    queue: Queue,
}

impl SharedBlocks {
    /// Blocks in `store`. Starts the publishing threads; does not ask the store yet.
    ///
    /// # Errors
    /// [`KvError::Thread`].
    pub fn open(store: Arc<dyn BlockStore>, options: SharedOptions) -> Result<Self, KvError> {
        let inner = Arc::new(Inner {
            store,
            options,
            breaker: Mutex::default(),
            known: Mutex::default(),
            counts: Counters::default(),
            bad_in_a_row: AtomicU32::new(0),
            notices: Mutex::default(),
            queue: Queue::default(),
        });
        Ok(Self {
            _publishers: Arc::new(publish::Publishers::start(&inner)?),
            inner,
        })
    }

    /// The store's address, without passwords.
    pub fn address(&self) -> &str {
        self.inner.store.address()
    }

    /// Counters since the store was opened.
    pub fn counts(&self) -> SharedCounts {
        let is_paused = lock(&self.inner.breaker).is_paused(Instant::now());
        self.inner.counts.read(is_paused, self.inner.queue.bytes() as u64)
    }

    /// Lines for the operator: that the store failed, that it works again. Each is returned once.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.inner.notices))
    }

    /// Removes blocks older than the expiry, then the least recently used until the rest fits the budget. With a
    /// budget or an expiry, a publishing thread does this every few minutes.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn sweep(&self) -> Result<Swept, StoreError> {
        sweep::sweep(&*self.inner.store, &self.inner.options)
    }
}

impl Inner {
    /// Asks the store, unless it is paused. `None` if it was not asked or failed; a failure is recorded.
    fn ask<T>(&self, time: Duration, ask: impl FnOnce(&dyn BlockStore, Instant) -> Result<T, StoreError>) -> Option<T> {
        let now = Instant::now();
        if lock(&self.breaker).is_paused(now) {
            return None;
        }
        match ask(&*self.store, now + time) {
            Ok(answer) => {
                if lock(&self.breaker).succeed() {
                    self.notice(format!("{} works again", self.store.address()));
                }
                Some(answer)
            }
            Err(error) => {
                self.fail(&error.to_string());
                None
            }
        }
    }

    fn fail(&self, problem: &str) {
        self.counts.failures.add(1);
        if let Some(pause) = lock(&self.breaker).fail(Instant::now()) {
            self.notice(format!(
                "shared blocks at {} cannot be used: {problem}; prompts are read here, and it is tried again in {} s",
                self.store.address(),
                pause.as_secs()
            ));
        }
    }

    /// Records that bytes of a block were wrong.
    fn found_bad(&self, key: u128) {
        if self.counts.bad_blocks.add(1) == 0 {
            self.notice(format!(
                "a block at {} is damaged: it is not used, and written anew when its text has been read",
                self.store.address()
            ));
        }
        lock(&self.known).set(key, Standing::Bad);
        if self.bad_in_a_row.fetch_add(1, Ordering::Relaxed) + 1 == MOST_BAD_IN_A_ROW {
            self.bad_in_a_row.store(0, Ordering::Relaxed);
            self.fail("its blocks are damaged");
        }
    }

    /// Records that a part of a block passed its check.
    fn found_good(&self, key: u128) {
        self.bad_in_a_row.store(0, Ordering::Relaxed);
        let mut known = lock(&self.known);
        // Another slice of the block may be bad.
        if known.get(key).is_none() {
            known.set(key, Standing::There);
        }
    }

    fn notice(&self, line: String) {
        let mut notices = lock(&self.notices);
        // A caller that takes no notices needs no further ones.
        if notices.len() < 64 {
            notices.push(line);
        }
    }
}

/// The whole pages at the start of `tokens`, as blocks.
fn blocks_of(shape: &CacheShape, identity: &[u8], tokens: &[u32]) -> Vec<BlockName> {
    let keys = crate::prefix::chain(shape, identity, tokens).into_iter().enumerate();
    let blocks = keys.zip(tokens.chunks_exact(shape.page_tokens));
    let blocks = blocks.map(|((depth, key), tokens)| BlockName {
        key,
        depth,
        tokens: tokens.to_vec(),
    });
    blocks.collect()
}

/// Locks data that no holder can leave half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
