use crate::format::check_head_dim;
use crate::{AttendError, Rows, Span};

/// Consecutive tokens of one KV head in another engine's cache: keys and values lie row by row.
///
/// Key `t` is `keys[t * stride..][..head_dim]`, and value `t` likewise.
#[derive(Debug, Clone, Copy)]
pub struct RowPage<'a> {
    /// Absolute position of the first token.
    pub start: usize,
    /// Valid tokens.
    pub tokens: usize,
    /// Keys, from the first token's first element on.
    pub keys: Rows<'a>,
    /// Values, likewise.
    pub values: Rows<'a>,
    /// Elements from one token to the next, in both.
    pub stride: usize,
}

/// The K and V of one KV head, row by row: pages sorted by start, gaps allowed, all keys in one format and all values in one.
#[derive(Debug, Clone, Copy)]
pub struct RowView<'a> {
    /// Elements of one key or value, a multiple of 16.
    pub head_dim: usize,
    /// Pages sorted by their absolute start. [`BlockCache::pages`](crate::BlockCache::pages) makes them from a block table.
    pub pages: &'a [RowPage<'a>],
}

/// Pages without a gap between them: what a page is where blocks of keys are cut.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) span: Span,
    pub(super) pages: &'a [RowPage<'a>],
}

impl<'a> RowView<'a> {
    /// Runs of pages without a gap, ascending.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run<'a>> + use<'a> {
        let mut rest = self.pages;
        core::iter::from_fn(move || {
            let first = rest.first()?;
            let mut end = first.start;
            let len = rest
                .iter()
                .take_while(|page| {
                    let goes_on = page.start == end;
                    end = page.start + page.tokens;
                    goes_on
                })
                .count();
            let (pages, later) = rest.split_at(len);
            rest = later;
            let last = pages.last()?;
            Some(Run {
                span: Span::new(first.start, last.start + last.tokens),
                pages,
            })
        })
    }

    pub(super) fn check(&self) -> Result<(), AttendError> {
        check_head_dim(self.head_dim)?;
        let mut end = 0;
        for page in self.pages {
            if page.start < end {
                return Err(AttendError::PageOrder { start: page.start });
            }
            let too_large = AttendError::TooLarge { what: "page" };
            end = page.start.checked_add(page.tokens).ok_or(too_large.clone())?;
            if page.tokens == 0 {
                continue;
            }
            if page.stride < self.head_dim && page.tokens > 1 {
                return Err(AttendError::Mismatch {
                    what: "row stride and head_dim",
                    expected: self.head_dim,
                    found: page.stride,
                });
            }
            let needed = (page.tokens - 1).checked_mul(page.stride);
            let needed = needed.and_then(|n| n.checked_add(self.head_dim)).ok_or(too_large)?;
            for (what, rows) in [("keys of a page", page.keys), ("values of a page", page.values)] {
                let found = rows.len();
                if found < needed {
                    return Err(AttendError::Short { what, needed, found });
                }
            }
        }
        let mixed = self.pages.windows(2).any(|pair| {
            pair[0].keys.format() != pair[1].keys.format() || pair[0].values.format() != pair[1].values.format()
        });
        if mixed {
            return Err(AttendError::Setting {
                what: "pages of a row-major cache have one format for all keys and one for all values",
            });
        }
        Ok(())
    }
}

impl<'a> Run<'a> {
    /// Keys or values of the positions in `span`, which lie in the run, `[head_dim]` each; `data` takes a page's.
    pub(super) fn rows<T>(
        &self,
        span: Span,
        head_dim: usize,
        rows: &mut [&'a [T]],
        data: impl Fn(&RowPage<'a>) -> &'a [T],
    ) {
        let first = self
            .pages
            .partition_point(|page| page.start + page.tokens <= span.start);
        let mut at = 0;
        for page in self.pages[first..].iter().take_while(|page| page.start < span.end) {
            let here = Span::new(page.start, page.start + page.tokens).intersect(&span);
            let data = data(page);
            for position in here.range() {
                rows[at] = &data[(position - page.start) * page.stride..][..head_dim];
                at += 1;
            }
        }
    }
}
