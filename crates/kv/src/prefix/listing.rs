//! Which beginnings a prefix cache keeps, for whoever tells others.

use std::collections::{HashMap, HashSet};

use super::PrefixCache;
use super::block::{Head, note_key};
use crate::{CacheShape, KvError, TextBlock};

/// The blocks of one identity that a [`PrefixCache`] keeps, as of the last [refresh](Self::refresh).
#[derive(Debug)]
pub struct PrefixListing {
    shape: CacheShape,
    /// The key that blocks at the beginning of a text name as the one before them.
    root: u128,
    /// True if a block counts only where it or a block behind it has a note.
    needs_notes: bool,
    /// Heads by the keys that the index names: of readable blocks, of whatever identity, and `None` for everything else.
    heads: HashMap<u128, Option<Head>>,
    /// The blocks that were told, by the keys of the cache.
    listed: HashMap<u128, Listed>,
}

/// A block that can be found.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    block: TextBlock,
    has_note: bool,
}

/// A change of the blocks that a search can find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListingChange {
    /// A block, after the blocks before it.
    Stored(TextBlock),
    /// A note of a block that is stored.
    NoteStored(TextBlock),
    /// A block has gone, or one before it.
    Removed(u128),
    /// The note of a block has gone.
    NoteRemoved(u128),
}

impl PrefixListing {
    /// An empty listing of the blocks that are found under `identity`. Where `needs_notes`, as for models with recurrent layers, these
    /// are the blocks up to each note.
    pub fn new(shape: &CacheShape, identity: &[u8], needs_notes: bool) -> Self {
        Self {
            shape: *shape,
            root: super::block::root(shape, identity),
            needs_notes,
            heads: HashMap::new(),
            listed: HashMap::new(),
        }
    }

    /// Looks at what the cache keeps now and says what has changed, whichever process changed it. Reads the heads of new blocks, and no
    /// page.
    ///
    /// # Errors
    /// [`KvError::Busy`], [`KvError::Index`]; nothing has changed then.
    pub fn refresh(&mut self, cache: &PrefixCache) -> Result<Vec<ListingChange>, KvError> {
        let keys = cache.keys()?;
        self.heads.retain(|key, _| keys.contains(key));
        for key in &keys {
            let head = || Head::read(&cache.path_of(*key), self.shape.page_tokens);
            self.heads.entry(*key).or_insert_with(head);
        }
        let found = self.found(&keys);
        let mut changes = Vec::new();
        let by_key: HashMap<u128, &Listed> = found.iter().map(|(key, listed)| (*key, listed)).collect();
        for (key, listed) in &self.listed {
            let now = by_key.get(key);
            if listed.has_note && !now.is_some_and(|now| now.has_note) {
                changes.push(ListingChange::NoteRemoved(listed.block.key));
            }
            if now.is_none() {
                changes.push(ListingChange::Removed(listed.block.key));
            }
        }
        for (key, now) in &found {
            let before = self.listed.get(key);
            if before.is_none() {
                changes.push(ListingChange::Stored(now.block.clone()));
            }
            if now.has_note && !before.is_some_and(|before| before.has_note) {
                changes.push(ListingChange::NoteStored(now.block.clone()));
            }
        }
        self.listed = found.into_iter().collect();
        Ok(changes)
    }

    /// Forgets everything, as when the cache cannot be used any more; says what was told of it.
    pub fn clear(&mut self) -> Vec<ListingChange> {
        self.heads.clear();
        let listed = std::mem::take(&mut self.listed);
        let gone = listed.into_values().flat_map(|listed| {
            let note = listed.has_note.then_some(ListingChange::NoteRemoved(listed.block.key));
            note.into_iter().chain([ListingChange::Removed(listed.block.key)])
        });
        gone.collect()
    }

    /// The blocks that a search finds, each after the block before it.
    fn found(&self, keys: &HashSet<u128>) -> Vec<(u128, Listed)> {
        let mut children: HashMap<u128, Vec<&Head>> = HashMap::new();
        for head in self.heads.values().flatten() {
            children.entry(head.parent).or_default().push(head);
        }
        let mut found: Vec<(u128, Listed)> = Vec::new();
        let mut kept = HashSet::new();
        let mut open: Vec<(u128, Option<u128>)> = vec![(self.root, None)];
        let mut parents = HashMap::new();
        while let Some((key, parent)) = open.pop() {
            for head in children.get(&key).into_iter().flatten() {
                let block = TextBlock::after(parent, &head.tokens);
                let has_note = keys.contains(&note_key(head.key));
                parents.insert(head.key, key);
                if has_note || !self.needs_notes {
                    let mut at = head.key;
                    while at != self.root && kept.insert(at) {
                        at = parents[&at];
                    }
                }
                open.push((head.key, Some(block.key)));
                found.push((head.key, Listed { block, has_note }));
            }
        }
        found.retain(|(key, _)| kept.contains(key));
        found
    }
}
