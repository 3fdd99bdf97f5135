#[cfg(doc)]
use crate::KvView;
use crate::format::Element;
use crate::format::check_head_dim;
use crate::{AttendError, Rows, Span};

/// Consecutive tokens of one KV head in another engine's cache, with row-major keys and values.
///
/// Key `t` is `keys[t * stride..]`, and value `t` is `values[t * value_stride..]`. A value may be a prefix of its
/// key, for example a latent of 512 elements in a key of 576. Then `values` is the slice of the keys.
#[derive(Debug, Clone, Copy)]
pub struct RowPage<'a> {
    /// Absolute position of the first token.
    pub start: usize,
    /// Valid tokens.
    pub tokens: usize,
    /// Keys, from the first token's first element on.
    pub keys: Rows<'a>,
    /// Values, from the first token's first element on.
    pub values: Rows<'a>,
    /// Elements from one key to the next.
    pub stride: usize,
    /// Elements from one value to the next.
    pub value_stride: usize,
}

/// The K and V of one KV head, row-major: pages sorted by start, gaps allowed, all keys in one format and all values
/// in one.
#[derive(Debug, Clone, Copy)]
pub struct RowView<'a> {
    /// Key width: elements of one key, a multiple of 16. Values have the value width, as in [`KvView`].
    pub head_dim: usize,
    /// Pages sorted by their absolute start. [`BlockCache::pages`](crate::BlockCache::pages) computes them from a
    /// block table.
    pub pages: &'a [RowPage<'a>],
}

/// Pages without a gap between them. Blocks of keys are counted from the start of a run, as from the start of a page.
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

    /// Checks keys of `head_dim` elements and values of `value_dim`.
    pub(super) fn check(&self, value_dim: usize) -> Result<(), AttendError> {
        check_head_dim(self.head_dim)?;
        check_head_dim(value_dim)?;
        let mut end = 0;
        for page in self.pages {
            if page.start < end {
                return Err(AttendError::PageOrder { start: page.start });
            }
            let too_large = AttendError::TooLarge { what: "page" };
            end = page.start.checked_add(page.tokens).ok_or(too_large)?;
            check_rows("keys of a page", page.keys, page.tokens, (self.head_dim, page.stride))?;
            check_rows(
                "values of a page",
                page.values,
                page.tokens,
                (value_dim, page.value_stride),
            )?;
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

/// Checks that the slice holds `tokens` rows of a width and a stride.
fn check_rows(
    what: &'static str,
    rows: Rows,
    tokens: usize,
    (width, stride): (usize, usize),
) -> Result<(), AttendError> {
    if tokens == 0 {
        return Ok(());
    }
    if stride < width && tokens > 1 {
        return Err(AttendError::Mismatch {
            what: "stride and width of rows",
            expected: width,
            found: stride,
        });
    }
    let needed = (tokens - 1).checked_mul(stride).and_then(|n| n.checked_add(width));
    let needed = needed.ok_or(AttendError::TooLarge { what: "page" })?;
    let found = rows.len();
    if found < needed {
        return Err(AttendError::Short { what, needed, found });
    }
    Ok(())
}

impl<'a> Run<'a> {
    /// Keys or values of the positions in `span`, `[width]` each; the span lies in the run. `data` returns a page's
    /// slice and stride.
    pub(super) fn rows<T>(
        &self,
        span: Span,
        width: usize,
        rows: &mut [&'a [T]],
        data: impl Fn(&RowPage<'a>) -> (&'a [T], usize),
    ) {
        let first = self
            .pages
            .partition_point(|page| page.start + page.tokens <= span.start);
        let mut at = 0;
        for page in self.pages[first..].iter().take_while(|page| page.start < span.end) {
            let here = Span::new(page.start, page.start + page.tokens).intersect(&span);
            let (data, stride) = data(page);
            for position in here.range() {
                rows[at] = &data[(position - page.start) * stride..][..width];
                at += 1;
            }
        }
    }
}

/// The keys of a page, and their stride in elements.
pub(super) fn keys_of<'a, E: Element>(page: &RowPage<'a>) -> (&'a [E::Raw], usize) {
    (E::of_rows(page.keys).unwrap_or_default(), page.stride)
}

/// As [`keys_of`], for values.
pub(super) fn values_of<'a, E: Element>(page: &RowPage<'a>) -> (&'a [E::Raw], usize) {
    (E::of_rows(page.values).unwrap_or_default(), page.value_stride)
}
