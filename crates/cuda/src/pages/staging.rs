//! Bytes as they come from main memory, before they are arranged into pages.

use std::sync::Arc;

use crate::{CudaError, DeviceBuffer, Event, Gpu, Region, Stream};

/// A page of a (layer, KV head), in the order in which pages are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageKey {
    pub(super) layer: usize,
    pub(super) page: usize,
    pub(super) kv_head: usize,
}

/// A place of one page among the staged ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Staged {
    pub(super) half: usize,
    pub(super) number: usize,
}

/// Memory in two halves: one is filled while the other is arranged into pages. Between calls both may hold pages that the next
/// is expected to read.
pub(super) struct Staging {
    memory: DeviceBuffer,
    half_pages: usize,
    page_bytes: usize,
    halves: Vec<Half>,
    /// The half that is filled next.
    turn: usize,
}

struct Half {
    /// When its pages have been arranged, and whether that was ever queued.
    arranged: Event,
    is_arranged: bool,
    /// When pages that came ahead have been copied.
    copied: Arc<Event>,
    /// Pages that came ahead and have not been read, with their places in the half.
    ahead: Vec<(PageKey, usize)>,
}

impl Staging {
    pub(super) fn new(gpu: &Gpu, slots: usize, page_bytes: usize) -> Result<Self, CudaError> {
        let halves = (0..slots.min(2)).map(|_| {
            Ok(Half {
                arranged: gpu.event()?,
                is_arranged: false,
                copied: Arc::new(gpu.event()?),
                ahead: Vec::new(),
            })
        });
        Ok(Self {
            memory: gpu.allocate(slots * page_bytes)?,
            half_pages: slots / slots.clamp(1, 2),
            page_bytes,
            halves: halves.collect::<Result<_, CudaError>>()?,
            turn: 0,
        })
    }

    /// Pages of a half.
    pub(super) fn half_pages(&self) -> usize {
        self.half_pages
    }

    /// Pages of all halves.
    pub(super) fn pages(&self) -> usize {
        self.half_pages * self.halves.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    pub(super) fn at(&self, staged: Staged) -> Region<'_> {
        let at = (staged.half * self.half_pages + staged.number) * self.page_bytes;
        self.memory.region(at..at + self.page_bytes)
    }

    /// The half to fill next, whose pages came ahead in vain unless they have been read. One that holds none that may still be
    /// read goes before others: a call that has come to a page reads none before it.
    pub(super) fn next_half(&mut self, reading: Option<PageKey>) -> usize {
        let mut in_turn = (0..self.halves.len()).map(|number| self.half_in_turn(number));
        let is_behind = |(key, _): &(PageKey, usize)| reading.is_some_and(|at| key.layer == at.layer && *key < at);
        let spare = in_turn
            .clone()
            .find(|half| self.halves[*half].ahead.iter().all(is_behind));
        // What comes last in the order of reading is missed last.
        let half = spare.or(in_turn.next_back()).unwrap_or(0);
        self.turn = (half + 1) % self.halves.len();
        half
    }

    /// The half that will be filled after `number` others.
    pub(super) fn half_in_turn(&self, number: usize) -> usize {
        (self.turn + number) % self.halves.len()
    }

    /// Lets `copy` fill a half when what it held has been arranged.
    pub(super) fn wait_for(&mut self, copy: &Stream, half: usize) -> Result<(), CudaError> {
        self.halves[half].ahead.clear();
        match self.halves[half].is_arranged {
            true => copy.wait(&self.halves[half].arranged),
            false => Ok(()),
        }
    }

    /// Notes that what was queued on `compute` has arranged what a half held.
    pub(super) fn arranged(&mut self, compute: &Stream, half: usize) -> Result<(), CudaError> {
        self.halves[half].is_arranged = true;
        compute.record(&self.halves[half].arranged)
    }

    /// Passes when the pages that came ahead to a half have been copied.
    pub(super) fn copied(&self, half: usize) -> &Arc<Event> {
        &self.halves[half].copied
    }

    /// Notes pages that are on their way to the first places of a half.
    pub(super) fn put_ahead(&mut self, half: usize, keys: impl Iterator<Item = PageKey>) {
        self.halves[half].ahead = keys.zip(0..).collect();
    }

    /// Where a page lies that came ahead; it is there no more afterwards.
    pub(super) fn take_ahead(&mut self, key: PageKey) -> Option<Staged> {
        self.halves.iter_mut().enumerate().find_map(|(half, state)| {
            let found = state.ahead.iter().position(|(ahead, _)| *ahead == key)?;
            let (_, number) = state.ahead.swap_remove(found);
            Some(Staged { half, number })
        })
    }

    /// Keeps those pages that came ahead of which `keep` says so.
    pub(super) fn keep_ahead(&mut self, keep: impl Fn(PageKey) -> bool) {
        for half in &mut self.halves {
            half.ahead.retain(|(key, _)| keep(*key));
        }
    }
}
