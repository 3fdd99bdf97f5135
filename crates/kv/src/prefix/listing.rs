//! Lists the beginnings that a prefix cache keeps, for callers that report them to others.

use std::collections::{HashMap, HashSet};

use super::PrefixCache;
use super::block::{Head, note_key};
use crate::{CacheShape, KvError, TextBlock};

/// The blocks of one identity that a [`PrefixCache`] keeps, as of the last [refresh](Self::refresh).
#[derive(Debug)]
pub struct PrefixListing {
    shape: CacheShape,
    /// The parent key of blocks at the beginning of a text.
    root: u128,
    /// True if a block counts only if it, or a block after it, has a note.
    needs_notes: bool,
    /// Headers of readable blocks of any identity, by the keys of the index; `None` for everything else.
    heads: HashMap<u128, Option<Head>>,
    /// The blocks reported so far, by their keys in the cache.
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
    /// A new block; blocks before it are reported first.
    Stored(TextBlock),
    /// A new note of a stored block.
    NoteStored(TextBlock),
    /// A removed block, or a block whose parent was removed.
    Removed(u128),
    /// A removed note.
    NoteRemoved(u128),
}

impl PrefixListing {
    /// An empty listing of the blocks under `identity`. With `needs_notes`, as for models with recurrent layers, it
    /// lists the blocks up to each note.
    pub fn new(shape: &CacheShape, identity: &[u8], needs_notes: bool) -> Self {
        Self {
            shape: *shape,
            root: super::block::root(shape, identity),
            needs_notes,
            heads: HashMap::new(),
            listed: HashMap::new(),
        }
    }

    /// Compares with the cache's current contents and returns the changes of all processes. Reads the headers of new
    /// blocks, but no pages.
    ///
    /// # Errors
    /// [`KvError::Busy`], [`KvError::Index`]; the listing is then unchanged.
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

    /// Removes everything, as when the cache becomes unusable; returns the removals.
    pub fn clear(&mut self) -> Vec<ListingChange> {
        self.heads.clear();
        let listed = std::mem::take(&mut self.listed);
        let gone = listed.into_values().flat_map(|listed| {
            let note = listed.has_note.then_some(ListingChange::NoteRemoved(listed.block.key));
            note.into_iter().chain([ListingChange::Removed(listed.block.key)])
        });
        gone.collect()
    }

    /// The blocks that a search finds, each after its parent.
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
