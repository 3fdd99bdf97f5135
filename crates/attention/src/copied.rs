//! Copies tokens from plane to plane, bit by bit.

use crate::format::{PlaneFormat, PlaneKind, check_head_dim, with_plane};
use crate::{AttendError, LANES, Plane, PlaneMut};

/// Copies the keys of `tokens` tokens from slot `from_slot` of a plane to slot `slot` of another plane of its format.
/// Both slots must be in the same lane of a stripe (`slot ≡ from_slot` modulo 16). Nothing is rounded; other tokens
/// keep their bits.
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
    copy(to, from, moved, head_dim, PlaneKind::Keys)
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
    copy(to, from, moved, head_dim, PlaneKind::Values)
}

/// Neighbouring tokens, with their first slot in either plane.
#[derive(Clone, Copy)]
struct Moved {
    slot: usize,
    from_slot: usize,
    tokens: usize,
}

fn copy(to: &mut PlaneMut, from: &Plane, moved: Moved, head_dim: usize, kind: PlaneKind) -> Result<(), AttendError> {
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
    with_plane!((to, from), F, to, from => {
        let len = F::plane_len(LANES, head_dim);
        runs(moved, |stripe, from_stripe, lanes| {
            let to = &mut to[stripe * len..][..lanes.stripes() * len];
            let from = &from[from_stripe * len..][..lanes.stripes() * len];
            match lanes {
                Lanes::Whole(_) => to.copy_from_slice(from),
                Lanes::Part { first, end } => F::copy(kind, to, from, first..end, head_dim),
            }
        });
    });
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

/// Calls `each` with the source stripe, the target stripe and the lanes to copy.
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

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::testing::noise;
    use crate::{Format, PlaneBuf, write_keys, write_values};

    const HEAD_DIM: usize = 48;
    const PAGE: usize = 64;
    const SOURCE_TOKENS: usize = 80;

    /// The tokens to copy, as keys or as values, in a format.
    #[derive(Debug, Clone, Copy)]
    struct Case {
        slot: usize,
        from_slot: usize,
        tokens: usize,
        keys: bool,
        format: Format,
    }

    /// Copies from a plane with all rows into one with other bytes, and compares with rows written directly.
    fn check(case: Case) {
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
        let mut found = PlaneBuf::filled(format, PAGE, HEAD_DIM, 0x5a);
        let mut expected = found.clone();
        let mut from = PlaneBuf::filled(format, SOURCE_TOKENS, HEAD_DIM, 0x5a);
        write(&mut from.plane_mut(), 0, SOURCE_TOKENS, &rows).unwrap();
        let rows = &rows[case.from_slot * HEAD_DIM..];
        write(&mut expected.plane_mut(), case.slot, case.tokens, rows).unwrap();
        copy(
            &mut found.plane_mut(),
            case.slot,
            &from.plane(),
            case.from_slot,
            case.tokens,
            HEAD_DIM,
        )
        .unwrap();
        assert_eq!(found, expected, "{case:?}");
    }

    #[test]
    fn copied_tokens_are_those_that_were_written_and_others_stay() {
        for (slot, from_slot, tokens) in [(0, 0, 64), (5, 5, 1), (7, 23, 40), (16, 32, 33), (3, 3, 0), (13, 29, 4)] {
            for keys in [true, false] {
                for format in Format::ALL {
                    check(Case {
                        slot,
                        from_slot,
                        tokens,
                        keys,
                        format,
                    });
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
