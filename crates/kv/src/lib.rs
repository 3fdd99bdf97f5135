//! A paged KV cache: keys and values of every (layer, KV head), in pages that are allocated as tokens arrive.
//!
//! A *page* holds a fixed number of tokens of one (layer, KV head). Keys and values are separate planes, each in its
//! own element [`Format`](riffle_attention::Format), laid out as `riffle-attention` reads them. A page table per
//! (layer, KV head) lists a sequence's pages, so a sequence grows without copying and without reserving its maximum
//! length. The pages belong to a [`PagePool`]: sequences of one pool share pages, and a fork copies none.
//!
//! Pages lie in up to three tiers ([`KvTiers`]): device ▸ RAM ▸ disk. The first and the newest pages are near. The
//! oldest move away when room is needed, and [`KvCache::stream`] loads them back, ahead of reading. On a CPU the
//! device is main memory too, and pages in RAM are read in place.
//!
//! Byte budgets are hard. Each is checked before anything is allocated, and memory mapped for pages never exceeds it. A
//! refused append leaves the cache unchanged. Freed pages return to the operating system at once. [`KvCache::save`] and
//! [`KvCache::restore`] store a cache in a file: checksummed, replaced atomically, and refused if it is damaged or
//! belongs to another model. A [`PathLock`] keeps other processes away from the file.
//!
//! ```
//! use riffle_attention::Format;
//! use riffle_kv::{CacheShape, LayerShape, LayerShapes, KvCache};
//!
//! let shape = CacheShape {
//!     layers: LayerShapes::alike(1, LayerShape::new(2, 16)),
//!     page_tokens: 32,
//!     key_format: Format::F16,
//!     value_format: Format::F16,
//! };
//! let mut cache = KvCache::new(shape, Some(shape.bytes_for(64)))?;
//! let tokens = vec![0.5; 40 * 2 * 16]; // [tokens, kv_heads, head_dim]
//! cache.append(0, &tokens, &tokens)?;
//!
//! let reader = cache.read();
//! let pages: Vec<_> = reader.pages(0, 1).collect();
//! assert_eq!((pages[0].tokens, pages[1].start, pages[1].tokens), (32, 32, 8));
//! drop(reader);
//! assert!(cache.append(0, &tokens, &tokens).unwrap_err().to_string().contains("64 tokens"));
//! cache.truncate(10);
//! assert_eq!(cache.usage().pages, 2);
//! # Ok::<(), riffle_kv::KvError>(())
//! ```

#![forbid(unsafe_code)]

mod arena;
mod cache;
mod device;
mod disk;
mod encoded;
mod error;
mod evict;
mod growth;
mod ledger;
mod lock;
mod offload;
mod output;
mod pool;
mod prefix;
mod reader;
mod shape;
mod shared;
mod sharing;
mod slots;
mod snapshot;
mod streaming;
mod table;
mod text_block;
mod tiers;
mod usage;

pub use cache::{KvCache, ShowPages};
pub use device::{CpuDevice, Device, DeviceMemory};
pub use encoded::HeadGrowth;
pub use error::KvError;
pub use lock::PathLock;
pub use offload::{LayerRead, ShowReads, stream_together};
pub use output::{FileKind, OutputError, OutputFile, OutputWriter};
pub use pool::{PageId, PagePool, PageVersion, RowChange, RowTier};
pub use prefix::{ListingChange, NoteFound, PrefixCache, PrefixFound, PrefixListing, PrefixStored};
pub use reader::{PageReader, SequencePages};
pub use riffle_system::files::forget_cached;
pub use shape::{
    CacheShape, DEFAULT_PAGE_TOKENS, LayerShape, LayerShapes, MAX_LAYER_KINDS, MAX_MIXED_LAYERS, MAX_PAGE_TOKENS,
    largest,
};
pub use shared::{
    BlockStore, FetchRequest, SharedBlocks, SharedCounts, SharedFetch, SharedOptions, StoreError, StoredItem, Swept,
};
pub use text_block::TextBlock;
pub use tiers::{DEFAULT_SLOTS, DiskTier, KvTiers, Outlook};
pub use usage::{KvUsage, TierBytes};
