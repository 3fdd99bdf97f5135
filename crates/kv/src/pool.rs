//! Sequences that hold pages in common.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::ledger::Ledger;
use crate::prefix::chain;
use crate::shared::SharedPlanes;
use crate::store::{Ledgers, PlaneStore};
use crate::{CacheShape, KvCache, KvError, KvTiers};

/// Where the pages of several sequences come from: their budgets are one, and pages that they hold in common are there
/// once and counted once.
///
/// A page that is shared never changes: who writes into one, at the end of a sequence, copies it first. It goes back to
/// the system when the last sequence has let go of it.
///
/// ```
/// use riffle_attention::Format;
/// use riffle_kv::{CacheShape, KvTiers, PagePool};
///
/// let shape = CacheShape {
///     layers: 1,
///     kv_heads: 1,
///     head_dim: 16,
///     page_tokens: 16,
///     key_format: Format::F16,
///     value_format: Format::F16,
/// };
/// let pool = PagePool::new(shape, KvTiers::memory(Some(shape.bytes_for(80))))?;
/// let mut book = pool.cache()?;
/// book.append(0, &[0.5; 40 * 16], &[0.5; 40 * 16])?;
/// let mut question = book.fork()?;
/// question.append(0, &[1.0; 16], &[1.0; 16])?;
/// // Two pages of the three are held twice and are there once; the last was copied when it was written to.
/// assert_eq!(question.usage().shared_bytes, 2 * shape.page_bytes());
/// assert_eq!(pool.near_bytes(), 4 * shape.page_bytes());
/// # Ok::<(), riffle_kv::KvError>(())
/// ```
#[derive(Clone)]
pub struct PagePool(pub(crate) Arc<Pool>);

pub(crate) struct Pool {
    pub(crate) shape: CacheShape,
    pub(crate) tiers: KvTiers,
    pub(crate) ledgers: Ledgers,
    /// Shared pages by the hash of what made them and of all tokens up to their end.
    known: Mutex<HashMap<u128, KnownPage>>,
}

/// Keys and values of a page that lives as long as a sequence holds it.
#[derive(Clone)]
struct KnownPage {
    keys: Weak<SharedPlanes>,
    values: Weak<SharedPlanes>,
}

type PagePair = (Arc<SharedPlanes>, Arc<SharedPlanes>);

impl PagePool {
    /// A pool whose sequences together keep to the budgets of `tiers`.
    ///
    /// # Errors
    /// [`KvError::Shape`].
    pub fn new(shape: CacheShape, tiers: KvTiers) -> Result<Self, KvError> {
        shape.validate()?;
        tiers.check()?;
        let ledgers = Ledgers {
            near: Ledger::new(tiers.near_budget_bytes()),
            ram: Ledger::new(tiers.ram_budget_bytes),
            disk: Ledger::new(tiers.disk.as_ref().and_then(|disk| disk.budget_bytes)),
        };
        Ok(Self(Arc::new(Pool {
            shape,
            tiers,
            ledgers,
            known: Mutex::default(),
        })))
    }

    /// An empty sequence.
    ///
    /// # Errors
    /// [`KvError::Disk`] when the folder of the disk tier cannot be written to; [`KvError::NearBudget`] when other
    /// sequences have left no room for pages on their way.
    pub fn cache(&self) -> Result<KvCache, KvError> {
        KvCache::in_pool(Arc::clone(&self.0))
    }

    /// Bytes of the nearest tier that all sequences take: pages, shared ones once, and room for those on their way.
    pub fn near_bytes(&self) -> u64 {
        self.0.ledgers.near.used_bytes()
    }

    /// Bytes of the disk tier's files of all sequences.
    pub fn file_bytes(&self) -> u64 {
        self.0.ledgers.disk.used_bytes()
    }
}

impl Pool {
    fn find(&self, key: u128) -> Option<PagePair> {
        let page = self.known().get(&key).cloned()?;
        Some((page.keys.upgrade()?, page.values.upgrade()?))
    }

    /// Makes a page known, and forgets those that are gone.
    fn insert(&self, key: u128, (keys, values): &PagePair) {
        let mut known = self.known();
        if known.len() == known.capacity() {
            known.retain(|_, page| page.keys.strong_count() > 0);
        }
        let page = KnownPage {
            keys: Arc::downgrade(keys),
            values: Arc::downgrade(values),
        };
        known.insert(key, page);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u128, KnownPage>> {
        self.known.lock().expect("no thread panics while it holds the pages")
    }
}

impl KvCache {
    /// A sequence that begins with everything this one holds; from here on both share these pages.
    ///
    /// Shared pages stay in the tier where they lie. So where there are farther tiers the oldest pages leave for them first,
    /// until half of the nearest tier is free.
    ///
    /// # Errors
    /// [`KvError::NearBudget`] when the nearest tier has no room for one more page of every (layer, KV head), which the
    /// move of pages to where they can be shared takes; [`KvError::Memory`]; as [`PagePool::cache`].
    pub fn fork(&mut self) -> Result<Self, KvError> {
        self.leave_room()?;
        let mut fork = self.pool().cache()?;
        let tables = 0..self.tokens.len();
        let shared = |table| self.keys.shared_pages(table).min(self.values.shared_pages(table));
        let first = tables.clone().map(shared).min();
        let end = tables.map(|table| self.keys.pages(table)).max();
        for page in first.unwrap_or(0)..end.unwrap_or(0) {
            self.publish(page)?;
        }
        self.defragment();
        fork.keys.adopt_all(&self.keys);
        fork.values.adopt_all(&self.values);
        fork.tokens.clone_from(&self.tokens);
        Ok(fork)
    }

    /// Shares the whole pages of the first `tokens.len()` tokens of a sequence that begins with exactly these: with
    /// sequences of the pool that hold the same pages already, and with those that [`adopt`](Self::adopt) them. Returns
    /// how many tokens are shared now; fewer where some heads have let tokens go.
    ///
    /// `identity` names what makes the keys and values; pages of another identity are never taken for the same.
    ///
    /// # Errors
    /// As [`fork`](Self::fork); what was shared by then stays so.
    pub fn share(&mut self, identity: &[u8], tokens: &[u32]) -> Result<usize, KvError> {
        let held = self.tokens.iter().copied().min().unwrap_or(0);
        if self.tokens.iter().any(|tokens| *tokens != held) {
            return Ok(0);
        }
        self.leave_room()?;
        let (pool, page_tokens) = (Arc::clone(&self.pool), self.shape().page_tokens);
        let keys = chain(self.shape(), identity, &tokens[..tokens.len().min(held)]);
        let mut shared = 0;
        for (page, key) in keys.into_iter().enumerate() {
            if self.keys.shares_beyond(page) && self.values.shares_beyond(page) {
                shared = page + 1;
                continue;
            }
            if !self.keys.shares_exactly(page) || !self.values.shares_exactly(page) {
                break;
            }
            match pool.find(key) {
                Some((keys, values)) => {
                    self.keys.replace(page, &keys);
                    self.values.replace(page, &values);
                }
                None => pool.insert(key, &self.publish(page)?),
            }
            shared = page + 1;
        }
        self.defragment();
        Ok(shared * page_tokens)
    }

    /// Fills an empty sequence with the longest beginning of `tokens` that another sequence of the pool holds and
    /// [shares](Self::share), in whole pages. Returns its tokens.
    pub fn adopt(&mut self, identity: &[u8], tokens: &[u32]) -> usize {
        if self.tokens.iter().any(|tokens| *tokens > 0) {
            return 0;
        }
        let keys = chain(self.shape(), identity, tokens);
        let mut pages = 0;
        for (keys, values) in keys.into_iter().map_while(|key| self.pool.find(key)) {
            self.keys.adopt(&keys);
            self.values.adopt(&values);
            pages += 1;
        }
        let tokens = pages * self.shape().page_tokens;
        self.tokens.fill(tokens);
        tokens
    }

    /// Sends the oldest full pages to farther tiers until half of the nearest is free, as far as there is room for them.
    /// What is shared stays where it lies, and those who share it need room of their own.
    fn leave_room(&mut self) -> Result<(), KvError> {
        self.forget_loaded();
        let ledger = &self.pool.ledgers.near;
        let half = ledger.budget_bytes() / 2;
        if !self.tiers().has_farther() || ledger.free_bytes() >= half {
            return Ok(());
        }
        let mut missing = half - ledger.free_bytes();
        let full: Vec<usize> = self.tokens.iter().map(|held| held / self.shape().page_tokens).collect();
        'sending: while missing > 0 {
            let before = missing;
            for store in [&mut self.keys, &mut self.values] {
                match store.send_oldest_away(&|table| full[table]) {
                    Ok(true) => missing = missing.saturating_sub(store.plane_bytes() as u64),
                    Ok(false) => {}
                    Err(KvError::DiskBudget { .. } | KvError::NearBudget { .. }) => break 'sending,
                    Err(error) => return Err(error),
                }
            }
            if missing == before {
                break;
            }
        }
        self.defragment();
        Ok(())
    }

    fn publish(&mut self, page: usize) -> Result<PagePair, KvError> {
        Ok((
            self.publish_planes(page, |cache| &mut cache.keys)?,
            self.publish_planes(page, |cache| &mut cache.values)?,
        ))
    }

    /// Publishes the keys or the values of a page. Earlier pages left gaps in all slabs when they moved: where the budget
    /// has no room for a second copy, planes move together first, so that whole slabs run empty.
    fn publish_planes(
        &mut self,
        page: usize,
        store: impl Fn(&mut Self) -> &mut PlaneStore,
    ) -> Result<Arc<SharedPlanes>, KvError> {
        match store(self).publish(page) {
            Err(KvError::NearBudget { .. }) => {
                self.defragment();
                store(self).publish(page)
            }
            published => published,
        }
    }
}
