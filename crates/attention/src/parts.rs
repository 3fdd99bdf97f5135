//! Splits a long cache into parts that are attended to separately, so that threads share the work.
//!
//! A key's part depends on its page and position alone: the position of its block's first key, divided by
//! [`PART_TOKENS`]. So no block lies in two parts, and a row's parts do not depend on other rows.

use crate::kernel::KEY_BLOCK;
use crate::partial::Sums;
use crate::{PageView, Partial, Span};

/// Positions per part.
pub(crate) const PART_TOKENS: usize = 4096;

/// The unfinished part of some rows.
#[derive(Debug, Default)]
pub(crate) struct PartUnderWay {
    /// Number of the part; `None` before the first.
    number: Option<usize>,
    /// Sums over this part; `None` if they are in the rows' own partial, which was empty before.
    apart: Option<Partial>,
}

impl PartUnderWay {
    /// A part with its own sums.
    #[cfg(feature = "parallel")]
    pub(crate) fn apart(number: usize, partial: Partial) -> Self {
        Self {
            number: Some(number),
            apart: Some(partial),
        }
    }

    /// The state of rows whose own partial is `whole`.
    pub(crate) fn footing(&self, whole: &Partial) -> Footing {
        Footing {
            number: self.number,
            apart: match self.number {
                Some(_) => self.apart.is_some(),
                None => !whole.is_empty(),
            },
        }
    }

    /// The parts of several jobs in equal states, as one part of all their rows.
    pub(crate) fn concatenated<'a>(mut parts: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let number = parts.clone().next().and_then(|part| part.number);
        let apart = parts.clone().all(|part| part.apart.is_some());
        let apart = apart.then(|| Partial::concatenated(parts.by_ref().filter_map(|part| part.apart.as_ref())));
        Self { number, apart }
    }

    /// Copies the state of some rows, from row `first` on, to `to`; `whole` is the partial of these rows.
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

    /// Merges the separate sums.
    pub(crate) fn finish(&mut self, whole: &mut Sums) {
        if let Some(apart) = &self.apart {
            whole.merge(apart);
        }
        *self = Self::default();
    }
}

/// Position of rows in the order of parts. Rows with equal positions are continued together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footing {
    number: Option<usize>,
    /// True if later tokens are summed separately from the rows' own partial.
    apart: bool,
}

/// The sums of rows that attend in parts.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) whole: Sums<'a>,
    pub(crate) now: &'a mut PartUnderWay,
    /// Number of rows, heads of a row, and elements of a value.
    pub(crate) shape: (usize, usize, usize),
}

impl Parts<'_> {
    /// Continues with part `number`; merges the previous part if it is another.
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

    /// Sums of the unfinished part.
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

/// Number of the part of the block that begins at `position`.
pub(crate) fn part_of(position: usize) -> usize {
    position / PART_TOKENS
}

/// The parts that overlap a page, ascending: their numbers and positions.
pub(crate) fn parts_of_page(page: &PageView) -> impl Iterator<Item = (usize, Span)> + use<> {
    let (start, end) = (page.start, page.start + page.tokens);
    let mut next = start;
    core::iter::from_fn(move || {
        (next < end).then(|| {
            let (first, number) = (next, part_of(next));
            // The first block of a later part.
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
