//! The versions of a layer's pages.

use riffle_device::LayerPages;
use riffle_kv::PageVersion;

use crate::CudaError;

/// Version of page `page` of a KV head.
pub(super) fn page_version(of: &LayerPages<'_>, kv_head: usize, page: usize) -> Result<PageVersion, CudaError> {
    let versions = of.versions.get(kv_head).map_or(&[][..], Vec::as_slice);
    versions.get(page).copied().ok_or(CudaError::Mismatch {
        what: "versions of pages",
        expected: page + 1,
        found: versions.len(),
    })
}
