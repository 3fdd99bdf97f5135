//! Keeps pages of earlier texts on disk for other sequences and other processes.

mod block;
mod folder;
mod index;
mod listing;
mod named;
mod tail;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use block::note_key;
use block::{Block, Note, root};
use folder::failed;
use index::{Entry, Index};
pub use listing::{ListingChange, PrefixListing};
use riffle_system::files::sync_folder;
use tail::Tail;

use crate::{CacheShape, KvCache, KvError};

const INDEX_FILE: &str = "index.redb";

/// A folder of blocks: each a page of tokens with its keys and values of all layers.
///
/// A block's key is a hash of its identity, of its tokens and of its parent's key. A key therefore identifies a whole
/// beginning. Blocks name their content and have a checksum: a changed block is removed, never used. The index is a
/// transactional store. Blocks are synced to the disk before the index lists them, and are deleted after the index
/// drops them. Operations of several processes are serialised. The least recently used blocks are removed before new
/// ones are written, so the files never exceed the budget.
///
/// A text seldom ends with a whole page. The tokens after its last block are kept as the block's *tail*. Another text
/// can use the tail's first tokens, as far as they match its own. A block has one tail. The newest text replaces it,
/// because an agent's next request continues the last one. An older tail that starts with the new one stays. A new
/// block that contains a tail replaces it.
///
/// A read-only folder can be used too: then uses are not recorded, changed blocks stay, and nothing is stored.
#[derive(Debug)]
pub struct PrefixCache {
    folder: PathBuf,
    budget_bytes: u64,
    /// True after a damaged index was set aside, until it is reported.
    lost_index: AtomicBool,
}

/// The result of a lookup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixFound {
    /// Tokens the cache holds now.
    pub tokens: usize,
    /// Number of blocks and tails that were removed because their files had changed.
    pub damaged_blocks: usize,
}

/// A beginning with a note.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoteFound {
    /// Tokens of the beginning; 0 if none has a note.
    pub tokens: usize,
    /// The note.
    pub note: Option<Vec<u8>>,
    /// Number of notes that were removed because their files had changed.
    pub damaged: usize,
}

/// The result of storing a beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixStored {
    /// Tokens of the beginning now stored, including its tail.
    pub tokens: usize,
    /// Blocks of whole pages written.
    pub new_blocks: usize,
    /// Least recently used blocks, notes and tails that were removed for room.
    pub removed_blocks: usize,
    /// Bytes of all blocks, notes and tails now.
    pub bytes: u64,
}

impl PrefixCache {
    /// Opens the prefix cache in `folder`, which is created if necessary. Its blocks take at most `budget_bytes`.
    ///
    /// # Errors
    /// [`KvError::File`] if the folder cannot be created.
    pub fn open(folder: impl AsRef<Path>, budget_bytes: u64) -> Result<Self, KvError> {
        let folder = folder.as_ref().to_owned();
        fs::create_dir_all(&folder).map_err(|source| failed("create", &folder, source))?;
        Ok(Self {
            folder,
            budget_bytes,
            lost_index: AtomicBool::new(false),
        })
    }

    /// A notice for the user: a damaged index was set aside since the last call, and the cache began anew. Otherwise
    /// `None`.
    pub fn take_notice(&self) -> Option<String> {
        let was_lost = self.lost_index.swap(false, Ordering::Relaxed);
        was_lost.then(|| {
            format!(
                "the index of the prefix cache {} was damaged: it was set aside as {INDEX_FILE}.damaged, and the cache begins anew",
                self.folder.display()
            )
        })
    }

    /// Number of leading `tokens` in the cache: whole pages, and the matching part of the tail after them. Reads no
    /// page.
    ///
    /// `identity` names everything that determines keys and values; blocks of another identity are never found.
    ///
    /// # Errors
    /// [`KvError::Busy`], [`KvError::File`], [`KvError::Index`].
    pub fn known_tokens(&self, shape: &CacheShape, identity: &[u8], tokens: &[u32]) -> Result<usize, KvError> {
        let (_lock, index) = self.locked_index()?;
        let blocks = known_blocks(&index, Block::chain(shape, identity, tokens))?;
        let whole = blocks.len() * shape.page_tokens;
        let last = blocks.last().map_or_else(|| root(shape, identity), |block| block.key);
        let tail = Tail::after(last, &tokens[whole..]);
        let kept = self.tail_tokens(&index, &tail, shape.page_tokens)?;
        Ok(whole + tail.common(&kept.unwrap_or_default()))
    }

    /// Fills a cache with the longest stored beginning of `tokens`, to the token. Whole pages that the cache already
    /// has stay; a partial page is filled again. To get only whole pages, pass the tokens of whole pages.
    ///
    /// # Errors
    /// As [`known_tokens`](Self::known_tokens); [`KvError::Budget`] and other errors of an append. The cache then has
    /// the whole pages that it had before.
    pub fn fill(&self, cache: &mut KvCache, identity: &[u8], tokens: &[u32]) -> Result<PrefixFound, KvError> {
        let (_lock, mut index) = self.locked_index()?;
        let page_tokens = cache.shape().page_tokens;
        let held = cache.tokens(0) / page_tokens * page_tokens;
        cache.truncate(held);
        let filled = self.fill_after(held, &mut index, cache, identity, tokens);
        if filled.is_err() {
            cache.truncate(held);
        }
        filled
    }

    /// Fills the stored pages after the first `held` tokens, which are whole pages. Truncate the cache after an
    /// error.
    fn fill_after(
        &self,
        held: usize,
        index: &mut Index,
        cache: &mut KvCache,
        identity: &[u8],
        tokens: &[u32],
    ) -> Result<PrefixFound, KvError> {
        let shape = *cache.shape();
        let mut found = PrefixFound {
            tokens: held,
            damaged_blocks: 0,
        };
        let (mut last, mut used) = (root(&shape, identity), Vec::new());
        for (number, block) in Block::chain(&shape, identity, tokens).enumerate() {
            if number >= held / shape.page_tokens {
                if index.get(block.key)?.is_none() {
                    break;
                }
                if !block.read_into(&self.path_of(block.key), cache)? {
                    cache.truncate(found.tokens);
                    found.damaged_blocks += self.forget(index, block.key)?;
                    break;
                }
                found.tokens += shape.page_tokens;
            }
            last = block.key;
            used.push(block.key);
        }
        let tail = Tail::after(last, tokens.get(found.tokens..).unwrap_or_default());
        if !tail.tokens.is_empty() && index.get(tail.key)?.is_some() {
            match tail.read_into(&self.path_of(tail.key), cache)? {
                Some(0) => {}
                Some(common) => {
                    found.tokens += common;
                    used.push(tail.key);
                }
                None => found.damaged_blocks += self.forget(index, tail.key)?,
            }
        }
        index.touch(&used)?;
        Ok(found)
    }

    /// The longest stored beginning of `tokens` with a note: its number of tokens, and the note given to
    /// [`store_with_note`](Self::store_with_note) for exactly these tokens. Reads no page. Damaged notes are removed.
    ///
    /// # Errors
    /// As [`known_tokens`](Self::known_tokens).
    pub fn note(&self, shape: &CacheShape, identity: &[u8], tokens: &[u32]) -> Result<NoteFound, KvError> {
        let (_lock, mut index) = self.locked_index()?;
        let blocks = known_blocks(&index, Block::chain(shape, identity, tokens))?;
        let mut found = NoteFound::default();
        for (before, block) in blocks.iter().enumerate().rev() {
            let key = note_key(block.key);
            if index.get(key)?.is_none() {
                continue;
            }
            if let Some(bytes) = Note::read(&self.path_of(key), block.key)? {
                index.touch(&[key])?;
                found.tokens = (before + 1) * shape.page_tokens;
                found.note = Some(bytes);
                break;
            }
            found.damaged += self.forget(&mut index, key)?;
        }
        Ok(found)
    }

    /// The tokens of the tail in the file of `tail`, read without its pages; `None` if no tail is readable.
    fn tail_tokens(&self, index: &Index, tail: &Tail<'_>, page_tokens: usize) -> Result<Option<Vec<u32>>, KvError> {
        let is_named = index.get(tail.key)?.is_some();
        Ok(is_named
            .then(|| tail.kept_tokens(&self.path_of(tail.key), page_tokens))
            .flatten())
    }

    /// Removes changed files; returns the number of blocks, notes or tails. Read-only files stay.
    fn forget(&self, index: &mut Index, key: u128) -> Result<usize, KvError> {
        if !index.is_writable() {
            return Ok(0);
        }
        index.remove(&[key])?;
        fs::remove_file(self.path_of(key)).ok();
        Ok(1)
    }

    /// Stores the first `tokens.len()` tokens of a cache, which must be exactly `tokens`: whole pages as blocks, and
    /// a partly filled page as a tail.
    ///
    /// If the budget is too small for all, the first pages are stored.
    ///
    /// # Errors
    /// [`KvError::Busy`], [`KvError::File`], also for a read-only folder, [`KvError::Index`]. Earlier blocks stay,
    /// except those removed for room.
    pub fn store(&self, cache: &KvCache, identity: &[u8], tokens: &[u32]) -> Result<PrefixStored, KvError> {
        self.keep(cache, identity, tokens, None)
    }

    /// [`store`](Self::store), with a note for a later search that finds exactly these tokens, which must be whole
    /// pages. The note holds state that keys and values alone cannot restore.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn store_with_note(
        &self,
        cache: &KvCache,
        identity: &[u8],
        tokens: &[u32],
        note: &[u8],
    ) -> Result<PrefixStored, KvError> {
        self.keep(cache, identity, tokens, Some(note))
    }

    fn keep(
        &self,
        cache: &KvCache,
        identity: &[u8],
        tokens: &[u32],
        note: Option<&[u8]>,
    ) -> Result<PrefixStored, KvError> {
        let shape = cache.shape();
        let held = (0..shape.layers.count())
            .map(|layer| cache.tokens(layer))
            .min()
            .unwrap_or(0);
        let tokens = &tokens[..tokens.len().min(held)];
        let _lock = self.lock()?;
        let mut index = self.index()?;
        self.sweep(&index)?;
        let Beginning { mut known, new } = self.known_and_new(&index, shape, identity, tokens)?;
        let mut stored = PrefixStored {
            tokens: (known.len() + new.len()) * shape.page_tokens,
            ..PrefixStored::default()
        };
        let pages = tokens.len() / shape.page_tokens;
        let last = Block::chain(shape, identity, tokens).last().map(|block| block.key);
        let rest = &tokens[pages * shape.page_tokens..];
        let room = self.budget_bytes.checked_sub(pages as u64 * Block::file_bytes(shape));
        let mut behind = Behind::new(last, rest, note, || root(shape, identity))
            .filter(|behind| room.is_some_and(|room| behind.file_bytes(shape) <= room));
        if matches!(behind, Some(Behind::Tail(_))) {
            stored.tokens = tokens.len();
        }
        let mut replaced = self.covered_tails(&index, &new, shape.page_tokens)?;
        if let Some(there) = behind.take_if(|behind| self.is_listed(&index, behind, shape.page_tokens)) {
            known.push(there.key());
        }
        replaced.extend(behind.iter().map(Behind::key));
        // Blocks in use now are the last to be removed.
        index.touch(&known)?;
        let mut entries: Vec<(u128, Entry)> = new.iter().map(|(block, entry)| (block.key, *entry)).collect();
        entries.extend(behind.iter().map(|behind| {
            let entry = Entry {
                depth: pages as u32,
                bytes: behind.file_bytes(shape),
            };
            (behind.key(), entry)
        }));
        if !entries.is_empty() {
            self.check_writable()?;
        }
        // Blocks are removed before others are written, so that the budget holds at every moment.
        replaced.retain(|key| !matches!(index.get(*key), Ok(None)));
        index.remove(&replaced)?;
        replaced.iter().try_for_each(|key| self.remove_block(*key))?;
        stored.removed_blocks = self.make_room(&mut index, entries.iter().map(|(_, entry)| entry.bytes).sum())?;
        for (block, entry) in &new {
            // If this fails, the next sweep removes the blocks written before.
            block.write(&self.path_of(block.key), cache, entry.depth as usize)?;
        }
        if let Some(behind) = &behind {
            behind.write(&self.path_of(behind.key()), cache, pages)?;
        }
        sync_folder(&self.folder).map_err(|source| failed("write", &self.folder, source))?;
        index.insert(entries.into_iter(), &known)?;
        stored.new_blocks = new.len();
        stored.bytes = index.bytes()?;
        Ok(stored)
    }

    /// True if the index lists the file to write, or a tail that starts with it.
    fn is_listed(&self, index: &Index, behind: &Behind<'_>, page_tokens: usize) -> bool {
        match behind {
            Behind::Note(note) => matches!(index.get(note.key), Ok(Some(_))),
            Behind::Tail(tail) => {
                let kept = self.tail_tokens(index, tail, page_tokens);
                kept.is_ok_and(|kept| kept.is_some_and(|kept| kept.starts_with(tail.tokens)))
            }
        }
    }

    /// Keys of the tails that new blocks contain completely, and of unreadable files in their place.
    fn covered_tails(
        &self,
        index: &Index,
        new: &[(Block<'_>, Entry)],
        page_tokens: usize,
    ) -> Result<Vec<u128>, KvError> {
        let mut covered = Vec::new();
        for (block, _) in new {
            let tail = Tail::after(block.parent, block.tokens);
            if index.get(tail.key)?.is_none() {
                continue;
            }
            let kept = self.tail_tokens(index, &tail, page_tokens)?;
            if kept.is_none_or(|kept| block.tokens.starts_with(&kept)) {
                covered.push(tail.key);
            }
        }
        Ok(covered)
    }

    /// Keys of the blocks of `tokens` in the index, and the first new blocks that the budget allows.
    fn known_and_new<'a>(
        &self,
        index: &Index,
        shape: &CacheShape,
        identity: &[u8],
        tokens: &'a [u32],
    ) -> Result<Beginning<'a>, KvError> {
        let bytes = Block::file_bytes(shape);
        let mut beginning = Beginning::default();
        for (number, block) in Block::chain(shape, identity, tokens).enumerate() {
            let depth = number as u32;
            if index.get(block.key)?.is_some() {
                beginning.known.push(block.key);
            } else if (number as u64 + 1).saturating_mul(bytes) <= self.budget_bytes {
                beginning.new.push((block, Entry { depth, bytes }));
            } else {
                break;
            }
        }
        Ok(beginning)
    }

    /// Removes the least recently used blocks until `bytes` more fit; returns their number.
    fn make_room(&self, index: &mut Index, bytes: u64) -> Result<usize, KvError> {
        let removed = index.oldest_beyond(self.budget_bytes.saturating_sub(bytes))?;
        index.remove(&removed)?;
        for key in &removed {
            self.remove_block(*key)?;
        }
        Ok(removed.len())
    }
}

/// The blocks of a beginning.
#[derive(Default)]
struct Beginning<'a> {
    /// Keys of the blocks in the index.
    known: Vec<u128>,
    new: Vec<(Block<'a>, Entry)>,
}

/// The file after the last block of a beginning.
enum Behind<'a> {
    Note(Note<'a>),
    Tail(Tail<'a>),
}

impl<'a> Behind<'a> {
    /// The tail of a beginning that ends within a page; otherwise its note.
    fn new(last: Option<u128>, rest: &'a [u32], note: Option<&'a [u8]>, root: impl Fn() -> u128) -> Option<Self> {
        if !rest.is_empty() {
            return Some(Self::Tail(Tail::after(last.unwrap_or_else(root), rest)));
        }
        last.zip(note).map(|(block, bytes)| Self::Note(Note::new(block, bytes)))
    }

    fn key(&self) -> u128 {
        match self {
            Self::Note(note) => note.key,
            Self::Tail(tail) => tail.key,
        }
    }

    fn file_bytes(&self, shape: &CacheShape) -> u64 {
        match self {
            Self::Note(note) => note.file_bytes(),
            Self::Tail(tail) => Tail::file_bytes(shape, tail.tokens.len()),
        }
    }

    fn write(&self, path: &Path, cache: &KvCache, number: usize) -> Result<(), KvError> {
        match self {
            Self::Note(note) => note.write(path),
            Self::Tail(tail) => tail.write(path, cache, number),
        }
    }
}

/// The leading blocks of `chain` that the index contains.
fn known_blocks<'a>(index: &Index, chain: impl Iterator<Item = Block<'a>>) -> Result<Vec<Block<'a>>, KvError> {
    let mut known = Vec::new();
    for block in chain {
        if index.get(block.key)?.is_none() {
            break;
        }
        known.push(block);
    }
    Ok(known)
}

/// The keys of the whole pages at the start of `tokens`: each is a hash of the identity and of all tokens up to its
/// end.
pub(crate) fn chain(shape: &CacheShape, identity: &[u8], tokens: &[u32]) -> Vec<u128> {
    Block::chain(shape, identity, tokens).map(|block| block.key).collect()
}
