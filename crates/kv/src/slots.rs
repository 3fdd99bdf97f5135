//! The used slots of a file.

/// One bit per slot, up to the last one in use.
#[derive(Debug, Default)]
pub(crate) struct SlotMap {
    words: Vec<u64>,
    /// Index of the first word that may have a free slot.
    first_free: usize,
}

impl SlotMap {
    /// The lowest free slot; it may be after the end.
    pub(crate) fn lowest_free(&mut self) -> usize {
        while self.words.get(self.first_free) == Some(&u64::MAX) {
            self.first_free += 1;
        }
        let ones = self.words.get(self.first_free).map_or(0, |word| word.trailing_ones());
        self.first_free * 64 + ones as usize
    }

    pub(crate) fn take(&mut self, slot: usize) {
        if slot / 64 >= self.words.len() {
            self.words.resize(slot / 64 + 1, 0);
        }
        debug_assert!(self.words[slot / 64] & (1 << (slot % 64)) == 0);
        self.words[slot / 64] |= 1 << (slot % 64);
    }

    pub(crate) fn free(&mut self, slot: usize) {
        debug_assert!(self.words[slot / 64] & (1 << (slot % 64)) != 0);
        self.words[slot / 64] &= !(1 << (slot % 64));
        self.first_free = self.first_free.min(slot / 64);
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }

    /// One past the last slot in use.
    pub(crate) fn end(&self) -> usize {
        let last = self.words.last().map_or(0, |word| 64 - word.leading_zeros() as usize);
        self.words.len().saturating_sub(1) * 64 + last
    }

    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_slot_comes_first_and_the_end_follows_the_last_in_use() {
        let mut slots = SlotMap::default();
        for expected in 0..200 {
            assert_eq!(slots.lowest_free(), expected);
            slots.take(expected);
        }
        assert_eq!(slots.end(), 200);
        slots.free(3);
        slots.free(130);
        assert_eq!(slots.lowest_free(), 3);
        slots.take(3);
        assert_eq!(slots.lowest_free(), 130);
        for slot in (100..200).filter(|slot| *slot != 130) {
            slots.free(slot);
        }
        assert_eq!((slots.end(), slots.lowest_free()), (100, 100));
        for slot in 0..100 {
            slots.free(slot);
        }
        assert_eq!((slots.end(), slots.lowest_free()), (0, 0));
    }
}
