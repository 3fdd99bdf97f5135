use alloc::vec::Vec;

use crate::AttendError;
use crate::error::expect_equal;
use crate::math;

/// Attention of a tile of queries over part of its keys, in the form that merges exactly.
///
/// For row `r` and head `g` of the group: `m` is the largest logit, `l` is Σ exp(logit − m) and `o` is Σ exp(logit −
/// m)·v. An empty partial has m = −∞, l = 0 and o = 0; merging it changes nothing. The merge is the online softmax of
/// Milakov and Gimelshein (2018). The tiling is FlashAttention's.
///
/// Its `head_dim` is the *value width*: calls read this many elements of each value. Queries and keys may have
/// another width.
#[derive(Debug, Clone, PartialEq)]
pub struct Partial {
    rows: usize,
    group: usize,
    head_dim: usize,
    /// Largest logit so far, `[rows, group]`.
    pub m: Vec<f32>,
    /// Σ exp(logit − m), `[rows, group]`.
    pub l: Vec<f32>,
    /// Σ exp(logit − m)·v, `[rows, group, head_dim]`.
    pub o: Vec<f32>,
}

/// The rows of a [`Partial`] that one piece of work writes to.
#[derive(Debug)]
pub(crate) struct Sums<'a> {
    /// `[rows, group]`.
    pub(crate) m: &'a mut [f32],
    /// `[rows, group]`.
    pub(crate) l: &'a mut [f32],
    /// `[rows, group, head_dim]`.
    pub(crate) o: &'a mut [f32],
}

impl Sums<'_> {
    /// True if no row has read anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.m.iter().all(|m| *m == f32::NEG_INFINITY)
    }

    /// Adds a partial of the same rows.
    pub(crate) fn merge(&mut self, other: &Partial) {
        let head_dim = other.head_dim;
        for at in 0..self.m.len() {
            let (mine, theirs) = (self.m[at], other.m[at]);
            if theirs == f32::NEG_INFINITY {
                continue;
            }
            let m = mine.max(theirs);
            let keep = if mine == m { 1.0 } else { math::exp(mine - m) };
            let add = if theirs == m { 1.0 } else { math::exp(theirs - m) };
            self.m[at] = m;
            self.l[at] = self.l[at] * keep + other.l[at] * add;
            let range = at * head_dim..(at + 1) * head_dim;
            for (o, v) in self.o[range.clone()].iter_mut().zip(&other.o[range]) {
                *o = *o * keep + *v * add;
            }
        }
    }
}

impl<'a> Sums<'a> {
    /// The first `count` of the rows × heads, of `head_dim` elements, and the others.
    pub(crate) fn split_off(self, count: usize, head_dim: usize) -> (Self, Self) {
        let (m, m_rest) = self.m.split_at_mut(count);
        let (l, l_rest) = self.l.split_at_mut(count);
        let (o, o_rest) = self.o.split_at_mut(count * head_dim);
        (
            Sums { m, l, o },
            Sums {
                m: m_rest,
                l: l_rest,
                o: o_rest,
            },
        )
    }
}

impl Partial {
    /// An empty partial, for values of `head_dim` elements.
    pub fn new(rows: usize, group: usize, head_dim: usize) -> Self {
        let mut partial = Self {
            rows,
            group,
            head_dim,
            m: Vec::new(),
            l: Vec::new(),
            o: Vec::new(),
        };
        partial.reset(rows, group, head_dim);
        partial
    }

    /// Empties the partial for a new shape and keeps its memory.
    pub fn reset(&mut self, rows: usize, group: usize, head_dim: usize) {
        (self.rows, self.group, self.head_dim) = (rows, group, head_dim);
        self.m.clear();
        self.m.resize(rows * group, f32::NEG_INFINITY);
        self.l.clear();
        self.l.resize(rows * group, 0.0);
        self.o.clear();
        self.o.resize(rows * group * head_dim, 0.0);
    }

    /// Query positions.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Query heads per KV head.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Value width: elements of one value, and of one output.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Merges the attention of `other`. The keys of both partials must be disjoint.
    ///
    /// # Errors
    /// [`AttendError::Mismatch`] when the shapes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), AttendError> {
        self.check_shape(other.rows, other.group)?;
        other.check_shape(self.rows, self.group)?;
        expect_equal("value widths of partials", self.head_dim, other.head_dim)?;
        self.merge_same_shape(other);
        Ok(())
    }

    /// True if no row has read anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.m.iter().all(|m| *m == f32::NEG_INFINITY)
    }

    /// Concatenates the rows of partials of equal group and head dimension.
    pub(crate) fn concatenated<'a>(partials: impl Iterator<Item = &'a Self>) -> Self {
        let mut all = Self::new(0, 0, 0);
        for partial in partials {
            (all.group, all.head_dim) = (partial.group, partial.head_dim);
            all.rows += partial.rows;
            all.m.extend_from_slice(&partial.m);
            all.l.extend_from_slice(&partial.l);
            all.o.extend_from_slice(&partial.o);
        }
        all
    }

    /// Copies the rows from row `first` on into all rows of `to`.
    pub(crate) fn copy_rows(&self, first: usize, to: &mut Self) {
        let at = first * self.group;
        let count = to.m.len();
        to.m.copy_from_slice(&self.m[at..][..count]);
        to.l.copy_from_slice(&self.l[at..][..count]);
        to.o.copy_from_slice(&self.o[at * self.head_dim..][..count * self.head_dim]);
    }

    /// All rows, writable.
    pub(crate) fn sums(&mut self) -> Sums<'_> {
        Sums {
            m: &mut self.m,
            l: &mut self.l,
            o: &mut self.o,
        }
    }

    pub(crate) fn merge_same_shape(&mut self, other: &Self) {
        self.sums().merge(other);
    }

    /// ln Σ exp(logit) of row `row`, head `head`; −∞ when it has read nothing.
    pub fn log_sum_exp(&self, row: usize, head: usize) -> f32 {
        let at = row * self.group + head;
        if self.l[at] == 0.0 {
            f32::NEG_INFINITY
        } else {
            self.m[at] + math::ln(self.l[at])
        }
    }

    /// Writes the normalised outputs: row `r`, head `g` to `out[r * out_row_stride + g * head_dim..]`.
    ///
    /// `sinks` holds one logit per head of the group. A sink takes part in the softmax without a value: outputs are o
    /// / (l + exp(sink − m)). `m` and `l` exclude sinks, so partials merge before sinks are applied. A sink of −∞
    /// changes nothing, one of +∞ takes all weight. A row that has read nothing becomes zero, with a sink or without.
    ///
    /// ```
    /// # use riffle_attention::*;
    /// // A single key of logit 1 beside a sink of logit 1: each has half of the weight.
    /// let mut partial = Partial::new(1, 1, 16);
    /// (partial.m[0], partial.l[0]) = (1.0, 1.0);
    /// partial.o.fill(8.0);
    /// let mut out = [0.0; 16];
    /// partial.finish_into(&mut out, 16, Some(&[1.0]))?;
    /// assert_eq!(out, [4.0; 16]);
    /// # Ok::<(), AttendError>(())
    /// ```
    ///
    /// # Errors
    /// An output that is too short, or sinks that are not one per head.
    pub fn finish_into(
        &self,
        out: &mut [f32],
        out_row_stride: usize,
        sinks: Option<&[f32]>,
    ) -> Result<(), AttendError> {
        let width = self.group * self.head_dim;
        if let Some(sinks) = sinks {
            expect_equal("sinks and group", self.group, sinks.len())?;
        }
        if self.rows == 0 || width == 0 {
            return Ok(());
        }
        let too_large = AttendError::TooLarge { what: "output" };
        let needed = (self.rows - 1).checked_mul(out_row_stride);
        let needed = needed.and_then(|n| n.checked_add(width)).ok_or(too_large)?;
        if self.rows > 1 && out_row_stride < width {
            return Err(AttendError::Mismatch {
                what: "output row stride and group × head_dim",
                expected: width,
                found: out_row_stride,
            });
        }
        if out.len() < needed {
            return Err(AttendError::Short {
                what: "output",
                needed,
                found: out.len(),
            });
        }
        for row in 0..self.rows {
            for head in 0..self.group {
                let at = row * self.group + head;
                let factor = self.normaliser(at, sinks.map(|sinks| sinks[head]));
                let target = &mut out[row * out_row_stride + head * self.head_dim..];
                let source = &self.o[at * self.head_dim..][..self.head_dim];
                for (out, o) in target.iter_mut().zip(source) {
                    *out = *o * factor;
                }
            }
        }
        Ok(())
    }

    /// The factor on `o`: 1 / (l + exp(sink − m)).
    fn normaliser(&self, at: usize, sink: Option<f32>) -> f32 {
        let (m, l) = (self.m[at], self.l[at]);
        if l == 0.0 {
            return 0.0;
        }
        let Some(sink) = sink else { return 1.0 / l };
        let top = m.max(sink);
        // The difference of two equal infinite logits would be NaN.
        let weight = |logit: f32| if logit == top { 1.0 } else { math::exp(logit - top) };
        let scale = weight(m);
        scale / (l * scale + weight(sink))
    }

    /// Checks that the shape fits queries of these rows and heads.
    pub(crate) fn check_shape(&self, rows: usize, group: usize) -> Result<(), AttendError> {
        let pairs = [
            ("rows of queries and partial", rows, self.rows),
            ("group of queries and partial", group, self.group),
            ("length of m", rows * group, self.m.len()),
            ("length of l", rows * group, self.l.len()),
            ("length of o", rows * group * self.head_dim, self.o.len()),
        ];
        pairs
            .into_iter()
            .try_for_each(|(what, expected, found)| expect_equal(what, expected, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_partial_merges_as_nothing() {
        let empty = Partial::new(2, 1, 16);
        let mut some = Partial::new(2, 1, 16);
        (some.m[0], some.l[0], some.o[3]) = (1.5, 2.0, 0.5);
        let before = some.clone();
        some.merge(&empty).unwrap();
        assert_eq!(some, before);
        let mut other = empty.clone();
        other.merge(&before).unwrap();
        assert_eq!(other, before);
        let mut nothing = empty.clone();
        nothing.merge(&empty).unwrap();
        assert_eq!(nothing, empty);
        let mut out = [7.0; 32];
        nothing.finish_into(&mut out, 16, None).unwrap();
        assert_eq!(out, [0.0; 32]);
        assert_eq!(nothing.log_sum_exp(0, 0), f32::NEG_INFINITY);
    }

    #[test]
    fn a_sink_takes_mass_and_has_no_value() {
        let mut partial = Partial::new(1, 1, 16);
        (partial.m[0], partial.l[0]) = (2.0, 1.0);
        partial.o.fill(3.0);
        let mut out = [0.0; 16];
        partial.finish_into(&mut out, 16, Some(&[2.0])).unwrap();
        assert!((out[0] - 1.5).abs() < 1e-6);
        partial.finish_into(&mut out, 16, Some(&[200.0])).unwrap();
        assert_eq!(out[0], 0.0);
    }

    #[test]
    fn wrong_shapes_are_refused() {
        let mut a = Partial::new(1, 2, 16);
        assert!(a.merge(&Partial::new(2, 1, 16)).is_err());
        assert!(a.finish_into(&mut [0.0; 31], 32, None).is_err());
        assert!(a.finish_into(&mut [0.0; 32], 32, Some(&[0.0])).is_err());
    }
}
