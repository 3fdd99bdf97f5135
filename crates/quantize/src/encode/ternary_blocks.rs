//! Blocks of one and two bits per weight: TQ1_0, TQ2_0, Q1_0, Q2_0.

use super::search::{best_scale, inverse, to_half, whole};

/// Trial values of the largest magnitude, from equal magnitudes to a few outliers.
const TERNARY_TOPS: [f32; 12] = [1.0, 0.75, 0.9, 1.1, 1.25, 1.4, 1.6, 1.8, 2.1, 2.5, 3.0, 4.0];

/// Writes the scale of a block at `at`, and its codes 0, 1 and 2.
fn ternary(x: &[f32], w: &[f32], block: &mut [u8], at: usize) -> [u8; 256] {
    let nearest = |value: f32| whole(value, -1.0, 1.0);
    let (scale, rounded) = to_half(best_scale(x, w, &TERNARY_TOPS, nearest).abs());
    block.fill(0);
    block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
    let inverse = inverse(rounded);
    core::array::from_fn(|index| (nearest(x[index] * inverse) + 1.0) as u8)
}

pub(super) fn tq1_0(x: &[f32], w: &[f32], block: &mut [u8]) {
    let codes = ternary(x, w, block, 52);
    // Five digits to base 3 in a byte, four in the last four bytes.
    for (byte, to) in block[..52].iter_mut().enumerate() {
        let digits = |index: usize| match index {
            0..32 => [0, 1, 2, 3, 4].map(|digit| Some(index + 32 * digit)),
            32..48 => [0, 1, 2, 3, 4].map(|digit| Some(160 + index - 32 + 16 * digit)),
            _ => [0, 1, 2, 3, 4].map(|digit| (digit < 4).then(|| 240 + index - 48 + 4 * digit)),
        };
        let number = digits(byte).into_iter().fold(0u32, |number, index| {
            3 * number + index.map_or(0, |at| u32::from(codes[at]))
        });
        // 256/243 of the number, rounded up, so that the high byte of three times the byte is the first digit.
        *to = (number * 256).div_ceil(243) as u8;
    }
}

pub(super) fn tq2_0(x: &[f32], w: &[f32], block: &mut [u8]) {
    let codes = ternary(x, w, block, 64);
    for index in 0..256 {
        block[32 * (index / 128) + index % 32] |= codes[index] << (2 * (index / 32 % 4));
    }
}

pub(super) fn q1_0(x: &[f32], w: &[f32], block: &mut [u8]) {
    let sums = x
        .iter()
        .zip(w)
        .fold((0.0, 0.0), |(sum, all), (x, w)| (sum + w * x.abs(), all + w));
    let (scale, _) = to_half(if sums.1 > 0.0 { sums.0 / sums.1 } else { 0.0 });
    block.fill(0);
    block[..2].copy_from_slice(&scale.to_le_bytes());
    for (index, x) in x.iter().enumerate() {
        block[2 + index / 8] |= u8::from(*x >= 0.0) << (index % 8);
    }
}

pub(super) fn q2_0(x: &[f32], w: &[f32], block: &mut [u8]) {
    let nearest = |value: f32| whole(value, -1.0, 2.0);
    let tops: [f32; 24] = core::array::from_fn(|index| {
        let top = 0.9 + 0.15 * (index / 2) as f32;
        if index % 2 == 0 { top } else { -top }
    });
    let (scale, rounded) = to_half(best_scale(x, w, &tops, nearest));
    block.fill(0);
    block[..2].copy_from_slice(&scale.to_le_bytes());
    let inverse = inverse(rounded);
    for (index, x) in x.iter().enumerate() {
        block[2 + index / 4] |= ((nearest(x * inverse) + 1.0) as u8) << (2 * (index % 4));
    }
}
