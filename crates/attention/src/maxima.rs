use alloc::vec::Vec;

use crate::attend::check_keys;
use crate::block::{aligned, stripes_of};
use crate::format::{PlaneFormat, with_plane};
use crate::kernel::{
    ByteKeys, ByteQueries, KEY_BLOCK, Maxima, RoundKeys, RoundQueries, STRIPES, Slot, TOGETHER, Top, widen_keys,
};
use crate::simd::Level;
use crate::{AttendError, AttendOptions, KvView, LANES, Plane, QueryTile};

/// The largest logit of every query in every block of keys, without reading values.
///
/// Queries and keys are rounded to 8 bits: a query relative to its largest element, a key relative to the largest of
/// every 32, as in `q8_0`. All pairs are multiplied, at a fraction of the cost of attention. Sums of integers are
/// exact, so maxima have the same bits on every machine.
///
/// ```
/// # use riffle_attention::*;
/// let source: Vec<f32> = (0..40 * 16).map(|i| ((i * 37) % 255) as f32 - 127.0).collect();
/// # let (mut keys, values) = (vec![0.0; 48 * 16], vec![0.0; 48 * 16]);
/// # write_keys(&mut PlaneMut::F32(&mut keys), 16, 0, 40, &source, 16)?;
/// # let pages = [PageView { start: 0, tokens: 40, keys: Plane::F32(&keys), values: Plane::F32(&values) }];
/// # let kv = KvView { head_dim: 16, pages: &pages };
/// # let queries = QueryTile { data: &source[39 * 16..], rows: 1, row_stride: 16, group: 1, head_dim: 16, start: 39 };
/// let mut maxima = BlockMaxima::default();
/// maxima.run(&queries, &kv, 40, 16, &AttendOptions::new(1.0))?;
/// let dot = |key: usize| -> f32 { source[39 * 16..].iter().zip(&source[key * 16..]).map(|(q, k)| q * k).sum() };
/// let exact = (16..32).map(dot).fold(f32::NEG_INFINITY, f32::max);
/// assert!((maxima.row_mut(0)[1] - exact).abs() < 0.02 * exact.abs());
/// # Ok::<(), AttendError>(())
/// ```
#[derive(Debug, Default)]
pub struct BlockMaxima {
    block: usize,
    blocks: usize,
    count: usize,
    queries: ByteQueries,
    keys: ByteKeys,
    widened: Vec<f32>,
    /// `[queries, blocks]`
    maxima: Vec<f32>,
}

impl BlockMaxima {
    /// Finds the largest logits of a tile's queries in the blocks of `0..tokens`; a block begins at a multiple of
    /// `block`, a power of two from 16 on.
    ///
    /// # Errors
    /// Shapes that disagree, slices that are too short, pages that do not begin at a multiple of 16.
    pub fn run(
        &mut self,
        queries: &QueryTile,
        kv: &KvView,
        tokens: usize,
        block: usize,
        options: &AttendOptions,
    ) -> Result<(), AttendError> {
        check_keys(queries, kv, options)?;
        let aligned_pages = kv.pages.iter().all(|page| page.start.is_multiple_of(LANES));
        if !block.is_power_of_two() || block < LANES || !aligned_pages {
            return Err(AttendError::Setting {
                what: "blocks must be of a power of two from 16 on, and pages begin at a multiple of 16",
            });
        }
        (self.block, self.blocks, self.count) = (block, tokens.div_ceil(block), queries.rows * queries.group);
        self.round(queries, options.scale);
        self.maxima.clear();
        self.maxima.resize(self.count * self.blocks, f32::NEG_INFINITY);
        let visible = |query: usize| {
            if options.causal {
                (queries.start + query / queries.group + 1).min(tokens)
            } else {
                tokens
            }
        };
        for page in kv.pages.iter().take_while(|page| page.start < tokens) {
            let within = page.tokens.min(tokens - page.start);
            for first in (0..within).step_by(KEY_BLOCK) {
                let count = (within - first).min(KEY_BLOCK);
                let keys = stripes_of(page.keys, first, count, kv.head_dim);
                self.round_keys(keys, count, kv.head_dim);
                self.block(page.start + first, count, kv.head_dim, visible);
            }
        }
        if let Some(soft_cap) = options.soft_cap {
            let (logits, soft_cap) = (&mut self.maxima[..], Some(soft_cap));
            Level::best().run(Top { logits, soft_cap });
        }
        Ok(())
    }

    /// Queries: rows × group.
    pub fn queries(&self) -> usize {
        self.count
    }

    /// Largest logits of query `row · group + head`, `[blocks]`; −∞ in blocks that it does not see or no page holds.
    ///
    /// # Panics
    /// When there is no such query.
    pub fn row_mut(&mut self, query: usize) -> &mut [f32] {
        &mut self.maxima[query * self.blocks..][..self.blocks]
    }

    fn round(&mut self, queries: &QueryTile, scale: f32) {
        self.queries.clear();
        let rows = (0..self.count).map(|query| queries.query(query / queries.group, query % queries.group));
        let rows: Vec<&[f32]> = rows.collect();
        for rows in rows.chunks(TOGETHER) {
            Level::best().run(RoundQueries {
                rows,
                head_dim: queries.head_dim,
                scale,
                out: &mut self.queries,
            });
        }
    }

    /// Rounds the keys of a block.
    fn round_keys(&mut self, keys: Plane, tokens: usize, head_dim: usize) {
        let (level, stripes) = (Level::best(), tokens.div_ceil(LANES));
        let len = stripes * LANES * head_dim;
        if with_plane!(Plane keys, F, data => F::take_bytes(data, stripes, head_dim, &mut self.keys)) {
            return;
        }
        let keys = match keys {
            Plane::F32(data) => &data[..len],
            _ => {
                let mut slots = [Slot::default(); STRIPES];
                for (stripe, slot) in slots.iter_mut().enumerate() {
                    (slot.stripe, slot.tokens) = (stripe, LANES);
                }
                let out = aligned(&mut self.widened, KEY_BLOCK * head_dim);
                widen_keys(level, keys, &slots[..stripes], head_dim, out);
                &out[..len]
            }
        };
        let out = &mut self.keys;
        level.run(RoundKeys { keys, head_dim, out });
    }

    /// Processes the `tokens` keys from position `start` on. `visible` gives the number of keys that a query sees.
    fn block(&mut self, start: usize, tokens: usize, head_dim: usize, visible: impl Fn(usize) -> usize) {
        // The share of a block that the kernel processes at once.
        let part = self.block.min(KEY_BLOCK);
        for first in (0..self.count).step_by(TOGETHER) {
            let queries = TOGETHER.min(self.count - first);
            let seen = |n: usize| if n < queries { visible(first + n) } else { 0 };
            let seen = core::array::from_fn(|n| seen(n).saturating_sub(start).min(tokens));
            if seen == [0; TOGETHER] {
                continue;
            }
            let mut found = [[f32::NEG_INFINITY; STRIPES]; TOGETHER];
            Level::best().run(Maxima {
                queries: &self.queries,
                set: first / TOGETHER,
                keys: &self.keys,
                head_dim,
                visible: seen,
                stripes: part / LANES,
                before: start % part / LANES,
                out: &mut found,
            });
            let parts = start / part..(start + tokens).div_ceil(part);
            for (query, found) in found.iter().enumerate().take(queries) {
                let row = &mut self.maxima[(first + query) * self.blocks..][..self.blocks];
                for (number, found) in parts.clone().zip(found) {
                    let largest = &mut row[number * part / self.block];
                    *largest = largest.max(*found);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::layout::key_at;
    use crate::testing::{Problem, noise};
    use crate::{Format, PageView, PlaneBuf, write_keys};

    /// Σ |q|·(error of k) + |k|·(error of q) + both errors, by half a step of 8 bits.
    fn largest_error(query: &[f32], key: &[f32]) -> f64 {
        let step = |values: &[f32]| f64::from(values.iter().fold(0.0f32, |m, value| m.max(value.abs()))) / 254.0;
        let of_query = step(query);
        let blocks = query.chunks(32).zip(key.chunks(32));
        let errors = blocks.flat_map(|(query, key)| {
            let of_key = step(key);
            let pairs = query.iter().zip(key);
            pairs.map(move |(q, k)| f64::from(q.abs()) * of_key + f64::from(k.abs()) * of_query + of_query * of_key)
        });
        errors.sum()
    }

    #[test]
    fn maxima_are_those_of_the_reference_within_half_a_step_of_8_bits() {
        for problem in Problem::assorted() {
            let views: Vec<_> = problem.pages.iter().map(|page| page.view()).collect();
            let (tile, options, tokens) = (problem.tile(), problem.options, 805);
            let kv = KvView {
                head_dim: problem.head_dim,
                pages: &views,
            };
            let mut maxima = BlockMaxima::default();
            for block in [16, 64, 256] {
                maxima.run(&tile, &kv, tokens, block, &options).unwrap();
                assert_eq!(maxima.queries(), problem.rows * problem.group);
                for query in 0..maxima.queries() {
                    let (row, head) = (query / problem.group, query % problem.group);
                    let q = tile.query(row, head);
                    // Exact logits, and bounds of their error.
                    let mut exact = vec![(f64::NEG_INFINITY, 0.0f64); tokens.div_ceil(block)];
                    for page in &views {
                        for position in page.start..(page.start + page.tokens).min(problem.start + row + 1) {
                            let key = key_at(&page.keys, problem.head_dim, position - page.start);
                            let dot: f64 = q.iter().zip(&key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                            let logit = dot * f64::from(options.scale);
                            let logit = options
                                .soft_cap
                                .map_or(logit, |cap| f64::from(cap) * (logit / f64::from(cap)).tanh());
                            let error = largest_error(q, &key) * f64::from(options.scale);
                            let (largest, errors) = &mut exact[position / block];
                            (*largest, *errors) = (largest.max(logit), errors.max(error));
                        }
                    }
                    for (found, (expected, error)) in maxima.row_mut(query).iter().zip(exact) {
                        let found = f64::from(*found);
                        assert!(
                            found == expected || (found - expected).abs() <= error + 1e-4,
                            "{found} for {expected}, {error}"
                        );
                        assert!(!expected.is_finite() || error < 0.3, "{error}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_finds_the_same_bits() {
        for head_dim in [16, 48, 64, 128] {
            let (keys, queries) = (noise(5, 80 * head_dim), noise(6, 5 * head_dim));
            let rows: Vec<&[f32]> = queries.chunks(head_dim).collect();
            let found = |level: Level| {
                let (mut rounded, mut of_queries) = (ByteKeys::default(), ByteQueries::default());
                let mut out = [[f32::NEG_INFINITY; STRIPES]; TOGETHER];
                level.run(RoundKeys {
                    keys: &keys,
                    head_dim,
                    out: &mut rounded,
                });
                level.run(RoundQueries {
                    rows: &rows,
                    head_dim,
                    scale: 0.3,
                    out: &mut of_queries,
                });
                level.run(Maxima {
                    queries: &of_queries,
                    set: 0,
                    keys: &rounded,
                    head_dim,
                    visible: [80, 79, 17, 16, 1, 0, 0, 0],
                    stripes: 2,
                    before: 1,
                    out: &mut out,
                });
                out.map(|row| row.map(f32::to_bits))
            };
            let expected = found(Level::best());
            for level in Level::all() {
                assert_eq!(found(level), expected, "{} {head_dim}", level.name());
            }
        }
    }

    #[test]
    fn maxima_do_not_depend_on_pages() {
        let head_dim = 32;
        let (source, queries) = (noise(7, 400 * head_dim), noise(8, 30 * head_dim));
        let tile = QueryTile {
            data: &queries,
            rows: 15,
            row_stride: 2 * head_dim,
            group: 2,
            head_dim,
            start: 385,
        };
        for format in [Format::F16, Format::Q8_0] {
            let found = |page_tokens: usize, block: usize| {
                let planes = source.chunks(page_tokens * head_dim).map(|source| {
                    let mut plane = PlaneBuf::new(format, page_tokens, head_dim);
                    let tokens = source.len() / head_dim;
                    write_keys(&mut plane.plane_mut(), head_dim, 0, tokens, source, head_dim).unwrap();
                    plane
                });
                let planes: Vec<_> = planes.collect();
                let pages = planes.iter().enumerate().map(|(number, plane)| PageView {
                    start: number * page_tokens,
                    tokens: page_tokens.min(400 - number * page_tokens),
                    keys: plane.plane(),
                    values: plane.plane(),
                });
                let pages: Vec<PageView<'_>> = pages.collect();
                let kv = KvView {
                    head_dim,
                    pages: &pages,
                };
                let mut maxima = BlockMaxima::default();
                maxima.run(&tile, &kv, 400, block, &AttendOptions::new(0.2)).unwrap();
                (0..30)
                    .flat_map(|query| maxima.row_mut(query).to_vec())
                    .collect::<Vec<f32>>()
            };
            for block in [16, 32, 128, 256] {
                let expected = found(400, block);
                assert!(expected.iter().all(|largest| largest.is_finite()));
                for page_tokens in [16, 48, 112, 256] {
                    assert_eq!(found(page_tokens, block), expected, "{page_tokens} {block}");
                }
            }
        }
    }
}
