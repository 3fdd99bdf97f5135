//! Rows of quantised planes, one token each: a row is `[head_dim]`.

use crate::format::QUANT_BLOCK;
use crate::half::{f16_to_f32, f32_to_f16};
use crate::{Format, LANES};

pub(super) fn write_key_q8(data: &mut [u8], slot: usize, row: &[f32]) {
    let (mut data, lane) = (key_stripe_mut(data, Format::Q8_0, row.len(), slot), slot % LANES);
    for block in row.chunks(QUANT_BLOCK) {
        let (head, rest) = data.split_at_mut(2 * LANES + LANES * block.len());
        data = rest;
        let (scale, inverse) = scale_q8(block);
        head[2 * lane..][..2].copy_from_slice(&scale.to_le_bytes());
        for (d, value) in block.iter().enumerate() {
            let byte = (quant_q8(*value, inverse) as u8) ^ 0x80;
            head[2 * LANES + (d / 4) * 4 * LANES + lane * 4 + d % 4] = byte;
        }
    }
}

pub(super) fn write_key_q4(data: &mut [u8], slot: usize, row: &[f32]) {
    let (mut data, lane) = (key_stripe_mut(data, Format::Q4_0, row.len(), slot), slot % LANES);
    for block in row.chunks(QUANT_BLOCK) {
        let (head, rest) = data.split_at_mut(2 * LANES + LANES * block.len() / 2);
        data = rest;
        let (scale, inverse) = scale_q4(block);
        head[2 * lane..][..2].copy_from_slice(&scale.to_le_bytes());
        for (g, eight) in block.chunks_exact(8).enumerate() {
            for b in 0..4 {
                let low = quant_q4(eight[b], inverse);
                let high = quant_q4(eight[b + 4], inverse);
                head[2 * LANES + g * 4 * LANES + lane * 4 + b] = low | (high << 4);
            }
        }
    }
}

pub(super) fn write_value_q8(data: &mut [u8], slot: usize, row: &[f32]) {
    let (scales, mut bytes) = value_stripe_mut(data, Format::Q8_0, row.len(), slot);
    let lane = slot % LANES;
    for (b, block) in row.chunks(QUANT_BLOCK).enumerate() {
        let (scale, inverse) = scale_q8(block);
        scales[2 * (b * LANES + lane)..][..2].copy_from_slice(&scale.to_le_bytes());
        let (fours, rest) = bytes.split_at_mut(LANES * block.len());
        bytes = rest;
        let columns = fours[lane / 4 * 4 * block.len()..].chunks_exact_mut(4);
        for (column, value) in columns.zip(block) {
            column[lane % 4] = (quant_q8(*value, inverse) as u8) ^ 0x80;
        }
    }
}

pub(super) fn write_value_q4(data: &mut [u8], slot: usize, row: &[f32]) {
    let (scales, mut bytes) = value_stripe_mut(data, Format::Q4_0, row.len(), slot);
    let lane = slot % LANES;
    let high = lane % 8 >= 4;
    for (b, block) in row.chunks(QUANT_BLOCK).enumerate() {
        let (scale, inverse) = scale_q4(block);
        scales[2 * (b * LANES + lane)..][..2].copy_from_slice(&scale.to_le_bytes());
        let (eights, rest) = bytes.split_at_mut(LANES / 2 * block.len());
        bytes = rest;
        let columns = eights[lane / 8 * 4 * block.len()..].chunks_exact_mut(4);
        for (column, value) in columns.zip(block) {
            let nibble = quant_q4(*value, inverse);
            let byte = &mut column[lane % 4];
            *byte = if high {
                (*byte & 15) | (nibble << 4)
            } else {
                (*byte & 0xf0) | nibble
            };
        }
    }
}

pub(super) fn read_key_q8(data: &[u8], slot: usize, row: &mut [f32]) {
    let (mut data, lane) = (key_stripe(data, Format::Q8_0, row.len(), slot), slot % LANES);
    for block in row.chunks_mut(QUANT_BLOCK) {
        let (head, rest) = data.split_at(2 * LANES + LANES * block.len());
        data = rest;
        let scale = scale_at(head, lane);
        for (d, value) in block.iter_mut().enumerate() {
            let byte = head[2 * LANES + (d / 4) * 4 * LANES + lane * 4 + d % 4];
            *value = f32::from((byte ^ 0x80) as i8) * scale;
        }
    }
}

pub(super) fn read_key_q4(data: &[u8], slot: usize, row: &mut [f32]) {
    let (mut data, lane) = (key_stripe(data, Format::Q4_0, row.len(), slot), slot % LANES);
    for block in row.chunks_mut(QUANT_BLOCK) {
        let (head, rest) = data.split_at(2 * LANES + LANES * block.len() / 2);
        data = rest;
        let scale = scale_at(head, lane);
        for (d, value) in block.iter_mut().enumerate() {
            let byte = head[2 * LANES + (d / 8) * 4 * LANES + lane * 4 + d % 4];
            *value = nibble(byte, d % 8 >= 4) * scale;
        }
    }
}

pub(super) fn read_value_q8(data: &[u8], slot: usize, row: &mut [f32]) {
    let (scales, mut bytes) = value_stripe(data, Format::Q8_0, row.len(), slot);
    let lane = slot % LANES;
    for (b, block) in row.chunks_mut(QUANT_BLOCK).enumerate() {
        let scale = scale_at(scales, b * LANES + lane);
        let (fours, rest) = bytes.split_at(LANES * block.len());
        bytes = rest;
        let columns = fours[lane / 4 * 4 * block.len()..].chunks_exact(4);
        for (value, column) in block.iter_mut().zip(columns) {
            *value = f32::from((column[lane % 4] ^ 0x80) as i8) * scale;
        }
    }
}

pub(super) fn read_value_q4(data: &[u8], slot: usize, row: &mut [f32]) {
    let (scales, mut bytes) = value_stripe(data, Format::Q4_0, row.len(), slot);
    let lane = slot % LANES;
    for (b, block) in row.chunks_mut(QUANT_BLOCK).enumerate() {
        let scale = scale_at(scales, b * LANES + lane);
        let (eights, rest) = bytes.split_at(LANES / 2 * block.len());
        bytes = rest;
        let columns = eights[lane / 8 * 4 * block.len()..].chunks_exact(4);
        for (value, column) in block.iter_mut().zip(columns) {
            *value = nibble(column[lane % 4], lane % 8 >= 4) * scale;
        }
    }
}

/// The token's stripe of keys.
fn key_stripe(data: &[u8], format: Format, head_dim: usize, slot: usize) -> &[u8] {
    let len = format.plane_len(LANES, head_dim);
    &data[slot / LANES * len..][..len]
}

fn key_stripe_mut(data: &mut [u8], format: Format, head_dim: usize, slot: usize) -> &mut [u8] {
    let len = format.plane_len(LANES, head_dim);
    &mut data[slot / LANES * len..][..len]
}

/// Scales `[blocks, 16]` and bytes of the token's stripe.
fn value_stripe(data: &[u8], format: Format, head_dim: usize, slot: usize) -> (&[u8], &[u8]) {
    let len = format.plane_len(LANES, head_dim);
    data[slot / LANES * len..][..len].split_at(2 * LANES * head_dim.div_ceil(QUANT_BLOCK))
}

fn value_stripe_mut(data: &mut [u8], format: Format, head_dim: usize, slot: usize) -> (&mut [u8], &mut [u8]) {
    let len = format.plane_len(LANES, head_dim);
    data[slot / LANES * len..][..len].split_at_mut(2 * LANES * head_dim.div_ceil(QUANT_BLOCK))
}

fn scale_at(scales: &[u8], index: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([scales[2 * index], scales[2 * index + 1]]))
}

fn nibble(byte: u8, high: bool) -> f32 {
    f32::from((if high { byte >> 4 } else { byte & 15 }) as i8 - 8)
}

/// The f16 scale and the inverse of its rounded value, so that integers fit the scale as stored.
fn scale_q8(block: &[f32]) -> (u16, f32) {
    let largest = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    finish_scale(largest / 127.0)
}

/// The element of largest magnitude maps to −8, as in GGUF's Q4_0.
fn scale_q4(block: &[f32]) -> (u16, f32) {
    let largest = block.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
    finish_scale(largest / -8.0)
}

fn finish_scale(scale: f32) -> (u16, f32) {
    let bits = f32_to_f16(scale);
    let rounded = f16_to_f32(bits);
    (bits, if rounded == 0.0 { 0.0 } else { 1.0 / rounded })
}

fn quant_q8(value: f32, inverse: f32) -> i8 {
    round(value * inverse).clamp(-127.0, 127.0) as i8
}

fn quant_q4(value: f32, inverse: f32) -> u8 {
    (round(value * inverse) + 8.0).clamp(0.0, 15.0) as u8
}

/// To nearest, ties to even, for |x| < 2^22; `f32::round` is not in `core`.
fn round(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC) - MAGIC
}
