//! Pages that come before they are asked for: while kernels between two calls run, the first that the next is expected to read are
//! copied from main memory.

use riffle_attention::PageView;

use super::pool::PagePool;
use super::staging::{PageKey, Staged};
use super::transfer::bytes_of;
use crate::{CudaError, Region};

impl PagePool {
    /// The first pages, as (KV head, page) in the order of reading, that the next call on a layer is expected to bring: what its
    /// latest call read and what has no place here. As many as may be on their way at a time.
    pub fn expected(&self, layer: usize) -> Vec<(usize, usize)> {
        let visited = self.visited.get(layer).into_iter().flatten();
        let is_away = |(kv_head, page): &(usize, usize)| self.residence.find(layer, *kv_head, *page).is_none();
        visited.copied().filter(is_away).collect()
    }

    /// Begins to copy pages of a KV head each that the next call on a layer is expected to read, and returns at once. Copies run behind
    /// what is queued; memory of [`PinnedMemory`](super::PinnedMemory) waits for them before it changes, pages in other memory are left
    /// where they are. Only whole pages come ahead: others are about to grow. Those that came ahead before and were not read are
    /// forgotten, and so are these if they turn out not to be wanted.
    ///
    /// # Errors
    /// A lost device: the pool has forgotten every page then.
    pub fn read_ahead(&mut self, layer: usize, shown: &[(usize, PageView<'_>)]) -> Result<(), CudaError> {
        self.staging.keep_ahead(|_| false);
        let begun = self.begin_ahead(layer, shown);
        if begun.is_err() {
            self.clear();
        }
        begun
    }

    fn begin_ahead(&mut self, layer: usize, shown: &[(usize, PageView<'_>)]) -> Result<(), CudaError> {
        let page_tokens = self.options.shape.page_tokens;
        let key = |(kv_head, view): &(usize, PageView<'_>)| PageKey {
            layer,
            page: view.start / page_tokens,
            kv_head: *kv_head,
        };
        let whole = shown.iter().filter(|shown| {
            let PageKey { page, kv_head, .. } = key(shown);
            shown.1.tokens == page_tokens && self.residence.find(layer, kv_head, page).is_none()
        });
        let whole: Vec<_> = whole.take(self.staging.pages()).collect();
        for (number, pages) in whole.chunks(self.staging.half_pages()).enumerate() {
            let half = self.staging.half_in_turn(number);
            self.staging.wait_for(&self.copy, half)?;
            let copies = pages.iter().enumerate().flat_map(|(number, (_, view))| {
                let planes = self.planes(view, 0);
                self.staged_planes(Staged { half, number }, planes)
            });
            let copies: Vec<(Region<'_>, &[u8])> = copies.collect();
            if !self.copy.upload_behind(&copies, self.staging.copied(half))? {
                return Ok(());
            }
            let bytes = bytes_of(&copies);
            self.transferred.count(pages.len(), bytes);
            self.staging.put_ahead(half, pages.iter().map(|shown| key(shown)));
        }
        Ok(())
    }
}
