//! Blocks of 256 weights whose magnitudes are entries of a grid: IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S.

use std::sync::LazyLock;

use riffle_linear::WeightFormat;

use super::lattice::Lattice;
use super::search::{extreme, inverse, round, to_half};
use super::super_block::BLOCK;

/// Entries to compare for a cell.
const NEAR_FOURS: usize = 12;
const NEAR_EIGHTS: usize = 20;
/// Refits of the scale of the scales.
const ROUNDS: usize = 3;
/// Trial values of the largest magnitude of a part, as shares of the grid's largest value.
const TOPS: [f32; 11] = [1.0, 0.95, 1.05, 0.9, 1.1, 0.85, 1.15, 0.8, 1.22, 0.72, 0.64];

static IQ2_XXS: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(WeightFormat::Iq2Xxs, 8.0, NEAR_EIGHTS));
static IQ2_XS: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(WeightFormat::Iq2Xs, 8.0, NEAR_EIGHTS));
static IQ2_S: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(WeightFormat::Iq2S, 8.0, NEAR_EIGHTS));
static IQ3_XXS: LazyLock<Lattice<4>> = LazyLock::new(|| Lattice::new(WeightFormat::Iq3Xxs, 4.0, NEAR_FOURS));
static IQ3_S: LazyLock<Lattice<4>> = LazyLock::new(|| Lattice::new(WeightFormat::Iq3S, 1.0, NEAR_FOURS));

/// Signs that a block supports.
#[derive(Clone, Copy, PartialEq)]
enum Signs {
    Any,
    /// Among eight weights an even number is negative.
    Even,
}

/// A block: its scale; for each part the odd multiple `2 · multiple + 1` of the scale; entries; signs of eight
/// weights per byte.
struct Coded {
    scale: half::f16,
    multiples: [u8; 16],
    entries: [u16; 64],
    signs: [u8; 32],
}

/// Removes the signs; the magnitudes are then rounded to an entry.
fn magnitudes(x: &[f32], w: &[f32], signs: Signs) -> ([f32; BLOCK], [u8; 32]) {
    let mut magnitudes = [0.0; BLOCK];
    let mut bytes = [0; 32];
    for (eight, x) in x.chunks_exact(8).enumerate() {
        let to = &mut magnitudes[8 * eight..][..8];
        for (place, x) in x.iter().enumerate() {
            to[place] = x.abs();
            bytes[eight] |= u8::from(*x < 0.0) << place;
        }
        if signs == Signs::Even && bytes[eight].count_ones() % 2 == 1 {
            let cost = |place: &usize| w[8 * eight + place] * x[*place] * x[*place];
            let least = (0..8).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0);
            bytes[eight] ^= 1 << least;
            to[least] = -to[least];
        }
    }
    (magnitudes, bytes)
}

/// The entries of weights with `scale`, and the sums `Σ w·x·g` and `Σ w·g²`.
fn assign<const WIDTH: usize>(
    lattice: &Lattice<WIDTH>,
    [x, w]: [&[f32]; 2],
    scale: f32,
    entries: &mut [u16],
) -> [f32; 2] {
    let inverse = inverse(scale);
    let mut sums = [[0.0f32; WIDTH]; 2];
    let groups = x.as_chunks::<WIDTH>().0.iter().zip(w.as_chunks::<WIDTH>().0);
    for ((x, w), entry) in groups.zip(entries) {
        *entry = lattice.nearest(&x.map(|x| x * inverse), w);
        let values = lattice.entry(*entry);
        for lane in 0..WIDTH {
            sums[0][lane] += w[lane] * x[lane] * values[lane];
            sums[1][lane] += w[lane] * values[lane] * values[lane];
        }
    }
    sums.map(|lanes| lanes.iter().sum())
}

/// The scale with the least rounding error for a part's weights.
fn part_scale<const WIDTH: usize>(lattice: &Lattice<WIDTH>, weights: [&[f32]; 2]) -> f32 {
    let largest = extreme(weights[0]).abs();
    if inverse(largest) == 0.0 {
        return 0.0;
    }
    let mut entries = [0; 8];
    let mut best = (0.0, 0.0);
    let mut consider = |scale: f32| {
        let [xg, gg] = assign(lattice, weights, scale, &mut entries);
        let gain = if gg > 0.0 && xg > 0.0 { xg * xg / gg } else { 0.0 };
        let is_better = gain > best.0;
        if is_better {
            best = (gain, xg / gg);
        }
        is_better.then_some(best.1)
    };
    let mut scale = 0.0;
    for top in TOPS {
        scale = consider(largest / (top * lattice.top())).unwrap_or(scale);
    }
    for _ in 0..2 {
        match consider(scale) {
            Some(better) => scale = better,
            None => break,
        }
    }
    scale
}

/// Encodes a block. Its parts of `width` weights have odd multiples of its scale.
fn code<const WIDTH: usize>(lattice: &Lattice<WIDTH>, width: usize, signs: Signs, x: &[f32], w: &[f32]) -> Coded {
    let (x, signs) = magnitudes(x, w, signs);
    let groups = width / WIDTH;
    let parts = || x.chunks_exact(width).zip(w.chunks_exact(width)).enumerate();
    let mut scales = [0.0; 16];
    for (part, (x, w)) in parts() {
        scales[part] = part_scale(lattice, [x, w]);
    }
    let mut scale = extreme(&scales) / 31.0;
    let mut best = Coded {
        scale: half::f16::ZERO,
        multiples: [0; 16],
        entries: [0; 64],
        signs,
    };
    let mut best_error = f32::INFINITY;
    for _ in 0..ROUNDS {
        let (half, rounded) = to_half(scale);
        let mut found = Coded {
            scale: half,
            multiples: [0; 16],
            entries: [0; 64],
            signs,
        };
        let (mut error, mut xg, mut gg) = (0.0, 0.0, 0.0);
        for (part, (x, w)) in parts() {
            let middle = round((scales[part] * inverse(rounded) - 1.0) / 2.0).clamp(0.0, 15.0) as u8;
            let mut least = f32::INFINITY;
            let mut fit = [0.0; 2];
            let mut entries = [0; 8];
            for multiple in middle.saturating_sub(1)..=(middle + 1).min(15) {
                let odd = f32::from(2 * multiple + 1);
                let sums = assign(lattice, [x, w], rounded * odd, &mut entries);
                let scale = rounded * odd;
                // The weights' own squares are omitted, because they are equal for all candidates.
                let error = scale * (scale * sums[1] - 2.0 * sums[0]);
                if error < least {
                    least = error;
                    fit = [odd * sums[0], odd * odd * sums[1]];
                    found.multiples[part] = multiple;
                    found.entries[part * groups..][..groups].copy_from_slice(&entries[..groups]);
                }
            }
            error += least;
            xg += fit[0];
            gg += fit[1];
        }
        if error < best_error {
            (best, best_error) = (found, error);
        }
        if gg <= 0.0 || xg <= 0.0 {
            break;
        }
        scale = xg / gg;
    }
    best
}

pub(super) fn iq2_xxs(x: &[f32], w: &[f32], block: &mut [u8]) {
    let coded = code(&IQ2_XXS, 32, Signs::Even, x, w);
    block[..2].copy_from_slice(&coded.scale.to_le_bytes());
    for part in 0..8 {
        for code in 0..4 {
            block[2 + 8 * part + code] = coded.entries[4 * part + code] as u8;
        }
        block[6 + 8 * part..][..4].copy_from_slice(&coded.sevens(part).to_le_bytes());
    }
}

pub(super) fn iq2_xs(x: &[f32], w: &[f32], block: &mut [u8]) {
    let coded = code(&IQ2_XS, 16, Signs::Even, x, w);
    block[..2].copy_from_slice(&coded.scale.to_le_bytes());
    for index in 0..32 {
        let pair = coded.entries[index] | u16::from(coded.signs[index] & 0x7f) << 9;
        block[2 + 2 * index..][..2].copy_from_slice(&pair.to_le_bytes());
    }
    coded.write_pairs(&mut block[66..74]);
}

pub(super) fn iq2_s(x: &[f32], w: &[f32], block: &mut [u8]) {
    let coded = code(&IQ2_S, 16, Signs::Any, x, w);
    block.fill(0);
    block[..2].copy_from_slice(&coded.scale.to_le_bytes());
    for index in 0..32 {
        block[2 + index] = coded.entries[index] as u8;
        block[66 + index / 4] |= ((coded.entries[index] >> 8) as u8) << (2 * (index % 4));
    }
    block[34..66].copy_from_slice(&coded.signs);
    coded.write_pairs(&mut block[74..82]);
}

pub(super) fn iq3_xxs(x: &[f32], w: &[f32], block: &mut [u8]) {
    let coded = code(&IQ3_XXS, 32, Signs::Even, x, w);
    block[..2].copy_from_slice(&coded.scale.to_le_bytes());
    for (byte, entry) in block[2..66].iter_mut().zip(coded.entries) {
        *byte = entry as u8;
    }
    for part in 0..8 {
        block[66 + 4 * part..][..4].copy_from_slice(&coded.sevens(part).to_le_bytes());
    }
}

pub(super) fn iq3_s(x: &[f32], w: &[f32], block: &mut [u8]) {
    let coded = code(&IQ3_S, 32, Signs::Any, x, w);
    block.fill(0);
    block[..2].copy_from_slice(&coded.scale.to_le_bytes());
    for (index, entry) in coded.entries.into_iter().enumerate() {
        block[2 + index] = entry as u8;
        block[66 + index / 8] |= ((entry >> 8) as u8) << (index % 8);
    }
    block[74..106].copy_from_slice(&coded.signs);
    coded.write_pairs(&mut block[106..110]);
}

impl Coded {
    /// Four groups of seven signs, and four bits of the multiple of a part of 32.
    fn sevens(&self, part: usize) -> u32 {
        let signs = &self.signs[4 * part..][..4];
        let word = signs
            .iter()
            .rev()
            .fold(0, |word, signs| word << 7 | u32::from(signs & 0x7f));
        word | u32::from(self.multiples[part]) << 28
    }

    /// Multiples of two parts in a byte.
    fn write_pairs(&self, bytes: &mut [u8]) {
        for (byte, pair) in bytes.iter_mut().zip(self.multiples.chunks_exact(2)) {
            *byte = pair[0] | pair[1] << 4;
        }
    }
}
