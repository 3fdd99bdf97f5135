//! Blocks of beginnings in a store that several processes or machines share.
//!
//! A [`SharedBlocks`] stands between sequences and a [`BlockStore`]. Nothing of it waits for the network where a caller computes:
//! [`publish`](SharedBlocks::publish) copies pages into a bounded queue that threads write behind, and [`fetch`](SharedBlocks::fetch)
//! begins a [`SharedFetch`] whose threads read ahead while the caller takes what has arrived.
//!
//! Blocks have the keys of [`PrefixCache`](crate::PrefixCache): hashes of what made them and of all tokens up to their end. Each
//! is checked against its name, its tokens and its checksum before it is used; one that fails is counted, never used, and written
//! anew when its tokens have been read again. A store that fails is left alone for a while, and told about in one line.

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

/// A store that gives so many bad blocks one after the other is left alone as one that fails.
const MOST_BAD_IN_A_ROW: u32 = 3;

/// How a shared store is used.
#[derive(Debug, Clone)]
pub struct SharedOptions {
    /// Operations that a fetch has under way at a time.
    pub parallel: usize,
    /// The time that one operation may take.
    pub operation_time: Duration,
    /// Bytes that a fetch holds ahead of its caller.
    pub fetch_bytes: usize,
    /// Bytes of pages that wait to be written.
    pub publish_bytes: usize,
    /// How long a fetch waits for the next block where another process is still publishing; zero takes what is there.
    pub wait: Duration,
    /// Bytes that the store may keep: what was used longest ago is removed every few minutes. `None` leaves that to the store.
    pub budget_bytes: Option<u64>,
    /// Age after which blocks are removed. `None` leaves that to the store.
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

/// Blocks in a shared store: found, fetched and published. Clones are one.
#[derive(Clone)]
pub struct SharedBlocks {
    inner: Arc<Inner>,
    /// Ends the publishing threads when the last clone goes.
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

/// The state that fetches and publishing threads share.
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
    /// Blocks in `store`. Threads that publish are started; the store is not asked yet.
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

    /// The use of the store so far.
    pub fn counts(&self) -> SharedCounts {
        let is_paused = lock(&self.inner.breaker).is_paused(Instant::now());
        self.inner.counts.read(is_paused, self.inner.queue.bytes() as u64)
    }

    /// Lines for whoever runs the process: that the store failed, that it works again. Each is given once.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.inner.notices))
    }

    /// Removes what is older than the expiry, then what was used longest ago until the rest is within the budget. A publishing thread
    /// does so every few minutes where there is a budget or an expiry.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn sweep(&self) -> Result<Swept, StoreError> {
        sweep::sweep(&*self.inner.store, &self.inner.options)
    }
}

impl Inner {
    /// Asks the store, unless it is left alone. `None` where it was not asked or failed, which is noted.
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

    /// Notes that bytes of a block were not what they should be.
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

    /// Notes that bytes of a block were what they should be.
    fn found_good(&self, key: u128) {
        self.bad_in_a_row.store(0, Ordering::Relaxed);
        let mut known = lock(&self.known);
        // Another slice of it may be bad.
        if known.get(key).is_none() {
            known.set(key, Standing::There);
        }
    }

    fn notice(&self, line: String) {
        let mut notices = lock(&self.notices);
        // Whoever takes none needs no more.
        if notices.len() < 64 {
            notices.push(line);
        }
    }
}

/// The whole pages that `tokens` begin with, as blocks.
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

/// Locks what no holder can leave half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
