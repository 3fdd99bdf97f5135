//! The numbers of entries, written for a whole block.

use core::arch::asm;
use core::marker::PhantomData;

use super::super::quant::for_stretches;
use crate::LANES;
use crate::quant::{Codes, Quant, STRETCH};

/// The numbers of a block's entries, each below the length of the format's grid.
pub(super) struct Numbers<Q> {
    stretches: [StretchNumbers<Q>; 8],
}

/// The numbers of a stretch's entries: `[code, row]`.
pub(super) struct StretchNumbers<Q> {
    codes: [[u16; LANES]; STRETCH / 4],
    quant: PhantomData<Q>,
}

impl<Q: Quant> Numbers<Q> {
    /// Codes of a stretch.
    const CODES: usize = match Q::CODES {
        Codes::Fours(..) => STRETCH / 4,
        Codes::Eights(..) => STRETCH / 8,
        Codes::Quants | Codes::Values(_) => 0,
    };
    /// The grid's last number, whose bits are all set.
    const LAST: u16 = {
        let length = match Q::CODES {
            Codes::Fours(grid, _) => grid.distances.len(),
            Codes::Eights(grid, _) => grid.distances.len(),
            Codes::Quants | Codes::Values(_) => 1,
        };
        assert!(length.is_power_of_two() && length <= 1 << 16);
        (length - 1) as u16
    };

    pub(super) fn new() -> Numbers<Q> {
        let stretches = [(); 8].map(|()| StretchNumbers {
            codes: [[0; LANES]; STRETCH / 4],
            quant: PhantomData,
        });
        Numbers { stretches }
    }

    /// Writes a block's numbers.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn write(&mut self, block: &[u8]) {
        for (index, stretch) in self.stretches.iter_mut().enumerate() {
            for_stretches!(@ CODE {
                if CODE < Self::CODES {
                    stretch.codes[CODE] = Q::entries(block, index, CODE).map(|number| number as u16 & Self::LAST);
                    stored(&mut stretch.codes[CODE]);
                }
            } 0 1 2 3 4 5 6 7);
        }
    }

    #[inline(always)]
    pub(super) fn of_stretch(&self, index: usize) -> &StretchNumbers<Q> {
        &self.stretches[index]
    }
}

impl<Q: Quant> StretchNumbers<Q> {
    /// The quants of a code and row in a grid of fours; zero in another format.
    #[inline(always)]
    pub(super) fn four(&self, code: usize, row: usize) -> u32 {
        match const { Q::CODES } {
            Codes::Fours(grid, _) => self.entry(grid.distances, code, row),
            _ => 0,
        }
    }

    /// The quants of a code and row in a grid of eights; zero in another format.
    #[inline(always)]
    pub(super) fn eight(&self, code: usize, row: usize) -> u64 {
        match const { Q::CODES } {
            Codes::Eights(grid, _) => self.entry(grid.distances, code, row),
            _ => 0,
        }
    }

    #[inline(always)]
    fn entry<Entry: Copy>(&self, grid: &'static [Entry], code: usize, row: usize) -> Entry {
        // Both are constants, so this costs nothing.
        assert!(usize::from(Numbers::<Q>::LAST) < grid.len());
        // SAFETY: the first numbers are 0, and `write` keeps all of them at most `LAST`, which the grid has.
        unsafe { *grid.get_unchecked(usize::from(self.codes[code][row])) }
    }
}

/// Makes the compiler store a code's numbers in memory. Otherwise it computes several codes together, which takes more
/// instructions.
#[inline(always)]
fn stored<T>(numbers: &mut T) {
    // SAFETY: there is no instruction; the memory of the reference may be read and written.
    unsafe {
        asm!("/* {numbers} */", numbers = in(reg) core::ptr::from_mut(numbers), options(nostack, preserves_flags));
    }
}
