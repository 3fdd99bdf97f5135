//! Blocks of 256 weights with scales of scales: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.

use super::plain_blocks::tops;
use super::search::{inverse, whole};
use super::super_block::{Lines, lines, signed_scales};

pub(super) fn q2_k(x: &[f32], w: &[f32], block: &mut [u8]) {
    let lines = lines([x, w], 16, 3.0, 15.0);
    block.fill(0);
    for (part, [scale, minimum]) in lines.multiples.into_iter().enumerate() {
        block[part] = scale | minimum << 4;
    }
    for_codes(x, &lines, 16, 3.0, |index, code| {
        block[16 + 32 * (index / 128) + index % 32] |= code << (2 * (index / 32 % 4));
    });
    block[80..82].copy_from_slice(&lines.scale.to_le_bytes());
    block[82..84].copy_from_slice(&lines.minimum.to_le_bytes());
}

pub(super) fn q4_k(x: &[f32], w: &[f32], block: &mut [u8]) {
    let lines = lines([x, w], 32, 15.0, 63.0);
    block.fill(0);
    write_lines(&lines, block);
    for_codes(x, &lines, 32, 15.0, |index, code| {
        block[16 + 32 * (index / 64) + index % 32] |= code << (4 * (index / 32 % 2));
    });
}

pub(super) fn q5_k(x: &[f32], w: &[f32], block: &mut [u8]) {
    let lines = lines([x, w], 32, 31.0, 63.0);
    block.fill(0);
    write_lines(&lines, block);
    for_codes(x, &lines, 32, 31.0, |index, code| {
        block[48 + 32 * (index / 64) + index % 32] |= (code & 15) << (4 * (index / 32 % 2));
        block[16 + index % 32] |= (code >> 4) << (index / 32);
    });
}

/// Calls `write` with every weight's index and code.
fn for_codes(x: &[f32], lines: &Lines, width: usize, most: f32, mut write: impl FnMut(usize, u8)) {
    for (part, x) in x.chunks_exact(width).enumerate() {
        let line = lines.of(part);
        let inverse = inverse(line.scale);
        for (place, x) in x.iter().enumerate() {
            write(part * width + place, line.code(*x, inverse, most) as u8);
        }
    }
}

/// Writes scale, minimum and eight pairs of six bits at the beginning of a block.
fn write_lines(lines: &Lines, block: &mut [u8]) {
    block[..2].copy_from_slice(&lines.scale.to_le_bytes());
    block[2..4].copy_from_slice(&lines.minimum.to_le_bytes());
    let pairs = &mut block[4..16];
    for (part, [scale, minimum]) in lines.multiples[..8].iter().copied().enumerate() {
        if part < 4 {
            pairs[part] |= scale;
            pairs[part + 4] |= minimum;
        } else {
            pairs[part + 4] = scale & 15 | minimum << 4;
            pairs[part - 4] |= (scale >> 4) << 6;
            pairs[part] |= (minimum >> 4) << 6;
        }
    }
}

pub(super) fn q3_k(x: &[f32], w: &[f32], block: &mut [u8]) {
    let nearest = |value: f32| whole(value, -4.0, 3.0);
    let scales = signed_scales([x, w], 16, [-32.0, 31.0], &tops(4.0), nearest);
    block.fill(0);
    for (part, x) in x.chunks_exact(16).enumerate() {
        let six = (scales.multiples[part] + 32) as u8;
        block[96 + part % 8] |= (six & 15) << (4 * (part / 8));
        block[104 + part % 4] |= (six >> 4) << (2 * (part / 4));
        let inverse = inverse(scales.of(part));
        for (place, x) in x.iter().enumerate() {
            let index = 16 * part + place;
            let code = (nearest(x * inverse) + 4.0) as u8;
            block[32 + 32 * (index / 128) + index % 32] |= (code & 3) << (2 * (index / 32 % 4));
            block[index % 32] |= (code >> 2) << (index / 32);
        }
    }
    block[108..110].copy_from_slice(&scales.scale.to_le_bytes());
}

pub(super) fn q6_k(x: &[f32], w: &[f32], block: &mut [u8]) {
    let nearest = |value: f32| whole(value, -32.0, 31.0);
    let scales = signed_scales([x, w], 16, [-128.0, 127.0], &tops(32.0), nearest);
    block.fill(0);
    for (part, x) in x.chunks_exact(16).enumerate() {
        block[192 + part] = (scales.multiples[part] as i8).cast_unsigned();
        let inverse = inverse(scales.of(part));
        for (place, x) in x.iter().enumerate() {
            let index = 16 * part + place;
            let (half, quarter) = (index / 128, index / 32 % 4);
            let code = (nearest(x * inverse) + 32.0) as u8;
            block[64 * half + 32 * (quarter % 2) + index % 32] |= (code & 15) << (4 * (quarter / 2));
            block[128 + 32 * half + index % 32] |= (code >> 4) << (2 * quarter);
        }
    }
    block[208..210].copy_from_slice(&scales.scale.to_le_bytes());
}
