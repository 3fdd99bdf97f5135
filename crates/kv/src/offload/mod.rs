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
use crate::store::PlaneStore;
use crate::tiers::{SlotLayout, scan_stride};
use crate::{CacheShape, Device, DeviceMemory, KvError, KvTiers};
use loader::LoadPlane;
use ring::{PageKey, Planes, Ring};

const ALL: Span = Span {
    start: 0,
    end: usize::MAX,
};

/// What the engine moves pages of.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'a> {
    pub(crate) shape: &'a CacheShape,
    pub(crate) keys: &'a PlaneStore,
    pub(crate) values: &'a PlaneStore,
    /// `[layers, kv_heads]`
    pub(crate) tokens: &'a [usize],
}

pub(crate) struct OffloadEngine {
    device: Arc<dyn Device>,
    ring: Ring,
    /// What was read of each layer last: `[layers, kv_heads]`, spans of pages; empty for layers that lie near.
    last: Vec<Vec<Vec<Span>>>,
    scan: Option<Box<dyn DeviceMemory>>,
    scan_budget_bytes: u64,
}

impl OffloadEngine {
    pub(crate) fn new(tiers: &KvTiers, shape: &CacheShape, scan_budget_bytes: u64) -> Self {
        let device = Arc::clone(&tiers.device);
        Self {
            ring: Ring::new(Arc::clone(&device), SlotLayout::new(shape), tiers.slots, tiers.loaders),
            device,
            last: vec![Vec::new(); shape.layers],
            scan: None,
            scan_budget_bytes,
        }
    }

    /// Shows the wanted pages of a layer (all for `None`), some at a time: to each call, for each KV head, pages that
    /// come after those of earlier calls. Goes on to load what `next` is expected to read.
    pub(crate) fn stream<E: From<KvError>>(
        &mut self,
        pages: Pages<'_>,
        layer: usize,
        wanted: Option<&[Vec<Span>]>,
        next: Option<usize>,
        each: &mut ShowPages<'_, E>,
    ) -> Result<(), E> {
        if pages.are_near(layer) {
            self.last[layer].clear();
            each(&pages.near_views(layer, wanted))?;
            return Ok(self.expect(pages, next)?);
        }
        let items = pages.items(layer, wanted);
        // Indices of the items that have to be loaded.
        let far: Vec<usize> = (0..items.len())
            .filter(|index| pages.far(&items[*index]).any())
            .collect();
        if far.is_empty() {
            self.last[layer].clear();
            each(&pages.views(&items, &self.ring))?;
            return Ok(self.expect(pages, next)?);
        }
        self.ring.keep(|key| {
            let found = far.binary_search_by_key(key, |index| items[*index]).ok()?;
            Some(pages.far(&items[far[found]]))
        });
        let group = self.ring.slots().div_ceil(2);
        let (mut first, mut asked) = (0, 0);
        for start in (0..far.len()).step_by(group) {
            let end = (start + group).min(far.len());
            let last = items[far[end - 1]];
            while asked < far.len() {
                let item = items[far[asked]];
                if self.ask(pages, item)? {
                    asked += 1;
                } else if asked < end {
                    self.ring.yield_slot(&last);
                } else {
                    break;
                }
            }
            if asked == far.len() {
                self.expect(pages, next)?;
            }
            self.ring.send();
            self.ring.wait(far[start..end].iter().map(|index| &items[*index]))?;
            let until = far.get(end).copied().unwrap_or(items.len());
            each(&pages.views(&items[first..until], &self.ring))?;
            for index in &far[start..end] {
                self.ring.drop_page(&items[*index]);
            }
            first = until;
        }
        self.last[layer] = match wanted {
            Some(wanted) => wanted.to_vec(),
            None => vec![vec![ALL]; pages.shape.kv_heads],
        };
        Ok(self.expect(pages, next)?)
    }

    /// Shows the keys of a (layer, KV head) from a token on, all at once; their pages have no values.
    pub(crate) fn with_keys<T>(
        &mut self,
        pages: Pages<'_>,
        layer: usize,
        kv_head: usize,
        from_token: usize,
        show: impl FnOnce(&[PageView<'_>]) -> T,
    ) -> Result<T, KvError> {
        let (shape, table) = (pages.shape, layer * pages.shape.kv_heads + kv_head);
        let first = (from_token / shape.page_tokens).min(pages.keys.pages(table));
        let numbers = first..pages.keys.pages(table);
        let far: Vec<usize> = numbers.clone().filter(|page| pages.keys.is_far(table, *page)).collect();
        let stride = scan_stride(shape);
        let bytes = far.len() * stride;
        if bytes as u64 > self.scan_budget_bytes {
            return Err(KvError::NearBudget {
                what: "keys that are looked through",
                needed_bytes: bytes as u64,
                near_bytes: self.scan_budget_bytes,
                shared_bytes: 0,
            });
        }
        if self.scan.as_ref().is_none_or(|memory| memory.bytes().len() < bytes) && bytes > 0 {
            self.scan = None;
            let memory = self.device.allocate(bytes);
            self.scan = Some(memory.map_err(|source| KvError::Memory { bytes, source })?);
        }
        if let Some(memory) = &mut self.scan {
            for (page, slot) in far.iter().zip(memory.bytes_mut().chunks_exact_mut(stride)) {
                let source = pages.keys.source(table, *page);
                source.read(pages.keys.id(table, *page), slot)?;
            }
            memory.loaded(0..bytes);
        }
        let scanned = self.scan.as_ref().map_or(&[][..], |memory| memory.bytes());
        let mut loaded = scanned.chunks_exact(stride);
        let views = numbers.map(|page| {
            let keys = match pages.keys.is_far(table, page) {
                true => as_plane(
                    shape.key_format,
                    &loaded.next().expect("every far page has been read")[..shape.key_plane_bytes() as usize],
                ),
                false => pages.keys.plane(table, page),
            };
            pages.page_view(table, page, keys, no_values(shape.value_format))
        });
        Ok(show(&views.collect::<Vec<_>>()))
    }

    /// Waits for what is under way: slots of the RAM tier are about to change hands.
    pub(crate) fn settle(&mut self) {
        self.ring.settle();
    }

    /// Forgets what was loaded ahead: pages are about to change.
    pub(crate) fn forget(&mut self) {
        self.ring.clear();
    }

    /// Bytes of slots and of keys being looked through.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.ring.allocated_bytes() + self.scan.as_ref().map_or(0, |memory| memory.bytes().len())
    }

    /// Asks for a page and says whether it is on its way.
    fn ask(&mut self, pages: Pages<'_>, key: PageKey) -> Result<bool, KvError> {
        let planes = pages.far(&key);
        self.ring
            .ask(key, planes, |layout| pages.load_planes(&key, planes, layout))
    }

    /// Loads what the layer is expected to read, as far as slots are free.
    fn expect(&mut self, pages: Pages<'_>, layer: Option<usize>) -> Result<(), KvError> {
        let Some(layer) = layer.filter(|layer| !self.last[*layer].is_empty()) else {
            return Ok(());
        };
        let items = pages.items(layer, Some(&self.last[layer]));
        for item in items {
            if pages.far(&item).any() && !self.ring.holds(&item, pages.far(&item)) && !self.ask(pages, item)? {
                break;
            }
        }
        self.ring.send();
        Ok(())
    }
}

impl<'a> Pages<'a> {
    /// The wanted pages that exist, in the order in which they are read.
    fn items(&self, layer: usize, wanted: Option<&[Vec<Span>]>) -> Vec<PageKey> {
        let mut items = Vec::new();
        for kv_head in 0..self.shape.kv_heads {
            let held = self.keys.pages(layer * self.shape.kv_heads + kv_head);
            let ranges = wanted.map_or(&[ALL][..], |wanted| &wanted[kv_head]);
            for range in ranges {
                let pages = range.start.min(held)..range.end.min(held);
                items.extend(pages.map(|page| PageKey { layer, page, kv_head }));
            }
        }
        items.sort_unstable();
        items.dedup();
        items
    }

    pub(crate) fn are_near(&self, layer: usize) -> bool {
        let heads = self.shape.kv_heads;
        (layer * heads..(layer + 1) * heads).all(|table| self.keys.is_near(table) && self.values.is_near(table))
    }

    /// The wanted pages of a layer that lies near, by KV head.
    fn near_views(&self, layer: usize, wanted: Option<&[Vec<Span>]>) -> Vec<Vec<PageView<'a>>> {
        let heads = 0..self.shape.kv_heads;
        let views = heads.map(|kv_head| {
            let table = layer * self.shape.kv_heads + kv_head;
            let held = self.keys.pages(table);
            let ranges = wanted.map_or(&[ALL][..], |wanted| &wanted[kv_head]).iter();
            let mut numbers: Vec<usize> = ranges.flat_map(|range| range.start..range.end.min(held)).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let view = |page| {
                let (keys, values) = (self.keys.plane(table, page), self.values.plane(table, page));
                self.page_view(table, page, keys, values)
            };
            numbers.into_iter().map(view).collect()
        });
        views.collect()
    }

    fn far(&self, key: &PageKey) -> Planes {
        let table = key.layer * self.shape.kv_heads + key.kv_head;
        Planes {
            keys: self.keys.is_far(table, key.page),
            values: self.values.is_far(table, key.page),
        }
    }

    /// Pages that lie near or in the ring, by KV head.
    fn views<'r>(&self, items: &[PageKey], ring: &'r Ring) -> Vec<Vec<PageView<'r>>>
    where
        'a: 'r,
    {
        let shape = self.shape;
        let mut views: Vec<Vec<PageView<'r>>> = vec![Vec::new(); shape.kv_heads];
        for key in items {
            let (planes, table) = (self.far(key), key.layer * shape.kv_heads + key.kv_head);
            let slot: &'r [u8] = if planes.any() { ring.bytes(key) } else { &[] };
            let keys = match planes.keys {
                true => as_plane(shape.key_format, &slot[..shape.key_plane_bytes() as usize]),
                false => self.keys.plane(table, key.page),
            };
            let values = match planes.values {
                true => {
                    let values = &slot[ring.layout().values_at..];
                    as_plane(shape.value_format, &values[..shape.value_plane_bytes() as usize])
                }
                false => self.values.plane(table, key.page),
            };
            views[key.kv_head].push(self.page_view(table, key.page, keys, values));
        }
        views
    }

    pub(crate) fn page_view<'p>(&self, table: usize, page: usize, keys: Plane<'p>, values: Plane<'p>) -> PageView<'p> {
        PageView {
            start: page * self.shape.page_tokens,
            tokens: self.tokens_in(table, page),
            keys,
            values,
        }
    }

    /// Tokens in a page that exists.
    pub(crate) fn tokens_in(&self, table: usize, page: usize) -> usize {
        let page_tokens = self.shape.page_tokens;
        page_tokens.min(self.tokens[table] - page * page_tokens)
    }

    fn load_planes(&self, key: &PageKey, planes: Planes, layout: SlotLayout) -> [Option<LoadPlane>; 2] {
        let table = key.layer * self.shape.kv_heads + key.kv_head;
        let both = [
            (planes.keys, self.keys, 0, self.shape.key_plane_bytes()),
            (
                planes.values,
                self.values,
                layout.values_at,
                self.shape.value_plane_bytes(),
            ),
        ];
        let load = |(wanted, store, at, bytes): (bool, &PlaneStore, usize, u64)| {
            wanted.then(|| LoadPlane {
                id: store.id(table, key.page),
                source: store.source(table, key.page),
                at,
                bytes: bytes as usize,
            })
        };
        both.map(load)
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
