/// What a cache holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvUsage {
    /// Tokens of the layer that holds most.
    pub tokens: usize,
    /// Pages, over all layers and KV heads.
    pub pages: usize,
    /// Bytes of these pages, by where they lie.
    pub bytes_by_tier: TierBytes,
    /// Bytes of these pages that another sequence holds as well.
    pub shared_bytes: u64,
    /// Bytes of page tables and free lists.
    pub bookkeeping_bytes: u64,
}

/// Bytes of pages by where they lie.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierBytes {
    /// In the memory of an accelerator.
    pub device: u64,
    /// In main memory.
    pub ram: u64,
    /// In files.
    pub disk: u64,
}

impl TierBytes {
    /// All tiers together.
    pub fn total(&self) -> u64 {
        self.device + self.ram + self.disk
    }
}
