//! The offload engine: pages that lie far come to a ring of slots while others are read.
//!
//! Pages are read in ascending order, a group of at most half the ring at a time. While one group is read, threads
//! load the next ones into the slots that are free, and behind the last group the first pages of what is read next:
//! of the same layer for the next chunk of a prompt, of the next layer while a token is written. What those will be is
//! known only when they are selected; until then it is taken to be what was read of that layer last. Pages that turn
//! out not to be wanted are dropped, those that were missed are loaded then, so a guess costs time and never a bit.

mod loader;
mod ring;

use std::sync::Arc;

use riffle_attention::{Format, PageView, Plane, Span};

use crate::arena::as_plane;
use crate::cache::ShowPages;
use crate::pool::{Kind, PageId};
use crate::reader::{SequencePages, plane_id};
use crate::tiers::{Layout, SlotLayout, scan_stride};
use crate::{CacheShape, Device, DeviceMemory, KvError, KvTiers};
use loader::LoadPlane;
use ring::{Planes, Ring};

const ALL: Span = Span {
    start: 0,
    end: usize::MAX,
};

pub(crate) struct OffloadEngine {
    device: Arc<dyn Device>,
    ring: Ring,
    scan: Option<Box<dyn DeviceMemory>>,
    scan_budget_bytes: u64,
}

/// A page of a layer that is read, in the order in which pages are read.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Item {
    number: usize,
    kv_head: usize,
    id: PageId,
    /// Planes that have to be loaded.
    far: Planes,
}

/// Shows the wanted pages of a layer (all for `None`), some at a time: to each call, for each KV head, pages that
/// come after those of earlier calls. Goes on to load what `next` is expected to read. `last_read` is what was read of each
/// layer last, `[layers, kv_heads]`, spans of pages; empty for layers that lie near.
pub(crate) fn stream<E: From<KvError>>(
    pages: SequencePages<'_>,
    last_read: &mut [Vec<Vec<Span>>],
    layer: usize,
    wanted: Option<&[Vec<Span>]>,
    next: Option<usize>,
    each: &mut ShowPages<'_, E>,
) -> Result<(), E> {
    let expected = |last_read: &[Vec<Vec<Span>>]| {
        let next = next.filter(|next| !last_read[*next].is_empty());
        next.map_or(Vec::new(), |next| pages.items(next, Some(&last_read[next])))
    };
    if pages.are_near(layer) {
        last_read[layer].clear();
        each(&pages.near_views(layer, wanted))?;
    } else {
        let items = pages.items(layer, wanted);
        if items.iter().all(|item| !item.far.any()) {
            last_read[layer].clear();
            each(&pages.views(layer, &items, None))?;
        } else {
            let mut offload = pages.store.offload();
            offload.stream(pages, layer, &items, || expected(last_read), next, each)?;
            drop(offload);
            last_read[layer] = match wanted {
                Some(wanted) => wanted.to_vec(),
                None => vec![vec![ALL]; pages.shape().kv_heads],
            };
        }
    }
    let expected = expected(last_read);
    if let Some(next) = next.filter(|_| expected.iter().any(|item| item.far.any())) {
        pages.store.offload().expect(pages, next, &expected)?;
    }
    Ok(())
}

/// Shows the keys of a (layer, KV head) from a token on, all at once; their pages have no values.
pub(crate) fn with_keys<T>(
    pages: SequencePages<'_>,
    layer: usize,
    kv_head: usize,
    from_token: usize,
    show: impl FnOnce(&[PageView<'_>]) -> T,
) -> Result<T, KvError> {
    let (shape, table) = (pages.shape(), layer * pages.shape().kv_heads + kv_head);
    let ids = pages.page_ids(table);
    let first = (from_token / shape.page_tokens).min(ids.len());
    let is_far = |number: &usize| !pages.store.place(ids[*number], Kind::Keys).is_near();
    let far: Vec<usize> = (first..ids.len()).filter(is_far).collect();
    let mut offload = (!far.is_empty()).then(|| pages.store.offload());
    let scanned = match &mut offload {
        Some(offload) => offload.load_keys(pages, table, &far)?,
        None => &[],
    };
    let stride = scan_stride(shape);
    let mut loaded = scanned.chunks_exact(stride);
    let views = (first..ids.len()).map(|number| {
        let keys = pages.store.near_plane(ids[number], Kind::Keys).unwrap_or_else(|| {
            let bytes = loaded.next().expect("every far page has been read");
            as_plane(shape.key_format, &bytes[..shape.key_plane_bytes() as usize])
        });
        pages.page_view(table, number, keys, no_values(shape.value_format))
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
        }
    }

    /// Shows the pages of a layer to `each`, and loads those that are far. `expected` lists the pages of layer `next` that are
    /// loaded ahead.
    fn stream<E: From<KvError>>(
        &mut self,
        pages: SequencePages<'_>,
        layer: usize,
        items: &[Item],
        expected: impl Fn() -> Vec<Item>,
        next: Option<usize>,
        each: &mut ShowPages<'_, E>,
    ) -> Result<(), E> {
        // Indices of the items that have to be loaded.
        let far: Vec<usize> = (0..items.len()).filter(|index| items[*index].far.any()).collect();
        self.ring
            .begin(far.iter().map(|index| (items[*index].id, items[*index].far)));
        let group = self.ring.slots().div_ceil(2);
        let (mut first, mut asked) = (0, 0);
        for start in (0..far.len()).step_by(group) {
            let end = (start + group).min(far.len());
            while asked < far.len() {
                if self.ask(pages, layer, &items[far[asked]], asked)? {
                    asked += 1;
                } else if asked < end {
                    self.ring.yield_slot(end - 1);
                } else {
                    break;
                }
            }
            if let Some(next) = next.filter(|_| asked == far.len()) {
                self.expect(pages, next, &expected())?;
            }
            self.ring.send();
            self.ring.wait(far[start..end].iter().map(|index| items[*index].id))?;
            let until = far.get(end).copied().unwrap_or(items.len());
            each(&pages.views(layer, &items[first..until], Some(&self.ring)))?;
            for index in &far[start..end] {
                self.ring.drop_page(items[*index].id);
            }
            first = until;
        }
        Ok(())
    }

    /// Loads the keys of far pages of a table to memory of their own, each at a multiple of [`scan_stride`].
    fn load_keys(&mut self, pages: SequencePages<'_>, table: usize, far: &[usize]) -> Result<&[u8], KvError> {
        let stride = scan_stride(pages.shape());
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
            let id = plane_id(pages.shape(), pages.store.planes(Kind::Keys).what, table, *number);
            if let Some(source) = pages.store.source(pages.page_ids(table)[*number], Kind::Keys) {
                source.read(id, slot)?;
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

    /// Bytes of slots and of keys being looked through.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.ring.allocated_bytes() + self.scan.as_ref().map_or(0, |memory| memory.bytes().len())
    }

    /// Asks for a page, the `due`th that is read from now on, and says whether it is on its way.
    fn ask(&mut self, pages: SequencePages<'_>, layer: usize, item: &Item, due: usize) -> Result<bool, KvError> {
        self.ring
            .ask(item.id, item.far, due, |slots| pages.load_planes(layer, item, slots))
    }

    /// Loads what a layer is expected to read, as far as slots are free.
    fn expect(&mut self, pages: SequencePages<'_>, layer: usize, items: &[Item]) -> Result<(), KvError> {
        for (place, item) in items.iter().filter(|item| item.far.any()).enumerate() {
            // After everything that is read of the layer under way.
            let due = usize::MAX / 2 + place;
            if !self.ring.holds(item.id, item.far) && !self.ask(pages, layer, item, due)? {
                break;
            }
        }
        self.ring.send();
        Ok(())
    }
}

impl<'a> SequencePages<'a> {
    /// The wanted pages that exist, in the order in which they are read.
    fn items(&self, layer: usize, wanted: Option<&[Vec<Span>]>) -> Vec<Item> {
        let mut items = Vec::new();
        for kv_head in 0..self.shape().kv_heads {
            let ids = self.page_ids(layer * self.shape().kv_heads + kv_head);
            let spans = wanted.map_or(&[ALL][..], |wanted| &wanted[kv_head]);
            for span in spans {
                let numbers = span.start.min(ids.len())..span.end.min(ids.len());
                items.extend(numbers.map(|number| Item {
                    number,
                    kv_head,
                    id: ids[number],
                    far: self.far(ids[number]),
                }));
            }
        }
        items.sort_unstable_by_key(|item| (item.number, item.kv_head));
        items.dedup();
        items
    }

    fn far(&self, page: PageId) -> Planes {
        let is_far = |kind| !self.store.place(page, kind).is_near();
        Planes {
            keys: is_far(Kind::Keys),
            values: is_far(Kind::Values),
        }
    }

    /// Pages of a layer that lie near or in the ring, by KV head.
    fn views<'r>(&self, layer: usize, items: &[Item], ring: Option<&'r Ring>) -> Vec<Vec<PageView<'r>>>
    where
        'a: 'r,
    {
        let shape = self.shape();
        let mut views: Vec<Vec<PageView<'r>>> = vec![Vec::new(); shape.kv_heads];
        for item in items {
            let slot: &'r [u8] = ring.filter(|_| item.far.any()).map_or(&[], |ring| ring.bytes(item.id));
            let near = |kind| self.store.near_plane(item.id, kind);
            let keys = near(Kind::Keys)
                .unwrap_or_else(|| as_plane(shape.key_format, &slot[..shape.key_plane_bytes() as usize]));
            let values = near(Kind::Values).unwrap_or_else(|| {
                let values = &slot[SlotLayout::new(shape).values_at..];
                as_plane(shape.value_format, &values[..shape.value_plane_bytes() as usize])
            });
            let table = layer * shape.kv_heads + item.kv_head;
            views[item.kv_head].push(self.page_view(table, item.number, keys, values));
        }
        views
    }

    fn load_planes(&self, layer: usize, item: &Item, slots: SlotLayout) -> [Option<LoadPlane>; 2] {
        let table = layer * self.shape().kv_heads + item.kv_head;
        Kind::BOTH.map(|kind| {
            let planes = self.store.planes(kind);
            Some(LoadPlane {
                id: plane_id(self.shape(), planes.what, table, item.number),
                source: self.store.source(item.id, kind)?,
                at: match kind {
                    Kind::Keys => 0,
                    Kind::Values => slots.values_at,
                },
                bytes: planes.plane_bytes,
            })
        })
    }
}

fn no_values(format: Format) -> Plane<'static> {
    match format {
        Format::F32 => Plane::F32(&[]),
        Format::F16 => Plane::F16(&[]),
        Format::Bf16 => Plane::Bf16(&[]),
        Format::Q8_0 => Plane::Q8_0(&[]),
        Format::Q4_0 => Plane::Q4_0(&[]),
    }
}
