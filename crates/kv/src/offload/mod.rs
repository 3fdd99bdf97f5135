//! Loads pages from RAM or disk into a ring of slots while attention reads the pages loaded before.
//!
//! Rows of one or more sequences read pages in ascending order, a group of at most half the ring at a time. A shared
//! page is loaded once for all rows. While one group is read, threads load the next groups into free slots. After the
//! last group they load the first pages of the next read: of the same layer for the next chunk of a prompt, of the next
//! layer during decode. These pages are not selected yet, so the engine expects the pages last read of that layer.
//! Unwanted pages are dropped and missing ones are loaded later, so a wrong guess costs time and never a bit.

mod loader;
mod plan;
mod ring;

use std::sync::Arc;

use riffle_attention::{PageView, Plane, Span};

use crate::pool::{PageId, PageStore, PlaneKind};
use crate::reader::{SequencePages, plane_id};
use crate::tiers::{Layout, SlotLayout, scan_stride};
use crate::{CacheShape, Device, DeviceMemory, KvCache, KvError, KvTiers};
use plan::{ALL, FarPage, Plan};
use ring::Ring;

pub(crate) struct OffloadEngine {
    device: Arc<dyn Device>,
    ring: Ring,
    scan: Option<Box<dyn DeviceMemory>>,
    scan_budget_bytes: u64,
    /// Bytes of keys loaded for scans.
    scanned_bytes: u64,
}

/// The pages of a layer that some rows of one of several sequences read.
#[derive(Debug, Clone, Copy)]
pub struct LayerRead<'a> {
    /// Index of the sequence.
    pub sequence: usize,
    /// The pages of each KV head, as spans of page numbers; `None` means all.
    pub wanted: Option<&'a [Vec<Span>]>,
}

/// A callback that receives pages of each KV head, for each read.
pub type ShowReads<'a, E> = dyn FnMut(&[Vec<Vec<PageView<'_>>>]) -> Result<(), E> + 'a;

/// As [`KvCache::stream`], for rows of several sequences of one pool. A shared page is loaded once. If it has the same
/// page number in all sequences, one call passes it to all its readers. Each read gets its pages in the same order as
/// alone.
///
/// # Errors
/// As [`KvCache::stream`]: the first failure ends all reads.
///
/// # Panics
/// For sequences of different pools, and reads of sequences that do not exist.
pub fn stream_together<E: From<KvError>>(
    sequences: &mut [&mut KvCache],
    reads: &[LayerRead<'_>],
    layer: usize,
    next: Option<usize>,
    each: &mut ShowReads<'_, E>,
) -> Result<(), E> {
    let Some(first) = sequences.first() else { return Ok(()) };
    first.check_layer(layer)?;
    next.map_or(Ok(()), |next| first.check_layer(next))?;
    let pool = Arc::clone(&first.pool);
    assert!(
        sequences.iter().all(|sequence| Arc::ptr_eq(&sequence.pool, &pool)),
        "sequences that are read together are of one pool"
    );
    let store = &*pool.read();
    let far = show(store, sequences, reads, layer, next, each)?;
    for (number, sequence) in sequences.iter_mut().enumerate() {
        let reads = || reads.iter().filter(|read| read.sequence == number);
        sequence.last_read[layer] = match far[number] {
            false => Vec::new(),
            true if reads().any(|read| read.wanted.is_none()) => vec![vec![ALL]; pool.shape.layer(layer).kv_heads],
            true => {
                let wanted = |kv_head: usize| reads().filter_map(move |read| Some(&read.wanted?[kv_head]));
                let heads = 0..pool.shape.layer(layer).kv_heads;
                heads
                    .map(|kv_head| wanted(kv_head).flatten().copied().collect())
                    .collect()
            }
        };
    }
    let expected = expected(store, sequences, next);
    if !expected.is_empty() {
        store.offload().expect(&expected)?;
    }
    Ok(())
}

/// Passes the pages of all reads, and returns for each sequence whether it has read far pages.
fn show<E: From<KvError>>(
    store: &PageStore,
    sequences: &[&mut KvCache],
    reads: &[LayerRead<'_>],
    layer: usize,
    next: Option<usize>,
    each: &mut ShowReads<'_, E>,
) -> Result<Vec<bool>, E> {
    let mut far = vec![false; sequences.len()];
    let pages: Vec<SequencePages<'_>> = sequences.iter().map(|sequence| sequence.pages_in(store)).collect();
    let reads_of = || reads.iter().map(|read| (pages[read.sequence], read.wanted));
    if pages.iter().all(|pages| pages.are_near(layer)) {
        let views: Vec<_> = reads_of()
            .map(|(pages, wanted)| pages.near_views(layer, wanted))
            .collect();
        each(&views)?;
        return Ok(far);
    }
    let mut plan = Plan::new(layer, reads_of());
    for (number, read) in reads.iter().enumerate() {
        far[read.sequence] |= plan.is_far(number);
    }
    if plan.far.is_empty() {
        each(&plan.next_views(0, None))?
    } else {
        let expected = expected(store, sequences, next);
        store.offload().stream(&mut plan, &expected, each)?;
    }
    Ok(far)
}

/// The far pages of a layer that the sequences read last, which they probably read again.
fn expected<'a>(store: &'a PageStore, sequences: &'a [&mut KvCache], layer: Option<usize>) -> Vec<FarPage<'a>> {
    let Some(layer) = layer else { return Vec::new() };
    let read = sequences
        .iter()
        .filter(|sequence| !sequence.last_read[layer].is_empty());
    Plan::new(
        layer,
        read.map(|sequence| (sequence.pages_in(store), Some(&sequence.last_read[layer][..]))),
    )
    .far
}

/// Passes the keys of a (layer, KV head) from a token on, all at once; their pages have no values.
pub(crate) fn with_keys<T>(
    pages: SequencePages<'_>,
    layer: usize,
    kv_head: usize,
    from_token: usize,
    show: impl FnOnce(&[PageView<'_>]) -> T,
) -> Result<T, KvError> {
    let (shape, table) = (pages.shape(), pages.shape().tables_of(layer).start + kv_head);
    let size = shape.size_of(layer);
    let ids = pages.page_ids(table);
    let first = (from_token / shape.page_tokens).min(ids.len());
    let is_far = |number: &usize| !pages.store.place(ids[*number], PlaneKind::Keys).is_near();
    let far: Vec<usize> = (first..ids.len()).filter(is_far).collect();
    let mut offload = (!far.is_empty()).then(|| pages.store.offload());
    let scanned = match &mut offload {
        Some(offload) => offload.load_keys(pages, table, &far)?,
        None => &[],
    };
    let stride = scan_stride(shape, size);
    let mut loaded = scanned.chunks_exact(stride);
    let views = (first..ids.len()).map(|number| {
        let keys = pages.store.near_plane(ids[number], PlaneKind::Keys).unwrap_or_else(|| {
            let bytes = loaded.next().expect("every far page has been read");
            Plane::from_bytes(
                shape.key_format,
                &bytes[..shape.plane_bytes(size, PlaneKind::Keys) as usize],
            )
        });
        pages.page_view((layer, table), number, keys, Plane::empty(shape.value_format))
    });
    Ok(show(&views.collect::<Vec<_>>()))
}

impl OffloadEngine {
    pub(crate) fn new(tiers: &KvTiers, shape: &CacheShape) -> Self {
        let device = Arc::clone(&tiers.device);
        Self {
            ring: Ring::new(Arc::clone(&device), SlotLayout::new(shape), tiers.slots, tiers.loaders),
            device,
            scan: None,
            scan_budget_bytes: Layout::new(tiers, shape).scan_bytes,
            scanned_bytes: 0,
        }
    }

    /// Passes the pages of a plan to `each` and loads the far ones; then loads the pages `expected` next.
    fn stream<E: From<KvError>>(
        &mut self,
        plan: &mut Plan<'_>,
        expected: &[FarPage<'_>],
        each: &mut ShowReads<'_, E>,
    ) -> Result<(), E> {
        self.ring.begin(plan.far.iter().map(|page| (page.id(), page.planes)));
        let (count, group) = (plan.far.len(), self.ring.slots().div_ceil(2));
        let mut asked = 0;
        for start in (0..count).step_by(group) {
            let end = (start + group).min(count);
            while asked < count {
                if self.ask(&plan.far[asked], asked)? {
                    asked += 1;
                } else if asked < end {
                    self.ring.yield_slot(end - 1);
                } else {
                    break;
                }
            }
            if asked == count {
                self.expect(expected)?;
            }
            self.ring.send();
            self.ring.wait(plan.far[start..end].iter().map(FarPage::id))?;
            each(&plan.next_views(end, Some(&self.ring)))?;
            for page in &plan.far[start..end] {
                self.ring.drop_read(page.id(), end);
            }
        }
        Ok(())
    }

    /// Loads the keys of a table's far pages into separate memory, each at a multiple of [`scan_stride`].
    fn load_keys(&mut self, pages: SequencePages<'_>, table: usize, far: &[usize]) -> Result<&[u8], KvError> {
        let shape = pages.shape();
        let size = shape.size_of_table(table);
        let stride = scan_stride(shape, size);
        let bytes = far.len() * stride;
        if bytes as u64 > self.scan_budget_bytes {
            return Err(KvError::NearBudget {
                what: "keys that are looked through",
                needed_bytes: bytes as u64,
                near_bytes: self.scan_budget_bytes,
                sequences: 0,
            });
        }
        if self.scan.as_ref().is_none_or(|memory| memory.bytes().len() < bytes) {
            self.scan = None;
            let memory = self.device.allocate(bytes);
            self.scan = Some(memory.map_err(|source| KvError::Memory { bytes, source })?);
        }
        let Some(memory) = &mut self.scan else { return Ok(&[]) };
        for (number, slot) in far.iter().zip(memory.bytes_mut().chunks_exact_mut(stride)) {
            let id = plane_id(shape, PlaneKind::Keys, table, *number);
            if let Some(source) = pages.store.source(pages.page_ids(table)[*number], PlaneKind::Keys) {
                source.read(id, slot)?;
                self.scanned_bytes += shape.plane_bytes(size, PlaneKind::Keys);
            }
        }
        memory.loaded(0..bytes);
        Ok(&memory.bytes()[..bytes])
    }

    /// Waits for loads in progress, before slots are reassigned.
    pub(crate) fn settle(&mut self) {
        self.ring.settle();
    }

    /// Drops loaded copies of pages that will change or be freed, and waits for their loads in progress.
    pub(crate) fn forget(&mut self, pages: &[PageId]) {
        self.ring.forget(pages);
    }

    /// Drops everything that was loaded ahead.
    pub(crate) fn forget_all(&mut self) {
        self.ring.clear();
    }

    /// Bytes loaded from slower tiers so far.
    pub(crate) fn loaded_bytes(&self) -> u64 {
        self.ring.loaded_bytes() + self.scanned_bytes
    }

    /// Bytes of slots and of keys during a scan.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.ring.allocated_bytes() + self.scan.as_ref().map_or(0, |memory| memory.bytes().len())
    }

    /// Requests a page, number `due` of the coming reads, and returns true if it is loaded or loading.
    fn ask(&mut self, page: &FarPage<'_>, due: usize) -> Result<bool, KvError> {
        self.ring.ask(page.id(), page.planes, due, |slots| page.load(slots))
    }

    /// Loads the pages expected next, as far as slots are free.
    fn expect(&mut self, expected: &[FarPage<'_>]) -> Result<(), KvError> {
        for (place, page) in expected.iter().enumerate() {
            // These pages are due after all reads of the current layer.
            let due = usize::MAX / 2 + place;
            if !self.ring.holds(page.id(), page.planes) && !self.ask(page, due)? {
                break;
            }
        }
        self.ring.send();
        Ok(())
    }
}
