use std::path::PathBuf;
use std::sync::Arc;

use riffle_attention::LANES;

use crate::{CacheShape, CpuDevice, Device, KvError};

/// Pages that may be on their way to the device at a time unless the caller chooses.
pub const DEFAULT_SLOTS: usize = 32;

/// Threads that load pages unless the caller chooses: while one waits or checks what it read, the other reads.
const DEFAULT_LOADERS: usize = 2;

/// Memory of the operating system comes in pages of this size at least.
const GRAIN_BYTES: u64 = 4096;

/// Where pages may lie, nearest first: device, RAM, disk. The newest pages and the first lie near, the oldest far.
#[derive(Debug, Clone)]
pub struct KvTiers {
    /// The nearest tier.
    pub device: Arc<dyn Device>,
    /// Bytes of pages in the device tier. A device that reads main memory needs none of its own.
    pub device_budget_bytes: u64,
    /// Bytes of pages in main memory; `None` is without limit.
    pub ram_budget_bytes: Option<u64>,
    /// The farthest tier.
    pub disk: Option<DiskTier>,
    /// Pages that may be on their way from a farther tier at a time, at least 1. Their memory is part of the nearest
    /// tier's budget.
    pub slots: usize,
    /// Threads that load pages, at least 1.
    pub loaders: usize,
    /// How the sequence will be used, for the nearest tier to be laid out.
    pub outlook: Outlook,
}

/// Files for pages that fit nowhere nearer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskTier {
    /// The folder of the files; they have no names and are gone with the pool.
    pub folder: PathBuf,
    /// Bytes of pages; `None` is without limit.
    pub budget_bytes: Option<u64>,
}

/// How a sequence will be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Tokens it may grow to.
    pub context_tokens: usize,
    /// Tokens appended at a time at most.
    pub append_tokens: usize,
    /// True if all keys of a (layer, KV head) are looked through at once ([`with_keys`](crate::KvCache::with_keys)):
    /// keys then stay nearer than values, and memory is set aside for those that do not.
    pub scans_keys: bool,
    /// Sequences that are alive at a time; 0 counts as one. Each has windows of its own, and copies the last page that it shares
    /// with others when it writes to it.
    pub sequences: usize,
    /// Layers that never hold more than [`window_tokens`](Self::window_tokens): those with a sliding window.
    pub window_layers: usize,
    /// Tokens that each of the [`window_layers`](Self::window_layers) holds at most.
    pub window_tokens: usize,
}

impl Outlook {
    /// Pages over all layers and KV heads when the sequence has `tokens` tokens.
    fn pages(&self, shape: &CacheShape, tokens: usize) -> usize {
        let windows = self.window_layers.min(shape.layers);
        let pages_of = |layers: usize, tokens: usize| {
            let tables = layers * shape.kv_heads;
            tables.saturating_mul(tokens.div_ceil(shape.page_tokens))
        };
        pages_of(shape.layers - windows, tokens).saturating_add(pages_of(windows, tokens.min(self.window_tokens)))
    }

    /// Pages of `tokens` tokens, shared ones counted once, with those that each further sequence has of its own: its windows, and
    /// its copy of the last page.
    fn pages_of_all(&self, shape: &CacheShape, tokens: usize) -> usize {
        let one = self.pages(shape, tokens);
        let further = self.sequences.saturating_sub(1);
        if further == 0 || tokens == 0 {
            return one;
        }
        let full_layers = shape.layers - self.window_layers.min(shape.layers);
        let full = (shape.kv_heads * full_layers).saturating_mul(tokens.div_ceil(shape.page_tokens));
        let own = one.saturating_sub(full).saturating_add(shape.layers * shape.kv_heads);
        one.saturating_add(further.saturating_mul(own))
    }
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

    /// Bytes that the nearest tier needs at least for a cache of this shape: pages being written, the first page of
    /// each (layer, KV head), pages on their way, and keys being looked through.
    pub fn least_near_bytes(&self, shape: &CacheShape) -> u64 {
        let all = self.pages_bytes(shape, self.outlook.context_tokens);
        if !self.has_farther() {
            return all;
        }
        let pages = self.least_near_pages(shape);
        let few = self.ring_bytes(shape) + self.scan_bytes(shape) + pages * shape.page_bytes();
        few.min(all + self.ring_bytes(shape))
    }

    /// Bytes of the pages of `tokens` tokens, wherever they lie: those of layers with a window, and of further
    /// sequences, as the [`Outlook`] says.
    pub fn pages_bytes(&self, shape: &CacheShape, tokens: usize) -> u64 {
        let pages = self.outlook.pages_of_all(shape, tokens) as u64;
        pages.saturating_mul(shape.page_bytes())
    }

    /// Bytes on disk that hold what `near_bytes` of the nearer tiers do not, at most.
    pub fn disk_bytes_for(&self, shape: &CacheShape, tokens: usize) -> u64 {
        let layout = Layout::new(self, shape);
        let planes = self.outlook.pages_of_all(shape, tokens);
        let far = |nearer: usize, plane_bytes: u64| planes.saturating_sub(nearer) as u64 * plane_bytes;
        let ram = layout.ram_slots;
        far(layout.near_key_slots.saturating_add(ram), shape.key_plane_bytes())
            + far(layout.near_value_slots.saturating_add(ram), shape.value_plane_bytes())
    }

    /// True if a page can lie anywhere but in the nearest tier.
    pub fn has_farther(&self) -> bool {
        self.disk.is_some() || !self.device.reads_main_memory()
    }

    /// Bytes of the pages of `tokens` tokens in the nearest tier, in a RAM tier apart from it, and on disk, pages on
    /// their way counted as well.
    pub fn bytes_for(&self, shape: &CacheShape, tokens: usize) -> [u64; 3] {
        if !self.has_farther() {
            return [self.pages_bytes(shape, tokens), 0, 0];
        }
        let layout = Layout::new(self, shape);
        let pages = self.outlook.pages_of_all(shape, tokens);
        let planes = |most: usize, plane_bytes: u64| pages.min(most) as u64 * plane_bytes;
        let near = planes(layout.near_key_slots, shape.key_plane_bytes())
            + planes(layout.near_value_slots, shape.value_plane_bytes());
        let far = pages > layout.near_key_slots.min(layout.near_value_slots);
        let moving = if far {
            self.ring_bytes(shape) + layout.scan_bytes
        } else {
            0
        };
        let near = (near + moving).min(self.near_budget_bytes().unwrap_or(u64::MAX));
        let ram = pages.saturating_sub(layout.near_key_slots).min(layout.ram_slots) as u64 * shape.page_bytes();
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

    /// Budget of the nearest tier, and of main memory where a device reads it in place.
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
        u64::from(needed) * (pages * scan_stride(shape) as u64).next_multiple_of(GRAIN_BYTES)
    }

    /// True if all keys can lie near.
    fn keys_fit(&self, shape: &CacheShape) -> bool {
        let Some(budget) = self.near_budget_bytes() else {
            return true;
        };
        let planes = self.outlook.pages_of_all(shape, self.outlook.context_tokens) as u64;
        let values = self.least_near_pages(shape) * shape.value_plane_bytes();
        let keys = planes.saturating_mul(shape.key_plane_bytes());
        keys.saturating_add(values).saturating_add(self.ring_bytes(shape)) <= budget
    }

    /// The first and the last page of each (layer, KV head) of each sequence, and those of one append.
    fn least_near_pages(&self, shape: &CacheShape) -> u64 {
        let sequences = self.outlook.sequences.max(1);
        let appended = self.outlook.append_tokens.div_ceil(shape.page_tokens) + 1;
        (shape.kv_heads * (2 * sequences * shape.layers + appended)) as u64
    }
}

/// How budgets become slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) near_key_slots: usize,
    pub(crate) near_value_slots: usize,
    /// Of keys and of values, in a RAM tier apart from the device.
    pub(crate) ram_slots: usize,
    pub(crate) scan_bytes: u64,
}

impl Layout {
    pub(crate) fn new(tiers: &KvTiers, shape: &CacheShape) -> Self {
        let slots = |bytes: u64, plane: u64| usize::try_from(bytes / plane).unwrap_or(usize::MAX);
        let apart = !tiers.device.reads_main_memory();
        let ram_slots = match tiers.ram_budget_bytes {
            _ if !apart => 0,
            Some(bytes) => slots(bytes, shape.page_bytes()),
            None => usize::MAX,
        };
        let Some(budget) = tiers.near_budget_bytes() else {
            return Self {
                near_key_slots: usize::MAX,
                near_value_slots: usize::MAX,
                ram_slots,
                scan_bytes: 0,
            };
        };
        let (ring, scan_bytes) = if tiers.has_farther() {
            (tiers.ring_bytes(shape), tiers.scan_bytes(shape))
        } else {
            (0, 0)
        };
        let rest = budget.saturating_sub(ring).saturating_sub(scan_bytes);
        let pairs = slots(rest, shape.page_bytes());
        let mut layout = Self {
            near_key_slots: pairs,
            near_value_slots: pairs,
            ram_slots,
            scan_bytes,
        };
        if tiers.outlook.scans_keys && tiers.has_farther() {
            let values = tiers.least_near_pages(shape) * shape.value_plane_bytes();
            let keys = slots(rest.saturating_sub(values), shape.key_plane_bytes());
            layout.near_key_slots = keys
                .min(tiers.outlook.pages_of_all(shape, tiers.outlook.context_tokens))
                .max(pairs);
            let keys = layout.near_key_slots as u64 * shape.key_plane_bytes();
            layout.near_value_slots = slots(rest.saturating_sub(keys), shape.value_plane_bytes());
        }
        layout
    }
}

/// Where keys and values lie in a slot of the ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotLayout {
    pub(crate) values_at: usize,
    pub(crate) bytes: usize,
}

impl SlotLayout {
    pub(crate) fn new(shape: &CacheShape) -> Self {
        let plane = |bytes: u64| (bytes as usize).next_multiple_of(4 * LANES);
        let values_at = plane(shape.key_plane_bytes());
        let bytes = values_at + plane(shape.value_plane_bytes());
        Self {
            values_at,
            bytes: bytes.next_multiple_of(GRAIN_BYTES as usize),
        }
    }
}

/// Bytes from one plane of keys to the next in the memory in which keys are looked through.
pub(crate) fn scan_stride(shape: &CacheShape) -> usize {
    (shape.key_plane_bytes() as usize).next_multiple_of(4 * LANES)
}
