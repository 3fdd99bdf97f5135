use alloc::vec;

#[cfg(doc)]
use crate::Partial;
use crate::format::check_head_dim;
use crate::{AttendError, Plane, read_keys, read_values};

/// One page of K and V of one KV head.
#[derive(Debug, Clone, Copy)]
pub struct PageView<'a> {
    /// Absolute position of the page's first token.
    pub start: usize,
    /// Number of valid tokens; the planes after them are never used.
    pub tokens: usize,
    /// Keys, `[tokens / 16, key width, 16]`.
    pub keys: Plane<'a>,
    /// Values, `[tokens, value width]`. In a *latent* page this is the plane of the keys.
    pub values: Plane<'a>,
}

impl PageView<'_> {
    /// True if each value is a prefix of its key, as in multi-head latent attention. The plane of values is then the
    /// plane of keys.
    pub fn is_latent(&self) -> bool {
        self.tokens > 0 && self.values.is_same_memory(&self.keys)
    }

    /// Reads `tokens` values from token `first` on as f32, `[tokens, value width]`, from any kind of page; `widths`
    /// are the key width and the value width.
    ///
    /// # Errors
    /// As [`read_values`], and values of a latent page that are wider than its keys.
    pub fn read_values(
        &self,
        widths: [usize; 2],
        first: usize,
        tokens: usize,
        out: &mut [f32],
    ) -> Result<(), AttendError> {
        let [key_width, value_width] = widths;
        if !self.is_latent() {
            return read_values(&self.values, value_width, first, tokens, out, value_width);
        }
        check_latent(widths)?;
        let mut keys = vec![0.0; tokens * key_width];
        read_keys(&self.keys, key_width, first, tokens, &mut keys, key_width)?;
        let needed = tokens * value_width;
        let found = out.len();
        let short = AttendError::Short {
            what: "room for values",
            needed,
            found,
        };
        let out = out.get_mut(..needed).ok_or(short)?;
        for (out, key) in out.chunks_exact_mut(value_width).zip(keys.chunks_exact(key_width)) {
            out.copy_from_slice(&key[..value_width]);
        }
        Ok(())
    }
}

/// The K and V of one KV head: pages sorted by start, gaps allowed.
///
/// Keys have the *key width*, which is `head_dim`. Values have the *value width*, which is [`Partial::head_dim`] of the
/// partial that a call adds to. Both are multiples of 16, and most models have one width for both. Values of latent
/// pages are at most as wide as keys.
///
/// ```
/// use riffle_attention::*;
///
/// // 16 tokens whose keys have 32 elements and whose values have 16.
/// let (mut keys, mut values) = (vec![0.0; 16 * 32], vec![0.0; 16 * 16]);
/// write_keys(&mut PlaneMut::F32(&mut keys), 32, 0, 16, &[0.5; 16 * 32], 32)?;
/// write_values(&mut PlaneMut::F32(&mut values), 16, 0, 16, &[2.0; 16 * 16], 16)?;
/// let pages = [PageView { start: 0, tokens: 16, keys: Plane::F32(&keys), values: Plane::F32(&values) }];
/// let kv = KvView { head_dim: 32, pages: &pages };
/// let queries = QueryTile { data: &[1.0; 32], rows: 1, row_stride: 32, group: 1, head_dim: 32, start: 15 };
///
/// let mut partial = Partial::new(1, 1, 16);
/// attend(&queries, &kv, &Selection::full(16), &AttendOptions::for_head_dim(32), &mut partial)?;
/// let mut out = [0.0; 16];
/// partial.finish_into(&mut out, 16, None)?;
/// assert_eq!(out, [2.0; 16]);
/// # Ok::<(), AttendError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct KvView<'a> {
    /// Key width: elements of one key.
    pub head_dim: usize,
    /// Pages sorted by their absolute start.
    pub pages: &'a [PageView<'a>],
}

/// Consecutive queries of all the query heads that share one KV head.
///
/// Row `r` has position `start + r`; its head `g` is `data[r * row_stride + g * head_dim..][..head_dim]`.
#[derive(Debug, Clone, Copy)]
pub struct QueryTile<'a> {
    /// The queries.
    pub data: &'a [f32],
    /// Query positions in the tile.
    pub rows: usize,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Key width: elements of one query.
    pub head_dim: usize,
    /// Absolute position of row 0.
    pub start: usize,
}

impl<'a> QueryTile<'a> {
    /// The query of row `row`, head `head`: `[head_dim]`.
    pub fn query(&self, row: usize, head: usize) -> &'a [f32] {
        &self.data[row * self.row_stride + head * self.head_dim..][..self.head_dim]
    }

    pub(crate) fn check(&self) -> Result<(), AttendError> {
        check_head_dim(self.head_dim)?;
        let too_large = AttendError::TooLarge { what: "query tile" };
        let width = self.group.checked_mul(self.head_dim).ok_or(too_large.clone())?;
        self.rows.checked_mul(width).ok_or(too_large.clone())?;
        self.start.checked_add(self.rows).ok_or(too_large.clone())?;
        if self.rows == 0 || self.group == 0 {
            return Ok(());
        }
        if self.rows > 1 && self.row_stride < width {
            return Err(AttendError::Mismatch {
                what: "row stride and group × head_dim",
                expected: width,
                found: self.row_stride,
            });
        }
        let needed = (self.rows - 1).checked_mul(self.row_stride);
        let needed = needed.and_then(|n| n.checked_add(width)).ok_or(too_large)?;
        if self.data.len() < needed {
            let found = self.data.len();
            return Err(AttendError::Short {
                what: "queries",
                needed,
                found,
            });
        }
        Ok(())
    }
}

impl KvView<'_> {
    /// True if any plane holds integers.
    pub(crate) fn is_quantised(&self) -> bool {
        let planes = self.pages.iter().flat_map(|page| [page.keys, page.values]);
        planes.into_iter().any(|plane| plane.format().is_quantised())
    }

    /// Checks keys of `head_dim` elements and values of `value_dim`.
    pub(crate) fn check(&self, value_dim: usize) -> Result<(), AttendError> {
        self.check_keys()?;
        check_head_dim(value_dim)?;
        for page in self.pages {
            if page.is_latent() {
                check_latent([self.head_dim, value_dim])?;
                continue;
            }
            if page.tokens > page.values.len() {
                return Err(AttendError::Short {
                    what: "page",
                    needed: page.tokens,
                    found: page.values.len(),
                });
            }
            page.values.check("values of a page", page.tokens, value_dim)?;
        }
        Ok(())
    }

    /// As [`check`](Self::check), for calls that read no values.
    pub(crate) fn check_keys(&self) -> Result<(), AttendError> {
        check_head_dim(self.head_dim)?;
        let mut end = 0;
        for page in self.pages {
            if page.start < end {
                return Err(AttendError::PageOrder { start: page.start });
            }
            let too_large = AttendError::TooLarge { what: "page" };
            end = page.start.checked_add(page.tokens).ok_or(too_large.clone())?;
            if page.tokens > page.keys.len() {
                return Err(AttendError::Short {
                    what: "page",
                    needed: page.tokens,
                    found: page.keys.len(),
                });
            }
            page.keys.check("keys of a page", page.tokens, self.head_dim)?;
        }
        Ok(())
    }
}

/// Checks that the values of a latent page fit in its keys.
fn check_latent([key_width, value_width]: [usize; 2]) -> Result<(), AttendError> {
    check_head_dim(key_width)?;
    check_head_dim(value_width)?;
    if value_width <= key_width {
        return Ok(());
    }
    Err(AttendError::Mismatch {
        what: "widths of keys and of the values that they begin with",
        expected: key_width,
        found: value_width,
    })
}
