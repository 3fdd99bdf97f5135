//! Allocates planes in slots of large slabs of a device's memory.
//!
//! Slabs are few, because the number of mappings is limited, and large, to use huge pages. The lowest free slot is
//! taken first, so that later slabs become empty and are unmapped. Free slots of slabs in use also return their
//! memory.

use std::ops::Range;
use std::sync::Arc;

use riffle_attention::{Format, PlaneMut};

use crate::ledger::Ledger;
use crate::{Device, DeviceMemory, KvError};
use riffle_system::memory::RELEASED_PAGE_BYTES;

/// Largest size of a slab, unless one plane is larger.
const SLAB_BYTES: usize = 16 << 20;

/// A slab is at most this fraction of a budget, so that unused mappings block little of it.
const SLABS_IN_BUDGET: u64 = 64;

/// The location of a plane in an [`Arena`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    slab: u16,
    index: u16,
}

impl Slot {
    /// The slab of this slot.
    pub(crate) fn slab(self) -> u16 {
        self.slab
    }

    /// The slot as one number.
    pub(crate) fn number(self) -> u32 {
        u32::from(self.slab) << 16 | u32::from(self.index)
    }

    /// The slot with this [`number`](Self::number).
    pub(crate) fn of_number(number: u32) -> Self {
        Self {
            slab: (number >> 16) as u16,
            index: number as u16,
        }
    }
}

/// The planes of one format and size. Planes of latent values are empty and take no memory.
pub(crate) struct Arena {
    device: Arc<dyn Device>,
    /// The ledger that counts slabs.
    ledger: Arc<Ledger>,
    format: Format,
    plane_bytes: usize,
    /// Slabs; `None` for a slab that became empty and was unmapped.
    slabs: Vec<Option<Slab>>,
    free_slots: usize,
    /// Index of the first slab that may have a free slot.
    first_free: usize,
}

struct Slab {
    memory: Box<dyn DeviceMemory>,
    /// One bit per slot, set while it is in use.
    used: Vec<u64>,
    slots: usize,
    used_slots: usize,
}

impl Arena {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        ledger: Arc<Ledger>,
        format: Format,
        page_tokens: usize,
        head_dim: usize,
    ) -> Self {
        Self {
            device,
            ledger,
            format,
            plane_bytes: format.plane_bytes(page_tokens, head_dim),
            slabs: Vec::new(),
            free_slots: 0,
            first_free: 0,
        }
    }

    /// Ensures that `slots` are free, with at most `most_slots` mapped in all. Returns false if the ledger has no
    /// room for them. Then, and on an error, no memory is mapped.
    pub(crate) fn reserve(&mut self, slots: usize, most_slots: usize) -> Result<bool, KvError> {
        if self.plane_bytes == 0 {
            return Ok(true);
        }
        while self.free_slots < slots {
            let share = usize::try_from(self.ledger.budget_bytes() / SLABS_IN_BUDGET).unwrap_or(usize::MAX);
            let usual = (SLAB_BYTES.min(share) / self.plane_bytes).clamp(1, 1 << 16);
            let room = most_slots.saturating_sub(self.slots()).max(1);
            let mapped = self.map_slab(usual.min(room), slots - self.free_slots);
            if !matches!(mapped, Ok(true)) {
                self.unmap_empty();
                return mapped;
            }
        }
        Ok(true)
    }

    /// Takes the lowest free slot, which must be reserved. Empty planes share one slot.
    pub(crate) fn take(&mut self) -> Slot {
        if self.plane_bytes == 0 {
            return Slot::of_number(0);
        }
        for (number, slab) in self.slabs.iter_mut().enumerate().skip(self.first_free) {
            self.first_free = number;
            if let Some(index) = slab.as_mut().and_then(Slab::take) {
                self.free_slots -= 1;
                return Slot {
                    slab: number as u16,
                    index: index as u16,
                };
            }
        }
        unreachable!("slots are reserved before they are taken")
    }

    /// Frees a slot for immediate reuse: its memory stays mapped.
    pub(crate) fn free_for_reuse(&mut self, slot: Slot) {
        if self.plane_bytes == 0 {
            return;
        }
        let slab = self.slab_mut(slot);
        slab.used[usize::from(slot.index) / 64] &= !(1 << (slot.index % 64));
        slab.used_slots -= 1;
        self.free_slots += 1;
        self.first_free = self.first_free.min(usize::from(slot.slab));
    }

    /// Frees slots and returns their memory to the operating system.
    pub(crate) fn free(&mut self, slots: &mut [Slot]) {
        if self.plane_bytes == 0 {
            return;
        }
        slots.sort_unstable();
        for slot in slots.iter() {
            self.free_for_reuse(*slot);
        }
        self.unmap_empty();
        let plane_bytes = self.plane_bytes;
        for run in slots.chunk_by(|a, b| a.slab == b.slab && a.index + 1 == b.index) {
            let first = usize::from(run[0].index);
            if let Some(Some(slab)) = self.slabs.get_mut(usize::from(run[0].slab)) {
                slab.give_back(first..first + run.len(), plane_bytes);
            }
        }
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    pub(crate) fn plane_mut(&mut self, slot: Slot) -> PlaneMut<'_> {
        let format = self.format;
        PlaneMut::from_bytes(format, self.bytes_mut(slot))
    }

    /// A plane's bytes.
    pub(crate) fn bytes(&self, slot: Slot) -> &[u8] {
        if self.plane_bytes == 0 {
            return bytemuck::cast_slice::<f32, u8>(&[]);
        }
        let slab = self.slabs[usize::from(slot.slab)].as_ref();
        let slab = slab.expect("slots in use lie in mapped slabs");
        &slab.memory.bytes()[self.range(slot)]
    }

    /// A plane's bytes, writable.
    pub(crate) fn bytes_mut(&mut self, slot: Slot) -> &mut [u8] {
        if self.plane_bytes == 0 {
            return bytemuck::cast_slice_mut::<f32, u8>(&mut []);
        }
        let range = self.range(slot);
        &mut self.slab_mut(slot).memory.bytes_mut()[range]
    }

    /// Mapped bytes, used or unused.
    pub(crate) fn mapped_bytes(&self) -> usize {
        let slabs = self.slabs.iter().flatten();
        slabs.map(|slab| slab.slots * self.plane_bytes).sum()
    }

    /// Bytes of slab records and bitmaps.
    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        let bitmaps: usize = self.slabs.iter().flatten().map(|slab| slab.used.capacity() * 8).sum();
        bitmaps + self.slabs.capacity() * size_of::<Option<Slab>>()
    }

    /// The last slab, if earlier slabs have room for its planes.
    pub(crate) fn spare_slab(&self) -> Option<u16> {
        let (number, slab) = self
            .slabs
            .iter()
            .enumerate()
            .rev()
            .find_map(|(n, slab)| Some((n, slab.as_ref()?)))?;
        let free_before = self.free_slots - (slab.slots - slab.used_slots);
        (slab.used_slots <= free_before).then_some(number as u16)
    }

    /// Moves a plane of the last slab to an earlier one; call [`spare_slab`](Self::spare_slab) first.
    pub(crate) fn move_down(&mut self, slot: Slot) -> Slot {
        let target = self.take();
        debug_assert!(target.slab < slot.slab);
        let plane = self.bytes(slot).to_vec();
        self.bytes_mut(target).copy_from_slice(&plane);
        self.free_for_reuse(slot);
        target
    }

    /// Unmaps empty slabs.
    pub(crate) fn trim(&mut self) {
        self.unmap_empty();
    }

    /// Slots in use.
    pub(crate) fn used_slots(&self) -> usize {
        self.slots() - self.free_slots
    }

    /// Number of mapped slots.
    pub(crate) fn slots(&self) -> usize {
        self.slabs.iter().flatten().map(|slab| slab.slots).sum()
    }

    fn range(&self, slot: Slot) -> Range<usize> {
        let start = usize::from(slot.index) * self.plane_bytes;
        start..start + self.plane_bytes
    }

    fn slab_mut(&mut self, slot: Slot) -> &mut Slab {
        let slab = self.slabs[usize::from(slot.slab)].as_mut();
        slab.expect("slots in use lie in mapped slabs")
    }

    /// Maps a slab of `slots` slots. If the ledger has too little room, it maps only the `needed` ones.
    fn map_slab(&mut self, mut slots: usize, needed: usize) -> Result<bool, KvError> {
        let needed = needed.min(slots);
        while !self.ledger.take((slots * self.plane_bytes) as u64) {
            if slots == needed {
                return Ok(false);
            }
            slots = (slots / 2).max(needed);
        }
        let bytes = slots * self.plane_bytes;
        let number = self.slabs.iter().position(Option::is_none).unwrap_or(self.slabs.len());
        let memory = if number > usize::from(u16::MAX) {
            Err(std::io::ErrorKind::OutOfMemory.into())
        } else {
            self.device.allocate(bytes)
        };
        let memory = memory.map_err(|source| {
            self.ledger.give(bytes as u64);
            KvError::Memory { bytes, source }
        })?;
        let slab = Slab {
            memory,
            used: vec![0; slots.div_ceil(64)],
            slots,
            used_slots: 0,
        };
        if number == self.slabs.len() {
            self.slabs.push(Some(slab));
        } else {
            self.slabs[number] = Some(slab);
        }
        self.free_slots += slots;
        self.first_free = self.first_free.min(number);
        Ok(true)
    }

    fn unmap_empty(&mut self) {
        for slab in &mut self.slabs {
            if let Some(empty) = slab.take_if(|slab| slab.used_slots == 0) {
                self.free_slots -= empty.slots;
                self.ledger.give((empty.slots * self.plane_bytes) as u64);
            }
        }
        let kept = self.slabs.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.slabs.truncate(kept);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.ledger.give(self.mapped_bytes() as u64);
    }
}

impl Slab {
    fn take(&mut self) -> Option<usize> {
        if self.used_slots == self.slots {
            return None;
        }
        let word = self.used.iter().position(|word| *word != u64::MAX)?;
        let bit = self.used[word].trailing_ones() as usize;
        self.used[word] |= 1 << bit;
        self.used_slots += 1;
        Some(word * 64 + bit)
    }

    fn is_free(&self, slot: usize) -> bool {
        self.used[slot / 64] & (1 << (slot % 64)) == 0
    }

    /// Returns the operating system's pages around newly freed slots if they contain only free slots.
    fn give_back(&mut self, freed: Range<usize>, plane_bytes: usize) {
        let mut start = freed.start * plane_bytes / RELEASED_PAGE_BYTES * RELEASED_PAGE_BYTES;
        let before = start / plane_bytes..freed.start;
        if !before.into_iter().all(|slot| self.is_free(slot)) {
            start += RELEASED_PAGE_BYTES;
        }
        let mut end = (freed.end * plane_bytes).next_multiple_of(RELEASED_PAGE_BYTES);
        let after = freed.end..end.div_ceil(plane_bytes).min(self.slots);
        if !after.into_iter().all(|slot| self.is_free(slot)) {
            end -= RELEASED_PAGE_BYTES;
        }
        if start < end {
            self.memory.release(start..end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(format: Format, page_tokens: usize, head_dim: usize) -> Arena {
        let device = Arc::new(crate::CpuDevice::new());
        Arena::new(device, Ledger::new(None), format, page_tokens, head_dim)
    }

    #[test]
    fn a_freed_slot_never_takes_a_neighbours_bytes_with_it() {
        // 16 tokens × 16 as q4_0: planes of 160 bytes, of which an operating-system page holds many.
        let mut arena = arena(Format::Q4_0, 16, 16);
        arena.reserve(200, 200).unwrap();
        let slots: Vec<Slot> = (0..200).map(|_| arena.take()).collect();
        for (n, slot) in slots.iter().enumerate() {
            let PlaneMut::Q4_0(bytes) = arena.plane_mut(*slot) else {
                unreachable!()
            };
            bytes.fill(n as u8);
        }
        let mut freed: Vec<Slot> = slots
            .iter()
            .copied()
            .filter(|slot| (40..120).contains(&slot.index))
            .collect();
        arena.free(&mut freed);
        arena.free(&mut [slots[130]]);
        for (n, slot) in slots.iter().enumerate() {
            if !(40..120).contains(&n) && n != 130 {
                assert!(arena.bytes(*slot).iter().all(|byte| *byte == n as u8), "slot {n}");
            }
        }
        assert_eq!(arena.take(), slots[40]);
    }

    #[test]
    fn an_arena_that_runs_empty_maps_nothing() {
        let mut arena = arena(Format::F32, 1024, 256);
        arena.reserve(40, 64).unwrap();
        let mut slots: Vec<Slot> = (0..40).map(|_| arena.take()).collect();
        assert!(arena.mapped_bytes() >= 40 << 20);
        arena.free(&mut slots);
        assert_eq!((arena.mapped_bytes(), arena.free_slots), (0, 0));
    }
}
