//! Rows of generated tokens over keys and values that are read in place.

use alloc::vec;
use alloc::vec::Vec;

use super::attend::{RowJob, blocks};
use super::view::{Run, keys_of, values_of};
use crate::format::{Bf16, Element, F16, F32};
use crate::kernel::{AccumulateRows, AheadRows, KEY_BLOCK, LONE_ROWS, STRIPES, ScoreRows, Softmax};
use crate::partial::Sums;
use crate::simd::Level;
use crate::visible::{Tokens, Visible, low_bits};
use crate::{AttendOptions, LANES, RowPage, Rows, Span};

/// A job whose rows attend eight at a time; each tile reads all its blocks.
pub(super) struct InPlace<'a> {
    level: Level,
    job: &'a RowJob<'a>,
    options: &'a AttendOptions<'a>,
    /// Elements of one value.
    value_dim: usize,
    visible: Tokens<'a>,
}

/// The tokens of a block that a tile of rows sees.
struct Seen {
    /// Visible tokens of each row.
    rows: [u128; LONE_ROWS],
    /// Tokens visible to any row.
    union: u128,
}

/// The tokens of a block that some row of the tile sees.
struct Listed<'a, T> {
    rows: [&'a [T]; KEY_BLOCK],
    len: usize,
}

impl<'a> InPlace<'a> {
    pub(super) fn new(level: Level, job: &'a RowJob<'a>, options: &'a AttendOptions<'a>, value_dim: usize) -> Self {
        let visible = Tokens {
            selection: job.selection,
            causal: options.causal,
        };
        Self {
            level,
            job,
            options,
            value_dim,
            visible,
        }
    }

    /// Adds the attention of all rows over the blocks of `part`, or of the whole cache, to `sums`.
    pub(super) fn run(&self, part: Option<usize>, sums: Sums) {
        let Some(page) = self.job.kv.pages.first() else { return };
        let blocks = blocks(self.job, self.options.causal, part);
        let total = self.job.queries.rows * self.job.queries.group;
        for first in (0..total).step_by(LONE_ROWS) {
            let rows = (total - first).min(LONE_ROWS);
            let (value_dim, tile) = (self.value_dim, first..first + rows);
            let sums = Sums {
                m: &mut sums.m[tile.clone()],
                l: &mut sums.l[tile.clone()],
                o: &mut sums.o[tile.start * value_dim..tile.end * value_dim],
            };
            match (page.keys, page.values) {
                (Rows::F32(_), Rows::F32(_)) => self.tile::<F32, F32>(&blocks, first, sums),
                (Rows::F32(_), Rows::F16(_)) => self.tile::<F32, F16>(&blocks, first, sums),
                (Rows::F32(_), Rows::Bf16(_)) => self.tile::<F32, Bf16>(&blocks, first, sums),
                (Rows::F16(_), Rows::F32(_)) => self.tile::<F16, F32>(&blocks, first, sums),
                (Rows::F16(_), Rows::F16(_)) => self.tile::<F16, F16>(&blocks, first, sums),
                (Rows::F16(_), Rows::Bf16(_)) => self.tile::<F16, Bf16>(&blocks, first, sums),
                (Rows::Bf16(_), Rows::F32(_)) => self.tile::<Bf16, F32>(&blocks, first, sums),
                (Rows::Bf16(_), Rows::F16(_)) => self.tile::<Bf16, F16>(&blocks, first, sums),
                (Rows::Bf16(_), Rows::Bf16(_)) => self.tile::<Bf16, Bf16>(&blocks, first, sums),
            }
        }
    }

    fn tile<K: Element, V: Element>(&self, blocks: &[(Run<'a>, Span)], first: usize, sums: Sums) {
        match sums.m.len() {
            1 => self.tile_of::<K, V, 1>(blocks, first, sums),
            2 => self.tile_of::<K, V, 2>(blocks, first, sums),
            3 | 4 => self.tile_of::<K, V, 4>(blocks, first, sums),
            _ => self.tile_of::<K, V, LONE_ROWS>(blocks, first, sums),
        }
    }

    /// Attends for the rows from `first` on; `sums` gives their number.
    fn tile_of<K: Element, V: Element, const R: usize>(&self, blocks: &[(Run<'a>, Span)], first: usize, sums: Sums) {
        let (head_dim, value_dim, rows) = (self.job.kv.head_dim, self.value_dim, sums.m.len());
        let queries = self.scaled::<R>(first, rows);
        let mut scores = [[0.0; KEY_BLOCK]; R];
        let mut next = [core::ptr::null(); KEY_BLOCK];
        for (at, (run, block)) in blocks.iter().enumerate() {
            let seen = self.seen(*block, first, rows);
            if seen.union == 0 {
                continue;
            }
            let keys = Listed::new(run, *block, seen.union, head_dim, keys_of::<K>);
            let values = Listed::new(run, *block, seen.union, value_dim, values_of::<V>);
            let mut ahead = [core::ptr::null(); KEY_BLOCK];
            let ahead = values.addresses(&mut ahead);
            self.level.run(ScoreRows::<K, R> {
                queries: &queries,
                head_dim,
                keys: keys.rows(),
                ahead: AheadRows {
                    rows: ahead,
                    row_bytes: value_dim * size_of::<V::Raw>(),
                },
                scores: &mut scores,
            });
            let mut places = [0; KEY_BLOCK];
            let places = places_of(seen.union, &mut places);
            let mut masks = [[0; STRIPES]; R];
            let masks = seen.masks(places, rows, &mut masks);
            let whole = places.last().is_some_and(|last| last + 1 == places.len());
            let mut keep = [1.0; R];
            self.level.run(Softmax {
                scores: &mut scores,
                slots: places.len().div_ceil(LANES),
                masks,
                bias: None,
                soft_cap: self.options.soft_cap,
                places: (!whole).then_some(places),
                m: &mut *sums.m,
                l: &mut *sums.l,
                keep: &mut keep,
            });
            let later = blocks.get(at + 1);
            let later =
                later.map(|(run, block)| Listed::new(run, *block, low_bits(block.len()), head_dim, keys_of::<K>));
            self.level.run(AccumulateRows::<V, R> {
                values: values.rows(),
                weights: &scores,
                keep: &keep,
                o: &mut *sums.o,
                head_dim: value_dim,
                ahead: AheadRows {
                    rows: later.as_ref().map_or(&[][..], |later| later.addresses(&mut next)),
                    row_bytes: head_dim * size_of::<K::Raw>(),
                },
            });
        }
    }

    /// Queries times the scale, `[R, head_dim]`; missing rows are zero.
    fn scaled<const R: usize>(&self, first: usize, rows: usize) -> Vec<f32> {
        let (group, head_dim) = (self.job.queries.group, self.job.kv.head_dim);
        let mut scaled = vec![0.0; R * head_dim];
        for (row, out) in (first..first + rows).zip(scaled.chunks_exact_mut(head_dim)) {
            let query = self.job.queries.query(row / group, row % group);
            for (out, value) in out.iter_mut().zip(query) {
                *out = value * self.options.scale;
            }
        }
        scaled
    }

    /// The tokens of a block that each row of the tile sees, including diagonals.
    fn seen(&self, block: Span, first: usize, rows: usize) -> Seen {
        let (group, start) = (self.job.queries.group, self.job.queries.start);
        let shared = self.visible.block_bits(block);
        let mut seen = Seen {
            rows: [0; LONE_ROWS],
            union: 0,
        };
        let mut last = None;
        for (row, bits) in (first..first + rows).zip(&mut seen.rows) {
            let query = start + row / group;
            *bits = match last {
                Some((position, bits)) if position == query => bits,
                _ => {
                    (self.visible.row_bits(block, shared, query) | self.diagonals(block, query)) & low_bits(block.len())
                }
            };
            last = Some((query, *bits));
            seen.union |= *bits;
        }
        seen
    }

    fn diagonals(&self, block: Span, query: usize) -> u128 {
        let mut bits = 0;
        for distance in self.visible.diagonals() {
            let ahead = query.checked_add(*distance).filter(|_| !self.options.causal);
            for key in query.checked_sub(*distance).into_iter().chain(ahead) {
                if block.range().contains(&key) {
                    bits |= 1 << (key - block.start);
                }
            }
        }
        bits
    }
}

impl Seen {
    /// Masks by slot; `None` if all rows see all listed tokens and the last slot is full.
    fn masks<'m, const R: usize>(
        &self,
        places: &[usize],
        rows: usize,
        masks: &'m mut [[u16; STRIPES]; R],
    ) -> Option<&'m [[u16; STRIPES]; R]> {
        let uniform = self.rows[..rows].iter().all(|bits| *bits == self.union);
        if uniform && places.len().is_multiple_of(LANES) {
            return None;
        }
        for (bits, masks) in self.rows.iter().zip(masks.iter_mut()) {
            for (at, place) in places.iter().enumerate() {
                masks[at / LANES] |= ((bits >> place & 1) as u16) << (at % LANES);
            }
        }
        Some(masks)
    }
}

/// The indices of the set bits of a block.
fn places_of(bits: u128, places: &mut [usize; KEY_BLOCK]) -> &[usize] {
    let mut len = 0;
    for place in (0..KEY_BLOCK).filter(|place| bits >> place & 1 == 1) {
        places[len] = place;
        len += 1;
    }
    &places[..len]
}

impl<'a, T> Listed<'a, T> {
    /// Rows of `width` elements; `data` returns a page's slice and stride.
    fn new(
        run: &Run<'a>,
        block: Span,
        bits: u128,
        width: usize,
        data: impl Fn(&RowPage<'a>) -> (&'a [T], usize),
    ) -> Self {
        let mut rows: [&[T]; KEY_BLOCK] = [&[]; KEY_BLOCK];
        run.rows(block, width, &mut rows, data);
        let mut len = block.len();
        if bits != low_bits(len) {
            len = 0;
            for place in (0..KEY_BLOCK).filter(|place| bits >> place & 1 == 1) {
                rows[len] = rows[place];
                len += 1;
            }
        }
        Self { rows, len }
    }

    fn rows(&self) -> &[&'a [T]] {
        &self.rows[..self.len]
    }

    /// The address of the first element of each row.
    fn addresses<'b>(&self, addresses: &'b mut [*const u8; KEY_BLOCK]) -> &'b [*const u8] {
        for (address, row) in addresses.iter_mut().zip(self.rows()) {
            *address = row.as_ptr().cast();
        }
        &addresses[..self.len]
    }
}
