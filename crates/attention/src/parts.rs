//! Parts of a long cache that are attended to on their own, so that threads share it.
//!
//! Which part a key belongs to depends on its page and position alone: that of the first key of its block, by
//! [`PART_TOKENS`]. So no block lies in two parts, and a row's parts are the same whatever is attended beside it.

use crate::kernel::KEY_BLOCK;
use crate::partial::Sums;
use crate::{PageView, Partial, Span};

/// Positions a part.
pub(crate) const PART_TOKENS: usize = 4096;

/// The part under way of some rows.
#[derive(Debug, Default)]
pub(crate) struct PartUnderWay {
    /// Its number, once one has begun.
    number: Option<usize>,
    /// The rows' sums over it; `None` where they lie in the rows' own partial, which held nothing before.
    apart: Option<Partial>,
}

impl PartUnderWay {
    /// A part that was attended to apart.
    #[cfg(feature = "parallel")]
    pub(crate) fn apart(number: usize, partial: Partial) -> Self {
        Self {
            number: Some(number),
            apart: Some(partial),
        }
    }

    /// The footing of rows whose own partial is `whole`.
    pub(crate) fn footing(&self, whole: &Partial) -> Footing {
        Footing {
            number: self.number,
            apart: match self.number {
                Some(_) => self.apart.is_some(),
                None => !whole.is_empty(),
            },
        }
    }

    /// The parts of several jobs of equal footing, as one of all their rows.
    pub(crate) fn concatenated<'a>(mut parts: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let number = parts.clone().next().and_then(|part| part.number);
        let apart = parts.clone().all(|part| part.apart.is_some());
        let apart = apart.then(|| Partial::concatenated(parts.by_ref().filter_map(|part| part.apart.as_ref())));
        Self { number, apart }
    }

    /// Makes `to`, of the rows of the partial `whole`, what its rows are here from row `first` on.
    pub(crate) fn copy_rows(&self, first: usize, whole: &Partial, to: &mut Self) {
        to.number = self.number;
        match &self.apart {
            None => to.apart = None,
            Some(apart) => {
                let (rows, group, head_dim) = (whole.rows(), whole.group(), whole.head_dim());
                let to = to.apart.get_or_insert_with(|| Partial::new(rows, group, head_dim));
                apart.copy_rows(first, to);
            }
        }
    }

    /// Merges what was attended to apart.
    pub(crate) fn finish(&mut self, whole: &mut Sums) {
        if let Some(apart) = &self.apart {
            whole.merge(apart);
        }
        *self = Self::default();
    }
}

/// The position of rows in the order of parts: the same for rows that go on the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footing {
    number: Option<usize>,
    /// True if later tokens are summed apart from what the rows' own partial holds.
    apart: bool,
}

/// The sums that rows which are attended to in parts add their reads to.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) whole: Sums<'a>,
    pub(crate) now: &'a mut PartUnderWay,
    /// Rows, heads a row, and elements of a value.
    pub(crate) shape: (usize, usize, usize),
}

impl Parts<'_> {
    /// Goes on with a part: merges the one before it, unless it is the same.
    pub(crate) fn turn_to(&mut self, number: usize) {
        let (rows, group, value_dim) = self.shape;
        if self.now.number == Some(number) {
            return;
        }
        let first = self.now.number.replace(number).is_none();
        if first && self.whole.is_empty() {
            return;
        }
        match &mut self.now.apart {
            Some(apart) => {
                self.whole.merge(apart);
                apart.reset(rows, group, value_dim);
            }
            apart => *apart = Some(Partial::new(rows, group, value_dim)),
        }
    }

    /// The sums of the part under way.
    pub(crate) fn sums(&mut self) -> Sums<'_> {
        match &mut self.now.apart {
            Some(apart) => apart.sums(),
            None => {
                let Sums { m, l, o } = &mut self.whole;
                Sums { m, l, o }
            }
        }
    }
}

/// Part of the block that begins at `position`.
pub(crate) fn part_of(position: usize) -> usize {
    position / PART_TOKENS
}

/// The parts that a page lies in, ascending: their numbers, and which of the page's positions belong to each.
pub(crate) fn parts_of_page(page: &PageView) -> impl Iterator<Item = (usize, Span)> + use<> {
    let (start, end) = (page.start, page.start + page.tokens);
    let mut next = start;
    core::iter::from_fn(move || {
        (next < end).then(|| {
            let (first, number) = (next, part_of(next));
            // The first block that begins in a later part.
            let blocks = ((number + 1) * PART_TOKENS - start).div_ceil(KEY_BLOCK);
            next = (start + blocks * KEY_BLOCK).min(end);
            (number, Span::new(first, next))
        })
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::Plane;

    #[test]
    fn a_block_lies_in_the_part_of_its_first_key() {
        for (start, tokens) in [(0, 10_000), (4000, 300), (4000, 9000), (4095, 1), (8192, 4096), (77, 0)] {
            let page = PageView {
                start,
                tokens,
                keys: Plane::F32(&[]),
                values: Plane::F32(&[]),
            };
            let parts: Vec<_> = parts_of_page(&page).collect();
            let mut next = start;
            for (number, span) in &parts {
                assert_eq!(span.start, next);
                for block in (span.start..span.end).step_by(KEY_BLOCK) {
                    assert_eq!(part_of(block), *number, "block {block} of a page from {start}");
                }
                assert!((span.start - start).is_multiple_of(KEY_BLOCK));
                next = span.end;
            }
            assert_eq!(next, start + tokens);
            assert!(parts.is_sorted_by(|a, b| a.0 < b.0));
        }
    }
}
