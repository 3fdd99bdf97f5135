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

mod quantised;

use alloc::vec;
use alloc::vec::Vec;

use crate::format::check_head_dim;
use crate::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::kernel::{Bf16, F16, FetchRows, Pack, StripeRows};
use crate::simd::Level;
use crate::{AttendError, LANES, Plane, PlaneMut, Rows};

/// Writes keys into a page, converting to the plane's format.
///
/// `source` is row-major, `[tokens, head_dim]` with `source_stride` elements from token to token: a slice of f32, or [`Rows`] of
/// f32, f16 or bf16. Its first token goes to slot `first_token_in_page`. The plane's own length bounds how many tokens fit.
/// Bits of f16 and bf16 that go to a plane of the same format stay as they are.
///
/// ```
/// use riffle_attention::*;
///
/// // Two keys of head_dim 16 out of a tensor [tokens, 4 heads, 16] of bf16: the keys of head 3.
/// let tensor = vec![0x3f80u16; 2 * 4 * 16];
/// let mut plane = vec![0.0; Format::F32.plane_len(16, 16)];
/// write_keys(&mut PlaneMut::F32(&mut plane), 16, 0, 2, Rows::Bf16(&tensor[3 * 16..]), 4 * 16)?;
/// // Dimension 0 of keys 0 and 1, then dimension 1 of both: the page's stripe is interleaved.
/// assert_eq!((plane[0], plane[1], plane[2], plane[16]), (1.0, 1.0, 0.0, 1.0));
/// # Ok::<(), AttendError>(())
/// ```
///
/// # Errors
/// A head dimension that is not a multiple of 16, a plane or a source that is too short.
pub fn write_keys<'s>(
    plane: &mut PlaneMut,
    head_dim: usize,
    first_token_in_page: usize,
    tokens: usize,
    source: impl Into<Rows<'s>>,
    source_stride: usize,
) -> Result<(), AttendError> {
    let source = source.into();
    check_copy(
        &plane.as_plane(),
        head_dim,
        first_token_in_page,
        tokens,
        source.len(),
        source_stride,
    )?;
    let mut widened = Vec::new();
    let mut t = 0;
    while t < tokens {
        let slot = first_token_in_page + t;
        let rows = source.skip(t * source_stride);
        if let PlaneMut::F32(data) = plane
            && slot.is_multiple_of(LANES)
            && tokens - t >= LANES
        {
            let stripe = &mut data[slot * head_dim..][..LANES * head_dim];
            write_stripe(stripe, rows, source_stride);
            t += LANES;
            continue;
        }
        match (&mut *plane, rows) {
            (PlaneMut::F16(data), Rows::F16(rows)) | (PlaneMut::Bf16(data), Rows::Bf16(rows)) => {
                write_lane(data, slot, &rows[..head_dim], |bits| bits);
            }
            (plane, rows) => write_key(plane, slot, rows.widened(head_dim, &mut widened)),
        }
        t += 1;
    }
    Ok(())
}

/// Writes 16 keys, `[16, head_dim]` with `stride` elements from one to the next, into a whole stripe of f32.
fn write_stripe(stripe: &mut [f32], source: Rows, stride: usize) {
    let (level, head_dim) = (Level::best(), stripe.len() / LANES);
    let keys = match source {
        Rows::F32(source) => return write_f32_stripe(stripe, source, stride),
        Rows::F16(keys) | Rows::Bf16(keys) => keys,
    };
    let rows: [&[u16]; LANES] = core::array::from_fn(|lane| &keys[lane * stride..][..head_dim]);
    let (rows, out) = (&rows[..], stripe);
    match source {
        Rows::Bf16(_) => level.run(StripeRows::<Bf16> { rows, head_dim, out }),
        _ => level.run(StripeRows::<F16> { rows, head_dim, out }),
    }
}

fn write_f32_stripe(stripe: &mut [f32], source: &[f32], stride: usize) {
    let (level, head_dim) = (Level::best(), stripe.len() / LANES);
    level.run(FetchRows {
        data: source.get(2 * LANES * stride..).unwrap_or_default(),
        stride,
        width: head_dim,
        rows: LANES,
    });
    let rows: [&[f32]; LANES] = core::array::from_fn(|lane| &source[lane * stride..][..head_dim]);
    level.run(Pack {
        rows: &rows,
        scale: 1.0,
        out: stripe.as_chunks_mut::<LANES>().0,
    });
}

fn write_key(plane: &mut PlaneMut, slot: usize, row: &[f32]) {
    match plane {
        PlaneMut::F32(data) => write_lane(data, slot, row, |value| value),
        PlaneMut::F16(data) => write_lane(data, slot, row, f32_to_f16),
        PlaneMut::Bf16(data) => write_lane(data, slot, row, f32_to_bf16),
        PlaneMut::Q8_0(data) => quantised::write_key_q8(data, slot, row),
        PlaneMut::Q4_0(data) => quantised::write_key_q4(data, slot, row),
    }
}

/// Writes a key into its lane of a stripe of floats.
#[inline]
fn write_lane<T, F: Copy>(data: &mut [T], slot: usize, row: &[F], convert: impl Fn(F) -> T) {
    let (stripe, lane, len) = (slot / LANES, slot % LANES, LANES * row.len());
    for (out, value) in data[stripe * len..][..len].chunks_exact_mut(LANES).zip(row) {
        out[lane] = convert(*value);
    }
}

/// Writes values into a page, converting to the plane's format. Arguments and errors as for [`write_keys`].
///
/// # Errors
/// As [`write_keys`].
pub fn write_values<'s>(
    plane: &mut PlaneMut,
    head_dim: usize,
    first_token_in_page: usize,
    tokens: usize,
    source: impl Into<Rows<'s>>,
    source_stride: usize,
) -> Result<(), AttendError> {
    let source = source.into();
    check_copy(
        &plane.as_plane(),
        head_dim,
        first_token_in_page,
        tokens,
        source.len(),
        source_stride,
    )?;
    let mut widened = Vec::new();
    for t in 0..tokens {
        if let Rows::F32(source) = source
            && t % LANES == 0
        {
            Level::best().run(FetchRows {
                data: source.get((t + 2 * LANES) * source_stride..).unwrap_or_default(),
                stride: source_stride,
                width: head_dim,
                rows: LANES,
            });
        }
        let slot = first_token_in_page + t;
        match (&mut *plane, source.skip(t * source_stride)) {
            (PlaneMut::F16(data), Rows::F16(row)) | (PlaneMut::Bf16(data), Rows::Bf16(row)) => {
                data[slot * head_dim..][..head_dim].copy_from_slice(&row[..head_dim]);
            }
            (plane, row) => write_value(plane, slot, row.widened(head_dim, &mut widened)),
        }
    }
    Ok(())
}

fn write_value(plane: &mut PlaneMut, slot: usize, row: &[f32]) {
    let at = slot * row.len();
    match plane {
        PlaneMut::F32(data) => data[at..][..row.len()].copy_from_slice(row),
        PlaneMut::F16(data) => {
            for (out, value) in data[at..][..row.len()].iter_mut().zip(row) {
                *out = f32_to_f16(*value);
            }
        }
        PlaneMut::Bf16(data) => {
            for (out, value) in data[at..][..row.len()].iter_mut().zip(row) {
                *out = f32_to_bf16(*value);
            }
        }
        PlaneMut::Q8_0(data) => quantised::write_value_q8(data, slot, row),
        PlaneMut::Q4_0(data) => quantised::write_value_q4(data, slot, row),
    }
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
        let (row, slot) = (&mut out[t * out_stride..][..head_dim], first_token_in_page + t);
        match plane {
            Plane::F32(data) => read_lane(data, slot, row, |value| value),
            Plane::F16(data) => read_lane(data, slot, row, f16_to_f32),
            Plane::Bf16(data) => read_lane(data, slot, row, bf16_to_f32),
            Plane::Q8_0(data) => quantised::read_key_q8(data, slot, row),
            Plane::Q4_0(data) => quantised::read_key_q4(data, slot, row),
        }
    }
    Ok(())
}

/// Reads a key out of its lane of a stripe of floats.
#[inline]
fn read_lane<T: Copy>(data: &[T], slot: usize, row: &mut [f32], convert: impl Fn(T) -> f32) {
    let (stripe, lane, len) = (slot / LANES, slot % LANES, LANES * row.len());
    for (value, lanes) in row.iter_mut().zip(data[stripe * len..][..len].chunks_exact(LANES)) {
        *value = convert(lanes[lane]);
    }
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
        let (row, slot) = (&mut out[t * out_stride..][..head_dim], first_token_in_page + t);
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
            Plane::Q8_0(data) => quantised::read_value_q8(data, slot, row),
            Plane::Q4_0(data) => quantised::read_value_q4(data, slot, row),
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
