//! The offload engine: pages that lie far come to a ring of slots while others are read.
//!
//! Pages are read in ascending order, a group of at most half the ring at a time, by rows of one sequence or of several; a page
//! that several read comes once for all of them. While one group is read, threads
//! load the next ones into the slots that are free, and behind the last group the first pages of what is read next:
//! of the same layer for the next chunk of a prompt, of the next layer while a token is written. What those will be is
//! known only when they are selected; until then it is taken to be what was read of that layer last. Pages that turn
//! out not to be wanted are dropped, those that were missed are loaded then, so a guess costs time and never a bit.

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
    /// Bytes of keys that were loaded to be looked through.
    scanned_bytes: u64,
}

/// The pages of a layer that some rows of one of several sequences read.
#[derive(Debug, Clone, Copy)]
pub struct LayerRead<'a> {
    /// Which of the sequences.
    pub sequence: usize,
    /// The pages of each KV head, as spans of page numbers; `None` is all.
    pub wanted: Option<&'a [Vec<Span>]>,
}

/// Takes pages of each KV head, by read.
pub type ShowReads<'a, E> = dyn FnMut(&[Vec<Vec<PageView<'_>>>]) -> Result<(), E> + 'a;

/// As [`KvCache::stream`] for rows of several sequences of one pool: a page that several of them read is loaded once, and shown to
/// all of them in one call where they hold it at the same place. Each read is shown its pages in the order in which it would
/// be shown them alone.
///
/// # Errors
/// As [`KvCache::stream`]: the first failure ends the stream of all reads.
///
/// # Panics
/// For sequences of different pools, and reads of sequences that are not there.
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

/// Shows what is read, and says of each sequence whether it has read pages that are far.
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

/// The far pages of a layer that sequences read last: what they are expected to read of it.
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

/// Shows the keys of a (layer, KV head) from a token on, all at once; their pages have no values.
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

    /// Shows the pages of a plan to `each`, and loads those that are far; then those that are `expected` to be read next.
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

    /// Loads the keys of far pages of a table to memory of their own, each at a multiple of [`scan_stride`].
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

    /// Waits for what is under way: slots are about to change hands.
    pub(crate) fn settle(&mut self) {
        self.ring.settle();
    }

    /// Forgets what was loaded of pages that are about to change or to go, and waits for what is under way of them.
    pub(crate) fn forget(&mut self, pages: &[PageId]) {
        self.ring.forget(pages);
    }

    /// Forgets everything that was loaded ahead.
    pub(crate) fn forget_all(&mut self) {
        self.ring.clear();
    }

    /// Bytes that were ever loaded from slower tiers.
    pub(crate) fn loaded_bytes(&self) -> u64 {
        self.ring.loaded_bytes() + self.scanned_bytes
    }

    /// Bytes of slots and of keys being looked through.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.ring.allocated_bytes() + self.scan.as_ref().map_or(0, |memory| memory.bytes().len())
    }

    /// Asks for a page, the `due`th that is read from now on, and says whether it is on its way.
    fn ask(&mut self, page: &FarPage<'_>, due: usize) -> Result<bool, KvError> {
        self.ring.ask(page.id(), page.planes, due, |slots| page.load(slots))
    }

    /// Loads what is expected to be read next, as far as slots are free.
    fn expect(&mut self, expected: &[FarPage<'_>]) -> Result<(), KvError> {
        for (place, page) in expected.iter().enumerate() {
            // After everything that is read of the layer under way.
            let due = usize::MAX / 2 + place;
            if !self.ring.holds(page.id(), page.planes) && !self.ask(page, due)? {
                break;
            }
        }
        self.ring.send();
        Ok(())
    }
}
