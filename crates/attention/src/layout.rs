//! Writes tokens from rows into planes, and reads them back.
//!
//! Keys of 16 tokens form a *stripe*, interleaved so that one vector load covers the same dimension of 16 keys.
//! Values stay row-major. Each format defines its bit layout (`format/`).

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::format::{PlaneFormat, PlaneKind, check_head_dim, with_plane};
use crate::kernel::FetchRows;
use crate::simd::Level;
use crate::{AttendError, LANES, Plane, PlaneMut, Rows};

/// Writes keys into a page, converting to the plane's format.
///
/// `source` is row-major, `[tokens, head_dim]` with `source_stride` elements from token to token: a slice of f32, or
/// [`Rows`] of f32, f16 or bf16. Its first token goes to slot `first_token_in_page`. The plane's length limits the
/// number of tokens. If source and plane are both f16 or both bf16, bits are copied unchanged.
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
    let slots = first_token_in_page..first_token_in_page.saturating_add(tokens);
    write(PlaneKind::Keys, plane, head_dim, slots, source.into(), source_stride)
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
    let slots = first_token_in_page..first_token_in_page.saturating_add(tokens);
    write(PlaneKind::Values, plane, head_dim, slots, source.into(), source_stride)
}

/// Writes tokens into `slots`.
fn write(
    kind: PlaneKind,
    plane: &mut PlaneMut,
    head_dim: usize,
    slots: Range<usize>,
    source: Rows<'_>,
    stride: usize,
) -> Result<(), AttendError> {
    check_copy(&plane.as_plane(), head_dim, &slots, source.len(), stride)?;
    let mut buffer = Vec::new();
    with_plane!(PlaneMut plane, F, data => {
        let mut slot = slots.start;
        while slot < slots.end {
            let rows = source.skip((slot - slots.start) * stride);
            let is_whole = slot.is_multiple_of(LANES) && slots.end - slot >= LANES;
            if kind == PlaneKind::Keys && is_whole {
                let len = F::plane_len(LANES, head_dim);
                if F::write_stripe(&mut data[slot / LANES * len..][..len], rows, stride) {
                    slot += LANES;
                    continue;
                }
            }
            if kind == PlaneKind::Values && (slot - slots.start).is_multiple_of(LANES) {
                fetch_after(rows, stride, head_dim);
            }
            F::write(kind, data, slot, rows.first(head_dim), &mut buffer);
            slot += 1;
        }
    });
    Ok(())
}

/// Prefetches the rows after the next 16 of a tensor of f32.
fn fetch_after(rows: Rows<'_>, stride: usize, width: usize) {
    if let Rows::F32(rows) = rows {
        Level::best().run(FetchRows {
            data: rows.get(2 * LANES * stride..).unwrap_or_default(),
            stride,
            width,
            rows: LANES,
        });
    }
}

/// Reads keys back as f32: the exact values every kernel attends to.
///
/// `out` is `[tokens, head_dim]` with `out_stride` elements from token to token.
///
/// # Errors
/// As [`write_keys`], with `out` in place of the source.
pub fn read_keys(
    plane: &Plane,
    head_dim: usize,
    first_token_in_page: usize,
    tokens: usize,
    out: &mut [f32],
    out_stride: usize,
) -> Result<(), AttendError> {
    let slots = first_token_in_page..first_token_in_page.saturating_add(tokens);
    read(PlaneKind::Keys, plane, head_dim, slots, out, out_stride)
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
    let slots = first_token_in_page..first_token_in_page.saturating_add(tokens);
    read(PlaneKind::Values, plane, head_dim, slots, out, out_stride)
}

fn read(
    kind: PlaneKind,
    plane: &Plane,
    head_dim: usize,
    slots: Range<usize>,
    out: &mut [f32],
    stride: usize,
) -> Result<(), AttendError> {
    check_copy(plane, head_dim, &slots, out.len(), stride)?;
    with_plane!(Plane plane, F, data => {
        for slot in slots.clone() {
            F::read(kind, data, slot, &mut out[(slot - slots.start) * stride..][..head_dim]);
        }
    });
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

/// Checks that a plane has room for `slots` tokens, and that a row-major slice holds as many rows.
fn check_copy(
    plane: &Plane,
    head_dim: usize,
    slots: &Range<usize>,
    rows_len: usize,
    stride: usize,
) -> Result<(), AttendError> {
    check_head_dim(head_dim)?;
    let (end, tokens) = (slots.end, slots.len());
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
    let needed = needed.ok_or(AttendError::TooLarge { what: "token range" })?;
    if rows_len < needed {
        return Err(AttendError::Short {
            what: "row-major slice",
            needed,
            found: rows_len,
        });
    }
    Ok(())
}
