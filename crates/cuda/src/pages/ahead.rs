//! Reading ahead: while kernels run between two calls, pages are copied from main memory. They are the first pages that
//! the next call is expected to read.

use riffle_attention::PageView;
use riffle_device::LayerPages;
use riffle_kv::PageVersion;

use super::residence::Residence;
use super::sequence::page_version;
use super::staging::{PageKey, Staged, Staging};
use super::transfer::bytes_of;
use crate::{CudaError, Region};

impl Staging {
    /// Records a page without a slot that a call reads.
    pub(super) fn note_visit(&mut self, of: &LayerPages<'_>, kv_head: usize, page: usize) {
        let most = self.pages();
        let visited = self.visited.entry((of.sequence, of.layer)).or_default();
        if visited.len() < most {
            visited.push((kv_head, page));
        }
    }

    /// The pages that the next call on a layer is expected to load first, as (KV head, page) in reading order.
    pub(super) fn expected(&self, residence: &Residence, of: &LayerPages<'_>) -> Vec<(usize, usize)> {
        let visited = self.visited.get(&(of.sequence, of.layer)).into_iter().flatten();
        let is_away = |(kv_head, page): &(usize, usize)| {
            let version = page_version(of, *kv_head, *page);
            version.is_ok_and(|version| residence.find(version).is_none())
        };
        visited.copied().filter(is_away).collect()
    }

    /// Starts to copy pages of a KV head each.
    pub(super) fn begin_ahead(
        &mut self,
        residence: &Residence,
        of: &LayerPages<'_>,
        shown: &[(usize, PageView<'_>)],
    ) -> Result<(), CudaError> {
        let page_tokens = self.shape.page_tokens;
        let mut whole: Vec<(PageKey, PageVersion, &PageView<'_>)> = Vec::new();
        for (kv_head, view) in shown {
            let (page, kv_head) = (view.start / page_tokens, *kv_head);
            let version = page_version(of, kv_head, page)?;
            if view.tokens == page_tokens && residence.find(version).is_none() && whole.len() < self.pages() {
                let key = PageKey {
                    sequence: of.sequence,
                    layer: of.layer,
                    page,
                    kv_head,
                };
                whole.push((key, version, view));
            }
        }
        for (number, pages) in whole.chunks(self.half_pages()).enumerate() {
            let half = self.half_in_turn(number);
            self.wait_for(half)?;
            let copies = pages.iter().enumerate().flat_map(|(number, (_, _, view))| {
                let planes = self.planes(view, 0);
                self.staged_planes(Staged { half, number }, planes)
            });
            let copies: Vec<(Region<'_>, &[u8])> = copies.collect();
            if !self.copy.upload_behind(&copies, self.copied(half))? {
                return Ok(());
            }
            let bytes = bytes_of(&copies);
            self.transferred.count(pages.len(), bytes);
            self.put_ahead(half, pages.iter().map(|(key, version, _)| (*key, *version)));
        }
        Ok(())
    }
}
