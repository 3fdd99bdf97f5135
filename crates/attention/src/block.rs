//! Blocks of keys: their memory within a page's planes, and their active stripes.

use alloc::vec::Vec;

use crate::kernel::{KEY_BLOCK, STRIPES, Slot};
use crate::{LANES, PageView, Plane, Span};

/// A block of keys of one page.
pub(crate) struct Block<'a> {
    pub(crate) span: Span,
    pub(crate) keys: Plane<'a>,
    /// Values; for a latent page, the keys.
    pub(crate) values: Plane<'a>,
    pub(crate) is_latent: bool,
    /// Keys and values of the next block.
    pub(crate) next: Option<(Plane<'a>, Plane<'a>)>,
}

/// Finds the stripes that contain a set bit.
pub(crate) fn active(bits: u128, tokens: usize, slots: &mut [Slot; STRIPES]) -> usize {
    let mut len = 0;
    for stripe in 0..STRIPES {
        if (bits >> (stripe * LANES)) as u16 != 0 {
            slots[len] = Slot {
                stripe,
                tokens: (tokens - stripe * LANES).min(LANES),
            };
            len += 1;
        }
    }
    len
}

/// All bits of the slots' stripes.
pub(crate) fn whole(slots: &[Slot]) -> u128 {
    slots
        .iter()
        .fold(0, |bits, slot| bits | (0xffff << (slot.stripe * LANES)))
}

/// Block number `block` of a page, for these key and value widths.
pub(crate) fn block_of<'a>(page: &PageView<'a>, block: usize, (key_dim, value_dim): (usize, usize)) -> Block<'a> {
    let first = block * KEY_BLOCK;
    let tokens = (page.tokens - first).min(KEY_BLOCK);
    let (keys, is_latent) = (stripes_of(page.keys, first, tokens, key_dim), page.is_latent());
    Block {
        span: Span::new(page.start + first, page.start + first + tokens),
        keys,
        values: if is_latent {
            keys
        } else {
            stripes_of(page.values, first, tokens, value_dim)
        },
        is_latent,
        next: None,
    }
}

/// Whole stripes of a plane that hold `tokens` from `first`, a multiple of 16.
pub(crate) fn stripes_of(plane: Plane, first: usize, tokens: usize, head_dim: usize) -> Plane {
    let format = plane.format();
    let begin = format.plane_len(first, head_dim);
    let end = begin + format.plane_len(tokens.next_multiple_of(LANES), head_dim);
    plane.slice(begin..end)
}

/// Aligns `len` elements to a cache line, so that no vector straddles two lines.
pub(crate) fn aligned(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len + LANES {
        buffer.resize(len + LANES, 0.0);
    }
    let skip = buffer.as_ptr().align_offset(64).min(LANES);
    &mut buffer[skip..skip + len]
}
