//! A cache as a file.
//!
//! ```text
//! "RIFFLEKV"  version u32  byte order u32                            numbers little-endian
//! layers, kv_heads, head_dim, page_tokens, K format, V format: u64 each;
//!   where layers differ: 1, the number of page tables, a hash of the layers' shapes
//! identity length u64, attachment length u64, tokens of each layer and KV head: u64 each
//! identity, attachment, hash of all the above: u128
//! for each layer, KV head and page: K in whole stripes, V in whole stripes, hash of the page: u128
//! hash of all hashes: u128
//! ```
//!
//! The last hash fixes each page's position; the page's own hash fixes its bytes (XXH3, 128 bits).

use std::fs::{File, Metadata};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use riffle_attention::{Format, LANES, PlaneMut, write_keys, write_values};
use twox_hash::XxHash3_128;

use crate::output::{FileKind, OutputFile};
use crate::reader::PagePlanes;
use crate::{CacheShape, KvCache, KvError, KvTiers, PagePool};

const MAGIC: &[u8; 8] = b"RIFFLEKV";
const VERSION: u32 = 3;
/// Planes are stored in this machine's byte order.
pub(crate) const BYTE_ORDER: u32 = u32::from_ne_bytes([1, 2, 3, 4]);
/// Bytes before the first token count.
const FIXED_BYTES: usize = 16 + 8 * 8;
const HASH_BYTES: usize = 16;
const KIND: FileKind = FileKind {
    name: "a KV cache file",
    matches: |begin| begin.starts_with(MAGIC),
};

impl KvCache {
    /// Writes the cache to a file. [`restore`](Self::restore) reads it back bit for bit.
    ///
    /// `identity` names everything that determines keys and values (model, weights, policy). `attachment` is returned
    /// with them, for example the tokens. The file appears under its name when it is complete and on the disk; until
    /// then, and on any error, an earlier file stays. A new file is readable by its owner only, because a cache
    /// reveals its text; a replaced file keeps its permissions. Returns the file's metadata.
    ///
    /// # Errors
    /// [`KvError::Output`].
    pub fn save(&self, path: impl AsRef<Path>, identity: &[u8], attachment: &[u8]) -> Result<Metadata, KvError> {
        let output = OutputFile::new(path, KIND)?.private();
        Ok(output.write(|file| {
            let head = self.head(identity, attachment);
            file.write_all(&head)?;
            let head_hash = XxHash3_128::oneshot(&head).to_le_bytes();
            file.write_all(&head_hash)?;
            let mut all_hashes = XxHash3_128::new();
            all_hashes.write(&head_hash);
            for table in 0..self.tokens.len() {
                for page in 0..self.page_count(self.tokens[table]) {
                    let store = self.pool.read();
                    let planes = self.pages_in(&store).planes(table, page).map_err(io::Error::other)?;
                    all_hashes.write(&self.write_page(table, &planes, file)?);
                }
            }
            file.write_all(&all_hashes.finish_128().to_le_bytes())
        })?)
    }

    /// Checks that [`save`](Self::save) can write to `path`, before long work.
    ///
    /// # Errors
    /// [`KvError::Output`].
    pub fn check_save(path: impl AsRef<Path>) -> Result<(), KvError> {
        OutputFile::check(path, KIND)?;
        Ok(())
    }

    /// Reads a cache that [`save`](Self::save) wrote, and its attachment.
    ///
    /// # Errors
    /// [`KvError::File`], [`KvError::NotReadable`], [`KvError::OtherVersion`], [`KvError::Foreign`] if the shape or
    /// identity differs, [`KvError::Damaged`] if any byte is missing or has changed, [`KvError::Budget`] before
    /// anything is allocated.
    pub fn restore(
        path: impl AsRef<Path>,
        shape: &CacheShape,
        identity: &[u8],
        budget_bytes: Option<u64>,
    ) -> Result<(Self, Vec<u8>), KvError> {
        PagePool::new(*shape, KvTiers::memory(budget_bytes))?.restore(path, identity)
    }

    /// The identity that a file was [saved](Self::save) with, to report the difference.
    ///
    /// # Errors
    /// [`KvError::File`], [`KvError::NotReadable`], [`KvError::Damaged`].
    pub fn saved_identity(path: impl AsRef<Path>) -> Result<Vec<u8>, KvError> {
        Ok(Reader::open(path.as_ref())?.head()?.identity)
    }

    /// A hash of a page's contents: equal for equal keys and values. `None` for a page that does not exist or is
    /// unreadable.
    pub fn page_hash(&self, layer: usize, kv_head: usize, page: usize) -> Option<u128> {
        self.page_ids(layer, kv_head).get(page)?;
        let store = self.pool.read();
        let table = self.shape().tables_of(layer).start + kv_head;
        let planes = self.pages_in(&store).planes(table, page).ok()?;
        Some(u128::from_le_bytes(self.for_each_part(table, &planes, |_| ())))
    }

    fn head(&self, identity: &[u8], attachment: &[u8]) -> Vec<u8> {
        let mut head = Vec::from(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend(BYTE_ORDER.to_le_bytes());
        let lengths = [identity.len() as u64, attachment.len() as u64];
        let tokens = self.tokens.iter().map(|tokens| *tokens as u64);
        for number in shape_numbers(self.shape()).into_iter().chain(lengths).chain(tokens) {
            head.extend(number.to_le_bytes());
        }
        head.extend(identity);
        head.extend(attachment);
        head
    }

    fn page_count(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.shape().page_tokens)
    }

    fn write_page(&self, table: usize, planes: &PagePlanes<'_>, file: &mut impl Write) -> io::Result<[u8; HASH_BYTES]> {
        let hash = self.write_parts(table, planes, file)?;
        file.write_all(&hash)?;
        Ok(hash)
    }

    /// Writes the first tokens of a page, as many as `planes` gives: keys, then values, each in whole stripes with
    /// zeros after the last token. Returns their hash.
    pub(crate) fn write_parts(
        &self,
        table: usize,
        planes: &PagePlanes<'_>,
        file: &mut impl Write,
    ) -> io::Result<[u8; HASH_BYTES]> {
        let mut written = Ok(());
        let hash = self.for_each_part(table, planes, |part| {
            if written.is_ok() {
                written = file.write_all(part);
            }
        });
        written.map(|()| hash)
    }

    /// Calls `each` with the bytes of the page's keys, then its values, and returns their hash.
    fn for_each_part(&self, table: usize, planes: &PagePlanes<'_>, mut each: impl FnMut(&[u8])) -> [u8; HASH_BYTES] {
        let (keys, values, tokens) = planes;
        let shape = self.shape();
        let layer = shape.layer(shape.place_of(table).0);
        let mut hash = PageHash::new(*tokens);
        let mut both = |part: &[u8]| {
            hash.write(part);
            each(part);
        };
        let width = layer.key_width;
        plane_parts(
            (keys, shape.key_format, width),
            *tokens,
            |plane, first, zeros| {
                write_keys(plane, width, first, LANES - first, zeros, width).expect("zeros fill a stripe");
            },
            &mut both,
        );
        let width = layer.held_value_width();
        plane_parts(
            (values, shape.value_format, width),
            *tokens,
            |plane, first, zeros| {
                write_values(plane, width, first, LANES - first, zeros, width).expect("zeros fill a stripe");
            },
            &mut both,
        );
        hash.finish()
    }
}

impl PagePool {
    /// Reads a cache that [`KvCache::save`] wrote into pages of this pool, and its attachment. The oldest pages move
    /// to farther tiers during the read.
    ///
    /// # Errors
    /// As [`KvCache::restore`], and errors of writing to the disk tier.
    pub fn restore(&self, path: impl AsRef<Path>, identity: &[u8]) -> Result<(KvCache, Vec<u8>), KvError> {
        let path = path.as_ref();
        let mut reader = Reader::open(path)?;
        let (mut cache, shape) = (self.cache(), self.shape());
        let head = reader.head()?;
        let tokens = reader.check(&head, shape, identity)?;
        cache.check_fits(&tokens)?;
        let mut all_hashes = XxHash3_128::new();
        all_hashes.write(&head.hash);
        for (table, tokens) in tokens.into_iter().enumerate() {
            for page in 0..cache.page_count(tokens) {
                let tokens = shape.page_tokens.min(tokens - page * shape.page_tokens);
                let mut expected = PageHash::new(tokens);
                let stripes = tokens.next_multiple_of(LANES);
                cache.push_page(table, tokens, |kind, bytes| {
                    let width = shape.width(shape.size_of_table(table), kind);
                    let bytes = &mut bytes[..shape.format(kind).plane_bytes(stripes, width)];
                    reader.fill(bytes)?;
                    expected.write(bytes);
                    Ok::<(), KvError>(())
                })?;
                let hash = reader.hash()?;
                if hash != expected.finish() {
                    let (layer, kv_head) = shape.place_of(table);
                    let what = format!("page {page} of layer {layer}, KV head {kv_head}, has changed");
                    return Err(reader.damaged(what));
                }
                all_hashes.write(&hash);
            }
        }
        if reader.hash()? != all_hashes.finish_128().to_le_bytes() {
            return Err(reader.damaged("its pages are not in their places"));
        }
        Ok((cache, head.attachment))
    }
}

/// The bytes of a plane, independent of earlier contents of its memory: whole stripes unchanged, then the last stripe
/// with zeros for missing tokens.
fn plane_parts(
    (bytes, format, width): (&[u8], Format, usize),
    tokens: usize,
    write_zeros: impl Fn(&mut PlaneMut<'_>, usize, &[f32]),
    each: &mut impl FnMut(&[u8]),
) {
    let until = |tokens: usize| format.plane_bytes(tokens, width);
    let (whole, last) = bytes[..until(tokens.next_multiple_of(LANES))].split_at(until(tokens / LANES * LANES));
    each(whole);
    if !last.is_empty() {
        // Allocated as f32, so that the bytes are aligned for every format.
        let mut copy = vec![0.0f32; last.len().div_ceil(4)];
        let bytes = &mut bytemuck::cast_slice_mut(&mut copy)[..last.len()];
        bytes.copy_from_slice(last);
        let zeros = vec![0.0; LANES * width];
        write_zeros(&mut PlaneMut::from_bytes(format, bytes), tokens % LANES, &zeros);
        each(bytes);
    }
}

/// Hash of a page's tokens, keys and values.
struct PageHash(XxHash3_128);

impl PageHash {
    fn new(tokens: usize) -> Self {
        let mut hash = XxHash3_128::new();
        hash.write(&(tokens as u64).to_le_bytes());
        Self(hash)
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    fn finish(self) -> [u8; HASH_BYTES] {
        self.0.finish_128().to_le_bytes()
    }
}

/// A cache file being read.
struct Reader<'a> {
    path: &'a Path,
    file: BufReader<File>,
    length: u64,
}

/// The header of a file with a correct hash.
struct Head {
    shape: [u64; 6],
    tokens: Vec<u64>,
    identity: Vec<u8>,
    attachment: Vec<u8>,
    hash: [u8; HASH_BYTES],
    bytes: u64,
}

impl<'a> Reader<'a> {
    fn open(path: &'a Path) -> Result<Self, KvError> {
        let failed = |source| KvError::File {
            action: "read",
            path: path.to_owned(),
            source,
        };
        let file = riffle_files::open(path).map_err(|error| failed(error.into()))?;
        let length = file.metadata().map_err(failed)?.len();
        Ok(Self {
            path,
            file: BufReader::new(file),
            length,
        })
    }

    fn head(&mut self) -> Result<Head, KvError> {
        let mut fixed = [0; FIXED_BYTES];
        let (magic, rest) = fixed.split_at_mut(MAGIC.len());
        if self.length < magic.len() as u64 {
            return Err(self.not_readable("too short"));
        }
        self.fill(magic)?;
        if magic != MAGIC {
            return Err(self.not_readable("another kind of file"));
        }
        self.fill(rest)?;
        let word = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().expect("four bytes"));
        if word(8) != VERSION {
            return Err(self.other_version(format!("a version of riffle with format {} (here {VERSION})", word(8))));
        }
        if word(12) != BYTE_ORDER {
            return Err(self.other_version("a machine of another byte order"));
        }
        let numbers: Vec<u64> = numbers(&fixed[16..]).collect();
        let (identity_bytes, attachment_bytes) = (numbers[6], numbers[7]);
        let tables = u128::from(numbers[0]) * u128::from(numbers[1]);
        // Each length is checked against the file before allocation.
        let variable = tables
            .saturating_mul(8)
            .saturating_add(u128::from(identity_bytes) + u128::from(attachment_bytes));
        let bytes = variable.saturating_add((FIXED_BYTES + HASH_BYTES) as u128);
        if bytes > u128::from(self.length) {
            return Err(self.damaged("it is cut, or its head has changed"));
        }
        let mut head = vec![0; variable as usize];
        self.fill(&mut head)?;
        let hash = self.hash()?;
        let mut expected = XxHash3_128::new();
        expected.write(&fixed);
        expected.write(&head);
        if hash != expected.finish_128().to_le_bytes() {
            return Err(self.damaged("its head has changed"));
        }
        let (tokens, rest) = head.split_at(tables as usize * 8);
        let (identity, attachment) = rest.split_at(identity_bytes as usize);
        Ok(Head {
            shape: numbers[..6].try_into().expect("six numbers"),
            tokens: crate::snapshot::numbers(tokens).collect(),
            identity: identity.to_vec(),
            attachment: attachment.to_vec(),
            hash,
            bytes: bytes as u64,
        })
    }

    /// Checks the file's shape, identity and length.
    fn check(&self, head: &Head, shape: &CacheShape, identity: &[u8]) -> Result<Vec<usize>, KvError> {
        const PARTS: [&str; 6] = [
            "the number of layers",
            "the number of KV heads",
            "head_dim",
            "page_tokens",
            "the format of keys",
            "the format of values",
        ];
        let foreign = |what| KvError::Foreign {
            path: self.path.to_owned(),
            what,
        };
        if head.identity != identity {
            return Err(foreign("the model or its settings"));
        }
        let parts = head.shape.iter().zip(shape_numbers(shape)).zip(PARTS);
        for ((found, expected), what) in parts {
            if *found != expected {
                return Err(foreign(what));
            }
        }
        let stripe_bytes = |table: usize| {
            let layer = shape.layer(shape.place_of(table).0);
            let keys = shape.key_format.plane_bytes(LANES, layer.key_width);
            (keys + shape.value_format.plane_bytes(LANES, layer.held_value_width())) as u128
        };
        let pages = head.tokens.iter().enumerate().map(|(table, tokens)| {
            let pages = tokens.div_ceil(shape.page_tokens as u64);
            u128::from(tokens.div_ceil(LANES as u64)) * stripe_bytes(table) + u128::from(pages) * HASH_BYTES as u128
        });
        let expected = u128::from(head.bytes) + pages.sum::<u128>() + HASH_BYTES as u128;
        if expected != u128::from(self.length) {
            return Err(self.damaged(format!("it has {} bytes, not {expected}", self.length)));
        }
        // Counts of a file of the right length fit the address space of the machine that wrote it.
        Ok(head.tokens.iter().map(|tokens| *tokens as usize).collect())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KvError> {
        self.file.read_exact(bytes).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged("it is cut"),
            _ => KvError::File {
                action: "read",
                path: self.path.to_owned(),
                source,
            },
        })
    }

    fn hash(&mut self) -> Result<[u8; HASH_BYTES], KvError> {
        let mut hash = [0; HASH_BYTES];
        self.fill(&mut hash)?;
        Ok(hash)
    }

    fn damaged(&self, what: impl Into<String>) -> KvError {
        KvError::Damaged {
            path: self.path.to_owned(),
            what: what.into(),
        }
    }

    fn not_readable(&self, found: impl Into<String>) -> KvError {
        KvError::NotReadable {
            path: self.path.to_owned(),
            found: found.into(),
        }
    }

    fn other_version(&self, found: impl Into<String>) -> KvError {
        KvError::OtherVersion {
            path: self.path.to_owned(),
            found: found.into(),
        }
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .chunks_exact(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

pub(crate) fn shape_numbers(shape: &CacheShape) -> [u64; 6] {
    let alike = shape
        .layers
        .uniform()
        .filter(|layer| layer.key_width == layer.held_value_width());
    let [layers, kv_heads, head_dim] = match alike {
        Some(layer) => [
            shape.layers.count() as u64,
            layer.kv_heads as u64,
            layer.key_width as u64,
        ],
        None => [1, shape.tables() as u64, layers_hash(shape)],
    };
    [
        layers,
        kv_heads,
        head_dim,
        shape.page_tokens as u64,
        shape.key_format.number(),
        shape.value_format.number(),
    ]
}

/// Hash of the layers' shapes. Files of caches with different layers store it in place of the head width.
fn layers_hash(shape: &CacheShape) -> u64 {
    let mut hash = XxHash3_128::new();
    for layer in shape.layers.iter() {
        for number in [layer.kv_heads, layer.key_width, layer.held_value_width()] {
            hash.write(&(number as u64).to_le_bytes());
        }
    }
    // No width is this large.
    hash.finish_128() as u64 | 1 << 63
}
