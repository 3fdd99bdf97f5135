//! The staging ring: pages in the format of main memory, before they are converted to the device's layout.

use std::collections::BTreeMap;
use std::sync::Arc;

use riffle_device::{SequenceId, TransferCount};
use riffle_kv::{CacheShape, PageVersion};

use super::list::DeviceList;
use super::memory::PageLayout;
use crate::{CudaError, DeviceBuffer, Event, Gpu, Region, Stream};

/// A page of a (layer, KV head), in reading order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageKey {
    pub(super) sequence: SequenceId,
    pub(super) layer: usize,
    pub(super) page: usize,
    pub(super) kv_head: usize,
}

/// Place of one staged page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Staged {
    pub(super) half: usize,
    pub(super) number: usize,
}

/// Memory in two halves: one is filled while the other is converted. Between calls both may hold pages that the next
/// call is expected to read.
pub(super) struct Staging {
    pub(super) shape: CacheShape,
    pub(super) layout: PageLayout,
    /// Stream of the copies.
    pub(super) copy: Stream,
    /// Planes of keys and of values to be converted.
    pub(super) moves: [DeviceList; 2],
    pub(super) transferred: TransferCount,
    /// The first pages without a slot that the latest call on each layer of a sequence read, as (KV head, page).
    pub(super) visited: BTreeMap<(SequenceId, usize), Vec<(usize, usize)>>,
    pub(super) ring: Ring,
    halves: Vec<Half>,
    /// The next half to fill.
    turn: usize,
}

/// The memory of all halves.
pub(super) struct Ring {
    memory: DeviceBuffer,
    half_pages: usize,
    page_bytes: usize,
}

impl Ring {
    pub(super) fn at(&self, staged: Staged) -> Region<'_> {
        let at = (staged.half * self.half_pages + staged.number) * self.page_bytes;
        self.memory.region(at..at + self.page_bytes)
    }
}

struct Half {
    /// Event after the conversion of the half's pages, and true if the event was ever queued.
    arranged: Event,
    is_arranged: bool,
    /// Event after the copies of pages read ahead.
    copied: Arc<Event>,
    /// Unused pages read ahead, with their places in the half.
    ahead: Vec<Ahead>,
}

struct Ahead {
    key: PageKey,
    version: PageVersion,
    number: usize,
}

impl Staging {
    pub(super) fn new(gpu: &Gpu, shape: &CacheShape, slots: usize) -> Result<Self, CudaError> {
        let layout = PageLayout::new(shape);
        let halves = (0..slots.min(2)).map(|_| {
            Ok(Half {
                arranged: gpu.event()?,
                is_arranged: false,
                copied: Arc::new(gpu.event()?),
                ahead: Vec::new(),
            })
        });
        Ok(Self {
            shape: *shape,
            layout,
            copy: gpu.stream()?,
            moves: [DeviceList::new(gpu)?, DeviceList::new(gpu)?],
            transferred: TransferCount::default(),
            visited: BTreeMap::new(),
            ring: Ring {
                memory: gpu.allocate(slots * layout.page_bytes)?,
                half_pages: slots / slots.clamp(1, 2),
                page_bytes: layout.page_bytes,
            },
            halves: halves.collect::<Result<_, CudaError>>()?,
            turn: 0,
        })
    }

    /// Pages per half.
    pub(super) fn half_pages(&self) -> usize {
        self.ring.half_pages
    }

    /// Pages of all halves.
    pub(super) fn pages(&self) -> usize {
        self.ring.half_pages * self.halves.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.ring.memory.bytes()
    }

    /// The half to fill next; unread pages in it are lost. A half whose pages the current call has passed is preferred,
    /// because a call reads pages in order.
    pub(super) fn next_half(&mut self, reading: Option<PageKey>) -> usize {
        let mut in_turn = (0..self.halves.len()).map(|number| self.half_in_turn(number));
        let is_behind = |Ahead { key, .. }: &Ahead| {
            reading.is_some_and(|at| (key.sequence, key.layer) == (at.sequence, at.layer) && *key < at)
        };
        let spare = in_turn
            .clone()
            .find(|half| self.halves[*half].ahead.iter().all(is_behind));
        // The most recently read pages are replaced first.
        let half = spare.or(in_turn.next_back()).unwrap_or(0);
        self.turn = (half + 1) % self.halves.len();
        half
    }

    /// The half that will be filled after `number` others.
    pub(super) fn half_in_turn(&self, number: usize) -> usize {
        (self.turn + number) % self.halves.len()
    }

    /// Makes copies to a half wait until its earlier contents are converted.
    pub(super) fn wait_for(&mut self, half: usize) -> Result<(), CudaError> {
        self.halves[half].ahead.clear();
        if self.halves[half].is_arranged {
            self.copy.wait(&self.halves[half].arranged)
        } else {
            Ok(())
        }
    }

    /// Records that the work queued on `compute` converts the contents of a half.
    pub(super) fn arranged(&mut self, compute: &Stream, half: usize) -> Result<(), CudaError> {
        self.halves[half].is_arranged = true;
        compute.record(&self.halves[half].arranged)
    }

    /// Event after the copies of pages read ahead into a half.
    pub(super) fn copied(&self, half: usize) -> &Arc<Event> {
        &self.halves[half].copied
    }

    /// Records pages read ahead in the first places of a half.
    pub(super) fn put_ahead(&mut self, half: usize, pages: impl Iterator<Item = (PageKey, PageVersion)>) {
        let numbered = pages
            .zip(0..)
            .map(|((key, version), number)| Ahead { key, version, number });
        self.halves[half].ahead = numbered.collect();
    }

    /// Takes the place of a page read ahead. A later call does not find it again.
    pub(super) fn take_ahead(&mut self, version: PageVersion) -> Option<Staged> {
        self.halves.iter_mut().enumerate().find_map(|(half, state)| {
            let found = state.ahead.iter().position(|ahead| ahead.version == version)?;
            let number = state.ahead.swap_remove(found).number;
            Some(Staged { half, number })
        })
    }

    /// Forgets the pages read ahead.
    pub(super) fn forget_ahead(&mut self) {
        self.halves.iter_mut().for_each(|half| half.ahead.clear());
    }

    /// Forgets the expected reads of a sequence.
    pub(super) fn end(&mut self, sequence: SequenceId) {
        self.visited.retain(|(of, _), _| *of != sequence);
    }
}
