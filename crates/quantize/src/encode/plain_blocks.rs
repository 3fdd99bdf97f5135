//! Blocks of 32 weights: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0; and floats.

use half::{bf16, f16};

use super::search::{best_line, best_scale, extreme, inverse, to_half, whole};

pub(super) fn f32(row: &[f32], output: &mut [u8]) {
    for (value, bytes) in row.iter().zip(output.as_chunks_mut().0) {
        *bytes = value.to_le_bytes();
    }
}

pub(super) fn f16(row: &[f32], output: &mut [u8]) {
    for (value, bytes) in row.iter().zip(output.as_chunks_mut().0) {
        *bytes = f16::from_f32(*value).to_le_bytes();
    }
}

pub(super) fn bf16(row: &[f32], output: &mut [u8]) {
    for (value, bytes) in row.iter().zip(output.as_chunks_mut().0) {
        *bytes = bf16::from_f32(*value).to_le_bytes();
    }
}

pub(super) fn q8_0(x: &[f32], _: &[f32], block: &mut [u8]) {
    let (scale, rounded) = to_half(extreme(x).abs() / 127.0);
    let inverse = inverse(rounded);
    block[..2].copy_from_slice(&scale.to_le_bytes());
    for (x, byte) in x.iter().zip(&mut block[2..]) {
        *byte = (whole(x * inverse, -127.0, 127.0) as i8).cast_unsigned();
    }
}

pub(super) fn q4_0(x: &[f32], w: &[f32], block: &mut [u8]) {
    let codes = centered(x, w, 8.0, block);
    write_nibbles(&codes, &mut block[2..]);
}

pub(super) fn q5_0(x: &[f32], w: &[f32], block: &mut [u8]) {
    let codes = centered(x, w, 16.0, block);
    write_fifth_bits(&codes, &mut block[2..6]);
    write_nibbles(&codes, &mut block[6..]);
}

pub(super) fn q4_1(x: &[f32], w: &[f32], block: &mut [u8]) {
    let codes = above_minimum(x, w, 15.0, block);
    write_nibbles(&codes, &mut block[4..]);
}

pub(super) fn q5_1(x: &[f32], w: &[f32], block: &mut [u8]) {
    let codes = above_minimum(x, w, 31.0, block);
    write_fifth_bits(&codes, &mut block[4..8]);
    write_nibbles(&codes, &mut block[8..]);
}

/// Codes around `center` with a scale at the beginning of the block.
fn centered(x: &[f32], w: &[f32], center: f32, block: &mut [u8]) -> [u8; 32] {
    let nearest = |value: f32| whole(value, -center, center - 1.0);
    let tops = tops(center);
    let (scale, rounded) = to_half(best_scale(x, w, &tops, nearest));
    block[..2].copy_from_slice(&scale.to_le_bytes());
    let inverse = inverse(rounded);
    core::array::from_fn(|index| (nearest(x[index] * inverse) + center) as u8)
}

/// Trial values of the largest magnitude, near both ends of the codes `-center` to `center - 1`.
pub(super) fn tops(center: f32) -> [f32; 20] {
    core::array::from_fn(|index| {
        let step = (index / 2) as f32;
        let end = if index % 2 == 0 { -center } else { center - 1.0 };
        end * (0.86 + 0.035 * step)
    })
}

/// Codes from 0 to `most`, with a scale and an offset at the beginning of the block.
fn above_minimum(x: &[f32], w: &[f32], most: f32, block: &mut [u8]) -> [u8; 32] {
    let line = best_line(x, w, most, false);
    let ((scale, scale_value), (offset, offset_value)) = (to_half(line.scale), to_half(-line.minimum));
    block[..2].copy_from_slice(&scale.to_le_bytes());
    block[2..4].copy_from_slice(&offset.to_le_bytes());
    let inverse = inverse(scale_value);
    core::array::from_fn(|index| whole((x[index] - offset_value) * inverse, 0.0, most) as u8)
}

/// Bytes of the low four bits of weights 0 to 15 and 16 to 31.
pub(super) fn write_nibbles(codes: &[u8; 32], bytes: &mut [u8]) {
    for (place, byte) in bytes[..16].iter_mut().enumerate() {
        *byte = codes[place] & 15 | codes[place + 16] << 4;
    }
}

fn write_fifth_bits(codes: &[u8; 32], bytes: &mut [u8]) {
    bytes.fill(0);
    for (index, code) in codes.iter().enumerate() {
        bytes[index / 8] |= (code >> 4 & 1) << (index % 8);
    }
}
