use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use riffle_attention::{Format, LANES, PageView, PlaneBuf, read_keys, read_values, write_keys, write_values};

use crate::{IncrementalLandmarks, SubquadraticError, Tensor3};

/// A token that eviction dropped from one KV head.
#[derive(Debug, Clone, PartialEq)]
pub struct Evicted {
    /// The KV head that dropped the token; other heads may still hold the position.
    pub kv_head: usize,
    /// Absolute position of the token.
    pub position: usize,
    /// Stored key of the token, `[dim]`.
    pub key: Vec<f32>,
    /// Stored value of the token, `[dim]`.
    pub value: Vec<f32>,
}

/// One KV head: slots in the layout of a page, and the slot of each token.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    keys: PlaneBuf,
    values: PlaneBuf,
    /// Absolute position of the token in each slot.
    positions: Vec<usize>,
    /// Slot of each held position.
    slots: BTreeMap<usize, usize>,
    pub(crate) landmarks: Option<IncrementalLandmarks>,
    /// Softmax weight each slot has received from the queries decoded so far.
    pub(crate) mass: RefCell<Vec<f32>>,
    /// Number of queries decoded before the slot's token was added.
    votes_before: Vec<u64>,
}

impl Head {
    pub(crate) fn page(&self) -> PageView<'_> {
        PageView {
            start: 0,
            tokens: self.positions.len(),
            keys: self.keys.plane(),
            values: self.values.plane(),
        }
    }

    /// The slot that holds a position.
    pub(crate) fn slot(&self, position: usize) -> Option<usize> {
        self.slots.get(&position).copied()
    }

    /// Slots of the held positions in a range.
    pub(crate) fn slots_in(&self, range: core::ops::RangeInclusive<usize>) -> impl Iterator<Item = usize> + '_ {
        self.slots.range(range).map(|(_, slot)| *slot)
    }

    fn row(&self, slot: usize, head_dim: usize, dim: usize) -> Result<(Vec<f32>, Vec<f32>), SubquadraticError> {
        let (mut key, mut value) = (vec![0.0; head_dim], vec![0.0; head_dim]);
        read_keys(&self.keys.plane(), head_dim, slot, 1, &mut key, head_dim)?;
        read_values(&self.values.plane(), head_dim, slot, 1, &mut value, head_dim)?;
        key.truncate(dim);
        value.truncate(dim);
        Ok((key, value))
    }

    /// Empties a slot and returns its token.
    fn evict(&mut self, kv_head: usize, slot: usize, dim: usize) -> Result<Evicted, SubquadraticError> {
        let position = self.positions[slot];
        let (key, value) = self.row(slot, dim.next_multiple_of(LANES), dim)?;
        if let Some(landmarks) = &mut self.landmarks {
            landmarks.remove(position, &key, &value)?;
        }
        self.slots.remove(&position);
        Ok(Evicted {
            kv_head,
            position,
            key,
            value,
        })
    }

    fn put(
        &mut self,
        slot: usize,
        position: usize,
        key: &[f32],
        value: &[f32],
        votes: u64,
    ) -> Result<(), SubquadraticError> {
        let (dim, head_dim) = (key.len(), key.len().next_multiple_of(LANES));
        let tokens = (slot + 1).next_multiple_of(LANES);
        self.keys.grow(tokens, head_dim);
        self.values.grow(tokens, head_dim);
        let mut row = vec![0.0; head_dim];
        row[..dim].copy_from_slice(key);
        write_keys(&mut self.keys.plane_mut(), head_dim, slot, 1, &row, head_dim)?;
        row[..dim].copy_from_slice(value);
        write_values(&mut self.values.plane_mut(), head_dim, slot, 1, &row, head_dim)?;
        let mass = self.mass.get_mut();
        if slot == self.positions.len() {
            self.positions.push(position);
            self.votes_before.push(votes);
            mass.push(0.0);
        } else {
            self.positions[slot] = position;
            self.votes_before[slot] = votes;
            mass[slot] = 0.0;
        }
        self.slots.insert(position, slot);
        if self.landmarks.is_some() {
            // The mean is over stored values, so removal subtracts exactly what was added.
            let (key, value) = self.row(slot, head_dim, dim)?;
            if let Some(landmarks) = &mut self.landmarks {
                landmarks.update(position, &key, &value)?;
            }
        }
        Ok(())
    }
}

fn plane_bytes(plane: &PlaneBuf) -> usize {
    let plane = plane.plane();
    plane.len() * plane.format().element_bytes()
}

/// State that [`KvCache`] and [`KvCacheF16`] share.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    capacity: usize,
    pub(crate) dim: usize,
    pub(crate) block_size: usize,
    sinks: usize,
    recent: usize,
    pub(crate) next_position: usize,
    pub(crate) heads: Vec<Head>,
    pub(crate) votes: Cell<u64>,
}

impl Store {
    fn new(format: Format, capacity: usize, kv_heads: usize, dim: usize, block_size: usize) -> Self {
        let head = Head {
            keys: PlaneBuf::new(format, 0, 0),
            values: PlaneBuf::new(format, 0, 0),
            positions: Vec::new(),
            slots: BTreeMap::new(),
            landmarks: IncrementalLandmarks::new(block_size, dim).ok(),
            mass: RefCell::new(Vec::new()),
            votes_before: Vec::new(),
        };
        Self {
            capacity,
            dim,
            block_size,
            sinks: (capacity / 4).min(4),
            recent: (capacity / 2).min(128),
            next_position: 0,
            heads: vec![head; kv_heads],
            votes: Cell::new(0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.next_position.min(self.capacity)
    }

    fn check(&self, k: &Tensor3, v: &Tensor3) -> Result<(), SubquadraticError> {
        for (what, expected, found) in [
            ("heads of k and of the cache", self.heads.len(), k.heads()),
            ("heads of v and of the cache", self.heads.len(), v.heads()),
            ("dim of k and of the cache", self.dim, k.dim()),
            ("dim of v and of the cache", self.dim, v.dim()),
            ("seq of k and v", k.seq(), v.seq()),
        ] {
            if expected != found {
                return Err(SubquadraticError::Mismatch { what, expected, found });
            }
        }
        Ok(())
    }

    pub(crate) fn append(&mut self, k: &Tensor3, v: &Tensor3) -> Result<(), SubquadraticError> {
        self.check(k, v)?;
        let wanted = self.len().saturating_add(k.seq());
        if wanted > self.capacity || (k.seq() > 0 && self.next_position >= self.capacity) {
            return Err(SubquadraticError::Full {
                capacity: self.capacity,
                wanted,
            });
        }
        for token in 0..k.seq() {
            self.put_token(k, v, token, |_, _, slot| Ok(slot))?;
        }
        Ok(())
    }

    /// Puts a token into the slot that `slot` returns for each head; its argument is the first unused slot.
    fn put_token(
        &mut self,
        k: &Tensor3,
        v: &Tensor3,
        token: usize,
        mut slot: impl FnMut(usize, &mut Head, usize) -> Result<usize, SubquadraticError>,
    ) -> Result<(), SubquadraticError> {
        let (behind, votes, position) = (self.len(), self.votes.get(), self.next_position);
        for (index, head) in self.heads.iter_mut().enumerate() {
            let slot = slot(index, head, behind)?;
            head.put(slot, position, k.row(token, index), v.row(token, index), votes)?;
        }
        self.next_position += 1;
        Ok(())
    }

    fn evict_and_append(&mut self, k: &Tensor3, v: &Tensor3) -> Result<Vec<Evicted>, SubquadraticError> {
        self.check(k, v)?;
        let room = self.capacity - self.len();
        if k.seq() > room && self.capacity <= self.sinks.saturating_add(self.recent) {
            return Err(SubquadraticError::AllProtected {
                capacity: self.capacity,
            });
        }
        let mut evicted = Vec::new();
        let (capacity, dim, sinks) = (self.capacity, self.dim, self.sinks);
        for token in 0..k.seq() {
            let (votes, recent_start) = (self.votes.get(), self.next_position.saturating_sub(self.recent));
            self.put_token(k, v, token, |kv_head, head, behind| {
                if behind < capacity {
                    return Ok(behind);
                }
                let protected = SubquadraticError::AllProtected { capacity };
                let slot = victim(head, sinks, recent_start, votes).ok_or(protected)?;
                evicted.push(head.evict(kv_head, slot, dim)?);
                Ok(slot)
            })?;
        }
        Ok(evicted)
    }

    fn reset(&mut self) {
        self.next_position = 0;
        self.votes.set(0);
        for head in &mut self.heads {
            head.positions.clear();
            head.slots.clear();
            head.votes_before.clear();
            head.mass.get_mut().clear();
            if let Some(landmarks) = &mut head.landmarks {
                landmarks.reset();
            }
        }
    }

    fn bytes(&self) -> usize {
        self.heads
            .iter()
            .map(|head| plane_bytes(&head.keys) + plane_bytes(&head.values))
            .sum()
    }
}

/// The unprotected slot with the least mass per query that could have read it; the older one if two are equal.
fn victim(head: &Head, sinks: usize, recent_start: usize, votes: u64) -> Option<usize> {
    let mass = head.mass.borrow();
    let unprotected = head.slots.range(sinks..recent_start.max(sinks)).map(|(_, slot)| *slot);
    let score = |slot: usize| mass[slot] / (votes - head.votes_before[slot]).max(1) as f32;
    unprotected.min_by(|a, b| score(*a).total_cmp(&score(*b)))
}

macro_rules! cache {
    ($name:ident, $format:expr, $doc:literal) => {
        #[doc = $doc]
        ///
        /// Memory grows with the appended tokens, up to `capacity`. Every decoded query adds the softmax weight that a
        /// cached token received to this token's score, per KV head. When the cache is full,
        /// [`evict_and_append`](Self::evict_and_append) drops the token of least weight per query (H2O, Zhang et al.
        /// 2023) and puts the new one in its slot. Tokens keep their absolute positions. The first tokens (sinks) and
        /// the most recent ones are never dropped.
        #[derive(Debug, Clone)]
        pub struct $name(pub(crate) Store);

        impl $name {
            /// An empty cache for `capacity` tokens of `kv_heads` heads of `dim` elements. Landmarks cover blocks of
            /// `block_size` tokens; zero means no landmarks.
            pub fn new(capacity: usize, kv_heads: usize, dim: usize, block_size: usize) -> Self {
                Self(Store::new($format, capacity, kv_heads, dim, block_size))
            }

            /// Protects the first `sinks` and the latest `recent` tokens from eviction. By default 4 and
            /// 128, or a quarter and a half of a small cache.
            pub fn with_protection(mut self, sinks: usize, recent: usize) -> Self {
                (self.0.sinks, self.0.recent) = (sinks, recent);
                self
            }

            /// Appends tokens, `[n, kv_heads, dim]`.
            ///
            /// # Errors
            /// [`SubquadraticError::Full`] if not all tokens fit, [`SubquadraticError::Mismatch`] for wrong shapes.
            /// The cache is then unchanged.
            pub fn try_append(&mut self, k: &Tensor3, v: &Tensor3) -> Result<(), SubquadraticError> {
                self.0.append(k, v)
            }

            /// Appends all tokens of a prefill; the same as [`try_append`](Self::try_append).
            ///
            /// # Errors
            /// As [`try_append`](Self::try_append).
            pub fn append_all(&mut self, k: &Tensor3, v: &Tensor3) -> Result<(), SubquadraticError> {
                self.0.append(k, v)
            }

            /// Appends tokens. For each token that does not fit, it drops one token per KV head. Returns the dropped
            /// tokens.
            ///
            /// # Errors
            /// [`SubquadraticError::AllProtected`] when protection leaves nothing to drop,
            /// [`SubquadraticError::Mismatch`] for wrong shapes. The cache is then unchanged.
            pub fn evict_and_append(&mut self, k: &Tensor3, v: &Tensor3) -> Result<Vec<Evicted>, SubquadraticError> {
                self.0.evict_and_append(k, v)
            }

            /// Tokens held.
            pub fn len(&self) -> usize {
                self.0.len()
            }

            /// True if no token is held.
            pub fn is_empty(&self) -> bool {
                self.0.len() == 0
            }

            /// Number of tokens that the cache can hold.
            pub fn capacity(&self) -> usize {
                self.0.capacity
            }

            /// True if the next token needs an eviction.
            pub fn is_full(&self) -> bool {
                self.0.len() == self.0.capacity
            }

            /// The absolute position of the next token: tokens appended since the last reset.
            pub fn next_position(&self) -> usize {
                self.0.next_position
            }

            /// Positions that a KV head holds, ascending; empty for a head that does not exist.
            pub fn positions(&self, kv_head: usize) -> Vec<usize> {
                self.0
                    .heads
                    .get(kv_head)
                    .map(|head| head.slots.keys().copied().collect())
                    .unwrap_or_default()
            }

            /// Softmax weight that a held token has received from the queries decoded so far.
            pub fn mass(&self, kv_head: usize, position: usize) -> Option<f32> {
                let head = self.0.heads.get(kv_head)?;
                Some(head.mass.borrow()[head.slot(position)?])
            }

            /// Drops all tokens, for a new conversation, and keeps the memory.
            pub fn reset(&mut self) {
                self.0.reset();
            }

            /// Bytes of K and V allocated now.
            pub fn bytes(&self) -> usize {
                self.0.bytes()
            }
        }
    };
}

cache!(
    KvCache,
    Format::F32,
    "K and V of all tokens so far in f32, for decoding with [`decode_step`](crate::SubquadraticSparseAttention::decode_step)."
);
cache!(
    KvCacheF16,
    Format::F16,
    "As [`KvCache`] in half precision: half the memory, for \
     [`decode_step_f16`](crate::SubquadraticSparseAttention::decode_step_f16)."
);

#[cfg(feature = "fp16")]
impl KvCacheF16 {
    /// The stored key of a held token, `[dim]`.
    pub fn key(&self, kv_head: usize, position: usize) -> Option<Vec<half::f16>> {
        let head = self.0.heads.get(kv_head)?;
        let (key, _) = head
            .row(head.slot(position)?, self.0.dim.next_multiple_of(LANES), self.0.dim)
            .ok()?;
        Some(key.into_iter().map(half::f16::from_f32).collect())
    }

    /// The stored value of a held token, `[dim]`.
    pub fn value(&self, kv_head: usize, position: usize) -> Option<Vec<half::f16>> {
        let head = self.0.heads.get(kv_head)?;
        let (_, value) = head
            .row(head.slot(position)?, self.0.dim.next_multiple_of(LANES), self.0.dim)
            .ok()?;
        Some(value.into_iter().map(half::f16::from_f32).collect())
    }
}
