//! Blocks of 256 weights with codes of a ternary grid, shifted up or down by an eighth: IQ1_S, IQ1_M.

use std::sync::LazyLock;

use riffle_linear::WeightFormat;

use super::lattice::Lattice;
use super::search::{extreme, inverse, round, to_half};

/// Entries to compare for a cell.
const NEAR: usize = 24;
/// The shift of an entry's values.
const SHIFT: f32 = 0.125;
/// Number of refits of the scale of the scales.
const ROUNDS: usize = 3;
/// Trial values of the largest magnitude of a part.
const TOPS: [f32; 10] = [1.0, 1.1, 1.25, 1.4, 1.6, 1.8, 2.1, 2.5, 3.0, 0.9];
const LARGEST_MULTIPLE: u8 = 7;

static GRID: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(WeightFormat::Iq1S, 8.0, NEAR));

/// Codes of a part: an entry and a shift for every eight weights.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    entries: [u16; 4],
    is_down: [bool; 4],
    /// `Σ w·x·v` and `Σ w·v²` of the values chosen.
    xv: f32,
    vv: f32,
}

impl Part {
    /// The squared error with `scale`, less the weights' own squares.
    fn error(&self, scale: f32) -> f32 {
        scale * (scale * self.vv - 2.0 * self.xv)
    }
}

/// Number of groups of eight that share a shift.
#[derive(Clone, Copy, PartialEq)]
enum Shifts {
    OfParts,
    OfEights,
}

/// Codes of a part at a scale.
fn assign([x, w]: [&[f32]; 2], scale: f32, shifts: Shifts) -> Part {
    let [up, down] = [SHIFT, -SHIFT].map(|shift| shifted([x, w], scale, shift));
    let sum = |eights: &[Eight; 4]| {
        let mut part = Part::default();
        for (index, eight) in eights.iter().enumerate() {
            part.entries[index] = eight.entry;
            part.is_down[index] = eight.is_down;
            part.xv += eight.xv;
            part.vv += eight.vv;
        }
        part
    };
    match shifts {
        Shifts::OfParts => {
            let (up, down) = (sum(&up), sum(&down));
            if up.error(scale) <= down.error(scale) { up } else { down }
        }
        Shifts::OfEights => sum(&core::array::from_fn(|index| {
            let error = |eight: &Eight| scale * (scale * eight.vv - 2.0 * eight.xv);
            if error(&up[index]) <= error(&down[index]) {
                up[index]
            } else {
                down[index]
            }
        })),
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Eight {
    entry: u16,
    is_down: bool,
    xv: f32,
    vv: f32,
}

/// The nearest entries of up to four groups of eight with one shift.
fn shifted([x, w]: [&[f32]; 2], scale: f32, shift: f32) -> [Eight; 4] {
    let inverse = inverse(scale);
    let mut eights = [Eight::default(); 4];
    let groups = x.as_chunks::<8>().0.iter().zip(w.as_chunks::<8>().0);
    for ((x, w), eight) in groups.zip(&mut eights) {
        eight.entry = GRID.nearest(&x.map(|x| x * inverse - shift), w);
        eight.is_down = shift < 0.0;
        for (lane, value) in GRID.entry(eight.entry).iter().enumerate() {
            let value = value + shift;
            eight.xv += w[lane] * x[lane] * value;
            eight.vv += w[lane] * value * value;
        }
    }
    eights
}

/// The scale with the least error for a part.
fn part_scale(weights: [&[f32]; 2], shifts: Shifts) -> f32 {
    let largest = extreme(weights[0]).abs();
    if inverse(largest) == 0.0 {
        return 0.0;
    }
    let (mut best, mut scale) = (0.0, 0.0);
    let mut consider = |tried: f32| {
        let part = assign(weights, tried, shifts);
        let gain = if part.vv > 0.0 && part.xv > 0.0 {
            part.xv * part.xv / part.vv
        } else {
            0.0
        };
        if gain > best {
            best = gain;
            scale = part.xv / part.vv;
        }
        scale
    };
    let mut found = 0.0;
    for top in TOPS {
        found = consider(largest / top);
    }
    consider(found)
}

/// The scale of a block; each part's multiple and codes.
type Coded = (half::f16, [(u8, Part); 16]);

fn code(x: &[f32], w: &[f32], width: usize, shifts: Shifts) -> Coded {
    let parts = || x.chunks_exact(width).zip(w.chunks_exact(width)).enumerate();
    let mut scales = [0.0; 16];
    for (part, (x, w)) in parts() {
        scales[part] = part_scale([x, w], shifts);
    }
    let mut scale = extreme(&scales) / f32::from(2 * LARGEST_MULTIPLE + 1);
    let mut best: Coded = (half::f16::ZERO, Default::default());
    let mut best_error = f32::INFINITY;
    for _ in 0..ROUNDS {
        let (half, rounded) = to_half(scale);
        let mut found: Coded = (half, Default::default());
        let (mut error, mut xv, mut vv) = (0.0, 0.0, 0.0);
        for (index, (x, w)) in parts() {
            let middle = round((scales[index] * inverse(rounded) - 1.0) / 2.0);
            let middle = middle.clamp(0.0, f32::from(LARGEST_MULTIPLE)) as u8;
            let mut least = f32::INFINITY;
            for multiple in middle.saturating_sub(1)..=(middle + 1).min(LARGEST_MULTIPLE) {
                let scale = rounded * f32::from(2 * multiple + 1);
                let part = assign([x, w], scale, shifts);
                if part.error(scale) < least {
                    least = part.error(scale);
                    found.1[index] = (multiple, part);
                }
            }
            error += least;
            let (multiple, part) = &found.1[index];
            let odd = f32::from(2 * multiple + 1);
            xv += odd * part.xv;
            vv += odd * odd * part.vv;
        }
        if error < best_error {
            (best, best_error) = (found, error);
        }
        if vv <= 0.0 || xv <= 0.0 {
            break;
        }
        scale = xv / vv;
    }
    best
}

pub(super) fn iq1_s(x: &[f32], w: &[f32], block: &mut [u8]) {
    let (scale, parts) = code(x, w, 32, Shifts::OfParts);
    block[..2].copy_from_slice(&scale.to_le_bytes());
    for (index, (multiple, part)) in parts[..8].iter().enumerate() {
        let mut word = u16::from(*multiple) << 12 | u16::from(part.is_down[0]) << 15;
        for (place, entry) in part.entries.iter().enumerate() {
            block[2 + 4 * index + place] = *entry as u8;
            word |= (entry >> 8) << (3 * place);
        }
        block[34 + 2 * index..][..2].copy_from_slice(&word.to_le_bytes());
    }
}

pub(super) fn iq1_m(x: &[f32], w: &[f32], block: &mut [u8]) {
    let (scale, parts) = code(x, w, 16, Shifts::OfEights);
    block.fill(0);
    let mut words = [0u16; 4];
    for (index, (multiple, part)) in parts.iter().enumerate() {
        words[index / 4] |= u16::from(*multiple) << (3 * (index % 4));
        for place in 0..2 {
            let (entry, eight) = (part.entries[place], 2 * index + place);
            block[eight] = entry as u8;
            let four = (entry >> 8) as u8 | u8::from(part.is_down[place]) << 3;
            block[32 + eight / 2] |= four << (4 * (eight % 2));
        }
    }
    // The top bits of the words of multiples contain the block's scale.
    let bits = scale.to_bits();
    for (index, word) in words.iter_mut().enumerate() {
        *word |= (bits >> (4 * index) & 15) << 12;
        block[48 + 2 * index..][..2].copy_from_slice(&word.to_le_bytes());
    }
}
