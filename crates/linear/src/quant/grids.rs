//! The grids of i-quants as tables of quants.

use super::grid_codes;

/// IQ3_XXS: quants around 128.
pub(crate) static IQ3_XXS: [u32; 256] = fours(grid_codes::IQ3_XXS, 128, [4, 12, 20, 28, 36, 44, 52, 62]);
/// IQ3_S: quants around [`IQ3_S_CENTER`].
pub(crate) static IQ3_S: [u32; 512] = fours(grid_codes::IQ3_S, IQ3_S_CENTER, [1, 3, 5, 7, 9, 11, 13, 15]);
/// IQ2_XXS: quants around 128.
pub(crate) static IQ2_XXS: [u64; 256] = eights(grid_codes::IQ2_XXS, IQ2_VALUES);
/// IQ2_XS.
pub(crate) static IQ2_XS: [u64; 512] = eights(grid_codes::IQ2_XS, IQ2_VALUES);
/// IQ2_S.
pub(crate) static IQ2_S: [u64; 1024] = eights(grid_codes::IQ2_S, IQ2_VALUES);
/// IQ1_S and IQ1_M: eighths around [`IQ1_CENTER`], each plus one.
pub(crate) static IQ1: [u64; 2048] = eights(grid_codes::IQ1_S, [IQ1_CENTER - 7, IQ1_CENTER + 1, IQ1_CENTER + 9, 0]);

/// The center of IQ3_S.
pub(crate) const IQ3_S_CENTER: u8 = 16;
/// The center of IQ1_S and IQ1_M.
pub(crate) const IQ1_CENTER: u8 = 16;

const IQ2_VALUES: [u8; 4] = [128 + 8, 128 + 25, 128 + 43, 0];

/// Entries of four values of three bits.
const fn fours<const COUNT: usize>(codes: [u16; COUNT], center: u8, values: [u8; 8]) -> [u32; COUNT] {
    let mut grid = [0; COUNT];
    let mut index = 0;
    while index < COUNT {
        let mut place = 0;
        while place < 4 {
            let quant = center + values[(codes[index] >> (3 * place) & 7) as usize];
            grid[index] |= (quant as u32) << (8 * place);
            place += 1;
        }
        index += 1;
    }
    grid
}

/// Entries of eight values of two bits.
const fn eights<const COUNT: usize>(codes: [u16; COUNT], quants: [u8; 4]) -> [u64; COUNT] {
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
