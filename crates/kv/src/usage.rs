use crate::KvCache;
use crate::pool::{PlaneKind, PlanePlace};
use crate::table::PageTable;

/// The contents of a cache, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvUsage {
    /// Tokens of the layer with most tokens.
    pub tokens: usize,
    /// Pages, over all layers and KV heads.
    pub pages: usize,
    /// Bytes of these pages, by tier.
    pub bytes_by_tier: TierBytes,
    /// Bytes of these pages that are shared.
    pub shared_bytes: u64,
    /// Bytes of the page tables, and of the records and free lists of the pool.
    pub bookkeeping_bytes: u64,
}

/// Bytes of pages by tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierBytes {
    /// Bytes in the memory of an accelerator.
    pub device: u64,
    /// Bytes in main memory.
    pub ram: u64,
    /// Bytes in files.
    pub disk: u64,
}

impl TierBytes {
    /// All tiers together.
    pub fn total(&self) -> u64 {
        self.device + self.ram + self.disk
    }
}

impl KvCache {
    /// Counts of the cache's contents, including shared pages.
    pub fn usage(&self) -> KvUsage {
        let store = self.pool.read();
        let (mut near, mut ram, mut disk, mut shared_bytes) = (0, 0, 0, 0);
        for page in self.tables.iter().flat_map(PageTable::pages) {
            for kind in PlaneKind::BOTH {
                let bytes = store.planes(*page, kind).plane_bytes as u64;
                match store.place(*page, kind) {
                    PlanePlace::Near(_) => near += bytes,
                    PlanePlace::Ram(_) => ram += bytes,
                    PlanePlace::Disk(_) => disk += bytes,
                }
                shared_bytes += u64::from(store.is_shared(*page)) * bytes;
            }
        }
        let device = if self.tiers().device.reads_main_memory() {
            // The newest pages count for the device tier.
            near.min(self.tiers().device_budget_bytes)
        } else {
            near
        };
        let tables: usize = self.tables.iter().map(PageTable::bookkeeping_bytes).sum();
        let counts = (self.tokens.capacity() + self.rows.capacity()) * size_of::<usize>();
        KvUsage {
            tokens: self.tokens.iter().copied().max().unwrap_or(0),
            pages: self.tables.iter().map(|table| table.pages().len()).sum(),
            bytes_by_tier: TierBytes {
                device,
                ram: near - device + ram,
                disk,
            },
            shared_bytes,
            bookkeeping_bytes: (store.bookkeeping_bytes() + tables + counts) as u64,
        }
    }
}
