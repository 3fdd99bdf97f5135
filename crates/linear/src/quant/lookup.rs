//! Formats with codes: a table maps each code to quants.

use super::expanded::Expanded;
use super::grids::{EightGrid, FourGrid, IQ1_CENTER};
use super::{Quant, STRETCH};

/// How a block's bits become quants.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Codes {
    /// The bits are the quants.
    Quants,
    /// Each quant is a four-bit code, an index into the table.
    Values(&'static [u8; 16]),
    /// Four quants share a code, the number of an entry.
    Fours(&'static FourGrid, Mark),
    /// Eight quants share a code.
    Eights(&'static EightGrid, Mark),
}

impl Codes {
    /// True if looking up tables costs more than writing unpacked weights to the first-level cache and reading them
    /// back.
    pub(crate) const fn is_costly(&self) -> bool {
        matches!(self, Codes::Fours(..) | Codes::Eights(..))
    }
}

/// The effect of a mark on a grid's quant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Negates the quant around its center, which is half of this number modulo 256.
    NegatedAround(u8),
    /// The quant is two less. The eight mark bits of a code are alike.
    TwoLess,
}

impl Codes {
    /// The values of a grid's entries before a block's scales, entry after entry; `None` for formats without a grid.
    pub(crate) fn grid(&self) -> Option<Vec<f32>> {
        let values = |bytes: &[u8], mark: Mark| match mark {
            // A quant and its negative are symmetric around half of the mark's number, modulo 256.
            Mark::NegatedAround(twice) => {
                let center = if twice == 0 { 128.0 } else { f32::from(twice) / 2.0 };
                Some(bytes.iter().map(|quant| f32::from(*quant) - center).collect())
            }
            // Quants are shifted up by one eighth; marked ones down by one eighth.
            Mark::TwoLess => {
                let middle = f32::from(IQ1_CENTER) + 1.0;
                Some(bytes.iter().map(|quant| f32::from(*quant) - middle).collect())
            }
        };
        match self {
            Codes::Quants | Codes::Values(_) => None,
            Codes::Fours(grid, mark) => values(
                &grid
                    .entries
                    .iter()
                    .flat_map(|entry| entry.to_le_bytes())
                    .collect::<Vec<u8>>(),
                *mark,
            ),
            Codes::Eights(grid, mark) => values(
                &grid
                    .entries
                    .iter()
                    .flat_map(|entry| entry.to_le_bytes())
                    .collect::<Vec<u8>>(),
                *mark,
            ),
        }
    }
}

impl Mark {
    fn of(self, quant: u8) -> u8 {
        match self {
            Mark::NegatedAround(twice) => twice.wrapping_sub(quant),
            Mark::TwoLess => quant.wrapping_sub(2),
        }
    }
}

/// Unpacks the quants of a stretch of 16 rows. Instruction sets with shuffles or gathers have their own code.
#[inline(always)]
pub(crate) fn look_up<Q: Quant>(block: &[u8], stretch: usize, expanded: &mut Expanded) {
    match Q::CODES {
        Codes::Quants => Q::quants(block, stretch, expanded),
        Codes::Values(table) => {
            Q::quants(block, stretch, expanded);
            for quant in expanded.quants.as_flattened_mut() {
                *quant = table[usize::from(*quant & 15)];
            }
        }
        Codes::Fours(grid, mark) => {
            let marks = Q::marks(block, stretch);
            for group in 0..STRETCH / 4 {
                for (row, entry) in Q::entries(block, stretch, group).iter().enumerate() {
                    let four = grid.entries[*entry as usize % grid.entries.len()].to_le_bytes();
                    set(group, row, four, mark, marks[row], expanded);
                }
            }
        }
        Codes::Eights(grid, mark) => {
            let marks = Q::marks(block, stretch);
            for pair in 0..STRETCH / 8 {
                for (row, entry) in Q::entries(block, stretch, pair).iter().enumerate() {
                    let eight = grid.entries[*entry as usize % grid.entries.len()].to_le_bytes();
                    let (low, high) = (eight.as_chunks().0[0], eight.as_chunks().0[1]);
                    set(2 * pair, row, low, mark, marks[row], expanded);
                    set(2 * pair + 1, row, high, mark, marks[row], expanded);
                }
            }
        }
    }
}

/// Sets four quants of a row, some of them marked.
#[inline(always)]
fn set(group: usize, row: usize, four: [u8; 4], mark: Mark, marks: u32, expanded: &mut Expanded) {
    for (place, quant) in four.into_iter().enumerate() {
        let is_marked = marks >> (4 * group + place) & 1 == 1;
        expanded.quants[group][4 * row + place] = if is_marked { mark.of(quant) } else { quant };
    }
}
