//! Attention over the pages of a layer, with those that do not lie on the device brought through a ring.

use std::sync::Arc;

use riffle_attention::{AttendOptions, Format, Selection};
use riffle_kv::CacheShape;

use super::append::{AppendMemory, append_bytes};
use super::bounds::KeyBounds;
use super::call::{CallMemory, CallRows, PagedCall};
use super::estimate::EstimateMemory;
use super::list::DeviceList;
use super::mass::{MassMemory, mass_bytes};
use super::means::BlockMeans;
use super::residence::Residence;
use super::staging::{PageKey, Staging};
use crate::ops::{KEY_BLOCK, Reads, TileReads};
use crate::{CudaError, DeviceBuffer, Gpu, Region, Stream};

/// Pages of one part of a decode lie on the device together: a part is eight blocks of keys.
const PART_PAGES: usize = 8;
/// Bytes of a slab of pages; slabs are allocated as pages arrive.
const SLAB_BYTES: usize = 64 << 20;
/// Room for what flattened selections take.
const LIST_BYTES: u64 = 16 << 20;
/// Where planes begin.
const ALIGNMENT: usize = 256;

/// What a pool is made for.
#[derive(Debug, Clone, Copy)]
pub struct PagePoolOptions {
    /// The cache's shape.
    pub shape: CacheShape,
    /// Query heads.
    pub heads: usize,
    /// Bytes of device memory for pages, those on their way included: never exceeded.
    pub budget_bytes: u64,
    /// Pages that may be on their way at a time.
    pub slots: usize,
    /// Bytes of device memory beside the budget for estimates over keys ([`PagePool::scan_keys`]); 0 for none.
    pub estimate_bytes: u64,
    /// Bytes of device memory beside the budget for bounds of blocks ([`PagePool::extend_summaries`]); 0 for none.
    pub bound_bytes: u64,
    /// Bytes of device memory beside the budget for means of blocks, likewise.
    pub mean_bytes: u64,
}

/// A tile of queries and what it reads.
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
    /// What they read.
    pub selection: &'a Selection,
}

/// What has travelled to the device and back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransferCount {
    /// Pages or parts of pages brought.
    pub pages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of the pages those that were [read ahead](PagePool::read_ahead) and then asked for.
    pub pages_ahead: u64,
    /// Bytes of what calls returned that came to main memory.
    pub returned_bytes: u64,
}

/// The pages of a session's cache on a device, within a budget.
pub struct PagePool {
    pub(super) gpu: Gpu,
    pub(super) compute: Arc<Stream>,
    pub(super) copy: Stream,
    pub(super) options: PagePoolOptions,
    pub(super) layout: PageLayout,
    pub(super) store: PageStore,
    pub(super) residence: Residence,
    pub(super) staging: Staging,
    pub(super) reads: Reads,
    pub(super) tables: [DeviceList; 2],
    pub(super) moves: [DeviceList; 2],
    pub(super) append: AppendMemory,
    pub(super) memory: CallMemory,
    pub(super) masses: MassMemory,
    pub(super) estimates: EstimateMemory,
    pub(super) bounds: KeyBounds,
    pub(super) means: BlockMeans,
    /// By layer the pages that the latest call read without their staying, (KV head, page): the first so many.
    pub(super) visited: Vec<Vec<(usize, usize)>>,
    /// The page that a call has come to.
    pub(super) reading: Option<PageKey>,
    pub(super) transferred: TransferCount,
}

/// Where keys and values lie in a page's slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageLayout {
    pub(super) key_bytes: usize,
    pub(super) values_at: usize,
    pub(super) value_bytes: usize,
    pub(super) page_bytes: usize,
}

impl PageLayout {
    fn new(shape: &CacheShape) -> Self {
        let bytes = |format: Format| format.plane_bytes(shape.page_tokens, shape.head_dim);
        let (key_bytes, value_bytes) = (bytes(shape.key_format), bytes(shape.value_format));
        let values_at = key_bytes.next_multiple_of(ALIGNMENT);
        Self {
            key_bytes,
            values_at,
            value_bytes,
            page_bytes: values_at + value_bytes.next_multiple_of(ALIGNMENT),
        }
    }
}

impl PagePoolOptions {
    /// Bytes that a pool needs at least: of pages that are read without staying and of pages on their way.
    pub fn least_bytes(&self) -> u64 {
        ((self.visitors() + self.slots) * PageLayout::new(&self.shape).page_bytes) as u64
    }

    /// Bytes that hold every page of a context, those of the ring included.
    pub fn bytes_for(&self, tokens: usize) -> u64 {
        let page = PageLayout::new(&self.shape).page_bytes as u64;
        self.least_bytes() + self.shape.pages_for(tokens) as u64 * page
    }

    /// Bytes beside the budget that calls of up to `rows` rows and appending up to `added` tokens take in a context of `tokens`:
    /// rows, and a few lists.
    pub fn call_bytes(&self, rows: usize, added: usize, tokens: usize) -> u64 {
        let tables = 16 * (self.shape.kv_heads * tokens.div_ceil(self.shape.page_tokens)) as u64;
        let call = super::call::call_bytes(rows, self.heads, self.shape.head_dim) + append_bytes(added, &self.shape);
        let call = call + mass_bytes(self.shape.kv_heads, tokens);
        call + 2 * tables + LIST_BYTES + self.estimate_bytes + self.bound_bytes + self.mean_bytes
    }

    /// Pages that are read without staying: as many as parts of a decode may hold of every KV head.
    pub(super) fn visitors(&self) -> usize {
        (PART_PAGES * self.shape.kv_heads).max(self.slots / 2)
    }
}

impl PagePool {
    /// An empty pool; work on pages is queued on `compute`, copies on a stream of the pool's own.
    ///
    /// # Errors
    /// [`CudaError::PageBudget`] for a budget that is too small, [`CudaError::Unsupported`] for pages no kernel reads,
    /// [`CudaError::OutOfMemory`], a lost device.
    pub fn new(compute: &Arc<Stream>, options: PagePoolOptions) -> Result<Self, CudaError> {
        let gpu = compute.gpu().clone();
        let shape = &options.shape;
        if !shape.page_tokens.is_multiple_of(KEY_BLOCK) {
            return Err(CudaError::Unsupported {
                what: "--page-tokens",
                value: shape.page_tokens,
                requirement: "a multiple of 64",
            });
        }
        let layout = PageLayout::new(shape);
        if options.budget_bytes < options.least_bytes() {
            return Err(CudaError::PageBudget {
                budget_bytes: options.budget_bytes,
                least_bytes: options.least_bytes(),
            });
        }
        let slots = (options.budget_bytes - options.least_bytes()) / layout.page_bytes as u64;
        let slots = usize::try_from(slots).unwrap_or(usize::MAX).min(u32::MAX as usize);
        Ok(Self {
            copy: gpu.stream()?,
            compute: Arc::clone(compute),
            store: PageStore {
                slabs: Vec::new(),
                slots,
                slab_pages: (SLAB_BYTES / layout.page_bytes).max(1),
                page_bytes: layout.page_bytes,
                visitors: gpu.allocate(options.visitors() * layout.page_bytes)?,
            },
            residence: Residence::new(shape, slots),
            staging: Staging::new(&gpu, options.slots, layout.page_bytes)?,
            visited: vec![Vec::new(); shape.layers],
            reading: None,
            reads: Reads::new(&gpu, shape.head_dim, options.heads / shape.kv_heads)?,
            tables: [DeviceList::new(&gpu)?, DeviceList::new(&gpu)?],
            moves: [DeviceList::new(&gpu)?, DeviceList::new(&gpu)?],
            append: AppendMemory::new(&gpu)?,
            memory: CallMemory::new(&gpu)?,
            masses: MassMemory::new(&gpu)?,
            estimates: EstimateMemory::new(&gpu)?,
            bounds: KeyBounds::new(&gpu, shape, options.bound_bytes)?,
            means: BlockMeans::new(&gpu, shape, options.mean_bytes)?,
            transferred: TransferCount::default(),
            layout,
            options,
            gpu,
        })
    }

    /// The shape of the cache.
    pub fn shape(&self) -> &CacheShape {
        &self.options.shape
    }

    /// Forgets what lies behind the first `tokens` tokens.
    pub fn truncate(&mut self, tokens: usize) {
        let page_tokens = self.options.shape.page_tokens;
        self.residence.truncate(tokens, page_tokens);
        self.staging.keep_ahead(|key| (key.page + 1) * page_tokens <= tokens);
        self.bounds.summaries.truncate(None, tokens);
        self.means.summaries.truncate(None, tokens);
    }

    /// Forgets what lies behind the first `tokens` tokens of a (layer, KV head); with 0, all of it: those in main memory
    /// have moved.
    pub fn truncate_head(&mut self, layer: usize, kv_head: usize, tokens: usize) {
        let page_tokens = self.options.shape.page_tokens;
        self.residence.truncate_head(layer, kv_head, tokens, page_tokens);
        self.staging
            .keep_ahead(|key| (key.layer, key.kv_head) != (layer, kv_head) || (key.page + 1) * page_tokens <= tokens);
        self.bounds.summaries.truncate(Some((layer, kv_head)), tokens);
        self.means.summaries.truncate(Some((layer, kv_head)), tokens);
    }

    /// Forgets every page: those in main memory have changed.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Bytes of device memory that the pool holds.
    pub fn device_bytes(&self) -> u64 {
        let slabs: usize = self.store.slabs.iter().map(DeviceBuffer::bytes).sum();
        let summaries = self.bounds.summaries.bytes() + self.means.summaries.bytes();
        (slabs + self.store.visitors.bytes() + self.staging.bytes() + summaries) as u64
    }

    /// Bytes of pages that lie on the device.
    pub fn resident_bytes(&self) -> u64 {
        (self.residence.used() * self.layout.page_bytes) as u64
    }

    /// What has travelled so far.
    pub fn transferred(&self) -> TransferCount {
        self.transferred
    }

    /// Begins to attend tiles of a layer's rows to their keys before `end`; the pages come to the call in order.
    ///
    /// # Errors
    /// A lost device, too little memory for the call's rows.
    pub fn begin<'p>(
        &'p mut self,
        layer: usize,
        tiles: &'p [PagedTile<'p>],
        rows: CallRows<'p>,
        end: usize,
        options: &AttendOptions<'_>,
    ) -> Result<PagedCall<'p>, CudaError> {
        PagedCall::new(self, layer, tiles, rows, end, options)
    }
}

/// Memory of pages, in slabs that are allocated when they are first needed.
pub(super) struct PageStore {
    slabs: Vec<DeviceBuffer>,
    slots: usize,
    slab_pages: usize,
    page_bytes: usize,
    // pages that are read and do not stay
    visitors: DeviceBuffer,
}

impl PageStore {
    /// Sees to it that there is memory for a slot.
    pub(super) fn make(&mut self, gpu: &Gpu, slot: usize) -> Result<(), CudaError> {
        while self.slabs.len() * self.slab_pages <= slot {
            let left = self.slots - self.slabs.len() * self.slab_pages;
            self.slabs
                .push(gpu.allocate(self.slab_pages.min(left) * self.page_bytes)?);
        }
        Ok(())
    }

    pub(super) fn at(&self, place: Place) -> Region<'_> {
        let bytes = self.page_bytes;
        match place {
            Place::Slot(slot) => {
                let within = slot % self.slab_pages * bytes;
                self.slabs[slot / self.slab_pages].region(within..within + bytes)
            }
            Place::Visitor(visitor) => self.visitors.region(visitor * bytes..(visitor + 1) * bytes),
        }
    }
}

/// Where a page lies on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Slot(usize),
    Visitor(usize),
}

/// A tile as kernels are told of it.
pub(super) fn tile_reads<'a>(tile: &PagedTile<'a>) -> TileReads<'a> {
    TileReads {
        kv_head: tile.kv_head,
        start: tile.start,
        row: tile.first_row,
        rows: tile.rows,
        selection: tile.selection,
    }
}
