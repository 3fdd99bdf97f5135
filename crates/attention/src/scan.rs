use alloc::vec::Vec;

use crate::attend::check_keys;
use crate::kernel::{AddRows, Exponentiate, MarkHeavy, Top};
use crate::simd::Level;
use crate::{AttendError, AttendOptions, KvView, LANES, QueryTile, Scorer, Span};

/// Softmax weights of a tile's queries over all keys of some pages, without reading values: pages need none.
///
/// Query `row · group + head` weighs the token at a position by exp(logit − largest logit of the query). The weight is
/// zero if the query does not see the token or no page holds it. Weights do not depend on the distribution of tokens
/// over pages.
///
/// ```
/// # use riffle_attention::*;
/// # let source: Vec<f32> = (0..10 * 16).map(|i| (i % 7) as f32 - 3.0).collect();
/// # let (mut keys, mut values) = (vec![0.0; 256], vec![0.0; 256]);
/// # write_keys(&mut PlaneMut::F32(&mut keys), 16, 0, 10, &source, 16)?;
/// # write_values(&mut PlaneMut::F32(&mut values), 16, 0, 10, &source, 16)?;
/// # let pages = [PageView { start: 0, tokens: 10, keys: Plane::F32(&keys), values: Plane::F32(&values) }];
/// # let kv = KvView { head_dim: 16, pages: &pages };
/// # let queries = QueryTile { data: &source[144..], rows: 1, row_stride: 16, group: 1, head_dim: 16, start: 9 };
/// let mut scan = Scan::default();
/// scan.run(&queries, &kv, 10, &AttendOptions::new(0.25))?;
/// // The fewest tokens are read that are worth at least a tenth of the heaviest.
/// let (mut read, mut left) = (Vec::new(), Vec::new());
/// scan.at_least(&[0.1], &mut read, &mut left);
/// let mut partial = Partial::new(1, 1, 16);
/// attend_scanned(&scan, &Selection::from_spans(read), &kv, &mut partial)?;
/// assert!(f64::from(partial.l[0]) + left[0] - scan.total(0) < 1e-5);
/// # Ok::<(), AttendError>(())
/// ```
#[derive(Debug, Default)]
pub struct Scan {
    scorer: Scorer,
    rows: usize,
    group: usize,
    start: usize,
    tokens: usize,
    row_stride: usize,
    /// `[queries, row_stride]`, from `skip` on.
    weights: Vec<f32>,
    skip: usize,
    tops: Vec<f32>,
    totals: Vec<f64>,
    marks: Vec<u16>,
}

impl Scan {
    /// Computes the weights of the tokens `0..tokens`. In [`Arithmetic::Expanded`](crate::Arithmetic::Expanded)
    /// weights have the same bits on every machine with fused multiply-add.
    ///
    /// # Errors
    /// As [`attend`](crate::attend).
    pub fn run(
        &mut self,
        queries: &QueryTile,
        kv: &KvView,
        tokens: usize,
        options: &AttendOptions,
    ) -> Result<(), AttendError> {
        check_keys(queries, kv, options)?;
        self.scorer.turn_to(options.arithmetic);
        let level = Level::best();
        let count = queries.rows * queries.group;
        (self.rows, self.group, self.start, self.tokens) = (queries.rows, queries.group, queries.start, tokens);
        // An odd number of cache lines: otherwise all rows of a long sequence would map to the same few cache lines.
        self.row_stride = tokens.next_multiple_of(2 * LANES) + LANES;
        let needed = count * self.row_stride + LANES;
        if self.weights.len() < needed {
            self.weights.resize(needed, 0.0);
        }
        self.skip = self.weights.as_ptr().align_offset(64).min(LANES);
        let rows = (0..queries.rows).flat_map(|row| (0..queries.group).map(move |head| queries.query(row, head)));
        self.scorer.set(rows, queries.head_dim, options.scale)?;
        let weights = &mut self.weights[self.skip..];
        let visible = |query: usize| {
            if options.causal {
                (queries.start + query / queries.group + 1).min(tokens)
            } else {
                tokens
            }
        };
        self.tops.clear();
        self.tops.resize(count, f32::NEG_INFINITY);
        let mut known = 0;
        let pages = kv.pages.iter().take_while(|page| page.start < tokens);
        for (number, page) in pages.enumerate() {
            fill(weights, self.row_stride, count, Span::new(known, page.start));
            known = (page.start + page.tokens).min(tokens);
            let ahead = kv.pages.get(number + 1).map(|page| &page.keys);
            let slots = Span::new(0, known - page.start);
            self.scorer
                .score(&page.keys, slots, ahead, &mut weights[page.start..], self.row_stride)?;
            // The maxima are found while a page's logits are in the nearest cache.
            let rows = weights.chunks_exact_mut(self.row_stride).zip(&mut self.tops);
            for (query, (row, top)) in rows.enumerate() {
                let logits = &mut row[page.start..visible(query).clamp(page.start, known)];
                let soft_cap = options.soft_cap;
                *top = top.max(level.run(Top { logits, soft_cap }));
            }
        }
        fill(weights, self.row_stride, count, Span::new(known.min(tokens), tokens));
        self.totals.clear();
        let rows = weights.chunks_exact_mut(self.row_stride).zip(&self.tops);
        for (query, (row, top)) in rows.enumerate() {
            let (logits, unseen) = row[..tokens].split_at_mut(visible(query));
            unseen.fill(0.0);
            if *top == f32::NEG_INFINITY {
                logits.fill(0.0);
                self.totals.push(0.0);
            } else {
                self.totals.push(level.run(Exponentiate { logits, top: *top }));
            }
        }
        Ok(())
    }

    /// Queries: rows × group.
    pub fn queries(&self) -> usize {
        self.tops.len()
    }

    /// True if this scan ran for these queries.
    pub fn covers(&self, tile: &QueryTile) -> bool {
        (self.rows, self.group, self.start) == (tile.rows, tile.group, tile.start)
    }

    /// Weights of a query, `[tokens]`.
    pub fn weights(&self, query: usize) -> &[f32] {
        &self.weights[self.skip + query * self.row_stride..][..self.tokens]
    }

    /// Σ of a query's weights.
    pub fn total(&self, query: usize) -> f64 {
        self.totals[query]
    }

    /// A query's largest logit.
    pub(crate) fn top(&self, query: usize) -> f32 {
        self.tops[query]
    }

    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.rows, self.group)
    }

    /// Sums the softmax weights of all queries: by key into `columns`, and by distance from query to key into
    /// `distances`, largest distance first. Distance `d` is at index `tokens − 1 − d`. Both are `[tokens]`.
    pub fn add_lines(&self, columns: &mut [f32], distances: &mut [f32]) {
        let mut rows = Vec::with_capacity(self.group);
        let mut factors = Vec::with_capacity(self.group);
        for row in 0..self.rows {
            let visible = (self.start + row + 1).min(self.tokens);
            rows.clear();
            factors.clear();
            for query in row * self.group..(row + 1) * self.group {
                rows.push(&self.weights(query)[..visible]);
                let total = self.total(query);
                factors.push(if total > 0.0 { (1.0 / total) as f32 } else { 0.0 });
            }
            Level::best().run(AddRows {
                rows: &rows,
                factors: &factors,
                first: &mut columns[..visible],
                second: &mut distances[self.tokens - visible..self.tokens],
            });
        }
    }

    /// Returns, as spans, the tokens to which some query gives at least its threshold; and, for each query, the
    /// weight of all others.
    pub fn at_least(&mut self, thresholds: &[f32], spans: &mut Vec<Span>, left: &mut Vec<f64>) {
        let mut marks = core::mem::take(&mut self.marks);
        marks.clear();
        marks.resize(self.tokens.div_ceil(LANES), 0);
        left.clear();
        left.resize(self.queries(), 0.0);
        let rows: Vec<&[f32]> = (0..self.queries()).map(|query| self.weights(query)).collect();
        Level::best().run(MarkHeavy {
            rows: &rows,
            thresholds,
            left,
            marks: &mut marks,
        });
        spans.clear();
        for (stripe, mut bits) in marks.iter().map(|bits| u32::from(*bits)).enumerate() {
            while bits != 0 {
                let first = bits.trailing_zeros();
                let length = (bits >> first).trailing_ones();
                bits &= !(((1 << length) - 1) << first);
                let start = stripe * LANES + first as usize;
                let end = start + length as usize;
                match spans.last_mut() {
                    Some(span) if span.end == start => span.end = end,
                    _ => spans.push(Span::new(start, end)),
                }
            }
        }
        self.marks = marks;
    }
}

/// Sets the logits of tokens that no page holds to −∞.
fn fill(weights: &mut [f32], row_stride: usize, rows: usize, gap: Span) {
    if !gap.is_empty() {
        for row in weights.chunks_exact_mut(row_stride).take(rows) {
            row[gap.range()].fill(f32::NEG_INFINITY);
        }
    }
}

/// Turns logits into exp(logit − largest logit) and returns their sum; zero if there are none.
pub fn exponentiate(logits: &mut [f32]) -> f64 {
    exponentiate_by_largest(logits).1
}

/// As [`exponentiate`], but returns the largest logit before the sum; −∞ if there are none.
pub fn exponentiate_by_largest(logits: &mut [f32]) -> (f32, f64) {
    let level = Level::best();
    let top = level.run(Top { logits, soft_cap: None });
    if top == f32::NEG_INFINITY {
        logits.fill(0.0);
        return (top, 0.0);
    }
    (top, level.run(Exponentiate { logits, top }))
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::testing::Problem;

    /// The logits of one query; empty if it sees no key.
    fn exact_logits(problem: &Problem, query: usize, tokens: usize) -> Vec<Option<f64>> {
        let (options, tile) = (&problem.options, problem.tile());
        let (row, head) = (query / problem.group, query % problem.group);
        let q = tile.query(row, head);
        let logit = |position: usize| {
            let mut pages = problem.pages.iter().map(|page| page.view());
            let page = pages.find(|page| (page.start..page.start + page.tokens).contains(&position))?;
            let key = crate::layout::key_at(&page.keys, problem.head_dim, position - page.start);
            let dot: f64 = key.iter().zip(q).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
            let logit = dot * f64::from(options.scale);
            Some(match options.soft_cap.map(f64::from) {
                Some(cap) => cap * (logit / cap).tanh(),
                None => logit,
            })
        };
        let seen = |token: usize| !options.causal || token <= problem.start + row;
        (0..tokens).map(|token| logit(token).filter(|_| seen(token))).collect()
    }

    #[test]
    fn weights_are_those_of_the_reference() {
        for problem in Problem::assorted() {
            let views: Vec<_> = problem.pages.iter().map(|page| page.view()).collect();
            let kv = KvView {
                head_dim: problem.head_dim,
                pages: &views,
            };
            let (tile, options) = (problem.tile(), problem.options);
            let tokens = 805;
            let mut scan = Scan::default();
            scan.run(&tile, &kv, tokens, &options).unwrap();
            let mut columns = vec![0.0; tokens];
            let mut distances = vec![0.0; tokens];
            scan.add_lines(&mut columns, &mut distances);
            let (mut by_key, mut by_distance) = (vec![0.0; tokens], vec![0.0; tokens]);
            for query in 0..scan.queries() {
                let position = problem.start + query / problem.group;
                let logits = exact_logits(&problem, query, tokens);
                let top = logits.iter().flatten().fold(f64::NEG_INFINITY, |top, x| top.max(*x));
                let total: f64 = logits.iter().flatten().map(|x| (x - top).exp()).sum();
                assert!(
                    (scan.total(query) - total).abs() < 2e-4 * total,
                    "{} and {total}",
                    scan.total(query)
                );
                for (token, logit) in logits.iter().enumerate() {
                    let expected = logit.map_or(0.0, |logit| (logit - top).exp());
                    let found = f64::from(scan.weights(query)[token]);
                    assert!((found - expected).abs() < 2e-4, "token {token}: {found} and {expected}");
                    if let Some(distance) = position.checked_sub(token) {
                        by_key[token] += expected / total;
                        by_distance[tokens - 1 - distance] += expected / total;
                    }
                }
            }
            for (found, expected) in columns.iter().zip(&by_key).chain(distances.iter().zip(&by_distance)) {
                assert!((f64::from(*found) - expected).abs() < 2e-4);
            }
        }
    }

    #[test]
    fn every_instruction_set_marks_the_same_tokens() {
        for (count, tokens) in [(1, 5), (2, 64), (3, 100), (4, 1100), (8, 31), (12, 16)] {
            let rows: Vec<Vec<f32>> = (0..count)
                .map(|seed| {
                    let noise = crate::testing::noise(seed as u64, tokens);
                    noise.into_iter().map(f32::abs).collect()
                })
                .collect();
            let rows: Vec<&[f32]> = rows.iter().map(|row| &row[..]).collect();
            let thresholds: Vec<f32> = (0..count).map(|r| 0.8 + 0.1 * r as f32).collect();
            for level in Level::all() {
                let (mut left, mut marks) = (vec![0.0; count], vec![0; tokens.div_ceil(16)]);
                level.run(MarkHeavy {
                    rows: &rows,
                    thresholds: &thresholds,
                    left: &mut left,
                    marks: &mut marks,
                });
                let heavy = |token: usize| rows.iter().zip(&thresholds).any(|(row, least)| row[token] >= *least);
                for token in 0..tokens {
                    assert_eq!(marks[token / 16] & (1 << (token % 16)) != 0, heavy(token));
                }
                for (row, left) in rows.iter().zip(left) {
                    let expected: f64 = (0..tokens).filter(|t| !heavy(*t)).map(|t| f64::from(row[t])).sum();
                    assert!(
                        (left - expected).abs() < 1e-4,
                        "{}: {left} and {expected}",
                        level.name()
                    );
                }
            }
        }
    }
}
