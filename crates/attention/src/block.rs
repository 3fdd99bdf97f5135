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
    pub(crate) next: Next<'a>,
}

/// The memory that is read after a block.
#[derive(Clone, Copy)]
pub(crate) enum Next<'a> {
    /// Keys and values of the following block, after a block that is read whole.
    Following(Option<(Plane<'a>, Plane<'a>)>),
    /// The keys and the values that are read next, after a block that is read in part.
    Scattered([Runs<'a>; 2]),
}

/// Up to two runs of stripes.
pub(crate) type Runs<'a> = [Option<Plane<'a>>; 2];

impl<'a> Block<'a> {
    /// Keys and values of the following block.
    pub(crate) fn following(&self) -> Option<(Plane<'a>, Plane<'a>)> {
        match self.next {
            Next::Following(next) => next,
            Next::Scattered(_) => None,
        }
    }

    /// The keys and the values of the active stripes, on both sides of the largest gap between them.
    pub(crate) fn runs(&self, stripes: &[Slot], (key_dim, value_dim): (usize, usize)) -> [Runs<'a>; 2] {
        let gap = |at: &usize| stripes[*at].stripe - stripes[at - 1].stripe;
        let (first, rest) = stripes.split_at((1..stripes.len()).max_by_key(gap).unwrap_or(stripes.len()));
        let of = |plane, width| {
            [first, rest].map(|run| {
                let (begin, end) = (run.first()?.stripe, run.last()?.stripe + 1);
                Some(stripes_of(plane, begin * LANES, (end - begin) * LANES, width))
            })
        };
        let values = if self.is_latent {
            [None; 2]
        } else {
            of(self.values, value_dim)
        };
        [of(self.keys, key_dim), values]
    }
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
        next: Next::Following(None),
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

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn runs_cover_every_stripe_that_is_read() {
        let (keys, values) = (vec![0.0; 128 * 32], vec![0.0; 128 * 16]);
        let page = PageView {
            start: 0,
            tokens: 120,
            keys: Plane::F32(&keys),
            values: Plane::F32(&values),
        };
        let block = block_of(&page, 0, (32, 16));
        let places = |tokens: &[usize]| {
            let bits = tokens.iter().fold(0, |bits, token| bits | 1 << token);
            let mut stripes = [Slot::default(); STRIPES];
            let len = active(bits, block.span.len(), &mut stripes);
            let [of_keys, of_values] = block.runs(&stripes[..len], (32, 16));
            let place = |run: Option<Plane>, plane: &[f32], width: usize| {
                let Plane::F32(run) = run? else { return None };
                let first = (run.as_ptr() as usize - plane.as_ptr() as usize) / size_of::<f32>();
                Some([first / width / LANES, run.len() / width / LANES])
            };
            let of_keys = of_keys.map(|run| place(run, &keys, 32));
            assert_eq!(of_values.map(|run| place(run, &values, 16)), of_keys);
            of_keys
        };
        assert_eq!(places(&[]), [None, None]);
        assert_eq!(places(&[0, 15]), [Some([0, 1]), None]);
        assert_eq!(places(&[17, 40, 119]), [Some([1, 2]), Some([7, 1])]);
        assert_eq!(places(&[3, 35, 99]), [Some([0, 3]), Some([6, 1])]);
    }
}
