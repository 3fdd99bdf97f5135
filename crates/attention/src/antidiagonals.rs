use alloc::vec::Vec;
use core::ops::Range;

use crate::attend::check_keys;
use crate::block::{aligned, stripes_of};
use crate::kernel::{Antidiagonal, KEY_BLOCK, LONG_ROWS, STRIPES, Slot, widen_keys};
use crate::simd::Level;
use crate::{AttendError, AttendOptions, KvView, LANES, Plane, QueryTile};

/// Logits of long queries and long keys, without reading values: sums along antidiagonals of the attention map, at 1
/// / `stride` of its cost (XAttention, Xu et al. 2025, arXiv:2503.16428).
///
/// A long key is `stride` consecutive keys side by side. A long query is as many queries in reverse. Their product is
/// the sum of q·k over an antidiagonal. Both begin at multiples of `stride` in absolute positions; absent queries and
/// keys count as zeros.
///
/// ```
/// # use riffle_attention::*;
/// # let source: Vec<f32> = (0..16 * 16).map(|i| (i % 7) as f32 - 3.0).collect();
/// # let (mut keys, values) = (vec![0.0; 256], vec![0.0; 256]);
/// # write_keys(&mut PlaneMut::F32(&mut keys), 16, 0, 16, &source, 16)?;
/// # let pages = [PageView { start: 0, tokens: 16, keys: Plane::F32(&keys), values: Plane::F32(&values) }];
/// # let kv = KvView { head_dim: 16, pages: &pages };
/// # let queries = QueryTile { data: &source[192..], rows: 4, row_stride: 16, group: 1, head_dim: 16, start: 12 };
/// let mut sums = Antidiagonals::default();
/// sums.run(&queries, &kv, 16, 4, 1.0)?;
/// let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
/// // Queries 12..16, reversed, beside keys 4..8.
/// let expected: f32 = (0..4).map(|s| dot(queries.query(3 - s, 0), &source[(4 + s) * 16..][..16])).sum();
/// assert_eq!(sums.row_mut(0, 3)[1], expected);
/// # Ok::<(), AttendError>(())
/// ```
#[derive(Debug, Default)]
pub struct Antidiagonals {
    /// Numbers of the long queries.
    long_queries: Range<usize>,
    long_keys: usize,
    row_stride: usize,
    /// `[head and long query, LONG_ROWS together, head_dim, LONG_ROWS, 16]`
    queries: Vec<f32>,
    keys: Vec<f32>,
    /// `[group, long queries, row_stride]`
    logits: Vec<f32>,
}

impl Antidiagonals {
    /// Computes the logits of a tile's long queries with the long keys of `0..tokens`; `stride` is a power of two up to
    /// 16.
    ///
    /// # Errors
    /// Shapes that disagree, slices that are too short, pages that do not begin at a multiple of `stride`.
    pub fn run(
        &mut self,
        queries: &QueryTile,
        kv: &KvView,
        tokens: usize,
        stride: usize,
        scale: f32,
    ) -> Result<(), AttendError> {
        check_keys(queries, kv, &AttendOptions::new(scale))?;
        let aligned_pages = kv.pages.iter().all(|page| page.start.is_multiple_of(stride));
        if !stride.is_power_of_two() || stride > LANES || !aligned_pages {
            return Err(AttendError::Setting {
                what: "the stride must be a power of two up to 16 at whose multiples pages begin",
            });
        }
        let end = queries.start + queries.rows;
        self.long_queries = queries.start / stride..end.div_ceil(stride);
        self.long_keys = tokens.div_ceil(stride);
        self.row_stride = self.long_keys.next_multiple_of(2 * LANES) + LANES;
        let sets = (self.long_queries.len() * queries.group).div_ceil(LONG_ROWS);
        self.pack(queries, stride, scale, sets);
        self.logits.clear();
        self.logits.resize(sets * LONG_ROWS * self.row_stride, 0.0);
        for page in kv.pages.iter().take_while(|page| page.start < tokens) {
            let within = page.tokens.min(tokens - page.start);
            for first in (0..within).step_by(KEY_BLOCK) {
                let count = (within - first).min(KEY_BLOCK);
                let keys = stripes_of(page.keys, first, count, kv.head_dim);
                self.block(keys, count, kv.head_dim, stride, (page.start + first) / stride);
            }
        }
        Ok(())
    }

    /// Numbers of the long queries: number `n` holds the queries from `n · stride` on.
    pub fn long_queries(&self) -> Range<usize> {
        self.long_queries.clone()
    }

    /// Logits of long query `number` of a head, `[long keys]`. Later long keys are included.
    ///
    /// # Panics
    /// When there is no such head or long query.
    pub fn row_mut(&mut self, head: usize, number: usize) -> &mut [f32] {
        let row = head * self.long_queries.len() + number - self.long_queries.start;
        &mut self.logits[row * self.row_stride..][..self.long_keys]
    }

    /// Packs each long query in the lane order of the keys' stripes.
    fn pack(&mut self, queries: &QueryTile, stride: usize, scale: f32, sets: usize) {
        let head_dim = queries.head_dim;
        let len = sets * head_dim * LONG_ROWS * LANES;
        let packed = aligned(&mut self.queries, len);
        packed.fill(0.0);
        let per_head = self.long_queries.len();
        for row in 0..queries.rows {
            let position = queries.start + row;
            let lane = stride - 1 - position % stride;
            for head in 0..queries.group {
                let long = head * per_head + position / stride - self.long_queries.start;
                let set = &mut packed[long / LONG_ROWS * head_dim * LONG_ROWS * LANES..];
                let channels = set.chunks_exact_mut(LONG_ROWS * LANES);
                for (lanes, value) in channels.zip(queries.query(row, head)) {
                    let lanes = &mut lanes[long % LONG_ROWS * LANES..][..LANES];
                    for place in (lane..LANES).step_by(stride) {
                        lanes[place] = value * scale;
                    }
                }
            }
        }
    }

    fn block(&mut self, block: Plane, tokens: usize, head_dim: usize, stride: usize, at: usize) {
        let level = Level::best();
        let keys = match block {
            Plane::F32(data) => data,
            _ => {
                let mut slots = [Slot::default(); STRIPES];
                let stripes = tokens.div_ceil(LANES);
                for (stripe, slot) in slots.iter_mut().enumerate() {
                    (slot.stripe, slot.tokens) = (stripe, LANES);
                }
                let out = aligned(&mut self.keys, KEY_BLOCK * head_dim);
                widen_keys(level, block, &slots[..stripes], head_dim, out);
                out
            }
        };
        let per_set = head_dim * LONG_ROWS * LANES;
        let sets = self.logits.len() / (LONG_ROWS * self.row_stride);
        let packed = aligned(&mut self.queries, sets * per_set);
        let outs = self.logits.chunks_exact_mut(LONG_ROWS * self.row_stride);
        for (queries, out) in packed.chunks_exact(per_set).zip(outs) {
            level.run(Antidiagonal {
                queries: queries.as_chunks().0.as_chunks().0,
                keys,
                tokens,
                stride,
                out,
                out_stride: self.row_stride,
                at,
            });
        }
    }
}
