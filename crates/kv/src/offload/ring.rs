//! Slots of the device's memory; each holds a page or waits for one.
//!
//! Pages are found by id, so a loaded page serves every sequence that holds it. A due page is still to be read. A
//! loaded page that is not due stays until its slot is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::loader::{Load, LoadPlane, Loaders};
use crate::pool::PageId;
use crate::tiers::SlotLayout;
use crate::{Device, DeviceMemory, KvError};

/// The planes of a page that are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Planes {
    pub(super) keys: bool,
    pub(super) values: bool,
}

impl Planes {
    fn cover(self, needed: Self) -> bool {
        self.keys >= needed.keys && self.values >= needed.values
    }

    pub(super) fn any(self) -> bool {
        self.keys || self.values
    }
}

/// Loads that each thread may have waiting or in progress.
const PARTS: usize = 4;

struct Held {
    planes: Planes,
    /// First position of the page among the coming reads; `None` if the page is not due.
    due: Option<usize>,
    /// Last position at which the page is read.
    asked: usize,
    /// The slot; `None` during loading.
    loaded: Option<Result<Box<dyn DeviceMemory>, KvError>>,
}

impl Held {
    fn ask(&mut self, due: usize) {
        self.due = Some(self.due.map_or(due, |first| first.min(due)));
        self.asked = due;
    }
}

pub(super) struct Ring {
    device: Arc<dyn Device>,
    layout: SlotLayout,
    slots: usize,
    threads: usize,
    /// Number of slots allocated; slots are allocated on demand.
    allocated: usize,
    free: Vec<Box<dyn DeviceMemory>>,
    /// Requests that no thread has received yet.
    unsent: Vec<Load<PageId>>,
    held: BTreeMap<PageId, Held>,
    /// Bytes of all planes requested from a slower tier so far.
    loaded_bytes: u64,
    loaders: Option<Loaders<PageId>>,
}

impl Ring {
    pub(super) fn new(device: Arc<dyn Device>, layout: SlotLayout, slots: usize, threads: usize) -> Self {
        Self {
            device,
            layout,
            slots,
            threads,
            allocated: 0,
            free: Vec::new(),
            unsent: Vec::new(),
            held: BTreeMap::new(),
            loaded_bytes: 0,
            loaders: None,
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.allocated * self.layout.bytes
    }

    /// Bytes of all planes requested from a slower tier so far.
    pub(super) fn loaded_bytes(&self) -> u64 {
        self.loaded_bytes
    }

    /// True if the page is loaded or loading and still wanted.
    pub(super) fn holds(&self, page: PageId, planes: Planes) -> bool {
        let held = self.held.get(&page);
        held.is_some_and(|held| held.due.is_some() && held.planes.cover(planes))
    }

    /// Sets the pages of the coming reads, in order; no others are due.
    pub(super) fn begin(&mut self, pages: impl Iterator<Item = (PageId, Planes)>) {
        self.held.values_mut().for_each(|held| held.due = None);
        for (due, (page, planes)) in pages.enumerate() {
            if let Some(held) = self.held.get_mut(&page).filter(|held| held.planes.cover(planes)) {
                held.ask(due);
            }
        }
        let failed = |held: &Held| held.due.is_none() && matches!(held.loaded, Some(Err(_)));
        self.held.retain(|_, held| !failed(held));
    }

    /// Frees the slot of a page that was read, unless it is read again at a position from `next` on.
    pub(super) fn drop_read(&mut self, page: PageId, next: usize) {
        if self.held.get(&page).is_some_and(|held| held.asked < next) {
            self.drop_page(page);
        }
    }

    /// Frees a page's slot, now or after its load, when another page needs it.
    pub(super) fn drop_page(&mut self, page: PageId) {
        let Some(held) = self.held.get_mut(&page) else { return };
        if held.loaded.is_none() {
            held.due = None;
        } else if let Some(Held {
            loaded: Some(Ok(memory)),
            ..
        }) = self.held.remove(&page)
        {
            self.free.push(memory);
        }
    }

    /// Requests a page, number `due` of the coming reads, if a slot is free; returns true if it is loaded or loading.
    pub(super) fn ask(
        &mut self,
        page: PageId,
        planes: Planes,
        due: usize,
        load: impl FnOnce(SlotLayout) -> [Option<LoadPlane>; 2],
    ) -> Result<bool, KvError> {
        if let Some(held) = self.held.get_mut(&page) {
            if held.planes.cover(planes) {
                held.ask(due);
                return Ok(true);
            }
            if held.loaded.is_none() {
                // Other planes of this page are loading; the slot becomes free afterwards.
                held.due = None;
                return Ok(false);
            }
            self.drop_page(page);
        }
        if self.loaders.is_none() {
            self.loaders = Some(Loaders::start(self.threads)?);
        }
        let memory = match self.free.pop() {
            Some(memory) => memory,
            None if self.allocated < self.slots => self.allocate()?,
            None => match self.take_spare() {
                Some(memory) => memory,
                None => return Ok(false),
            },
        };
        let planes_of_page = load(self.layout);
        self.loaded_bytes += planes_of_page
            .iter()
            .flatten()
            .map(|plane| plane.bytes as u64)
            .sum::<u64>();
        self.unsent.push(Load {
            key: page,
            memory,
            planes: planes_of_page,
        });
        let held = Held {
            planes,
            due: Some(due),
            asked: due,
            loaded: None,
        };
        self.held.insert(page, held);
        // Requests go out in small groups: every thread then has work, and checks a plane while it is in the
        // processor's cache.
        if self.unsent.len() >= (self.slots / PARTS / self.threads).max(1) {
            self.send();
        }
        Ok(true)
    }

    /// Sends the collected requests to one of the threads.
    pub(super) fn send(&mut self) {
        if let Some(loaders) = self.loaders.as_ref().filter(|_| !self.unsent.is_empty()) {
            loaders.ask(std::mem::take(&mut self.unsent));
        }
    }

    /// Frees the slot of a load that is not due, or of the page that is read last. Pages due up to `last` keep their
    /// slots.
    pub(super) fn yield_slot(&mut self, last: usize) {
        let returns = |held: &Held| held.due.is_none() && held.loaded.is_none();
        if !self.held.values().any(returns) {
            let after = self.held.iter().filter(|(_, held)| held.due > Some(last));
            let Some(page) = after.max_by_key(|(_, held)| held.due).map(|(page, _)| *page) else {
                return;
            };
            self.drop_page(page);
            if !self.held.contains_key(&page) {
                return;
            }
        }
        self.receive(1);
    }

    /// The slot of a loaded page that is not due.
    fn take_spare(&mut self) -> Option<Box<dyn DeviceMemory>> {
        let is_spare = |held: &Held| held.due.is_none() && matches!(held.loaded, Some(Ok(_)));
        let page = self
            .held
            .iter()
            .find(|(_, held)| is_spare(held))
            .map(|(page, _)| *page)?;
        self.held.remove(&page)?.loaded?.ok()
    }

    /// Removes pages from the ring. Waits for their loads.
    pub(super) fn forget(&mut self, pages: &[PageId]) {
        if self.held.is_empty() {
            return;
        }
        let is_held = |page: &&PageId| self.held.contains_key(page);
        let held: Vec<PageId> = pages.iter().filter(is_held).copied().collect();
        if held.iter().any(|page| self.held[page].loaded.is_none()) {
            self.settle();
        }
        held.into_iter().for_each(|page| self.drop_page(page));
    }

    /// Waits until requested pages are loaded.
    pub(super) fn wait(&mut self, pages: impl Iterator<Item = PageId> + Clone) -> Result<(), KvError> {
        loop {
            let missing = |page: &PageId| self.held.get(page).is_some_and(|held| held.loaded.is_none());
            // A page that is read at two positions is received once.
            let missing: BTreeSet<PageId> = pages.clone().filter(missing).collect();
            if missing.is_empty() {
                break;
            }
            self.receive(missing.len());
        }
        let mut pages = pages;
        pages.try_for_each(|page| self.check(page))
    }

    /// The error of a page that failed to load.
    fn check(&mut self, page: PageId) -> Result<(), KvError> {
        match self.held.get(&page) {
            Some(Held {
                loaded: Some(Ok(_)), ..
            }) => Ok(()),
            _ => match self.held.remove(&page) {
                Some(Held {
                    loaded: Some(Err(error)),
                    ..
                }) => Err(error),
                _ => unreachable!("only pages that were asked for are waited for"),
            },
        }
    }

    /// The slot of a loaded page.
    pub(super) fn bytes(&self, page: PageId) -> &[u8] {
        match self.held.get(&page) {
            Some(Held {
                loaded: Some(Ok(memory)),
                ..
            }) => memory.bytes(),
            _ => unreachable!("a page is waited for before it is read"),
        }
    }

    /// Waits for all loads in progress.
    pub(super) fn settle(&mut self) {
        loop {
            let under_way = self.held.values().filter(|held| held.loaded.is_none()).count();
            if under_way == 0 {
                return;
            }
            self.receive(under_way);
        }
    }

    /// Forgets every page.
    pub(super) fn clear(&mut self) {
        self.settle();
        let pages: Vec<PageId> = self.held.keys().copied().collect();
        pages.into_iter().for_each(|page| self.drop_page(page));
    }

    fn allocate(&mut self) -> Result<Box<dyn DeviceMemory>, KvError> {
        let bytes = self.layout.bytes;
        let memory = self.device.allocate(bytes);
        let memory = memory.map_err(|source| KvError::Memory { bytes, source })?;
        self.allocated += 1;
        Ok(memory)
    }

    /// Receives at least `count` slots from the threads.
    fn receive(&mut self, count: usize) {
        self.send();
        let Some(loaders) = &self.loaders else { return };
        for loaded in loaders.wait(count) {
            let Some(held) = self.held.get_mut(&loaded.key) else {
                self.free.push(loaded.memory);
                continue;
            };
            held.loaded = Some(match loaded.result {
                Ok(()) => Ok(loaded.memory),
                Err(error) => {
                    self.free.push(loaded.memory);
                    Err(error)
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuDevice;

    #[test]
    fn a_page_that_is_waited_for_at_two_places_comes_back_once() {
        let layout = SlotLayout {
            values_at: 64,
            bytes: 128,
        };
        let mut ring = Ring::new(Arc::new(CpuDevice::new()), layout, 2, 2);
        let planes = Planes {
            keys: true,
            values: true,
        };
        let page = PageId::from_number(7);
        assert!(ring.ask(page, planes, 0, |_| [None, None]).unwrap());
        assert!(ring.ask(page, planes, 1, |_| [None, None]).unwrap());
        ring.wait([page, page].into_iter()).unwrap();
        assert_eq!(ring.bytes(page).len(), 128);
    }
}
