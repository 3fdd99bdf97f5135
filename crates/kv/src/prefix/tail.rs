//! A *tail*: the file of a partly filled page, after a block or at the beginning of a text.
//!
//! ```text
//! "RIFFLEPT"  version u32  byte order u32                             numbers little-endian
//! key u128, key of the block before it u128
//! tokens in number u32, tokens: u32 each
//! for each layer and KV head: K in whole stripes, V in whole stripes, with zeros after the last token
//! hash of all the above: u128
//! ```
//!
//! The key depends only on the parent block, so a block has at most one tail.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::Path;

use riffle_attention::LANES;

use super::block::{HASH_BYTES, HEAD_BYTES, Hashed, head, key_of_kind, read_whole, token_bytes};
use super::folder::failed;
use crate::output::open_regular;
use crate::{CacheShape, KvCache, KvError};

pub(super) const TAIL_MAGIC: &[u8; 8] = b"RIFFLEPT";

/// Tokens after a block, to store or to find.
pub(super) struct Tail<'a> {
    pub(super) key: u128,
    parent: u128,
    pub(super) tokens: &'a [u32],
}

impl<'a> Tail<'a> {
    /// The tokens after a block; at the beginning of a text `parent` is its [root](super::block::root). A tail to
    /// [write](Self::write) has at least one token and less than a page.
    pub(super) fn after(parent: u128, tokens: &'a [u32]) -> Self {
        Self {
            key: key_of_kind(TAIL_MAGIC, parent),
            parent,
            tokens,
        }
    }

    /// Bytes of the file of a tail of `tokens` tokens.
    pub(super) fn file_bytes(shape: &CacheShape, tokens: usize) -> u64 {
        let fixed = HEAD_BYTES + 4 + 4 * tokens + HASH_BYTES;
        fixed as u64 + tokens.next_multiple_of(LANES) as u64 * shape.bytes_per_token()
    }

    /// Writes the tokens from page `number` of the cache, which starts with them, and syncs the file to the disk. Its
    /// name is durable once the caller syncs the folder.
    pub(super) fn write(&self, path: &Path, cache: &KvCache, number: usize) -> Result<(), KvError> {
        let failed = |source| failed("write", path, source);
        let mut out = Hashed::create(path)?;
        let mut head = head(TAIL_MAGIC, self.key, self.parent);
        head.extend((self.tokens.len() as u32).to_le_bytes());
        head.extend(token_bytes(self.tokens));
        out.write_all(&head).map_err(failed)?;
        for table in 0..cache.tables.len() {
            let store = cache.pool.read();
            let (keys, values, _) = cache.pages_in(&store).planes(table, number)?;
            let planes = (keys, values, self.tokens.len());
            cache.write_parts(table, &planes, &mut out).map_err(failed)?;
        }
        Ok(out.finish(path)?)
    }

    /// The tokens of the tail in a file, read without its pages; `None` if the file is not a tail of this block.
    pub(super) fn kept_tokens(&self, path: &Path, page_tokens: usize) -> Option<Vec<u32>> {
        let file = open_regular(path, OpenOptions::new().read(true)).ok()?;
        let mut bytes = Vec::new();
        let most = HEAD_BYTES + 4 * page_tokens;
        file.take(most as u64).read_to_end(&mut bytes).ok()?;
        self.parse(&bytes, page_tokens)
    }

    /// Appends the common leading tokens of the file's tail and this one to a cache of whole pages. Returns their
    /// number. `None` if the file is not an intact tail of this block. Truncate the cache after an error.
    pub(super) fn read_into(&self, path: &Path, cache: &mut KvCache) -> Result<Option<usize>, KvError> {
        let shape = *cache.shape();
        let page = shape.page_tokens;
        let Some(content) = read_whole(path, Self::file_bytes(&shape, page - 1))? else {
            return Ok(None);
        };
        let Some(kept) = self.parse(&content, page) else {
            return Ok(None);
        };
        if (content.len() + HASH_BYTES) as u64 != Self::file_bytes(&shape, kept.len()) {
            return Ok(None);
        }
        let common = self.common(&kept);
        if common == 0 {
            return Ok(Some(0));
        }
        let mut planes = &content[HEAD_BYTES + 4 + 4 * kept.len()..];
        let stripes = kept.len().next_multiple_of(LANES);
        for layer in 0..shape.layers.count() {
            cache.append_page(layer, common, &mut |plane| {
                let held = plane.len() / page * stripes;
                let (bytes, rest) = planes.split_at(held);
                plane[..held].copy_from_slice(bytes);
                planes = rest;
            })?;
        }
        Ok(Some(common))
    }

    /// Number of leading tokens in common with a stored tail.
    pub(super) fn common(&self, kept: &[u32]) -> usize {
        let pairs = self.tokens.iter().zip(kept);
        pairs.take_while(|(wanted, kept)| wanted == kept).count()
    }

    /// The tokens of a tail of this block whose file begins with `bytes`.
    fn parse(&self, bytes: &[u8], page_tokens: usize) -> Option<Vec<u32>> {
        let rest = bytes.strip_prefix(&head(TAIL_MAGIC, self.key, self.parent)[..])?;
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let (count, rest) = rest.split_at_checked(4)?;
        let count = number(count) as usize;
        if !(1..page_tokens).contains(&count) {
            return None;
        }
        let tokens = rest.get(..4 * count)?;
        Some(tokens.chunks_exact(4).map(number).collect())
    }
}
