use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::{SEGMENT, STRIPE, SignIndex, UNIT};
use crate::attend::check_options;
use crate::error::expect_equal;
use crate::kernel::{LARGEST, Line, MarkSigns, ScoreSigns, SignQueries, TABLE_BIAS, Top};
use crate::simd::Level;
use crate::{AttendError, AttendOptions, QueryTile, rotate_heads};

/// The largest estimated logit of every query in each unit of a [`SignIndex`].
///
/// Queries are rotated and rounded to integers from −7 to 7. Sums of integers with signs are exact, and the rest is
/// computed in one order. Estimates therefore have the same bits on every machine.
#[derive(Debug, Default)]
pub struct SignScorer {
    /// Number of units before each query.
    visible: Vec<usize>,
    soft_cap: Option<f32>,
    width: usize,
    queries: RoundedQueries,
    /// `[queries, width]`
    maxima: Vec<f32>,
}

/// Rotated queries in integers, in the shapes of [`SignQueries`].
#[derive(Debug, Default)]
struct RoundedQueries {
    head_dim: usize,
    tables: Vec<Line>,
    rotated: Vec<f32>,
    steps: Vec<f32>,
}

impl SignScorer {
    /// Estimates the logits of a tile's queries. Under a causal mask a query sees the segments that end at or before
    /// its own segment; without one it sees all.
    ///
    /// # Errors
    /// Shapes that disagree, slices that are too short.
    pub fn run(&mut self, queries: &QueryTile, index: &SignIndex, options: &AttendOptions) -> Result<(), AttendError> {
        self.run_at(Level::best(), queries, index, options)
    }

    pub(super) fn run_at(
        &mut self,
        level: Level,
        queries: &QueryTile,
        index: &SignIndex,
        options: &AttendOptions,
    ) -> Result<(), AttendError> {
        /// Queries scored together. The longest row determines the number of scored units.
        const TOGETHER: usize = 16;
        check_options(queries, options)?;
        if index.tokens > 0 {
            expect_equal("head_dim of queries and of the index", index.head_dim, queries.head_dim)?;
        }
        self.queries.set(queries, options.scale);
        self.soft_cap = options.soft_cap;
        let units = |query: usize| {
            let end = (queries.start + query / queries.group) / SEGMENT * SEGMENT;
            let end = if options.causal { end } else { index.tokens };
            end.min(index.tokens) / UNIT
        };
        self.visible.clear();
        self.visible.extend((0..self.queries.steps.len()).map(units));
        self.width = self.visible.iter().copied().max().unwrap_or(0).next_multiple_of(16);
        self.maxima
            .resize(self.queries.steps.len() * self.width, f32::NEG_INFINITY);
        for first in (0..self.queries.steps.len()).step_by(TOGETHER) {
            let end = (first + TOGETHER).min(self.queries.steps.len());
            level.run(ScoreSigns {
                keys: &index.groups,
                queries: self.queries.part(first..end),
                units: self.visible[first..end].iter().copied().max().unwrap_or(0),
                width: self.width,
                out: &mut self.maxima[first * self.width..end * self.width],
            });
        }
        if options.soft_cap.is_some() {
            let (logits, soft_cap) = (&mut self.maxima[..], options.soft_cap);
            level.run(Top { logits, soft_cap });
        }
        Ok(())
    }

    /// Queries: rows × group.
    pub fn queries(&self) -> usize {
        self.queries.steps.len()
    }

    /// The largest estimates of query `row · group + head`: one for each unit that it sees.
    ///
    /// # Panics
    /// If there is no such query.
    pub fn row(&self, query: usize) -> &[f32] {
        &self.maxima[query * self.width..][..self.visible[query]]
    }

    /// Positions of the keys whose estimate for some query is at least this query's `lowest`, ascending. The index must
    /// be that of the last [`run`](Self::run). Only the stripes of 256 keys with such a key are estimated again.
    ///
    /// # Errors
    /// Another number of queries, or an index with fewer keys.
    pub fn keys_from(&self, index: &SignIndex, lowest: &[f32]) -> Result<Vec<usize>, AttendError> {
        self.keys_from_at(Level::best(), index, lowest)
    }

    pub(super) fn keys_from_at(
        &self,
        level: Level,
        index: &SignIndex,
        lowest: &[f32],
    ) -> Result<Vec<usize>, AttendError> {
        expect_equal("lowest estimates and queries", self.queries.steps.len(), lowest.len())?;
        let seen = self.visible.iter().copied().max().unwrap_or(0);
        expect_equal(
            "units in the index and of the estimates",
            seen,
            seen.min(index.tokens / UNIT),
        )?;
        let mut marks = vec![[0; UNIT]; seen.div_ceil(STRIPE / UNIT)];
        level.run(MarkSigns {
            keys: &index.groups,
            queries: self.queries.part(0..self.queries.steps.len()),
            maxima: &self.maxima,
            width: self.width,
            visible: &self.visible,
            lowest,
            soft_cap: self.soft_cap,
            marks: &mut marks,
        });
        Ok(marked(&marks))
    }
}

impl RoundedQueries {
    /// The queries of a range.
    fn part(&self, range: Range<usize>) -> SignQueries<'_> {
        let tables = self.head_dim / 4;
        SignQueries {
            head_dim: self.head_dim,
            tables: &self.tables[range.start * tables..range.end * tables],
            rotated: &self.rotated[range.start * self.head_dim..range.end * self.head_dim],
            steps: &self.steps[range],
        }
    }

    /// Rotates and rounds the queries.
    fn set(&mut self, queries: &QueryTile, scale: f32) {
        self.head_dim = queries.head_dim;
        self.rotated.clear();
        self.tables.clear();
        self.steps.clear();
        for row in 0..queries.rows {
            for head in 0..queries.group {
                let query = queries.query(row, head).iter().map(|value| value * scale);
                self.rotated.extend(query);
            }
        }
        rotate_heads(&mut self.rotated, queries.head_dim);
        for query in self.rotated.chunks_exact(queries.head_dim) {
            let (integers, step) = round_to_integers(query);
            self.steps.push(step);
            self.tables.extend(integers.as_chunks::<4>().0.iter().map(table));
        }
    }
}

/// A vector in integers, and the value of one unit of them.
pub(super) fn round_to_integers(vector: &[f32]) -> (Vec<i32>, f32) {
    /// Magnitude below which a query counts as zero: its inverse would overflow.
    const LEAST: f32 = 1e-30;
    /// Adding and subtracting this number rounds a small number to an integer, ties to even.
    const ROUNDING: f32 = 12_582_912.0;
    let largest = vector.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let inverse = if largest > LEAST { LARGEST as f32 / largest } else { 0.0 };
    let rounded = vector
        .iter()
        .map(|value| (value * inverse + ROUNDING - ROUNDING) as i32);
    let integers = rounded.map(|integer| integer.clamp(-LARGEST, LARGEST)).collect();
    (integers, largest / LARGEST as f32)
}

/// Positions of the marked keys, from marks as in [`MarkSigns`].
fn marked(marks: &[[u16; UNIT]]) -> Vec<usize> {
    let mut keys = Vec::new();
    for (stripe, marks) in marks.iter().enumerate() {
        let mut units = marks.iter().fold(0, |units, marks| units | marks);
        while units != 0 {
            let unit = units.trailing_zeros() as usize;
            units &= units - 1;
            let numbers = (0..UNIT).filter(|number| marks[*number] >> unit & 1 == 1);
            keys.extend(numbers.map(|number| stripe * STRIPE + unit * UNIT + number));
        }
    }
    keys
}

/// For each pattern of four signs, the sum of the signed integers, with a bias. A set bit is a positive sign. The table
/// is repeated as in [`Simd::look_up`](crate::simd::Simd::look_up).
fn table(integers: &[i32; 4]) -> Line {
    let mut sums = [0; 64];
    sums[0] = (TABLE_BIAS - integers.iter().sum::<i32>()) as u8;
    for (bit, integer) in integers.iter().enumerate() {
        for pattern in 0..1 << bit {
            sums[pattern | 1 << bit] = sums[pattern].wrapping_add_signed(2 * *integer as i8);
        }
    }
    sums.copy_within(..16, 16);
    sums.copy_within(..32, 32);
    Line(sums)
}
