//! Pages of several sequences: their holders, their tiers, and the order in which they move away.
//!
//! A page has a [`PageId`] and a count of holders, which are page tables. These rules hold:
//!
//! - The bytes of a page change only while one page table names it. A sequence copies a shared page before it writes
//!   to it; there must be room for the copy.
//! - A plane has one location for all its holders, so it moves to a farther tier once.
//! - The oldest plane leaves first. A plane stays near while any sequence wants it there: sequences want the first
//!   page of a page table, and pages that are not full.
//! - Bytes are taken from the ledger of their tier before they are allocated or written, and a refusal changes no
//!   sequence. A page without holders is freed at once.
//! - Readers share the lock of the pool ([`PageReader`](crate::PageReader),
//!   [`KvCache::stream`](crate::KvCache::stream)): pages neither move nor change while they read. Taking, writing,
//!   moving or freeing pages needs the exclusive lock. A thread with a reader must not change a sequence of the pool,
//!   nor take a second reader.

mod order;
mod page;
mod planes;
mod prefixes;
mod room;
mod row_watch;
mod store;

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::ledger::Ledger;
use crate::{CacheShape, KvCache, KvError, KvTiers};
pub use page::{PageId, PageVersion};
pub(crate) use page::{PlaneKind, PlanePlace};
use planes::Ledgers;
pub(crate) use planes::{PlaneBytes, Source};
pub use row_watch::{RowChange, RowTier};
pub(crate) use store::PageStore;

/// A pool of pages for several sequences, with common budgets. Shared pages exist once and count once.
///
/// A shared page never changes: a sequence that appends to one copies it first. The page returns to the system when
/// its last sequence releases it.
///
/// ```
/// use riffle_attention::Format;
/// use riffle_kv::{CacheShape, KvTiers, LayerShape, LayerShapes, PagePool};
///
/// let shape = CacheShape {
///     layers: LayerShapes::alike(1, LayerShape::new(1, 16)),
///     page_tokens: 16,
///     key_format: Format::F16,
///     value_format: Format::F16,
/// };
/// let pool = PagePool::new(shape, KvTiers::memory(Some(shape.bytes_for(80))))?;
/// let mut book = pool.cache();
/// book.append(0, &[0.5; 40 * 16], &[0.5; 40 * 16])?;
/// let mut question = book.fork();
/// assert_eq!(pool.near_bytes(), 3 * shape.page_bytes(0));
/// question.append(0, &[1.0; 16], &[1.0; 16])?;
/// // Two of the three pages are shared; the last was copied before the write.
/// assert_eq!(question.usage().shared_bytes, 2 * shape.page_bytes(0));
/// assert_eq!(pool.near_bytes(), 4 * shape.page_bytes(0));
/// # Ok::<(), riffle_kv::KvError>(())
/// ```
#[derive(Clone)]
pub struct PagePool(pub(crate) Arc<Pool>);

pub(crate) struct Pool {
    pub(crate) shape: CacheShape,
    pub(crate) tiers: KvTiers,
    ledgers: Ledgers,
    store: RwLock<PageStore>,
}

impl PagePool {
    /// A pool whose sequences together stay within the budgets of `tiers`. It takes page memory only for tokens.
    ///
    /// # Errors
    /// [`KvError::Shape`]; [`KvError::Disk`] if the folder of the disk tier is not writable.
    pub fn new(shape: CacheShape, tiers: KvTiers) -> Result<Self, KvError> {
        shape.validate()?;
        tiers.check()?;
        let ledgers = Ledgers {
            near: Ledger::new(tiers.near_budget_bytes()),
            ram: Ledger::new(tiers.ram_budget_bytes),
            disk: Ledger::new(tiers.disk.as_ref().and_then(|disk| disk.budget_bytes)),
        };
        let store = PageStore::new(&shape, &tiers, &ledgers)?;
        Ok(Self(Arc::new(Pool {
            shape,
            tiers,
            ledgers,
            store: RwLock::new(store),
        })))
    }

    /// An empty sequence.
    pub fn cache(&self) -> KvCache {
        KvCache::in_pool(Arc::clone(&self.0))
    }

    /// The shape of the pool's caches.
    pub fn shape(&self) -> &CacheShape {
        &self.0.shape
    }

    /// Bytes of the nearest tier that all sequences use: pages, shared ones once, and slots for pages being loaded.
    pub fn near_bytes(&self) -> u64 {
        self.0.ledgers.near.used_bytes()
    }

    /// Bytes of the disk tier's files of all sequences.
    pub fn file_bytes(&self) -> u64 {
        self.0.ledgers.disk.used_bytes()
    }

    /// Bytes loaded from slower tiers for all sequences so far.
    pub fn loaded_bytes(&self) -> u64 {
        self.0.read().offload().loaded_bytes()
    }

    /// Starts to record changes of the rows that sequences [share](KvCache::share) under `identity`, for
    /// [`take_row_changes`](Self::take_row_changes). Rows known before are not reported.
    pub fn watch_rows(&self, identity: &[u8]) {
        self.0.write().known.watch(identity);
    }

    /// The changes of the watched rows since the last call, in order. Applying all changes gives exactly the rows
    /// that can be adopted under the identity, and their tiers.
    pub fn take_row_changes(&self) -> Vec<RowChange> {
        self.0.write().known.take_changes()
    }

    /// Bytes of the pages that any sequence holds, in all tiers, shared ones once.
    pub fn pages_bytes(&self) -> u64 {
        let counts = self.0.read().counts().into_iter().take(self.shape().sizes());
        counts
            .enumerate()
            .map(|(size, pages)| pages as u64 * self.shape().size_bytes(size))
            .sum()
    }

    /// Pages that any sequence holds, shared ones once.
    pub fn pages(&self) -> usize {
        self.0.read().pages()
    }
}

impl Pool {
    /// Locks the pool for readers: no page moves or changes meanwhile.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, PageStore> {
        self.store.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The exclusive lock, for taking, writing, moving or freeing pages.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, PageStore> {
        self.store.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin_sequence(&self) {
        self.write().begin_sequence(&self.tiers, &self.ledgers);
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.ledgers.disk.used_bytes()
    }
}
