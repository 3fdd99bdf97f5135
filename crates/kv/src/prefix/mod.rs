//! Pages of beginnings that were read before, kept on disk for other sequences and other processes.

mod block;
mod index;
mod listing;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use block::note_key;
use block::{Block, KIND, Note};
use index::{Entry, Index};
pub use listing::{ListingChange, PrefixListing};

use crate::output::{open_regular, remove_leftovers, sync_folder};
use crate::{CacheShape, KvCache, KvError, PathLock};

const INDEX_FILE: &str = "index.redb";
const BLOCK_SUFFIX: &str = "block";
/// How long another process may take before this one gives up: it holds the lock while it reads or writes pages.
const PATIENCE: Duration = Duration::from_secs(30);

/// A folder of blocks: each a page of tokens with its keys and values of all layers.
///
/// A block's key is a hash of what made it, of its tokens and of the key of the block before it, so a key stands for a
/// whole beginning. Blocks say what they are and carry a checksum: one that has changed is removed, never used. The
/// index is a transactional store; blocks are written and brought to the disk before it names them, and removed after it
/// has forgotten them. Operations of several processes follow each other. The blocks used longest ago make room for new
/// ones, before these are written: the blocks' files never take more than the budget.
///
/// A folder that this user may only read is read from: uses are not noted then, what has changed stays there, and nothing is kept.
#[derive(Debug)]
pub struct PrefixCache {
    folder: PathBuf,
    budget_bytes: u64,
    /// True once a damaged index was set aside, until someone has asked.
    lost_index: AtomicBool,
}

/// The result of a lookup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixFound {
    /// Tokens the cache holds now.
    pub tokens: usize,
    /// Blocks that had changed on disk and were removed.
    pub damaged_blocks: usize,
}

/// A beginning with a note.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoteFound {
    /// Tokens of the beginning; 0 where none has a note.
    pub tokens: usize,
    /// The note.
    pub note: Option<Vec<u8>>,
    /// Notes that had changed on disk and were removed.
    pub damaged: usize,
}

/// The result of keeping a beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixStored {
    /// Tokens of the beginning that are kept now.
    pub tokens: usize,
    /// Blocks written.
    pub new_blocks: usize,
    /// Blocks removed for them.
    pub removed_blocks: usize,
    /// Bytes of all blocks now.
    pub bytes: u64,
}

impl PrefixCache {
    /// The prefix cache in `folder`, which is made if it is not there. Its blocks take at most `budget_bytes`.
    ///
    /// # Errors
    /// [`KvError::File`] when the folder cannot be made.
    pub fn open(folder: impl AsRef<Path>, budget_bytes: u64) -> Result<Self, KvError> {
        let folder = folder.as_ref().to_owned();
        fs::create_dir_all(&folder).map_err(|source| failed("create", &folder, source))?;
        Ok(Self {
            folder,
            budget_bytes,
            lost_index: AtomicBool::new(false),
        })
    }

    /// A notice for the user, if a damaged index has been set aside since the last call and the cache began anew.
    pub fn take_notice(&self) -> Option<String> {
        let was_lost = self.lost_index.swap(false, Ordering::Relaxed);
        was_lost.then(|| {
            format!(
                "the index of the prefix cache {} was damaged: it was set aside as {INDEX_FILE}.damaged, and the cache begins anew",
                self.folder.display()
            )
        })
    }

    /// Tokens of the longest beginning of `tokens` that is kept, in whole pages. Reads no page.
    ///
    /// `identity` names what makes the keys and values; blocks of another identity are never found.
    ///
    /// # Errors
    /// [`KvError::Busy`], [`KvError::File`], [`KvError::Index`].
    pub fn known_tokens(&self, shape: &CacheShape, identity: &[u8], tokens: &[u32]) -> Result<usize, KvError> {
        let (_lock, index) = self.locked_index()?;
        let blocks = known_blocks(&index, Block::chain(shape, identity, tokens))?;
        Ok(blocks.len() * shape.page_tokens)
    }

    /// Fills a cache with the longest beginning of `tokens` that is kept, in whole pages. What the cache holds of them already
    /// stays: whole pages of the first tokens, or nothing.
    ///
    /// # Errors
    /// As [`known_tokens`](Self::known_tokens); [`KvError::Budget`] and what else an append can meet. The cache holds what it held
    /// before then.
    pub fn fill(&self, cache: &mut KvCache, identity: &[u8], tokens: &[u32]) -> Result<PrefixFound, KvError> {
        let (_lock, mut index) = self.locked_index()?;
        let page_tokens = cache.shape().page_tokens;
        let held = cache.tokens(0) / page_tokens;
        let mut found = PrefixFound {
            tokens: held * page_tokens,
            damaged_blocks: 0,
        };
        let mut used = Vec::new();
        for (number, block) in Block::chain(cache.shape(), identity, tokens).enumerate() {
            if number < held {
                used.push(block.key);
                continue;
            }
            if index.get(block.key)?.is_none() {
                break;
            }
            let whole = block.read_into(&self.path_of(block.key), cache);
            if !matches!(whole, Ok(true)) {
                cache.truncate(found.tokens);
            }
            match whole {
                Ok(true) => {
                    used.push(block.key);
                    found.tokens += page_tokens;
                }
                Ok(false) => {
                    found.damaged_blocks += self.forget(&mut index, block.key)?;
                    break;
                }
                Err(error) => {
                    cache.truncate(held * page_tokens);
                    return Err(error);
                }
            }
        }
        index.touch(&used)?;
        Ok(found)
    }

    /// The longest beginning of `tokens` that is kept and has a note: its tokens, and what
    /// [`store_with_note`](Self::store_with_note) was given when exactly these had been read. Reads no page. Damaged notes are
    /// removed.
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

    /// Removes what has changed on disk; returns how many blocks or notes that was. What may only be read stays.
    fn forget(&self, index: &mut Index, key: u128) -> Result<usize, KvError> {
        if !index.is_writable() {
            return Ok(0);
        }
        index.remove(&[key])?;
        fs::remove_file(self.path_of(key)).ok();
        Ok(1)
    }

    /// Keeps the whole pages of the first `tokens.len()` tokens of a cache that holds exactly these tokens first.
    ///
    /// If the budget does not allow for all of them, the first are kept.
    ///
    /// # Errors
    /// [`KvError::Busy`], [`KvError::File`], also for a folder that may only be read, [`KvError::Index`]; what was kept before is still
    /// kept, but for blocks that had to make room.
    pub fn store(&self, cache: &KvCache, identity: &[u8], tokens: &[u32]) -> Result<PrefixStored, KvError> {
        self.keep(cache, identity, tokens, None)
    }

    /// [`store`](Self::store), with a note for whoever finds exactly these tokens, which must be whole pages: what keys
    /// and values alone do not give back.
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
        let last = Block::chain(shape, identity, tokens).last();
        let note = note.filter(|_| tokens.len().is_multiple_of(shape.page_tokens));
        let mut note = last.zip(note).map(|(block, bytes)| Note::new(block.key, bytes));
        let pages_bytes = (tokens.len() / shape.page_tokens) as u64 * Block::file_bytes(shape);
        note.take_if(|note| pages_bytes + note.file_bytes() > self.budget_bytes);
        if let Some(there) = note.take_if(|note| matches!(index.get(note.key), Ok(Some(_)))) {
            known.push(there.key);
        }
        // Blocks that are used now are the last to be removed.
        index.touch(&known)?;
        let mut entries: Vec<(u128, Entry)> = new.iter().map(|(block, entry)| (block.key, *entry)).collect();
        entries.extend(note.iter().map(|note| {
            let entry = Entry {
                depth: (tokens.len() / shape.page_tokens) as u32,
                bytes: note.file_bytes(),
            };
            (note.key, entry)
        }));
        if !entries.is_empty() {
            self.check_writable()?;
        }
        stored.removed_blocks = self.make_room(&mut index, entries.iter().map(|(_, entry)| entry.bytes).sum())?;
        for (block, entry) in &new {
            // If this fails, the next sweep removes the blocks that were written before.
            block.write(&self.path_of(block.key), cache, entry.depth as usize)?;
        }
        if let Some(note) = &note {
            note.write(&self.path_of(note.key))?;
        }
        sync_folder(&self.folder).map_err(|source| failed("write", &self.folder, source))?;
        index.insert(entries.into_iter())?;
        stored.new_blocks = new.len();
        stored.bytes = index.bytes()?;
        Ok(stored)
    }

    /// Keys of the blocks of `tokens` that the index names, and the first others, as many as the budget allows.
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

    /// Removes the blocks used longest ago until `bytes` more fit; returns how many.
    fn make_room(&self, index: &mut Index, bytes: u64) -> Result<usize, KvError> {
        let removed = index.oldest_beyond(self.budget_bytes.saturating_sub(bytes))?;
        index.remove(&removed)?;
        for key in &removed {
            self.remove_block(*key)?;
        }
        Ok(removed.len())
    }

    /// Keys of everything that the index names, notes included.
    fn keys(&self) -> Result<HashSet<u128>, KvError> {
        self.locked_index()?.1.keys()
    }

    /// The right to the folder and its index. Where the folder may only be read, it is shared with other readers.
    fn locked_index(&self) -> Result<(Option<PathLock>, Index), KvError> {
        let path = self.folder.join(INDEX_FILE);
        let error = match self.lock() {
            Ok(lock) => match self.index() {
                Ok(index) => return Ok((Some(lock), index)),
                Err(error) => error,
            },
            Err(error) => error,
        };
        if !self.may_only_be_read(&error) {
            return Err(error);
        }
        let lock = self.patiently(|| PathLock::share(&path))?;
        Ok((lock, Index::open_to_read(&path)?))
    }

    /// True if an error says that this user may not write to the folder or to its files.
    fn may_only_be_read(&self, error: &KvError) -> bool {
        let is_refused = |source: &io::Error| {
            matches!(
                source.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            )
        };
        match error {
            KvError::File { source, .. } => is_refused(source),
            // The index tells the reason as text.
            KvError::Index { .. } => {
                let opened = open_regular(&self.folder.join(INDEX_FILE), OpenOptions::new().write(true));
                opened.is_err_and(|source| is_refused(&source))
            }
            _ => false,
        }
    }

    /// Refuses a folder in which no file can be made, before any block has to make room for others.
    fn check_writable(&self) -> Result<(), KvError> {
        let path = self.folder.join(format!(".{INDEX_FILE}.new"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        open_regular(&path, &mut options)
            .and_then(|_| fs::remove_file(&path))
            .map_err(|source| failed("write to", &self.folder, source))
    }

    fn index(&self) -> Result<Index, KvError> {
        let (index, is_new) = Index::open(&self.folder.join(INDEX_FILE), || self.has_blocks())?;
        self.lost_index.fetch_or(is_new, Ordering::Relaxed);
        Ok(index)
    }

    /// True if a block lies in the folder.
    fn has_blocks(&self) -> bool {
        let mut entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.any(|entry| key_of(&entry.file_name()).is_some() && is_block(&entry.path()))
    }

    fn lock(&self) -> Result<PathLock, KvError> {
        self.patiently(|| PathLock::take(self.folder.join(INDEX_FILE)))
    }

    /// Takes a lock, once the process that holds it has ended its work.
    fn patiently<T>(&self, take: impl Fn() -> Result<T, KvError>) -> Result<T, KvError> {
        let start = Instant::now();
        loop {
            match take() {
                Err(KvError::Busy { .. }) if start.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(20)),
                Err(KvError::Busy { .. }) => {
                    return Err(KvError::Busy {
                        path: self.folder.clone(),
                    });
                }
                lock => return lock,
            }
        }
    }

    fn path_of(&self, key: u128) -> PathBuf {
        self.folder.join(format!("{key:032x}.{BLOCK_SUFFIX}"))
    }

    fn remove_block(&self, key: u128) -> Result<(), KvError> {
        let path = self.path_of(key);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path, source)),
            _ => Ok(()),
        }
    }

    /// Removes leftovers of a process that ended before it wrote the index: unfinished files, and blocks, told by name and
    /// content, that the index does not list.
    fn sweep(&self, index: &Index) -> Result<(), KvError> {
        let unread = |source| failed("read", &self.folder, source);
        for entry in fs::read_dir(&self.folder).map_err(unread)? {
            let entry = entry.map_err(unread)?;
            if let Some(key) = key_of(&entry.file_name())
                && index.get(key)?.is_none()
                && is_block(&entry.path())
            {
                self.remove_block(key)?;
            }
        }
        remove_leftovers(&self.folder, &[KIND], |name| key_of(name).is_some()).map_err(unread)
    }
}

/// The blocks of a beginning.
#[derive(Default)]
struct Beginning<'a> {
    /// Keys of those that the index names.
    known: Vec<u128>,
    new: Vec<(Block<'a>, Entry)>,
}

/// The key of the block whose file is called `name`.
fn key_of(name: &OsStr) -> Option<u128> {
    let digits = name.to_str()?.strip_suffix(BLOCK_SUFFIX)?.strip_suffix('.')?;
    let is_key = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    is_key.then(|| u128::from_str_radix(digits, 16).ok())?
}

fn is_block(path: &Path) -> bool {
    let begin = open_regular(path, OpenOptions::new().read(true)).and_then(|file| {
        let mut begin = Vec::new();
        file.take(16).read_to_end(&mut begin)?;
        Ok(begin)
    });
    begin.is_ok_and(|begin| (KIND.matches)(&begin))
}

/// The leading blocks of `chain` that the index holds.
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

/// The keys of the whole pages that `tokens` begin with: each is a hash of what made them and of all tokens up to its end.
pub(crate) fn chain(shape: &CacheShape, identity: &[u8], tokens: &[u32]) -> Vec<u128> {
    Block::chain(shape, identity, tokens).map(|block| block.key).collect()
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> KvError {
    KvError::File {
        action,
        path: path.to_owned(),
        source,
    }
}
