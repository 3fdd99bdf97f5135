use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use riffle_attention::LANES;

use crate::pool::PlaneKind;
use crate::shape::MAX_LAYER_KINDS;
use crate::{CacheShape, CpuDevice, Device, KvError};

/// Default number of pages that may be loading to the device at a time.
pub const DEFAULT_SLOTS: usize = 32;

/// Default number of loading threads. While one thread waits or checks its page, the other reads.
const DEFAULT_LOADERS: usize = 2;

/// Smallest page size of the operating system.
const GRAIN_BYTES: u64 = 4096;

/// The tiers of pages, nearest first: device, RAM, disk. The first and the newest pages are near, the oldest far.
#[derive(Debug, Clone)]
pub struct KvTiers {
    /// The nearest tier.
    pub device: Arc<dyn Device>,
    /// Bytes of pages in the device tier. A device that reads main memory needs no separate budget.
    pub device_budget_bytes: u64,
    /// Bytes of pages in main memory; `None` means no limit.
    pub ram_budget_bytes: Option<u64>,
    /// The farthest tier.
    pub disk: Option<DiskTier>,
    /// Pages that may be loading from a farther tier at a time, at least 1. Their memory is part of the nearest
    /// tier's budget.
    pub slots: usize,
    /// Threads that load pages, at least 1.
    pub loaders: usize,
    /// Expected use of the sequences, which determines the layout of the nearest tier.
    pub outlook: Outlook,
}

/// Files for pages that do not fit in nearer tiers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskTier {
    /// The folder of the files; they have no names and disappear with the pool.
    pub folder: PathBuf,
    /// Bytes of pages; `None` means no limit.
    pub budget_bytes: Option<u64>,
}

/// Expected use of a sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Largest expected number of tokens.
    pub context_tokens: usize,
    /// Maximum number of tokens per append.
    pub append_tokens: usize,
    /// True if all keys of a (layer, KV head) are scanned at once ([`with_keys`](crate::KvCache::with_keys)). Keys
    /// then stay nearer than values, and memory is reserved to load the others.
    pub scans_keys: bool,
    /// Sequences alive at a time; 0 counts as one. Each has its own windows, and copies the last shared page before
    /// it writes to it.
    pub sequences: usize,
    /// Layers that never hold more than [`window_tokens`](Self::window_tokens), because they have a sliding window.
    pub window_layers: Vec<usize>,
    /// The most tokens of each of the [`window_layers`](Self::window_layers).
    pub window_tokens: usize,
}

impl Outlook {
    /// Pages of a size over all its layers and KV heads, for a sequence of `tokens` tokens.
    fn pages(&self, shape: &CacheShape, size: usize, tokens: usize) -> usize {
        let windows = self.window_tables(shape, size);
        let pages_of = |tables: usize, tokens: usize| tables.saturating_mul(tokens.div_ceil(shape.page_tokens));
        pages_of(tables_of_size(shape, size) - windows, tokens)
            .saturating_add(pages_of(windows, tokens.min(self.window_tokens)))
    }

    /// Pages of a size for `tokens` tokens, shared ones once, plus the own pages of each further sequence: its
    /// windows, and its copy of the last page.
    fn pages_of_all(&self, shape: &CacheShape, size: usize, tokens: usize) -> usize {
        let one = self.pages(shape, size, tokens);
        let further = self.sequences.saturating_sub(1);
        if further == 0 || tokens == 0 {
            return one;
        }
        let tables = tables_of_size(shape, size);
        let full = (tables - self.window_tables(shape, size)).saturating_mul(tokens.div_ceil(shape.page_tokens));
        let own = one.saturating_sub(full).saturating_add(tables);
        one.saturating_add(further.saturating_mul(own))
    }

    /// Page tables with this page size in layers with a window.
    fn window_tables(&self, shape: &CacheShape, size: usize) -> usize {
        let layers = self.window_layers.iter().filter(|layer| **layer < shape.layers.count());
        let of_size = layers.filter(|layer| shape.size_of(**layer) == size);
        of_size.map(|layer| shape.layer(*layer).kv_heads).sum()
    }
}

/// Page tables with this page size in all layers.
fn tables_of_size(shape: &CacheShape, size: usize) -> usize {
    let layers = shape.layers_of_size(size);
    layers.map(|layer| shape.layer(layer).kv_heads).sum()
}

impl KvTiers {
    /// One tier: main memory, up to a budget.
    pub fn memory(budget_bytes: Option<u64>) -> Self {
        Self {
            device: Arc::new(CpuDevice::new()),
            device_budget_bytes: 0,
            ram_budget_bytes: budget_bytes,
            disk: None,
            slots: DEFAULT_SLOTS,
            loaders: DEFAULT_LOADERS,
            outlook: Outlook::default(),
        }
    }

    /// Fewest bytes that the nearest tier needs for a cache of this shape: pages being written, the first page of
    /// each (layer, KV head), pages being loaded, and keys being scanned.
    pub fn least_near_bytes(&self, shape: &CacheShape) -> u64 {
        let all = self.pages_bytes(shape, self.outlook.context_tokens);
        if !self.has_farther() {
            return all;
        }
        let pages = sizes(shape).map(|size| self.least_near_pages(shape, size) * shape.size_bytes(size));
        let few = self.ring_bytes(shape) + self.scan_bytes(shape) + pages.sum::<u64>();
        few.min(all + self.ring_bytes(shape))
    }

    /// Bytes of the pages of `tokens` tokens in all tiers. The [`Outlook`] adds layers with a window, and further
    /// sequences.
    pub fn pages_bytes(&self, shape: &CacheShape, tokens: usize) -> u64 {
        let of_size = |size| {
            let pages = self.outlook.pages_of_all(shape, size, tokens) as u64;
            pages.saturating_mul(shape.size_bytes(size))
        };
        sizes(shape).map(of_size).fold(0, u64::saturating_add)
    }

    /// The most bytes needed on disk, for pages beyond the `near_bytes` of the nearer tiers.
    pub fn disk_bytes_for(&self, shape: &CacheShape, tokens: usize) -> u64 {
        let layout = Layout::new(self, shape);
        let of_size = |size: usize| {
            let (pages, slots) = (self.outlook.pages_of_all(shape, size, tokens), layout.slots[size]);
            let far = |kind: PlaneKind| {
                let nearer = slots.near[kind as usize].saturating_add(slots.ram);
                pages.saturating_sub(nearer) as u64 * shape.plane_bytes(size, kind)
            };
            far(PlaneKind::Keys) + far(PlaneKind::Values)
        };
        sizes(shape).map(of_size).sum()
    }

    /// True if a page can be outside the nearest tier.
    pub fn has_farther(&self) -> bool {
        self.disk.is_some() || !self.device.reads_main_memory()
    }

    /// Bytes of the pages of `tokens` tokens: in the nearest tier, in a separate RAM tier, and on disk. Pages that are
    /// being loaded count.
    pub fn bytes_for(&self, shape: &CacheShape, tokens: usize) -> [u64; 3] {
        if !self.has_farther() {
            return [self.pages_bytes(shape, tokens), 0, 0];
        }
        let layout = Layout::new(self, shape);
        let (mut near, mut ram, mut is_far) = (0, 0, false);
        for size in sizes(shape) {
            let (pages, slots) = (self.outlook.pages_of_all(shape, size, tokens), layout.slots[size]);
            let [keys, values] = slots.near;
            near += pages.min(keys) as u64 * shape.plane_bytes(size, PlaneKind::Keys)
                + pages.min(values) as u64 * shape.plane_bytes(size, PlaneKind::Values);
            ram += pages.saturating_sub(keys).min(slots.ram) as u64 * shape.size_bytes(size);
            is_far |= pages > keys.min(values);
        }
        let moving = if is_far {
            self.ring_bytes(shape) + layout.scan_bytes
        } else {
            0
        };
        let near = (near + moving).min(self.near_budget_bytes().unwrap_or(u64::MAX));
        [near, ram, self.disk_bytes_for(shape, tokens)]
    }

    pub(crate) fn check(&self) -> Result<(), KvError> {
        for (what, value) in [("slots", self.slots), ("loaders", self.loaders)] {
            if !(1..=1 << 16).contains(&value) {
                return Err(KvError::Shape {
                    what,
                    value,
                    requirement: "from 1 to 65536",
                });
            }
        }
        Ok(())
    }

    /// Budget of the nearest tier. If the device reads main memory in place, it includes main memory.
    pub(crate) fn near_budget_bytes(&self) -> Option<u64> {
        if !self.device.reads_main_memory() {
            return Some(self.device_budget_bytes);
        }
        self.ram_budget_bytes
            .map(|ram| ram.saturating_add(self.device_budget_bytes))
    }

    pub(crate) fn ring_bytes(&self, shape: &CacheShape) -> u64 {
        self.slots as u64 * SlotLayout::new(shape).bytes as u64
    }

    fn scan_bytes(&self, shape: &CacheShape) -> u64 {
        let pages = self.outlook.context_tokens.div_ceil(shape.page_tokens) as u64;
        let needed = self.outlook.scans_keys && self.has_farther() && !self.keys_fit(shape);
        let stride = sizes(shape).map(|size| scan_stride(shape, size)).max();
        u64::from(needed) * (pages * stride.unwrap_or(0) as u64).next_multiple_of(GRAIN_BYTES)
    }

    /// True if all keys fit in the nearest tier.
    fn keys_fit(&self, shape: &CacheShape) -> bool {
        let Some(budget) = self.near_budget_bytes() else {
            return true;
        };
        let of_size = |size| {
            let planes = self.outlook.pages_of_all(shape, size, self.outlook.context_tokens) as u64;
            let values = self.least_near_pages(shape, size) * shape.plane_bytes(size, PlaneKind::Values);
            planes
                .saturating_mul(shape.plane_bytes(size, PlaneKind::Keys))
                .saturating_add(values)
        };
        let pages = sizes(shape).map(of_size).fold(0, u64::saturating_add);
        pages.saturating_add(self.ring_bytes(shape)) <= budget
    }

    /// Number of pages of a size that must be near: the first and the last of each (layer, KV head) of each sequence,
    /// and the pages of one append.
    fn least_near_pages(&self, shape: &CacheShape, size: usize) -> u64 {
        let sequences = self.outlook.sequences.max(1);
        let appended = self.outlook.append_tokens.div_ceil(shape.page_tokens) + 1;
        let heads = shape
            .layers_of_size(size)
            .map(|layer| shape.layer(layer).kv_heads)
            .max();
        (2 * sequences * tables_of_size(shape, size) + heads.unwrap_or(0) * appended) as u64
    }
}

fn sizes(shape: &CacheShape) -> Range<usize> {
    0..shape.sizes()
}

/// Pages of a size in the tiers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    /// Keys and values in the nearest tier.
    pub(crate) near: [usize; 2],
    /// Keys and values in a separate RAM tier.
    pub(crate) ram: usize,
}

/// Converts budgets to slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Slots by page size.
    pub(crate) slots: [Slots; MAX_LAYER_KINDS],
    pub(crate) scan_bytes: u64,
}

impl Layout {
    pub(crate) fn new(tiers: &KvTiers, shape: &CacheShape) -> Self {
        let apart = !tiers.device.reads_main_memory();
        let mut layout = Self {
            slots: Default::default(),
            scan_bytes: 0,
        };
        let ram = tiers.ram_budget_bytes.map(|bytes| shares(tiers, shape, bytes));
        for size in sizes(shape) {
            layout.slots[size].ram = match &ram {
                _ if !apart => 0,
                Some(shares) => slots(shares[size], shape.size_bytes(size)),
                None => usize::MAX,
            };
        }
        let Some(budget) = tiers.near_budget_bytes() else {
            layout.slots.iter_mut().for_each(|slots| slots.near = [usize::MAX; 2]);
            return layout;
        };
        let ring = if tiers.has_farther() {
            layout.scan_bytes = tiers.scan_bytes(shape);
            tiers.ring_bytes(shape)
        } else {
            0
        };
        let rest = budget.saturating_sub(ring).saturating_sub(layout.scan_bytes);
        let shares = shares(tiers, shape, rest);
        for size in sizes(shape) {
            layout.slots[size].near = near_slots(tiers, shape, size, shares[size]);
        }
        layout
    }
}

/// Keys and values of a size that fit near in these bytes.
fn near_slots(tiers: &KvTiers, shape: &CacheShape, size: usize, bytes: u64) -> [usize; 2] {
    let pairs = slots(bytes, shape.size_bytes(size));
    if !tiers.outlook.scans_keys || !tiers.has_farther() {
        return [pairs; 2];
    }
    let [key_bytes, value_bytes] = PlaneKind::BOTH.map(|kind| shape.plane_bytes(size, kind));
    let values = tiers.least_near_pages(shape, size) * value_bytes;
    let keys = slots(bytes.saturating_sub(values), key_bytes)
        .min(tiers.outlook.pages_of_all(shape, size, tiers.outlook.context_tokens))
        .max(pairs);
    [keys, slots(bytes.saturating_sub(keys as u64 * key_bytes), value_bytes)]
}

/// Splits a budget by page size. Each size gets the pages that must be near; the rest is split in proportion to the
/// context's needs.
fn shares(tiers: &KvTiers, shape: &CacheShape, budget_bytes: u64) -> Vec<u64> {
    if shape.sizes() == 1 {
        return vec![budget_bytes];
    }
    let tokens = tiers.outlook.context_tokens.max(1);
    let bytes_of = |pages: u64, size: usize| pages.saturating_mul(shape.size_bytes(size));
    let needed: Vec<u64> = sizes(shape)
        .map(|size| bytes_of(tiers.outlook.pages_of_all(shape, size, tokens) as u64, size))
        .collect();
    let least: Vec<u64> = sizes(shape)
        .map(|size| bytes_of(tiers.least_near_pages(shape, size), size).min(needed[size]))
        .collect();
    let firsts = divided(budget_bytes.min(least.iter().sum()), &least);
    let rest = budget_bytes - firsts.iter().sum::<u64>();
    let more: Vec<u64> = needed
        .iter()
        .zip(&least)
        .map(|(needed, least)| needed - least)
        .collect();
    let weights = if more.iter().all(|more| *more == 0) {
        &needed
    } else {
        &more
    };
    firsts
        .iter()
        .zip(divided(rest, weights))
        .map(|(first, more)| first + more)
        .collect()
}

/// Splits bytes in proportion to weights, of which at least one is not 0.
fn divided(bytes: u64, weights: &[u64]) -> Vec<u64> {
    let all: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let share = |weight: &u64| (u128::from(bytes) * u128::from(*weight) / all.max(1)) as u64;
    weights.iter().map(share).collect()
}

fn slots(bytes: u64, of_one: u64) -> usize {
    let count = bytes.checked_div(of_one);
    count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX))
}

/// The layout of keys and values in a slot of the ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotLayout {
    pub(crate) values_at: usize,
    pub(crate) bytes: usize,
}

impl SlotLayout {
    pub(crate) fn new(shape: &CacheShape) -> Self {
        let plane = |kind: PlaneKind| {
            let bytes = sizes(shape).map(|size| shape.plane_bytes(size, kind)).max();
            (bytes.unwrap_or(0) as usize).next_multiple_of(4 * LANES)
        };
        let values_at = plane(PlaneKind::Keys);
        let bytes = values_at + plane(PlaneKind::Values);
        Self {
            values_at,
            bytes: bytes.next_multiple_of(GRAIN_BYTES as usize),
        }
    }
}

/// Bytes between planes of keys in the memory for scans, for layers with this page size.
pub(crate) fn scan_stride(shape: &CacheShape, size: usize) -> usize {
    (shape.plane_bytes(size, PlaneKind::Keys) as usize).next_multiple_of(4 * LANES)
}
