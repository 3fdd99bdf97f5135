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
    /// Bytes of device memory for pages, those on their way included: never exceeded.
    pub budget_bytes: u64,
    /// Pages that may be on their way at a time.
    pub slots: usize,
    /// Bytes of device memory beside the budget for estimates over keys ([`PageRoom::scan_keys`]); 0 for none.
    pub estimate_bytes: u64,
    /// Bytes of device memory beside the budget for bounds of blocks ([`PageRoom::extend_summaries`]); 0 for none.
    pub bound_bytes: u64,
    /// Bytes of device memory beside the budget for means of blocks ([`PageRoom::extend_summaries`]); 0 for none.
    pub mean_bytes: u64,
}

/// Names a sequence whose pages may lie in a [`PageRoom`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// A layer of a sequence, with what its pages hold.
#[derive(Debug, Clone, Copy)]
pub struct LayerPages<'a> {
    /// Sequence of the layer.
    pub sequence: SequenceId,
    /// Its number in the cache.
    pub layer: usize,
    /// By KV head the versions of all its pages in order, as [`riffle_kv::KvCache::page_versions`] gives them.
    pub versions: &'a [Vec<PageVersion>],
}

/// Tokens of a batch that are appended to a layer of a sequence.
#[derive(Clone, Copy)]
pub struct AppendedTokens<'a> {
    /// Sequence of the layer.
    pub sequence: SequenceId,
    /// Its number in the cache.
    pub layer: usize,
    /// Keys and values of the tokens.
    pub rows: &'a dyn DeviceRows,
    /// True if keys and values are rotated on the way.
    pub rotated: [bool; 2],
}

/// A tile of queries, and the keys that it reads.
#[derive(Debug, Clone, Copy)]
pub struct PagedTile<'a> {
    /// Its KV head.
    pub kv_head: usize,
    /// Its first row among the queries of the call.
    pub first_row: usize,
    /// Rows.
    pub rows: usize,
    /// Position of the first.
    pub start: usize,
    /// Keys that the tile's queries read.
    pub selection: &'a Selection,
}

/// A KV head whose keys a chunk's queries are compared with.
#[derive(Debug, Clone, Copy)]
pub struct ScannedHead {
    /// The KV head.
    pub kv_head: usize,
    /// Position of the first query.
    pub start: usize,
    /// Keys there are.
    pub tokens: usize,
    /// Factor on q·k.
    pub scale: f32,
}

/// Kind of a block's summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SummaryKind {
    /// The smallest and the largest of keys, within [`RoomOptions::bound_bytes`].
    Bounds,
    /// The mean of keys and that of values, within [`RoomOptions::mean_bytes`].
    Means,
}

/// Counts of transfers to the device and back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransferCount {
    /// Pages or parts of pages brought.
    pub pages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Pages among these that were [read ahead](PageRoom::read_ahead) and then asked for.
    pub pages_ahead: u64,
    /// Bytes of what calls returned that came to main memory.
    pub returned_bytes: u64,
}

impl TransferCount {
    /// Counts pages that were brought, and their bytes.
    pub fn count(&mut self, pages: usize, bytes: usize) {
        self.pages += pages as u64;
        self.bytes += bytes as u64;
    }
}

/// The pages of the caches of several sequences on a device, within one budget. The caches lie in main memory whole.
///
/// # Errors
/// A method that fails reports a lost device, too little memory, or pages without a version. The room has forgotten every page then, and
/// brings them again when they are asked for.
pub trait PageRoom: Send {
    /// A new sequence, none of whose pages lie here.
    fn begin_sequence(&mut self) -> SequenceId;

    /// A new sequence that holds the pages of another: they lie here once for both.
    fn fork(&mut self, sequence: SequenceId) -> SequenceId;

    /// Forgets a sequence; pages that others hold stay.
    fn end_sequence(&mut self, sequence: SequenceId);

    /// Forgets what lies behind the first `tokens` tokens of a sequence.
    fn truncate(&mut self, sequence: SequenceId, tokens: usize);

    /// Forgets what lies behind the first `tokens` tokens of a (layer, KV head) of a sequence; with 0, all of it: those in main
    /// memory have moved.
    fn truncate_head(&mut self, sequence: SequenceId, layer: usize, kv_head: usize, tokens: usize);

    /// Forgets everything that lies here, of all sequences.
    fn clear(&mut self);

    /// Bytes of the pages of a sequence that lie on the device, shared ones included.
    fn resident_bytes_of(&self, sequence: SequenceId) -> u64;

    /// Counts of all transfers so far, for all sequences.
    fn transferred(&self) -> TransferCount;

    /// Appends tokens `tokens` of a batch to a layer whose KV heads grow by them as `heads` says: to pages that lie here with all
    /// tokens before them, and to pages that they begin and that find a place. Returns them by KV head as main memory keeps them,
    /// as [`riffle_kv::KvCache::append_encoded`] takes them.
    fn append(
        &mut self,
        new: &AppendedTokens<'_>,
        tokens: Range<usize>,
        heads: &[HeadGrowth],
    ) -> Result<Vec<PageView<'_>>, DeviceError>;

    /// Begins to attend tiles of a layer's rows to their keys before `end`.
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

    /// Puts the log-sum-exp of all that each row and head of a call read, `[rows, heads]`, in its rows: for calls whose partials
    /// were [brought](Self::bring_partials) and merged with others.
    fn set_log_sum_exp(&mut self, rows: &BatchRows<'_>, log_sum_exp: &[f32]) -> Result<(), DeviceError>;

    /// Begins to sum the mass that keys before `end` receive from tiles of a layer's rows, whose log-sum-exp lies with them.
    fn begin_mass<'p>(
        &'p mut self,
        of: LayerPages<'p>,
        tiles: &[PagedTile<'_>],
        rows: &BatchRows<'p>,
        end: usize,
        options: &AttendOptions<'_>,
    ) -> Result<Box<dyn RoomMass + 'p>, DeviceError>;

    /// Brings a layer's pages, shown by KV head, to the device, where each has a free slot to stay in, to lie beside
    /// `queries`. `None` where pages would have to leave, or estimates have no memory: then keys are looked at where they are.
    fn scan_keys<'p>(
        &'p mut self,
        of: LayerPages<'p>,
        shown: &[Vec<PageView<'_>>],
        queries: &BatchRows<'p>,
    ) -> Result<Option<Box<dyn RoomScan + 'p>>, DeviceError>;

    /// True if there is room for the summaries of blocks of `block` tokens of a layer with `tokens` tokens.
    fn have_summaries_room(&self, kind: SummaryKind, block: usize, tokens: usize) -> bool;

    /// Makes room for the summaries of blocks of `block` tokens of a layer with `tokens` tokens. Summaries of the least
    /// recently used sequences may leave for it. Returns by KV head the number of tokens summarised; `None` if there
    /// [is no room](Self::have_summaries_room).
    fn summaries_known(
        &mut self,
        kind: SummaryKind,
        of: LayerPages<'_>,
        block: usize,
        tokens: usize,
    ) -> Result<Option<Vec<usize>>, DeviceError>;

    /// Takes the tokens of pages, shown by KV head in order from the one on that holds the first token that is not
    /// [known](Self::summaries_known), into the summaries of a layer.
    fn extend_summaries(
        &mut self,
        kind: SummaryKind,
        of: LayerPages<'_>,
        shown: &[Vec<PageView<'_>>],
    ) -> Result<(), DeviceError>;

    /// Bound of each block of every KV head's first `tokens` tokens, all of them [known](Self::summaries_known), summed
    /// over `queries` and the heads of the group; equal to the CPU's to the bit.
    fn bound_scores(
        &mut self,
        of: LayerPages<'_>,
        queries: &BatchRows<'_>,
        tokens: &[usize],
    ) -> Result<Vec<Vec<f32>>, DeviceError>;

    /// The first pages, as (KV head, page) in the order of reading, that the next call on a layer is expected to bring.
    fn expected(&self, of: LayerPages<'_>) -> Vec<(usize, usize)>;

    /// Begins to copy pages of a KV head each that the next call, of any sequence, is expected to read, and returns at once. Pages that
    /// came ahead before and were not read are forgotten.
    fn read_ahead(&mut self, of: LayerPages<'_>, shown: &[(usize, PageView<'_>)]) -> Result<(), DeviceError>;
}

/// A call of attention under way.
///
/// # Errors
/// As for [`PageRoom`].
pub trait RoomCall {
    /// The call will also read the block means that selections name; those of the layer's tokens are known
    /// ([`PageRoom::extend_summaries`]).
    fn include_means(&mut self);

    /// Takes in pages, shown by KV head, after those of earlier calls in the order of (page, KV head).
    fn attend(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), DeviceError>;

    /// Queues the reading of the rest: what the call returns lies in its rows when that has run.
    fn finish(self: Box<Self>) -> Result<(), DeviceError>;
}

/// A sum of the softmax mass that keys receive, under way.
///
/// # Errors
/// As for [`PageRoom`].
pub trait RoomMass {
    /// Takes in pages, shown by KV head, after those of earlier calls in the order of (page, KV head).
    fn add(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), DeviceError>;

    /// The masses by KV head, `[keys]` each.
    fn finish(self: Box<Self>) -> Result<Vec<Vec<f32>>, DeviceError>;
}

/// Queries of a chunk beside the keys of a layer that all lie on the device.
///
/// # Errors
/// As for [`PageRoom`].
pub trait RoomScan {
    /// XAttention's scores of a KV head: for each block of queries the scores of every block of keys up to it, equal to
    /// the CPU's to the bit. `None` if memory is short.
    fn blocks(&mut self, head: &ScannedHead, stride: usize, block: usize)
    -> Result<Option<Vec<Vec<f32>>>, DeviceError>;

    /// The mass that the last `queries` of the chunk give each column and each distance, `[tokens]` each, summed over them
    /// and the heads of the group; equal to the CPU's to the bit for keys of 16 bits. `None` where memory is short.
    fn lines(&mut self, head: &ScannedHead, queries: usize) -> Result<Option<[Vec<f32>; 2]>, DeviceError>;
}
