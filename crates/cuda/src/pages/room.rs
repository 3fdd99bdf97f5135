//! The device page cache of several sequences: it owns the parts, and lends them to calls.

use std::sync::Arc;

use riffle_attention::{AttendOptions, PageView, Partial};
use riffle_device::{AppendedTokens, LayerPages, PagedTile, RoomOptions, SequenceId, SummaryKind, TransferCount};
use riffle_kv::{CacheShape, HeadGrowth};

use super::append::{AppendMemory, append_bytes};
use super::bounds::KeyBounds;
use super::call::{CallLists, CallMemory, CallParts, CallRows, PagedCall};
use super::estimate::{EstimateMemory, KeyScan};
use super::heads_of;
use super::list::DeviceList;
use super::mass::{MassMemory, MassParts, PagedMass, mass_bytes};
use super::means::BlockMeans;
use super::memory::{PageLayout, PageMemory};
use super::residence::Residence;
use super::staging::Staging;
use super::summaries::Summaries;
use super::traffic::Traffic;
use crate::ops::{KEY_BLOCK, Queries, Reads, TileReads};
use crate::{CudaError, Stream};

/// Pages of one part of a decode, which lie on the device together. A part is eight blocks of keys.
const PART_PAGES: usize = 8;
/// Bytes for flattened selections.
const LIST_BYTES: u64 = 16 << 20;

/// Pages of several sequences' caches on a device, within one budget.
pub struct DeviceRoom {
    options: RoomOptions,
    compute: Arc<Stream>,
    residence: Residence,
    staging: Staging,
    lists: CallLists,
    append: AppendMemory,
    call: CallMemory,
    masses: MassMemory,
    estimates: EstimateMemory,
    bounds: KeyBounds,
    means: BlockMeans,
    sequences: u64,
}

/// Sizes of a page cache on a GPU.
pub trait RoomBytes {
    /// Fewest bytes of device memory: for pages that are read once and for pages in transit.
    fn least_bytes(&self) -> u64;

    /// Bytes for all pages of a context, including the ring.
    fn bytes_for(&self, tokens: usize) -> u64;

    /// Bytes beyond the budget for calls of up to `rows` rows that append up to `added` tokens, in a context of
    /// `tokens` tokens: rows, and a few lists.
    fn call_bytes(&self, rows: usize, added: usize, tokens: usize) -> u64;
}

impl RoomBytes for RoomOptions {
    fn least_bytes(&self) -> u64 {
        ((visitors(self) + self.slots) * PageLayout::new(&self.shape).page_bytes) as u64
    }

    fn bytes_for(&self, tokens: usize) -> u64 {
        let page = PageLayout::new(&self.shape).page_bytes as u64;
        self.least_bytes() + self.shape.pages_for(tokens) as u64 * page
    }

    fn call_bytes(&self, rows: usize, added: usize, tokens: usize) -> u64 {
        let tables = 16 * (heads_of(&self.shape).kv_heads * tokens.div_ceil(self.shape.page_tokens)) as u64;
        let call = super::call::call_bytes(rows, self.heads, heads_of(&self.shape).key_width)
            + append_bytes(added, &self.shape);
        let call = call + mass_bytes(heads_of(&self.shape).kv_heads, tokens);
        call + 2 * tables + LIST_BYTES + self.estimate_bytes + self.bound_bytes + self.mean_bytes
    }
}

/// Number of temporary places: enough for one part of a decode of every KV head.
fn visitors(options: &RoomOptions) -> usize {
    (PART_PAGES * heads_of(&options.shape).kv_heads).max(options.slots / 2)
}

/// Number of slots within the budget.
fn resident_pages(options: &RoomOptions) -> usize {
    let left = options.budget_bytes.saturating_sub(options.least_bytes());
    let pages = left / PageLayout::new(&options.shape).page_bytes as u64;
    usize::try_from(pages).unwrap_or(usize::MAX).min(u32::MAX as usize)
}

impl DeviceRoom {
    /// An empty page cache. Work on pages is queued on `compute`, and copies on its own stream.
    ///
    /// # Errors
    /// [`CudaError::PageBudget`] for a budget that is too small, [`CudaError::Unsupported`] for pages without a
    /// kernel, [`CudaError::OutOfMemory`], a lost device.
    pub fn new(compute: &Arc<Stream>, options: RoomOptions) -> Result<Self, CudaError> {
        let (gpu, shape) = (compute.gpu(), &options.shape);
        if !shape.page_tokens.is_multiple_of(KEY_BLOCK) {
            return Err(CudaError::Unsupported {
                what: "--page-tokens",
                value: shape.page_tokens,
                requirement: "a multiple of 64",
            });
        }
        if options.budget_bytes < options.least_bytes() {
            return Err(CudaError::PageBudget {
                budget_bytes: options.budget_bytes,
                least_bytes: options.least_bytes(),
            });
        }
        let page_bytes = PageLayout::new(shape).page_bytes;
        let memory = PageMemory::new(gpu, page_bytes, resident_pages(&options), visitors(&options))?;
        Ok(Self {
            compute: Arc::clone(compute),
            residence: Residence::new(shape, memory),
            staging: Staging::new(gpu, shape, options.slots)?,
            lists: CallLists {
                reads: Reads::new(gpu, heads_of(shape).key_width, options.heads / heads_of(shape).kv_heads)?,
                tables: [DeviceList::new(gpu)?, DeviceList::new(gpu)?],
            },
            append: AppendMemory::new(gpu, shape)?,
            call: CallMemory::new(gpu, options.heads)?,
            masses: MassMemory::new(gpu)?,
            estimates: EstimateMemory::new(gpu, options.estimate_bytes)?,
            bounds: KeyBounds::new(gpu, shape, options.bound_bytes)?,
            means: BlockMeans::new(gpu, shape, options.mean_bytes)?,
            sequences: 0,
            options,
        })
    }

    /// The shape of the caches.
    pub fn shape(&self) -> &CacheShape {
        &self.options.shape
    }

    /// A new sequence without pages on the device.
    pub fn begin_sequence(&mut self) -> SequenceId {
        self.sequences += 1;
        SequenceId(self.sequences)
    }

    /// A new sequence with the pages of another; the device stores shared pages once.
    pub fn fork(&mut self, sequence: SequenceId) -> SequenceId {
        let fork = self.begin_sequence();
        self.residence.fork(sequence, fork);
        fork
    }

    /// Forgets a sequence. Pages of other sequences stay.
    pub fn end_sequence(&mut self, sequence: SequenceId) {
        self.residence.end(sequence);
        self.staging.end(sequence);
        self.bounds.summaries.end(sequence);
        self.means.summaries.end(sequence);
    }

    /// Forgets everything after the first `tokens` tokens of a sequence.
    pub fn truncate(&mut self, sequence: SequenceId, tokens: usize) {
        self.cut(sequence, None, tokens);
    }

    /// Forgets everything after the first `tokens` tokens of a (layer, KV head) of a sequence. With 0 it forgets the
    /// whole head, because its tokens have moved in main memory.
    pub fn truncate_head(&mut self, sequence: SequenceId, layer: usize, kv_head: usize, tokens: usize) {
        self.cut(sequence, Some((layer, kv_head)), tokens);
    }

    fn cut(&mut self, sequence: SequenceId, head: Option<(usize, usize)>, tokens: usize) {
        let page_tokens = self.options.shape.page_tokens;
        self.residence.truncate(sequence, head, tokens, page_tokens);
        self.bounds.summaries.truncate(sequence, head, tokens);
        self.means.summaries.truncate(sequence, head, tokens);
    }

    /// Forgets all pages of all sequences.
    pub fn clear(&mut self) {
        self.residence.clear();
        self.staging.forget_ahead();
        self.bounds.summaries.clear();
        self.means.summaries.clear();
    }

    /// Bytes of device memory that are allocated.
    pub fn device_bytes(&self) -> u64 {
        let summaries = self.bounds.summaries.bytes() + self.means.summaries.bytes();
        (self.residence.memory_bytes() + self.staging.bytes() + summaries) as u64
    }

    /// Bytes of pages on the device; shared pages count once.
    pub fn resident_bytes(&self) -> u64 {
        self.residence.used_bytes()
    }

    /// Bytes of a sequence's pages on the device, including shared ones.
    pub fn resident_bytes_of(&self, sequence: SequenceId) -> u64 {
        self.residence.bytes_of(sequence)
    }

    /// Counts of all transfers so far, over all sequences.
    pub fn transferred(&self) -> TransferCount {
        self.staging.transferred
    }

    /// Appends tokens `tokens` of a batch to a layer. `heads` gives the new length of each KV head. Tokens go to
    /// pages on the device that have all earlier tokens, and to new pages that get a slot. Returns them by KV head as
    /// [`riffle_kv::KvCache::append_encoded`] takes them.
    ///
    /// # Errors
    /// A lost device, too little memory: all pages are then forgotten.
    pub fn append(
        &mut self,
        new: &AppendedTokens<'_>,
        tokens: std::ops::Range<usize>,
        heads: &[HeadGrowth],
    ) -> Result<Vec<PageView<'_>>, CudaError> {
        let appended = self
            .append
            .append(&mut self.residence, &self.compute, new, tokens, heads);
        if appended.is_err() {
            self.residence.clear();
            self.staging.forget_ahead();
        }
        appended
    }

    /// Starts attention of tiles of a layer's rows over their keys before `end`. The call then takes the pages in
    /// order.
    ///
    /// # Errors
    /// A lost device, too little memory for the call's rows.
    pub fn begin<'p>(
        &'p mut self,
        of: LayerPages<'p>,
        tiles: &'p [PagedTile<'p>],
        rows: CallRows<'p>,
        end: usize,
        options: &AttendOptions<'_>,
    ) -> Result<PagedCall<'p>, CudaError> {
        let parts = CallParts {
            traffic: traffic(&mut self.residence, &mut self.staging, &self.compute, of),
            memory: &mut self.call,
            lists: &mut self.lists,
            means: &mut self.means,
        };
        PagedCall::new(parts, tiles, rows, end, options)
    }

    /// Copies a finished call's output from its rows to main memory and adds it to `partials`, one for each tile.
    ///
    /// # Errors
    /// A lost device; the partials then do not change.
    pub fn bring_partials(
        &mut self,
        tiles: &[PagedTile<'_>],
        rows: &CallRows<'_>,
        partials: &mut [Partial],
    ) -> Result<(), CudaError> {
        let shape = self.options.shape;
        let bytes = self.call.bring_partials(&self.compute, &shape, tiles, rows, partials)?;
        self.staging.transferred.returned_bytes += bytes;
        Ok(())
    }

    /// Stores the log-sum-exp of all keys read by each row and head of a call, `[rows, heads]`, in its rows. It is
    /// needed for calls whose partials were [copied](Self::bring_partials) and merged with others.
    ///
    /// # Errors
    /// A lost device, too little memory, more sums than rows and heads.
    pub fn set_log_sum_exp(&mut self, rows: &CallRows<'_>, log_sum_exp: &[f32]) -> Result<(), CudaError> {
        self.masses.set_log_sum_exp(&self.compute, rows, log_sum_exp)
    }

    /// Starts to sum the mass that keys before `end` receive from tiles of a layer's rows. The rows hold their
    /// log-sum-exp. The call gets the pages in order.
    ///
    /// # Errors
    /// A lost device, too little memory.
    pub fn begin_mass<'p>(
        &'p mut self,
        of: LayerPages<'p>,
        tiles: &[PagedTile<'_>],
        rows: CallRows<'p>,
        end: usize,
        options: &AttendOptions<'_>,
    ) -> Result<PagedMass<'p>, CudaError> {
        let parts = MassParts {
            traffic: traffic(&mut self.residence, &mut self.staging, &self.compute, of),
            lists: &mut self.lists,
            memory: &mut self.masses,
        };
        PagedMass::new(parts, tiles, rows, end, options)
    }

    /// Loads all pages of a layer, shown by KV head, into slots for a comparison with `queries`, rows of all query
    /// heads. Returns `None` if there are not enough free slots, or no memory for estimates; the caller then scores
    /// the keys in main memory.
    ///
    /// # Errors
    /// A lost device, too little memory: all pages are then forgotten.
    pub fn scan_keys<'p>(
        &'p mut self,
        of: LayerPages<'p>,
        shown: &[Vec<PageView<'_>>],
        queries: Queries<'p>,
    ) -> Result<Option<KeyScan<'p>>, CudaError> {
        let group = self.options.heads / heads_of(&self.options.shape).kv_heads;
        let traffic = traffic(&mut self.residence, &mut self.staging, &self.compute, of);
        KeyScan::new(traffic, &mut self.lists, &mut self.estimates, shown, queries, group)
    }

    /// True if there is memory for the summaries of blocks of `block` tokens of a layer with `tokens` tokens.
    pub fn have_summaries_room(&self, kind: SummaryKind, block: usize, tokens: usize) -> bool {
        let summaries = match kind {
            SummaryKind::Bounds => &self.bounds.summaries,
            SummaryKind::Means => &self.means.summaries,
        };
        summaries.have_room(block, tokens)
    }

    /// Reserves memory for the summaries of blocks of `block` tokens of a layer with `tokens` tokens. It may drop
    /// summaries of the least recently used sequences. Returns the number of summarised tokens by KV head; `None` if
    /// there [is no memory](Self::have_summaries_room).
    ///
    /// # Errors
    /// A lost device, too little memory: everything is then forgotten.
    pub fn summaries_known(
        &mut self,
        kind: SummaryKind,
        of: LayerPages<'_>,
        block: usize,
        tokens: usize,
    ) -> Result<Option<Vec<usize>>, CudaError> {
        let compute = Arc::clone(&self.compute);
        let known = self.summaries(kind).reserve(&compute, &of, block, tokens);
        self.or_clear(known)
    }

    /// Adds tokens of pages to the summaries of a layer. The pages are shown by KV head in order, from the page of
    /// the first token that is not yet [summarised](Self::summaries_known).
    ///
    /// # Errors
    /// A lost device, too little memory: everything is then forgotten.
    pub fn extend_summaries(
        &mut self,
        kind: SummaryKind,
        of: LayerPages<'_>,
        shown: &[Vec<PageView<'_>>],
    ) -> Result<(), CudaError> {
        let summaries = match kind {
            SummaryKind::Bounds => &mut self.bounds.summaries,
            SummaryKind::Means => &mut self.means.summaries,
        };
        let mut traffic = traffic(&mut self.residence, &mut self.staging, &self.compute, of);
        let taken = summaries.extend(&mut traffic, &mut self.lists, shown);
        self.or_clear(taken)
    }

    /// Bound of each block of every KV head's first `tokens` tokens, with the CPU's bits. It is the sum over `queries`
    /// and the heads of the group. All of the tokens must be [summarised](Self::summaries_known).
    ///
    /// # Errors
    /// A lost device, too little memory: everything is then forgotten.
    pub fn bound_scores(
        &mut self,
        of: LayerPages<'_>,
        queries: Queries<'_>,
        tokens: &[usize],
    ) -> Result<Vec<Vec<f32>>, CudaError> {
        let group = self.options.heads / heads_of(&self.options.shape).kv_heads;
        let scored = self.bounds.score(&self.compute, &of, &queries, group, tokens);
        self.or_clear(scored)
    }

    /// The first pages that the next call on a layer is expected to load, as (KV head, page) in reading order: pages
    /// that its latest call read and that have no slot. At most the pages in transit at a time.
    pub fn expected(&self, of: LayerPages<'_>) -> Vec<(usize, usize)> {
        self.staging.expected(&self.residence, &of)
    }

    /// Starts to copy pages, each of a KV head, that the next call of any sequence is expected to read. It returns at
    /// once. Copies run after the queued work. Memory of [`PinnedMemory`](super::PinnedMemory) waits for them before it
    /// changes; pages in other memory are skipped. Only full pages are read ahead, because others will grow. Unused
    /// pages of earlier calls are dropped, and the next call drops these too unless it reads them.
    ///
    /// # Errors
    /// A lost device, a page without a version: all pages are then forgotten.
    pub fn read_ahead(&mut self, of: LayerPages<'_>, shown: &[(usize, PageView<'_>)]) -> Result<(), CudaError> {
        self.staging.forget_ahead();
        let begun = self.staging.begin_ahead(&self.residence, &of, shown);
        self.or_clear(begun)
    }

    fn summaries(&mut self, kind: SummaryKind) -> &mut Summaries {
        match kind {
            SummaryKind::Bounds => &mut self.bounds.summaries,
            SummaryKind::Means => &mut self.means.summaries,
        }
    }

    /// Forgets all pages after a failure, because their contents are then unknown.
    fn or_clear<T>(&mut self, result: Result<T, CudaError>) -> Result<T, CudaError> {
        if result.is_err() {
            self.clear();
        }
        result
    }
}

/// Joins the parts and the stream for a call on a layer, and records the layer's page versions.
fn traffic<'p>(
    residence: &'p mut Residence,
    staging: &'p mut Staging,
    compute: &'p Stream,
    of: LayerPages<'p>,
) -> Traffic<'p> {
    residence.enter(of);
    Traffic {
        residence,
        staging,
        compute,
        of,
        reading: None,
    }
}

/// A tile in the kernels' form.
pub(super) fn tile_reads<'a>(tile: &PagedTile<'a>) -> TileReads<'a> {
    TileReads {
        kv_head: tile.kv_head,
        start: tile.start,
        row: tile.first_row,
        rows: tile.rows,
        selection: tile.selection,
    }
}
