//! The room for KV pages on a device, and the calls that read them.

use std::ops::Range;

use riffle_attention::{AttendOptions, PageView, Partial, Selection};
use riffle_kv::{CacheShape, HeadGrowth, PageVersion};

use crate::{BatchRows, DeviceError, DeviceRows};

/// Shape and budgets of a room.
#[derive(Debug, Clone, Copy)]
pub struct RoomOptions {
    /// The shape of the caches of all sequences.
    pub shape: CacheShape,
    /// Query heads.
    pub heads: usize,
    /// Maximum number of bytes of device memory for pages, including pages in transit.
    pub budget_bytes: u64,
    /// Maximum number of pages in transit at a time.
    pub slots: usize,
    /// Bytes of device memory beside the budget for estimates over keys ([`PageRoom::scan_keys`]); 0 for none.
    pub estimate_bytes: u64,
    /// Bytes of device memory beside the budget for bounds of blocks ([`PageRoom::extend_summaries`]); 0 for none.
    pub bound_bytes: u64,
    /// Bytes of device memory beside the budget for means of blocks ([`PageRoom::extend_summaries`]); 0 for none.
    pub mean_bytes: u64,
}

/// Identifies a sequence with pages in a [`PageRoom`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// A layer of a sequence, with the versions of its pages.
#[derive(Debug, Clone, Copy)]
pub struct LayerPages<'a> {
    /// Sequence of the layer.
    pub sequence: SequenceId,
    /// Index of the layer in the cache.
    pub layer: usize,
    /// Versions of all pages in order, by KV head, from [`riffle_kv::KvCache::page_versions`].
    pub versions: &'a [Vec<PageVersion>],
}

/// Tokens of a batch that are appended to a layer of a sequence.
#[derive(Clone, Copy)]
pub struct AppendedTokens<'a> {
    /// Sequence of the layer.
    pub sequence: SequenceId,
    /// Index of the layer in the cache.
    pub layer: usize,
    /// Keys and values of the tokens.
    pub rows: &'a dyn DeviceRows,
    /// True if keys (first) or values (second) are rotated before they are stored.
    pub rotated: [bool; 2],
}

/// A tile of queries, and the keys that it reads.
#[derive(Debug, Clone, Copy)]
pub struct PagedTile<'a> {
    /// KV head of the tile.
    pub kv_head: usize,
    /// First row of the tile among the queries of the call.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row.
    pub start: usize,
    /// Keys that the tile's queries read.
    pub selection: &'a Selection,
}

/// A KV head whose keys are compared with the queries of a chunk.
#[derive(Debug, Clone, Copy)]
pub struct ScannedHead {
    /// The KV head.
    pub kv_head: usize,
    /// Position of the first query.
    pub start: usize,
    /// Number of keys.
    pub tokens: usize,
    /// Factor on q·k.
    pub scale: f32,
}

/// Kind of a block's summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SummaryKind {
    /// The smallest and the largest value of each key channel, within [`RoomOptions::bound_bytes`].
    Bounds,
    /// The means of keys and of values, within [`RoomOptions::mean_bytes`].
    Means,
}

/// Counts of transfers to the device and back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransferCount {
    /// Transferred pages, or parts of pages.
    pub pages: u64,
    /// Bytes of these pages.
    pub bytes: u64,
    /// Pages among these that were [read ahead](PageRoom::read_ahead) and then used.
    pub pages_ahead: u64,
    /// Bytes of results copied to main memory.
    pub returned_bytes: u64,
}

impl TransferCount {
    /// Counts transferred pages and their bytes.
    pub fn count(&mut self, pages: usize, bytes: usize) {
        self.pages += pages as u64;
        self.bytes += bytes as u64;
    }
}

/// Pages of several sequences' caches on a device, within one budget. Main memory holds the complete caches.
///
/// # Errors
/// A lost device, too little memory, or pages without a version. The room then forgets every page, and copies them
/// again on demand.
pub trait PageRoom: Send {
    /// A new sequence without pages on the device.
    fn begin_sequence(&mut self) -> SequenceId;

    /// A new sequence with the pages of another; the device stores shared pages once.
    fn fork(&mut self, sequence: SequenceId) -> SequenceId;

    /// Forgets a sequence. Pages of other sequences stay.
    fn end_sequence(&mut self, sequence: SequenceId);

    /// Forgets everything after the first `tokens` tokens of a sequence.
    fn truncate(&mut self, sequence: SequenceId, tokens: usize);

    /// Forgets everything after the first `tokens` tokens of a (layer, KV head) of a sequence. With 0 it forgets the
    /// whole head, because its tokens have moved in main memory.
    fn truncate_head(&mut self, sequence: SequenceId, layer: usize, kv_head: usize, tokens: usize);

    /// Forgets all pages of all sequences.
    fn clear(&mut self);

    /// Bytes of a sequence's pages on the device, including shared ones.
    fn resident_bytes_of(&self, sequence: SequenceId) -> u64;

    /// Counts of all transfers so far, over all sequences.
    fn transferred(&self) -> TransferCount;

    /// Appends tokens `tokens` of a batch to a layer. `heads` gives the new length of each KV head. Tokens go to
    /// pages on the device that have all earlier tokens, and to new pages while there is space. Returns them by KV
    /// head as [`riffle_kv::KvCache::append_encoded`] takes them.
    fn append(
        &mut self,
        new: &AppendedTokens<'_>,
        tokens: Range<usize>,
        heads: &[HeadGrowth],
    ) -> Result<Vec<PageView<'_>>, DeviceError>;

    /// Starts attention of tiles of a layer's rows over their keys before `end`.
    fn begin<'p>(
        &'p mut self,
        of: LayerPages<'p>,
        tiles: &'p [PagedTile<'p>],
        rows: &BatchRows<'p>,
        end: usize,
        options: &AttendOptions<'_>,
    ) -> Result<Box<dyn RoomCall + 'p>, DeviceError>;

    /// Copies a finished call's output to main memory and adds it to `partials`, one for each tile. After an error the
    /// partials are as they were.
    fn bring_partials(
        &mut self,
        tiles: &[PagedTile<'_>],
        rows: &BatchRows<'_>,
        partials: &mut [Partial],
    ) -> Result<(), DeviceError>;

    /// Stores the log-sum-exp of all keys read by each row and head of a call, `[rows, heads]`, in its rows. It is
    /// needed for calls whose partials were [copied](Self::bring_partials) and merged with others.
    fn set_log_sum_exp(&mut self, rows: &BatchRows<'_>, log_sum_exp: &[f32]) -> Result<(), DeviceError>;

    /// Starts to sum the mass that keys before `end` receive from tiles of a layer's rows. The rows hold their
    /// log-sum-exp.
    fn begin_mass<'p>(
        &'p mut self,
        of: LayerPages<'p>,
        tiles: &[PagedTile<'_>],
        rows: &BatchRows<'p>,
        end: usize,
        options: &AttendOptions<'_>,
    ) -> Result<Box<dyn RoomMass + 'p>, DeviceError>;

    /// Copies all pages of a layer, shown by KV head, to the device for a comparison with `queries`. Returns `None`
    /// if there are not enough free slots, or no memory for estimates; the caller then scores the keys in main
    /// memory.
    fn scan_keys<'p>(
        &'p mut self,
        of: LayerPages<'p>,
        shown: &[Vec<PageView<'_>>],
        queries: &BatchRows<'p>,
    ) -> Result<Option<Box<dyn RoomScan + 'p>>, DeviceError>;

    /// True if there is room for the summaries of blocks of `block` tokens of a layer with `tokens` tokens.
    fn have_summaries_room(&self, kind: SummaryKind, block: usize, tokens: usize) -> bool;

    /// Reserves space for the summaries of blocks of `block` tokens of a layer with `tokens` tokens. It may drop
    /// summaries of the least recently used sequences. Returns the number of summarised tokens by KV head, or `None`
    /// if there [is no space](Self::have_summaries_room).
    fn summaries_known(
        &mut self,
        kind: SummaryKind,
        of: LayerPages<'_>,
        block: usize,
        tokens: usize,
    ) -> Result<Option<Vec<usize>>, DeviceError>;

    /// Adds tokens of pages to the summaries of a layer. The pages are shown by KV head in order, from the page of
    /// the first token that is not yet [summarised](Self::summaries_known).
    fn extend_summaries(
        &mut self,
        kind: SummaryKind,
        of: LayerPages<'_>,
        shown: &[Vec<PageView<'_>>],
    ) -> Result<(), DeviceError>;

    /// Bound of each block of every KV head's first `tokens` tokens, with the same bits as on the CPU. It is the sum
    /// over `queries` and the heads of the group. All of the tokens must be [summarised](Self::summaries_known).
    fn bound_scores(
        &mut self,
        of: LayerPages<'_>,
        queries: &BatchRows<'_>,
        tokens: &[usize],
    ) -> Result<Vec<Vec<f32>>, DeviceError>;

    /// The pages that the next call on a layer is expected to load first, as (KV head, page) in reading order.
    fn expected(&self, of: LayerPages<'_>) -> Vec<(usize, usize)>;

    /// Starts to copy pages, of a KV head each, that the next call of any sequence is expected to read. It returns at
    /// once. Unused pages of an earlier call of this method are forgotten.
    fn read_ahead(&mut self, of: LayerPages<'_>, shown: &[(usize, PageView<'_>)]) -> Result<(), DeviceError>;
}

/// A running call of attention.
///
/// # Errors
/// As for [`PageRoom`].
pub trait RoomCall {
    /// Adds block means to the call, if selections name them. The means of the layer's tokens must be known
    /// ([`PageRoom::extend_summaries`]).
    fn include_means(&mut self);

    /// Attends further pages, shown by KV head. The pages of all calls come in the order of (page, KV head).
    fn attend(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), DeviceError>;

    /// Queues the remaining reads. After they run, the call's rows hold the output.
    fn finish(self: Box<Self>) -> Result<(), DeviceError>;
}

/// A running sum of the softmax mass that keys receive.
///
/// # Errors
/// As for [`PageRoom`].
pub trait RoomMass {
    /// Adds further pages, shown by KV head. The pages of all calls come in the order of (page, KV head).
    fn add(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), DeviceError>;

    /// The masses by KV head, `[keys]` each.
    fn finish(self: Box<Self>) -> Result<Vec<Vec<f32>>, DeviceError>;
}

/// Queries of a chunk, and all keys of a layer on the device.
///
/// # Errors
/// As for [`PageRoom`].
pub trait RoomScan {
    /// XAttention's scores of a KV head: for each block of queries, the scores of every block of keys up to it. They
    /// have the CPU's bits. `None` if memory is short.
    fn blocks(&mut self, head: &ScannedHead, stride: usize, block: usize)
    -> Result<Option<Vec<Vec<f32>>>, DeviceError>;

    /// The mass of each column and of each distance, `[tokens]` each. It is the sum over the last `queries` of the
    /// chunk and the heads of the group. Keys of 16 bits give the same bits as on the CPU. `None` if memory is short.
    fn lines(&mut self, head: &ScannedHead, queries: usize) -> Result<Option<[Vec<f32>; 2]>, DeviceError>;
}
