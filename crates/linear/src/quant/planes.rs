//! Quants of 256 weights in planes of 32 bytes: byte `p` of a plane holds bits of weight `p` of several stretches.

use super::expanded::{Expanded, words};
use super::{Quant, STRETCH};

/// Stretches of a block of 256.
pub(crate) const STRETCHES: usize = 8;

/// Some bits of the quants of a stretch: `(byte & mask) >> shift` of a plane's bytes, or `<< -shift`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlanePiece {
    pub(crate) plane: usize,
    pub(crate) mask: u8,
    pub(crate) shift: i32,
}

/// The pieces of each stretch; a quant is the sum of its pieces.
pub(crate) type Pieces = [[Option<PlanePiece>; 3]; STRETCHES];

pub(crate) const NONE: Pieces = [[None; 3]; STRETCHES];

impl PlanePiece {
    #[inline(always)]
    pub(crate) fn of(self, byte: u8) -> u8 {
        let bits = byte & self.mask;
        if self.shift < 0 {
            bits << -self.shift
        } else {
            bits >> self.shift
        }
    }

    /// Inverse of unpacking: the byte whose bits of this piece become `quant`.
    #[inline(always)]
    fn back(self, quant: u8) -> u8 {
        let bits = if self.shift < 0 {
            quant >> -self.shift
        } else {
            quant << self.shift
        };
        bits & self.mask
    }
}

pub(crate) const fn piece(plane: usize, mask: u8, shift: i32) -> Option<PlanePiece> {
    Some(PlanePiece { plane, mask, shift })
}

/// Quants of 2 or 4 bits side by side in the planes from `first` on; earlier stretches have the lower bits.
pub(crate) const fn side_by_side(first: usize, bits: usize) -> Pieces {
    let mut pieces = NONE;
    let mut stretch = 0;
    while stretch < STRETCHES {
        let place = stretch * bits % 8;
        pieces[stretch][0] = piece(first + stretch * bits / 8, ((1 << bits) - 1) << place, place as i32);
        stretch += 1;
    }
    pieces
}

/// Unpacks the quants of a stretch of 16 rows.
#[inline(always)]
pub(crate) fn quants<Q: Quant>(block: &[u8], stretch: usize, expanded: &mut Expanded) {
    for group in 0..STRETCH / 4 {
        let [first, second, third] = Q::PIECES[stretch];
        let bytes =
            |piece: Option<PlanePiece>| words(block, Q::PLANES, 8 * piece.map_or(0, |piece| piece.plane) + group);
        let bits = |piece: Option<PlanePiece>, byte: u8| piece.map_or(0, |piece| piece.of(byte));
        let (a, b, c) = (bytes(first), bytes(second), bytes(third));
        expanded.set(group, |lane| {
            bits(first, a[lane]) | bits(second, b[lane]) | bits(third, c[lane])
        });
    }
}

/// Writes the planes of a row's block whose quants are `quant(stretch, place)`.
pub(crate) fn write<Q: Quant>(planes: &mut [u8], quant: impl Fn(usize, usize) -> u8) {
    planes.fill(0);
    for (stretch, pieces) in Q::PIECES.iter().enumerate() {
        for piece in pieces.iter().flatten() {
            let plane = &mut planes[STRETCH * piece.plane..][..STRETCH];
            for (place, byte) in plane.iter_mut().enumerate() {
                *byte |= piece.back(quant(stretch, place));
            }
        }
    }
}

/// The quant of a row's block at `place` of `stretch`.
pub(crate) fn read<Q: Quant>(planes: &[u8], stretch: usize, place: usize) -> u8 {
    let pieces = Q::PIECES[stretch].iter().flatten();
    pieces.fold(0, |quant, piece| {
        quant | piece.of(planes[STRETCH * piece.plane + place])
    })
}
