//! Tokens from plane to plane, bit by bit.

use crate::format::{QUANT_BLOCK, check_head_dim};
use crate::{AttendError, Format, LANES, Plane, PlaneMut};

/// Copies the keys of `tokens` tokens from slot `from_slot` of a plane to slot `slot` of another of its format, where both lie
/// in the same lane of a stripe (`slot ≡ from_slot` modulo 16). Nothing is rounded, other tokens stay as they are.
///
/// # Errors
/// Formats or lanes that differ, a plane that is too short, a head dimension that is not a multiple of 16.
pub fn copy_keys(
    to: &mut PlaneMut,
    slot: usize,
    from: &Plane,
    from_slot: usize,
    tokens: usize,
    head_dim: usize,
) -> Result<(), AttendError> {
    let moved = Moved {
        slot,
        from_slot,
        tokens,
    };
    copy(to, from, moved, head_dim, CopiedPlane::Keys)
}

/// Copies values as [`copy_keys`] copies keys.
///
/// # Errors
/// As [`copy_keys`].
pub fn copy_values(
    to: &mut PlaneMut,
    slot: usize,
    from: &Plane,
    from_slot: usize,
    tokens: usize,
    head_dim: usize,
) -> Result<(), AttendError> {
    let moved = Moved {
        slot,
        from_slot,
        tokens,
    };
    copy(to, from, moved, head_dim, CopiedPlane::Values)
}

/// Neighbouring tokens and where they begin in either plane.
#[derive(Clone, Copy)]
struct Moved {
    slot: usize,
    from_slot: usize,
    tokens: usize,
}

/// Whose layout two planes have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CopiedPlane {
    Keys,
    Values,
}

fn copy(to: &mut PlaneMut, from: &Plane, moved: Moved, head_dim: usize, kind: CopiedPlane) -> Result<(), AttendError> {
    let Moved {
        slot,
        from_slot,
        tokens,
    } = moved;
    check_head_dim(head_dim)?;
    from.check("copied tokens", from_slot.saturating_add(tokens), head_dim)?;
    to.as_plane().check("a page", slot.saturating_add(tokens), head_dim)?;
    if to.as_plane().format() != from.format() || slot % LANES != from_slot % LANES {
        return Err(AttendError::Setting {
            what: "tokens are copied between planes of one format, from lane to the same lane",
        });
    }
    let format = from.format();
    match (to, from) {
        (PlaneMut::F32(to), Plane::F32(from)) => floats(to, from, moved, head_dim, kind),
        (PlaneMut::F16(to), Plane::F16(from)) | (PlaneMut::Bf16(to), Plane::Bf16(from)) => {
            floats(to, from, moved, head_dim, kind);
        }
        (PlaneMut::Q8_0(to), Plane::Q8_0(from)) | (PlaneMut::Q4_0(to), Plane::Q4_0(from)) => {
            let len = format.plane_len(LANES, head_dim);
            runs(moved, |stripe, from_stripe, lanes| {
                let to = &mut to[stripe * len..][..lanes.stripes() * len];
                let from = &from[from_stripe * len..][..lanes.stripes() * len];
                match lanes {
                    Lanes::Whole(_) => to.copy_from_slice(from),
                    Lanes::Part { first, end } => {
                        for lane in first..end {
                            quantised_lane(to, from, format, head_dim, lane, kind);
                        }
                    }
                }
            });
        }
        _ => {}
    }
    Ok(())
}

/// Neighbouring tokens: whole stripes, or lanes `first..end` of one.
#[derive(Clone, Copy)]
enum Lanes {
    Whole(usize),
    Part { first: usize, end: usize },
}

impl Lanes {
    fn stripes(self) -> usize {
        match self {
            Self::Whole(stripes) => stripes,
            Self::Part { .. } => 1,
        }
    }
}

/// Calls `each` with the stripes on both sides, and what of them is copied.
fn runs(moved: Moved, mut each: impl FnMut(usize, usize, Lanes)) {
    let Moved {
        slot,
        from_slot,
        tokens,
    } = moved;
    let mut done = 0;
    while done < tokens {
        let first = (slot + done) % LANES;
        let left = tokens - done;
        let lanes = if first == 0 && left >= LANES {
            Lanes::Whole(left / LANES)
        } else {
            Lanes::Part {
                first,
                end: (first + left).min(LANES),
            }
        };
        each((slot + done) / LANES, (from_slot + done) / LANES, lanes);
        done += match lanes {
            Lanes::Whole(stripes) => stripes * LANES,
            Lanes::Part { first, end } => end - first,
        };
    }
}

fn floats<T: Copy>(to: &mut [T], from: &[T], moved: Moved, head_dim: usize, kind: CopiedPlane) {
    if kind == CopiedPlane::Values {
        let values = moved.tokens * head_dim;
        to[moved.slot * head_dim..][..values].copy_from_slice(&from[moved.from_slot * head_dim..][..values]);
        return;
    }
    let len = LANES * head_dim;
    runs(moved, |stripe, from_stripe, lanes| {
        let to = &mut to[stripe * len..][..lanes.stripes() * len];
        let from = &from[from_stripe * len..][..lanes.stripes() * len];
        match lanes {
            Lanes::Whole(_) => to.copy_from_slice(from),
            Lanes::Part { first, end } => {
                for (to, from) in to.chunks_exact_mut(LANES).zip(from.chunks_exact(LANES)) {
                    to[first..end].copy_from_slice(&from[first..end]);
                }
            }
        }
    });
}

/// One token of a quantised stripe; where its bytes lie says `layout.rs`.
fn quantised_lane(to: &mut [u8], from: &[u8], format: Format, head_dim: usize, lane: usize, kind: CopiedPlane) {
    let is_8_bit = format == Format::Q8_0;
    let blocks = head_dim.div_ceil(QUANT_BLOCK);
    let mut take = |at: usize, bytes: usize| to[at..at + bytes].copy_from_slice(&from[at..at + bytes]);
    if kind == CopiedPlane::Keys {
        let mut at = 0;
        for block in 0..blocks {
            let width = (head_dim - block * QUANT_BLOCK).min(QUANT_BLOCK);
            let groups = if is_8_bit { width / 4 } else { width / 8 };
            take(at + 2 * lane, 2);
            for group in 0..groups {
                take(at + 2 * LANES + group * 4 * LANES + 4 * lane, 4);
            }
            at += 2 * LANES + groups * 4 * LANES;
        }
        return;
    }
    let mut at = 2 * LANES * blocks;
    for block in 0..blocks {
        take(2 * LANES * block + 2 * lane, 2);
    }
    for block in 0..blocks {
        let width = (head_dim - block * QUANT_BLOCK).min(QUANT_BLOCK);
        let (together, bytes) = if is_8_bit {
            (4, LANES * width)
        } else {
            (8, LANES / 2 * width)
        };
        let mask = match (is_8_bit, lane % 8 < 4) {
            (true, _) => 0xff,
            (false, true) => 0x0f,
            (false, false) => 0xf0,
        };
        for d in 0..width {
            let place = at + lane / together * 4 * width + 4 * d + lane % 4;
            to[place] = to[place] & !mask | from[place] & mask;
        }
        at += bytes;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::testing::noise;
    use crate::{write_keys, write_values};

    const HEAD_DIM: usize = 48;
    const PAGE: usize = 64;
    const SOURCE_TOKENS: usize = 80;

    fn halves(format: Format, bytes: &mut [u16]) -> PlaneMut<'_> {
        match format {
            Format::F16 => PlaneMut::F16(bytes),
            _ => PlaneMut::Bf16(bytes),
        }
    }

    fn bytes(format: Format, bytes: &mut [u8]) -> PlaneMut<'_> {
        match format {
            Format::Q8_0 => PlaneMut::Q8_0(bytes),
            _ => PlaneMut::Q4_0(bytes),
        }
    }

    /// Which tokens are copied, as keys or as values, in which format.
    #[derive(Debug, Clone, Copy)]
    struct Case {
        slot: usize,
        from_slot: usize,
        tokens: usize,
        keys: bool,
        format: Format,
    }

    /// Copies out of a plane that holds all rows into one that holds `mark`, and compares with rows written there.
    fn check<T: Copy + PartialEq + core::fmt::Debug>(case: Case, mark: T, plane: fn(Format, &mut [T]) -> PlaneMut<'_>) {
        let Case { format, keys, .. } = case;
        let rows = noise(3, SOURCE_TOKENS * HEAD_DIM);
        let write = |plane: &mut PlaneMut, slot, tokens, rows: &[f32]| {
            if keys {
                write_keys(plane, HEAD_DIM, slot, tokens, rows, HEAD_DIM)
            } else {
                write_values(plane, HEAD_DIM, slot, tokens, rows, HEAD_DIM)
            }
        };
        let copy = if keys { copy_keys } else { copy_values };
        let mut found = vec![mark; format.plane_len(PAGE, HEAD_DIM)];
        let mut expected = found.clone();
        let mut from = vec![mark; format.plane_len(SOURCE_TOKENS, HEAD_DIM)];
        let mut from = plane(format, &mut from);
        write(&mut from, 0, SOURCE_TOKENS, &rows).unwrap();
        let rows = &rows[case.from_slot * HEAD_DIM..];
        let mut written = plane(format, &mut expected);
        write(&mut written, case.slot, case.tokens, rows).unwrap();
        let mut copied = plane(format, &mut found);
        let from = from.as_plane();
        copy(&mut copied, case.slot, &from, case.from_slot, case.tokens, HEAD_DIM).unwrap();
        assert_eq!(found, expected, "{case:?}");
    }

    #[test]
    fn copied_tokens_are_those_that_were_written_and_others_stay() {
        for (slot, from_slot, tokens) in [(0, 0, 64), (5, 5, 1), (7, 23, 40), (16, 32, 33), (3, 3, 0), (13, 29, 4)] {
            for keys in [true, false] {
                let case = |format| Case {
                    slot,
                    from_slot,
                    tokens,
                    keys,
                    format,
                };
                for format in [Format::F16, Format::Bf16] {
                    check(case(format), 0x3a5a, halves);
                }
                for format in [Format::Q8_0, Format::Q4_0] {
                    check(case(format), 0x5a, bytes);
                }
            }
        }
    }

    #[test]
    fn planes_that_do_not_go_together_are_refused() {
        let (mut to, from) = (vec![0.0; 16 * 16], vec![0.0; 16 * 16]);
        let mut to = PlaneMut::F32(&mut to);
        assert!(copy_keys(&mut to, 0, &Plane::F32(&from), 1, 2, 16).is_err());
        assert!(copy_keys(&mut to, 8, &Plane::F32(&from), 8, 9, 16).is_err());
        assert!(copy_values(&mut to, 0, &Plane::Q8_0(&[0; 400]), 0, 1, 16).is_err());
    }
}
