//! Slots of the device's memory, and which page each holds or waits for.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::loader::{Load, LoadPlane, Loaders};
use crate::tiers::SlotLayout;
use crate::{Device, DeviceMemory, KvError};

/// A page of a (layer, KV head), in the order in which pages are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageKey {
    pub(super) layer: usize,
    pub(super) page: usize,
    pub(super) kv_head: usize,
}

/// Which planes of a page are loaded.
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

/// Loads that each thread may have waiting or under way.
const PARTS: usize = 4;

struct Held {
    planes: Planes,
    wanted: bool,
    /// `None` while it is being loaded.
    loaded: Option<Result<Box<dyn DeviceMemory>, KvError>>,
}

pub(super) struct Ring {
    device: Arc<dyn Device>,
    layout: SlotLayout,
    slots: usize,
    threads: usize,
    /// Slots that exist; they are allocated when they are first needed.
    allocated: usize,
    free: Vec<Box<dyn DeviceMemory>>,
    /// Asked for and not sent to a thread yet.
    unsent: Vec<Load<PageKey>>,
    held: BTreeMap<PageKey, Held>,
    loaders: Option<Loaders<PageKey>>,
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
            loaders: None,
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    pub(super) fn layout(&self) -> SlotLayout {
        self.layout
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.allocated * self.layout.bytes
    }

    /// Whether a page is here or on its way.
    pub(super) fn holds(&self, key: &PageKey, planes: Planes) -> bool {
        self.held
            .get(key)
            .is_some_and(|held| held.wanted && held.planes.cover(planes))
    }

    /// Keeps what is wanted of what was loaded ahead.
    pub(super) fn keep(&mut self, wanted: impl Fn(&PageKey) -> Option<Planes>) {
        let unwanted: Vec<PageKey> = self
            .held
            .iter()
            .filter(|(key, held)| !wanted(key).is_some_and(|planes| held.planes.cover(planes)))
            .map(|(key, _)| *key)
            .collect();
        unwanted.iter().for_each(|key| self.drop_page(key));
    }

    /// Frees a page's slot, now or when it comes back.
    pub(super) fn drop_page(&mut self, key: &PageKey) {
        let Some(held) = self.held.get_mut(key) else { return };
        if held.loaded.is_none() {
            held.wanted = false;
        } else if let Some(Held {
            loaded: Some(Ok(memory)),
            ..
        }) = self.held.remove(key)
        {
            self.free.push(memory);
        }
    }

    /// Asks for a page if a slot is free; says whether it is on its way.
    pub(super) fn ask(
        &mut self,
        key: PageKey,
        planes: Planes,
        load: impl FnOnce(SlotLayout) -> [Option<LoadPlane>; 2],
    ) -> Result<bool, KvError> {
        if let Some(held) = self.held.get_mut(&key) {
            if held.planes.cover(planes) {
                held.wanted = true;
                return Ok(true);
            }
            // Other planes of it are under way: a slot that will be free.
            return Ok(false);
        }
        if self.loaders.is_none() {
            self.loaders = Some(Loaders::start(self.threads)?);
        }
        let memory = match self.free.pop() {
            Some(memory) => memory,
            None if self.allocated < self.slots => self.allocate()?,
            None => return Ok(false),
        };
        self.unsent.push(Load {
            key,
            memory,
            planes: load(self.layout),
        });
        let held = Held {
            planes,
            wanted: true,
            loaded: None,
        };
        self.held.insert(key, held);
        // Few enough that every thread has work, and what was read is checked before it leaves the processor's cache.
        if self.unsent.len() >= (self.slots / PARTS / self.threads).max(1) {
            self.send();
        }
        Ok(true)
    }

    /// Sends what was asked for to a thread.
    pub(super) fn send(&mut self) {
        if let Some(loaders) = self.loaders.as_ref().filter(|_| !self.unsent.is_empty()) {
            loaders.ask(std::mem::take(&mut self.unsent));
        }
    }

    /// Makes a slot free that holds nothing up to `last`: one that comes back unwanted, or the page that is read last.
    pub(super) fn yield_slot(&mut self, last: &PageKey) {
        let unwanted = self.held.values().any(|held| !held.wanted);
        if !unwanted {
            let after = self
                .held
                .keys()
                .rev()
                .find(|key| *key > last || key.layer != last.layer);
            let Some(key) = after.copied() else { return };
            self.drop_page(&key);
            if !self.held.contains_key(&key) {
                return;
            }
        }
        self.receive(1);
    }

    /// Waits until pages that were asked for are here.
    pub(super) fn wait<'k>(&mut self, keys: impl Iterator<Item = &'k PageKey> + Clone) -> Result<(), KvError> {
        loop {
            let missing = |key: &&PageKey| self.held.get(key).is_some_and(|held| held.loaded.is_none());
            let count = keys.clone().filter(missing).count();
            if count == 0 {
                break;
            }
            self.receive(count);
        }
        keys.into_iter().try_for_each(|key| self.check(key))
    }

    /// The error of a page that could not be loaded.
    fn check(&mut self, key: &PageKey) -> Result<(), KvError> {
        match self.held.get(key) {
            Some(Held {
                loaded: Some(Ok(_)), ..
            }) => Ok(()),
            _ => match self.held.remove(key) {
                Some(Held {
                    loaded: Some(Err(error)),
                    ..
                }) => Err(error),
                _ => unreachable!("only pages that were asked for are waited for"),
            },
        }
    }

    /// The slot of a page that is here.
    pub(super) fn bytes(&self, key: &PageKey) -> &[u8] {
        match self.held.get(key) {
            Some(Held {
                loaded: Some(Ok(memory)),
                ..
            }) => memory.bytes(),
            _ => unreachable!("a page is waited for before it is read"),
        }
    }

    /// Waits until nothing is under way.
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
        self.keep(|_| None);
    }

    fn allocate(&mut self) -> Result<Box<dyn DeviceMemory>, KvError> {
        let bytes = self.layout.bytes;
        let memory = self.device.allocate(bytes);
        let memory = memory.map_err(|source| KvError::Memory { bytes, source })?;
        self.allocated += 1;
        Ok(memory)
    }

    /// Takes back at least `count` slots that are under way.
    fn receive(&mut self, count: usize) {
        self.send();
        let Some(loaders) = &self.loaders else { return };
        for loaded in loaders.wait(count) {
            let Some(held) = self.held.get_mut(&loaded.key) else {
                self.free.push(loaded.memory);
                continue;
            };
            match loaded.result {
                Ok(()) if held.wanted => held.loaded = Some(Ok(loaded.memory)),
                Err(error) if held.wanted => {
                    held.loaded = Some(Err(error));
                    self.free.push(loaded.memory);
                }
                _ => {
                    self.held.remove(&loaded.key);
                    self.free.push(loaded.memory);
                }
            }
        }
    }
}
