//! One page of tokens of all layers as a file.
//!
//! ```text
//! A block may have a *note*: bytes that a caller gets back with the pages up to the block's end. It is a separate
//! file:
//! ```
//!
//! A block may have a *note*: bytes that a caller wants back with the pages up to the block's end. It is a separate
//! file:
//!
//! ```text
//! "RIFFLEPN"  version u32  byte order u32
//! key u128, key of the block u128, bytes, hash of all the above: u128
//! ```

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use riffle_files::FileError;
use twox_hash::XxHash3_128;

use super::folder::failed;
use super::tail::TAIL_MAGIC;
use crate::output::{FileKind, OutputFile, OutputWriter, open_regular};
use crate::snapshot::{BYTE_ORDER, shape_numbers};
use crate::{CacheShape, KvCache, KvError, OutputError};

const MAGIC: &[u8; 8] = b"RIFFLEPB";
const NOTE_MAGIC: &[u8; 8] = b"RIFFLEPN";
const VERSION: u32 = 1;
pub(super) const HEAD_BYTES: usize = 16 + 2 * 16;
pub(super) const HASH_BYTES: usize = 16;
/// Largest note: the state of recurrent layers takes some hundreds of megabytes in the largest models.
const LARGEST_NOTE_BYTES: u64 = 4 << 30;

/// The kind of the files of blocks, notes and tails.
pub(super) const KIND: FileKind = FileKind {
    name: "a block of a prefix cache",
    matches: |begin| {
        [MAGIC, NOTE_MAGIC, TAIL_MAGIC]
            .iter()
            .any(|magic| begin.starts_with(*magic))
    },
};

/// A page of tokens after a parent block.
pub(super) struct Block<'a> {
    pub(super) key: u128,
    pub(super) parent: u128,
    pub(super) tokens: &'a [u32],
}

impl<'a> Block<'a> {
    /// The whole pages at the start of `tokens`.
    pub(super) fn chain(
        shape: &CacheShape,
        identity: &[u8],
        tokens: &'a [u32],
    ) -> impl Iterator<Item = Block<'a>> + use<'a> {
        let mut parent = root(shape, identity);
        tokens.chunks_exact(shape.page_tokens).map(move |tokens| {
            let mut hash = XxHash3_128::new();
            hash.write(&parent.to_le_bytes());
            hash.write(&token_bytes(tokens));
            let key = hash.finish_128();
            let block = Block { key, parent, tokens };
            parent = key;
            block
        })
    }

    /// Bytes of a block's file.
    pub(super) fn file_bytes(shape: &CacheShape) -> u64 {
        let fixed = HEAD_BYTES + 4 * shape.page_tokens + HASH_BYTES;
        fixed as u64 + shape.bytes_for(shape.page_tokens)
    }

    /// Writes page `number` of the cache and syncs the file to the disk. Its name is durable once the caller syncs the
    /// folder.
    pub(super) fn write(&self, path: &Path, cache: &KvCache, number: usize) -> Result<(), KvError> {
        let failed = |source| failed("write", path, source);
        let mut out = Hashed::create(path)?;
        out.write_all(&self.head()).map_err(failed)?;
        for table in 0..cache.tables.len() {
            let store = cache.pool.read();
            let (keys, values, _) = cache.pages_in(&store).planes(table, number)?;
            out.write_all(&keys)
                .and_then(|()| out.write_all(&values))
                .map_err(failed)?;
        }
        Ok(out.finish(path)?)
    }

    /// Appends the page to a cache; returns false if the file is not exactly this block. Truncate the cache if the
    /// page is incomplete.
    pub(super) fn read_into(&self, path: &Path, cache: &mut KvCache) -> Result<bool, KvError> {
        let shape = *cache.shape();
        let expected = Self::file_bytes(&shape);
        let head = self.head();
        let whole = read_whole(path, expected)?.filter(|content| {
            let bytes = (content.len() + HASH_BYTES) as u64;
            bytes == expected && content.starts_with(&head)
        });
        let Some(content) = whole else {
            return Ok(false);
        };
        let mut planes = &content[head.len()..];
        for layer in 0..shape.layers.count() {
            cache.append_page(layer, shape.page_tokens, &mut |plane| {
                let (bytes, rest) = planes.split_at(plane.len());
                plane.copy_from_slice(bytes);
                planes = rest;
            })?;
        }
        Ok(true)
    }

    fn head(&self) -> Vec<u8> {
        let mut head = head(MAGIC, self.key, self.parent);
        head.extend(token_bytes(self.tokens));
        head
    }
}

/// The parent key of the first block of a text.
pub(super) fn root(shape: &CacheShape, identity: &[u8]) -> u128 {
    let mut root = XxHash3_128::new();
    root.write(&begin(MAGIC));
    for number in shape_numbers(shape) {
        root.write(&number.to_le_bytes());
    }
    root.write(identity);
    root.finish_128()
}

/// The header of a block's file, before its pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) key: u128,
    pub(super) parent: u128,
    pub(super) tokens: Vec<u32>,
}

impl Head {
    /// The header of a file of blocks of `page_tokens` tokens; `None` for other files. The tokens match the hash in
    /// the key.
    pub(super) fn read(path: &Path, page_tokens: usize) -> Option<Self> {
        let file = open_regular(path, OpenOptions::new().read(true)).ok()?;
        let mut bytes = Vec::new();
        let most = (HEAD_BYTES + 4 * page_tokens) as u64;
        file.take(most).read_to_end(&mut bytes).ok()?;
        if bytes.len() as u64 != most || bytes[..16] != begin(MAGIC) {
            return None;
        }
        let key = |at: usize| u128::from_le_bytes(bytes[at..at + 16].try_into().expect("sixteen bytes"));
        let (parent, tokens) = (key(32), &bytes[HEAD_BYTES..]);
        let mut hash = XxHash3_128::new();
        hash.write(&parent.to_le_bytes());
        hash.write(tokens);
        let tokens = tokens.chunks_exact(4);
        let head = Self {
            key: key(16),
            parent,
            tokens: tokens
                .map(|token| u32::from_le_bytes(token.try_into().expect("four bytes")))
                .collect(),
        };
        (hash.finish_128() == head.key).then_some(head)
    }
}

/// Bytes kept with the pages up to a block's end.
pub(super) struct Note<'a> {
    pub(super) key: u128,
    block: u128,
    bytes: &'a [u8],
}

impl<'a> Note<'a> {
    pub(super) fn new(block: u128, bytes: &'a [u8]) -> Self {
        Self {
            key: note_key(block),
            block,
            bytes,
        }
    }

    /// Bytes of the note's file.
    pub(super) fn file_bytes(&self) -> u64 {
        (HEAD_BYTES + self.bytes.len() + HASH_BYTES) as u64
    }

    /// Writes the note and syncs its file to the disk. Its name is durable once the caller syncs the folder.
    pub(super) fn write(&self, path: &Path) -> Result<(), KvError> {
        let mut out = Hashed::create(path)?;
        let head = head(NOTE_MAGIC, self.key, self.block);
        let written = out.write_all(&head).and_then(|()| out.write_all(self.bytes));
        written.map_err(|source| failed("write", path, source))?;
        Ok(out.finish(path)?)
    }

    /// The bytes of a block's note; `None` if the file is not exactly this note.
    pub(super) fn read(path: &Path, block: u128) -> Result<Option<Vec<u8>>, KvError> {
        let head = head(NOTE_MAGIC, note_key(block), block);
        let content = read_whole(path, LARGEST_NOTE_BYTES)?.filter(|content| content.starts_with(&head));
        Ok(content.map(|mut content| content.split_off(HEAD_BYTES)))
    }
}

/// A file of at most `limit_bytes` without its final hash; `None` if it does not exist or the hash differs.
pub(super) fn read_whole(path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, KvError> {
    let mut bytes = match riffle_files::read(path, limit_bytes) {
        Ok(bytes) => bytes,
        Err(FileError::Io(source)) if source.kind() != ErrorKind::NotFound => {
            return Err(failed("read", path, source));
        }
        Err(_) => return Ok(None),
    };
    let Some((content, hash)) = bytes.split_last_chunk::<HASH_BYTES>() else {
        return Ok(None);
    };
    if XxHash3_128::oneshot(content).to_le_bytes() != *hash {
        return Ok(None);
    }
    bytes.truncate(bytes.len() - HASH_BYTES);
    Ok(Some(bytes))
}

/// The key of a block's note.
pub(crate) fn note_key(block: u128) -> u128 {
    key_of_kind(NOTE_MAGIC, block)
}

/// The key of a note or tail of a block.
pub(super) fn key_of_kind(magic: &[u8; 8], block: u128) -> u128 {
    let mut hash = XxHash3_128::new();
    hash.write(magic);
    hash.write(&block.to_le_bytes());
    hash.finish_128()
}

/// The first bytes of a file: magic, version, byte order, its key, and the key of its parent or block.
pub(super) fn head(magic: &[u8; 8], key: u128, block: u128) -> Vec<u8> {
    let mut head = begin(magic).to_vec();
    head.extend(key.to_le_bytes());
    head.extend(block.to_le_bytes());
    head
}

fn begin(magic: &[u8; 8]) -> [u8; 16] {
    let mut begin = [0; 16];
    begin[..8].copy_from_slice(magic);
    begin[8..12].copy_from_slice(&VERSION.to_le_bytes());
    begin[12..].copy_from_slice(&BYTE_ORDER.to_le_bytes());
    begin
}

pub(super) fn token_bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// A file that ends with the hash of its content.
pub(super) struct Hashed {
    file: OutputWriter,
    hash: XxHash3_128,
}

impl Hashed {
    pub(super) fn create(path: &Path) -> Result<Self, OutputError> {
        Ok(Self {
            file: OutputFile::new(path, KIND)?.private().create()?,
            hash: XxHash3_128::new(),
        })
    }

    pub(super) fn finish(mut self, path: &Path) -> Result<(), OutputError> {
        let hash = self.hash.finish_128().to_le_bytes();
        self.file.write_all(&hash).map_err(|source| OutputError::System {
            path: path.to_owned(),
            source,
        })?;
        self.file.rename().map(drop)
    }
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.write(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
