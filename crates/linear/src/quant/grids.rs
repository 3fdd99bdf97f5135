//! The grids of i-quants as tables of quants.

use super::grid_codes;

/// The entries of a grid, in two forms.
#[derive(Debug)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "entries are permuted on x86-64 alone")
)]
pub(crate) struct Grid<Entry: 'static, Places> {
    /// The bytes of an entry are its quants, the first in the low bits. The number of entries is a power of two.
    pub(crate) entries: &'static [Entry],
    /// The entries with the center subtracted from each quant. Where marks do not negate quants, the least quant is
    /// subtracted, which is the first of `values`.
    pub(crate) distances: &'static [Entry],
    /// For each quant of an entry, its index in `values`.
    pub(crate) places: Places,
    /// Quants by index; grids of four values hold these twice.
    pub(crate) values: [u8; 8],
}

/// Entries of four quants, with indices of three bits.
pub(crate) type FourGrid = Grid<u32, &'static [u16]>;
/// Entries of eight quants, with indices of two bits: bytes for the first four, and for the last four.
pub(crate) type EightGrid = Grid<u64, [&'static [u8]; 2]>;

/// IQ3_XXS: quants around 128.
pub(crate) static IQ3_XXS: FourGrid = Grid {
    entries: &fours(grid_codes::IQ3_XXS, IQ3_XXS_VALUES),
    distances: &fours(grid_codes::IQ3_XXS, above(128, IQ3_XXS_VALUES)),
    places: &grid_codes::IQ3_XXS,
    values: IQ3_XXS_VALUES,
};
/// IQ3_S: quants around [`IQ3_S_CENTER`].
pub(crate) static IQ3_S: FourGrid = Grid {
    entries: &fours(grid_codes::IQ3_S, IQ3_S_VALUES),
    distances: &fours(grid_codes::IQ3_S, above(IQ3_S_CENTER, IQ3_S_VALUES)),
    places: &grid_codes::IQ3_S,
    values: IQ3_S_VALUES,
};
/// IQ2_XXS: quants around 128.
pub(crate) static IQ2_XXS: EightGrid = Grid {
    entries: &eights(grid_codes::IQ2_XXS, IQ2_VALUES),
    distances: &eights(grid_codes::IQ2_XXS, above(128, IQ2_VALUES)),
    places: [&bytes(grid_codes::IQ2_XXS, 0), &bytes(grid_codes::IQ2_XXS, 8)],
    values: IQ2_VALUES,
};
/// IQ2_XS.
pub(crate) static IQ2_XS: EightGrid = Grid {
    entries: &eights(grid_codes::IQ2_XS, IQ2_VALUES),
    distances: &eights(grid_codes::IQ2_XS, above(128, IQ2_VALUES)),
    places: [&bytes(grid_codes::IQ2_XS, 0), &bytes(grid_codes::IQ2_XS, 8)],
    values: IQ2_VALUES,
};
/// IQ2_S.
pub(crate) static IQ2_S: EightGrid = Grid {
    entries: &eights(grid_codes::IQ2_S, IQ2_VALUES),
    distances: &eights(grid_codes::IQ2_S, above(128, IQ2_VALUES)),
    places: [&bytes(grid_codes::IQ2_S, 0), &bytes(grid_codes::IQ2_S, 8)],
    values: IQ2_VALUES,
};
/// IQ1_S and IQ1_M. Values are in eighths around [`IQ1_CENTER`], plus one.
pub(crate) static IQ1: EightGrid = Grid {
    entries: &eights(grid_codes::IQ1_S, IQ1_VALUES),
    distances: &eights(grid_codes::IQ1_S, above(IQ1_VALUES[0], IQ1_VALUES)),
    places: [&bytes(grid_codes::IQ1_S, 0), &bytes(grid_codes::IQ1_S, 8)],
    values: IQ1_VALUES,
};

/// The center of IQ3_S.
pub(crate) const IQ3_S_CENTER: u8 = 16;
/// The center of IQ1_S and IQ1_M.
pub(crate) const IQ1_CENTER: u8 = 16;

const IQ3_XXS_VALUES: [u8; 8] = around(128, [4, 12, 20, 28, 36, 44, 52, 62]);
const IQ3_S_VALUES: [u8; 8] = around(IQ3_S_CENTER, [1, 3, 5, 7, 9, 11, 13, 15]);
const IQ2_VALUES: [u8; 8] = around(128, [8, 25, 43, 0, 8, 25, 43, 0]);
const IQ1_VALUES: [u8; 8] = around(IQ1_CENTER - 7, [0, 8, 16, 0, 0, 8, 16, 0]);

const fn around(center: u8, magnitudes: [u8; 8]) -> [u8; 8] {
    let mut quants = magnitudes;
    let mut place = 0;
    while place < 8 {
        quants[place] = quants[place].wrapping_add(center);
        place += 1;
    }
    quants
}

/// The distances of `quants` from `base`.
const fn above(base: u8, quants: [u8; 8]) -> [u8; 8] {
    around(base.wrapping_neg(), quants)
}

/// Entries of four values of three bits.
const fn fours<const COUNT: usize>(codes: [u16; COUNT], quants: [u8; 8]) -> [u32; COUNT] {
    let mut grid = [0; COUNT];
    let mut index = 0;
    while index < COUNT {
        let mut place = 0;
        while place < 4 {
            let quant = quants[(codes[index] >> (3 * place) & 7) as usize];
            grid[index] |= (quant as u32) << (8 * place);
            place += 1;
        }
        index += 1;
    }
    grid
}

/// Entries of eight values of two bits.
const fn eights<const COUNT: usize>(codes: [u16; COUNT], quants: [u8; 8]) -> [u64; COUNT] {
    let mut grid = [0; COUNT];
    let mut index = 0;
    while index < COUNT {
        let mut place = 0;
        while place < 8 {
            let quant = quants[(codes[index] >> (2 * place) & 3) as usize];
            grid[index] |= (quant as u64) << (8 * place);
            place += 1;
        }
        index += 1;
    }
    grid
}

/// Eight bits of the indices of each entry.
const fn bytes<const COUNT: usize>(codes: [u16; COUNT], shift: u32) -> [u8; COUNT] {
    let mut places = [0; COUNT];
    let mut index = 0;
    while index < COUNT {
        places[index] = (codes[index] >> shift) as u8;
        index += 1;
    }
    places
}
