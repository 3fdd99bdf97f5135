//! Places of a layer's pages during a call: slots, or temporary places.

use riffle_attention::PageView;
use riffle_device::LayerPages;
use riffle_kv::PageVersion;

use super::memory::PagePlace;
use super::residence::Residence;
use super::sequence::page_version;
use super::staging::{PageKey, Staging};
use super::transfer::Waiting;
use crate::{CudaError, Stream};

/// State of a call on a layer of a sequence: the resident pages, the staging ring and the stream.
pub(super) struct Traffic<'p> {
    pub(super) residence: &'p mut Residence,
    pub(super) staging: &'p mut Staging,
    pub(super) compute: &'p Stream,
    pub(super) of: LayerPages<'p>,
    /// The page that an ordered call has reached.
    pub(super) reading: Option<PageKey>,
}

/// A page shown to a call.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) page: usize,
    pub(super) kv_head: usize,
    pub(super) version: PageVersion,
    pub(super) view: PageView<'a>,
}

impl Traffic<'_> {
    /// Pages shown by KV head in the order of (page, KV head).
    pub(super) fn in_order<'a>(&self, shown: &[Vec<PageView<'a>>]) -> Result<Vec<Shown<'a>>, CudaError> {
        let page_tokens = self.staging.shape.page_tokens;
        let heads = shown.iter().enumerate();
        let pages = heads.flat_map(|(kv_head, pages)| pages.iter().map(move |view| (kv_head, *view)));
        let pages = pages.map(|(kv_head, view)| {
            let page = view.start / page_tokens;
            let version = page_version(&self.of, kv_head, page)?;
            Ok(Shown {
                page,
                kv_head,
                version,
                view,
            })
        });
        let mut pages = pages.collect::<Result<Vec<_>, CudaError>>()?;
        pages.sort_unstable_by_key(|shown| (shown.page, shown.kv_head));
        Ok(pages)
    }

    pub(super) fn key(&self, shown: &Shown<'_>) -> PageKey {
        PageKey {
            sequence: self.of.sequence,
            layer: self.of.layer,
            page: shown.page,
            kv_head: shown.kv_head,
        }
    }

    /// The slot of a page, if it has one or gets one. Its missing tokens are added to `waiting`.
    pub(super) fn settle<'a>(
        &mut self,
        shown: &Shown<'a>,
        waiting: &mut Vec<Waiting<'a>>,
    ) -> Result<Option<PagePlace>, CudaError> {
        let LayerPages { sequence, layer, .. } = self.of;
        let Shown {
            page,
            kv_head,
            version,
            view,
        } = shown;
        let (slot, has) = match self.residence.find(*version) {
            Some(held) => (held.slot, held.tokens),
            None => match self.residence.place(sequence, layer, *kv_head, *page, *version)? {
                Some(slot) => (slot, 0),
                None => return Ok(None),
            },
        };
        if has < view.tokens {
            self.residence.extend(*version, view.tokens);
        }
        self.bring(shown, PagePlace::Slot(slot), has, waiting)?;
        Ok(Some(PagePlace::Slot(slot)))
    }

    /// Loads a page into a temporary place.
    pub(super) fn visit<'a>(
        &mut self,
        shown: &Shown<'a>,
        visitor: usize,
        waiting: &mut Vec<Waiting<'a>>,
    ) -> Result<PagePlace, CudaError> {
        self.bring(shown, PagePlace::Visitor(visitor), 0, waiting)?;
        Ok(PagePlace::Visitor(visitor))
    }

    fn bring<'a>(
        &mut self,
        shown: &Shown<'a>,
        place: PagePlace,
        has: usize,
        waiting: &mut Vec<Waiting<'a>>,
    ) -> Result<(), CudaError> {
        self.staging.bring(shown.version, place, has, &shown.view, waiting);
        if waiting.len() == self.staging.half_pages() {
            self.transfer(waiting)
        } else {
            Ok(())
        }
    }

    /// Starts the waiting transfers.
    pub(super) fn transfer(&mut self, waiting: &mut Vec<Waiting<'_>>) -> Result<(), CudaError> {
        self.staging
            .transfer(self.residence, self.compute, self.reading, waiting)
    }

    /// Addresses of a place's keys and values.
    pub(super) fn addresses(&self, place: PagePlace) -> [u64; 2] {
        let keys = self.residence.at(place).address();
        [keys, keys + self.staging.layout.values_at as u64]
    }

    /// Forgets every page, because the contents are unknown.
    pub(super) fn forget(&mut self) {
        self.residence.clear();
        self.staging.forget_ahead();
    }
}
