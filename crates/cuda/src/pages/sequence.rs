//! Whose pages they are.

use riffle_kv::PageVersion;

use crate::CudaError;

/// Names a sequence whose pages may lie in a [`DeviceRoom`](super::DeviceRoom).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub(super) u64);

/// A layer of a sequence, with what its pages hold.
#[derive(Debug, Clone, Copy)]
pub struct LayerPages<'a> {
    /// Whose layer it is.
    pub sequence: SequenceId,
    /// Its number in the cache.
    pub layer: usize,
    /// By KV head the versions of all its pages in order, as [`riffle_kv::KvCache::page_versions`] gives them.
    pub versions: &'a [Vec<PageVersion>],
}

impl LayerPages<'_> {
    pub(super) fn version(&self, kv_head: usize, page: usize) -> Result<PageVersion, CudaError> {
        let versions = self.versions.get(kv_head).map_or(&[][..], Vec::as_slice);
        versions.get(page).copied().ok_or(CudaError::Mismatch {
            what: "versions of pages",
            expected: page + 1,
            found: versions.len(),
        })
    }
}
