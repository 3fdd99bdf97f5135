//! Where an element lies in a plane.
//!
//! Keys of 16 tokens form a *stripe*, interleaved so that one vector load covers the same dimension
//! of 16 keys: `[tokens / 16, head_dim, 16]`. Values stay row-major: `[tokens, head_dim]`.
//!
//! Quantised stripes, with blocks of 32 along `head_dim` (the last may be 16 wide):
//! - `q8_0` keys, per block: 16 f16 scales, then `[width / 4, 16, 4]` bytes with an offset of 128;
//! - `q4_0` keys, per block: 16 f16 scales, then `[width / 8, 16, 4]` bytes, whose low nibbles are
//!   dimensions 0..4 of the eight and whose high nibbles are 4..8, with an offset of 8;
//! - `q8_0` values, per stripe: `[blocks, 16]` f16 scales, then per block `[4, width, 4]` bytes (four
//!   tokens together) with an offset of 128;
//! - `q4_0` values, per stripe: as many scales, then per block `[2, width, 4]` bytes, whose low nibbles are
//!   the first four tokens of the eight and whose high nibbles the other four, with an offset of 8.

use alloc::vec;

use crate::format::{QUANT_BLOCK, check_head_dim};
use crate::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::kernel::{FetchRows, Pack};
use crate::simd::Level;
use crate::{AttendError, Format, LANES, Plane, PlaneMut};

/// Writes keys into a page, converting from f32.
///
/// `source` is `[tokens, head_dim]` with `source_stride` elements from token to token; the first goes
/// to slot `first_token_in_page`. The plane's own length bounds how many tokens fit.
///
/// # Errors
/// A head dimension that is not a multiple of 16, a plane or a source that is too short.
pub fn write_keys(
    plane: &mut PlaneMut,
    head_dim: usize,
    first_token_in_page: usize,
    tokens: usize,
    source: &[f32],
    source_stride: usize,
) -> Result<(), AttendError> {
    check_copy(
        &plane.as_plane(),
        head_dim,
        first_token_in_page,
        tokens,
        source.len(),
        source_stride,
    )?;
    let level = Level::best();
    let mut t = 0;
    while t < tokens {
        let slot = first_token_in_page + t;
        let (stripe, lane) = (slot / LANES, slot % LANES);
        if let PlaneMut::F32(data) = plane
            && lane == 0
            && tokens - t >= LANES
        {
            level.run(FetchRows {
                data: source.get((t + 2 * LANES) * source_stride..).unwrap_or_default(),
                stride: source_stride,
                width: head_dim,
                rows: LANES,
            });
            let rows: [&[f32]; LANES] = core::array::from_fn(|lane| &source[(t + lane) * source_stride..][..head_dim]);
            level.run(Pack {
                rows: &rows,
                scale: 1.0,
                out: data[stripe * LANES * head_dim..][..LANES * head_dim]
                    .as_chunks_mut::<LANES>()
                    .0,
            });
            t += LANES;
            continue;
        }
        let row = &source[t * source_stride..][..head_dim];
        t += 1;
        match plane {
            PlaneMut::F32(data) => {
                let data = &mut data[stripe * LANES * head_dim..][..LANES * head_dim];
                for (out, value) in data.chunks_exact_mut(LANES).zip(row) {
                    out[lane] = *value;
                }
            }
            PlaneMut::F16(data) => {
                let data = &mut data[stripe * LANES * head_dim..][..LANES * head_dim];
                for (out, value) in data.chunks_exact_mut(LANES).zip(row) {
                    out[lane] = f32_to_f16(*value);
                }
            }
            PlaneMut::Bf16(data) => {
                let data = &mut data[stripe * LANES * head_dim..][..LANES * head_dim];
                for (out, value) in data.chunks_exact_mut(LANES).zip(row) {
                    out[lane] = f32_to_bf16(*value);
                }
            }
            PlaneMut::Q8_0(data) => {
                let len = Format::Q8_0.plane_len(LANES, head_dim);
                let mut data = &mut data[stripe * len..][..len];
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
            PlaneMut::Q4_0(data) => {
                let len = Format::Q4_0.plane_len(LANES, head_dim);
                let mut data = &mut data[stripe * len..][..len];
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
        }
    }
    Ok(())
}

/// Writes values into a page, converting from f32. Arguments and errors as for [`write_keys`].
///
/// # Errors
/// As [`write_keys`].
pub fn write_values(
    plane: &mut PlaneMut,
    head_dim: usize,
    first_token_in_page: usize,
    tokens: usize,
    source: &[f32],
    source_stride: usize,
) -> Result<(), AttendError> {
    check_copy(
        &plane.as_plane(),
        head_dim,
        first_token_in_page,
        tokens,
        source.len(),
        source_stride,
    )?;
    for t in 0..tokens {
        if t % LANES == 0 {
            Level::best().run(FetchRows {
                data: source.get((t + 2 * LANES) * source_stride..).unwrap_or_default(),
                stride: source_stride,
                width: head_dim,
                rows: LANES,
            });
        }
        let row = &source[t * source_stride..][..head_dim];
        let slot = first_token_in_page + t;
        let lane = slot % LANES;
        match plane {
            PlaneMut::F32(data) => data[slot * head_dim..][..head_dim].copy_from_slice(row),
            PlaneMut::F16(data) => {
                for (out, value) in data[slot * head_dim..][..head_dim].iter_mut().zip(row) {
                    *out = f32_to_f16(*value);
                }
            }
            PlaneMut::Bf16(data) => {
                for (out, value) in data[slot * head_dim..][..head_dim].iter_mut().zip(row) {
                    *out = f32_to_bf16(*value);
                }
            }
            PlaneMut::Q8_0(data) => {
                let (scales, mut bytes) = value_stripe_mut(data, Format::Q8_0, head_dim, slot);
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
            PlaneMut::Q4_0(data) => {
                let (scales, mut bytes) = value_stripe_mut(data, Format::Q4_0, head_dim, slot);
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
        }
    }
    Ok(())
}

/// Reads keys back as f32: the exact values every kernel attends to.
///
/// `out` is `[tokens, head_dim]` with `out_stride` elements from token to token.
///
/// # Errors
/// As [`write_keys`], with `out` in the place of the source.
pub fn read_keys(
    plane: &Plane,
    head_dim: usize,
    first_token_in_page: usize,
    tokens: usize,
    out: &mut [f32],
    out_stride: usize,
) -> Result<(), AttendError> {
    check_copy(plane, head_dim, first_token_in_page, tokens, out.len(), out_stride)?;
    for t in 0..tokens {
        let row = &mut out[t * out_stride..][..head_dim];
        let slot = first_token_in_page + t;
        let (stripe, lane) = (slot / LANES, slot % LANES);
        match plane {
            Plane::F32(data) => {
                let data = &data[stripe * LANES * head_dim..][..LANES * head_dim];
                for (value, lanes) in row.iter_mut().zip(data.chunks_exact(LANES)) {
                    *value = lanes[lane];
                }
            }
            Plane::F16(data) => {
                let data = &data[stripe * LANES * head_dim..][..LANES * head_dim];
                for (value, lanes) in row.iter_mut().zip(data.chunks_exact(LANES)) {
                    *value = f16_to_f32(lanes[lane]);
                }
            }
            Plane::Bf16(data) => {
                let data = &data[stripe * LANES * head_dim..][..LANES * head_dim];
                for (value, lanes) in row.iter_mut().zip(data.chunks_exact(LANES)) {
                    *value = bf16_to_f32(lanes[lane]);
                }
            }
            Plane::Q8_0(data) => {
                let len = Format::Q8_0.plane_len(LANES, head_dim);
                let mut data = &data[stripe * len..][..len];
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
            Plane::Q4_0(data) => {
                let len = Format::Q4_0.plane_len(LANES, head_dim);
                let mut data = &data[stripe * len..][..len];
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
        }
    }
    Ok(())
}

/// Reads values back as f32. Arguments and errors as for [`read_keys`].
///
/// # Errors
/// As [`read_keys`].
pub fn read_values(
    plane: &Plane,
    head_dim: usize,
    first_token_in_page: usize,
    tokens: usize,
    out: &mut [f32],
    out_stride: usize,
) -> Result<(), AttendError> {
    check_copy(plane, head_dim, first_token_in_page, tokens, out.len(), out_stride)?;
    for t in 0..tokens {
        let row = &mut out[t * out_stride..][..head_dim];
        let slot = first_token_in_page + t;
        let lane = slot % LANES;
        match plane {
            Plane::F32(data) => row.copy_from_slice(&data[slot * head_dim..][..head_dim]),
            Plane::F16(data) => {
                for (value, bits) in row.iter_mut().zip(&data[slot * head_dim..]) {
                    *value = f16_to_f32(*bits);
                }
            }
            Plane::Bf16(data) => {
                for (value, bits) in row.iter_mut().zip(&data[slot * head_dim..]) {
                    *value = bf16_to_f32(*bits);
                }
            }
            Plane::Q8_0(data) => {
                let (scales, mut bytes) = value_stripe(data, Format::Q8_0, head_dim, slot);
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
            Plane::Q4_0(data) => {
                let (scales, mut bytes) = value_stripe(data, Format::Q4_0, head_dim, slot);
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
        }
    }
    Ok(())
}

/// One key as f32, `[head_dim]`.
pub(crate) fn key_at(plane: &Plane, head_dim: usize, slot: usize) -> alloc::vec::Vec<f32> {
    let mut row = vec![0.0; head_dim];
    read_keys(plane, head_dim, slot, 1, &mut row, head_dim).expect("slot lies in a checked plane");
    row
}

/// One value as f32, `[head_dim]`.
pub(crate) fn value_at(plane: &Plane, head_dim: usize, slot: usize) -> alloc::vec::Vec<f32> {
    let mut row = vec![0.0; head_dim];
    read_values(plane, head_dim, slot, 1, &mut row, head_dim).expect("slot lies in a checked plane");
    row
}

fn check_copy(
    plane: &Plane,
    head_dim: usize,
    first_token: usize,
    tokens: usize,
    rows_len: usize,
    stride: usize,
) -> Result<(), AttendError> {
    check_head_dim(head_dim)?;
    let too_large = AttendError::TooLarge { what: "token range" };
    let end = first_token.checked_add(tokens).ok_or(too_large.clone())?;
    if end > plane.len() {
        return Err(AttendError::Short {
            what: "plane",
            needed: end,
            found: plane.len(),
        });
    }
    plane.check("plane", end, head_dim)?;
    if tokens == 0 {
        return Ok(());
    }
    if stride < head_dim && tokens > 1 {
        return Err(AttendError::Mismatch {
            what: "row stride and head_dim",
            expected: head_dim,
            found: stride,
        });
    }
    let needed = (tokens - 1).checked_mul(stride).and_then(|n| n.checked_add(head_dim));
    let needed = needed.ok_or(too_large)?;
    if rows_len < needed {
        return Err(AttendError::Short {
            what: "row-major slice",
            needed,
            found: rows_len,
        });
    }
    Ok(())
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

pub(crate) fn scale_at(scales: &[u8], index: usize) -> f32 {
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
