use alloc::vec::Vec;

use crate::block::{aligned, stripes_of};
use crate::format::{F32, PlaneFormat, PlaneKind, Reading, ScoreTile, check_head_dim, with_plane};
use crate::kernel::{Ahead, Int8Queries, KEY_BLOCK, STRIPES, Slot, pack, score, tile_width, widen_keys, with_lead};
use crate::simd::Level;
use crate::{Arithmetic, AttendError, LANES, Plane};

/// Multiplies vectors with the keys of a plane. The logits serve for estimates; there is no softmax.
///
/// In [`Arithmetic::Fused`] quantised keys use integer dot products if the machine has them, as in
/// [`attend`](crate::attend). In [`Arithmetic::Expanded`], the default, keys are widened. Products then have the same
/// bits on every machine with fused multiply-add. Each product sums its elements in order, independent of other
/// products.
///
/// ```
/// # use riffle_attention::*;
/// let source: Vec<f32> = (0..20 * 16).map(|i| (i % 5) as f32).collect();
/// let mut keys = vec![0.0; 32 * 16];
/// write_keys(&mut PlaneMut::F32(&mut keys), 16, 0, 20, &source, 16)?;
/// let mut scorer = Scorer::default();
/// scorer.set([&source[..16]], 16, 0.5)?;
/// let mut logits = [0.0; 20];
/// scorer.score(&Plane::F32(&keys), Span::new(0, 20), None, &mut logits, 20)?;
/// let dot: f32 = source[..16].iter().zip(&source[19 * 16..]).map(|(a, b)| a * b).sum();
/// assert_eq!(logits[19], 0.5 * dot);
/// # Ok::<(), AttendError>(())
/// ```
#[derive(Debug, Default)]
pub struct Scorer {
    head_dim: usize,
    count: usize,
    packs: Vec<Packed>,
    /// `[head_dim, width]` for each pack.
    vectors: Vec<f32>,
    int8: Int8Queries,
    arithmetic: Arithmetic,
    keys: Vec<f32>,
    scores: Vec<f32>,
}

/// Vectors that are scored together.
#[derive(Debug, Clone, Copy)]
struct Packed {
    first: usize,
    rows: usize,
    width: usize,
    /// Index of the first element.
    at: usize,
}

/// A block of keys to multiply with all vectors.
struct KeyBlock<'a> {
    keys: Plane<'a>,
    /// True if keys are multiplied without widening.
    is_in_place: bool,
    tokens: usize,
    slots: &'a [Slot],
    /// Memory to prefetch while the first vectors are multiplied.
    ahead: Ahead<'a>,
}

impl Scorer {
    /// An empty scorer for this arithmetic.
    pub fn new(arithmetic: Arithmetic) -> Self {
        Self {
            arithmetic,
            ..Self::default()
        }
    }

    /// Changes the arithmetic, from the next [`set`](Self::set) on.
    pub(crate) fn turn_to(&mut self, arithmetic: Arithmetic) {
        self.arithmetic = arithmetic;
    }

    /// Sets the vectors, of `head_dim` elements each, and multiplies them with `scale`.
    ///
    /// # Errors
    /// A head dimension that is not a multiple of 16, a vector of another length.
    pub fn set<'v>(
        &mut self,
        vectors: impl IntoIterator<Item = &'v [f32]>,
        head_dim: usize,
        scale: f32,
    ) -> Result<(), AttendError> {
        check_head_dim(head_dim)?;
        let rows: Vec<&[f32]> = vectors.into_iter().collect();
        if let Some(row) = rows.iter().find(|row| row.len() != head_dim) {
            return Err(AttendError::Mismatch {
                what: "elements of a vector and head_dim",
                expected: head_dim,
                found: row.len(),
            });
        }
        let level = Level::best();
        (self.head_dim, self.count) = (head_dim, rows.len());
        self.packs.clear();
        self.vectors.clear();
        let mut first = 0;
        self.int8.clear();
        let integers = self.in_integers(level);
        let most = if integers {
            level.integer_rows()
        } else {
            level.tile_rows()
        };
        for rows in rows.chunks(most) {
            let width = tile_width(level, rows.len(), integers);
            let at = self.vectors.len();
            self.vectors.resize(at + width * head_dim, 0.0);
            let packed = &mut self.vectors[at..];
            match width {
                1 => pack::<1>(level, rows, scale, packed),
                2 => pack::<2>(level, rows, scale, packed),
                3 => pack::<3>(level, rows, scale, packed),
                4 => pack::<4>(level, rows, scale, packed),
                6 => pack::<6>(level, rows, scale, packed),
                8 => pack::<8>(level, rows, scale, packed),
                _ => pack::<12>(level, rows, scale, packed),
            }
            if integers {
                self.int8.push(level, packed, width);
            }
            self.packs.push(Packed {
                first,
                rows: rows.len(),
                width,
                at,
            });
            first += rows.len();
        }
        Ok(())
    }

    /// Writes the logits of every vector with the keys in `slots` of a plane, `[vectors, slots]` with `out_stride`
    /// from vector to vector. `slots` begin at a multiple of 16; `ahead` is the next plane to score, if any.
    ///
    /// # Errors
    /// A plane or an output that is too short, slots that begin within a stripe.
    pub fn score(
        &mut self,
        keys: &Plane,
        slots: crate::Span,
        ahead: Option<&Plane>,
        out: &mut [f32],
        out_stride: usize,
    ) -> Result<(), AttendError> {
        if slots.is_empty() || self.count == 0 {
            return Ok(());
        }
        keys.check("keys", slots.end, self.head_dim)?;
        let needed = (self.count - 1)
            .checked_mul(out_stride)
            .and_then(|n| n.checked_add(slots.len()));
        let needed = needed.ok_or(AttendError::TooLarge { what: "logits" })?;
        if out.len() < needed {
            let found = out.len();
            return Err(AttendError::Short {
                what: "logits",
                needed,
                found,
            });
        }
        if !slots.start.is_multiple_of(LANES) {
            return Err(AttendError::Setting {
                what: "slots that are scored must begin at a multiple of 16",
            });
        }
        for first in slots.range().step_by(KEY_BLOCK) {
            let tokens = (slots.end - first).min(KEY_BLOCK);
            let block = stripes_of(*keys, first, tokens, self.head_dim);
            let next = first + KEY_BLOCK;
            let ahead = if next < slots.end {
                Some(stripes_of(
                    *keys,
                    next,
                    (slots.end - next).min(KEY_BLOCK),
                    self.head_dim,
                ))
            } else {
                ahead.copied()
            };
            self.block(block, tokens, ahead, &mut out[first - slots.start..], out_stride);
        }
        Ok(())
    }

    fn in_integers(&self, level: Level) -> bool {
        self.arithmetic == Arithmetic::Fused && level.int8_dot()
    }

    fn block(&mut self, keys: Plane, tokens: usize, ahead: Option<Plane>, out: &mut [f32], out_stride: usize) {
        let level = Level::best();
        let mut slots = [Slot::default(); STRIPES];
        let stripes = tokens.div_ceil(LANES);
        for (stripe, slot) in slots.iter_mut().enumerate().take(stripes) {
            *slot = Slot {
                stripe,
                tokens: (tokens - stripe * LANES).min(LANES),
            };
        }
        let reading = Reading {
            level,
            is_fused: self.arithmetic == Arithmetic::Fused,
            rows: 1,
        };
        let block = KeyBlock {
            keys,
            is_in_place: keys.format().reads_in_place(PlaneKind::Keys, reading),
            tokens,
            slots: &slots[..stripes],
            ahead: Ahead::new(Some(with_lead(level, keys)), ahead.map(|plane| with_lead(level, plane))),
        };
        if !block.is_in_place {
            let out = aligned(&mut self.keys, KEY_BLOCK * self.head_dim);
            widen_keys(level, keys, block.slots, self.head_dim, out);
        }
        for at in 0..self.packs.len() {
            let pack = self.packs[at];
            let out = &mut out[pack.first * out_stride..];
            match pack.width {
                1 => self.pack_block::<1>(level, pack, &block, out, out_stride),
                2 => self.pack_block::<2>(level, pack, &block, out, out_stride),
                3 => self.pack_block::<3>(level, pack, &block, out, out_stride),
                4 => self.pack_block::<4>(level, pack, &block, out, out_stride),
                6 => self.pack_block::<6>(level, pack, &block, out, out_stride),
                8 => self.pack_block::<8>(level, pack, &block, out, out_stride),
                _ => self.pack_block::<12>(level, pack, &block, out, out_stride),
            }
        }
    }

    fn pack_block<const R: usize>(
        &mut self,
        level: Level,
        pack: Packed,
        block: &KeyBlock,
        out: &mut [f32],
        out_stride: usize,
    ) {
        let ahead = if pack.first == 0 { block.ahead } else { Ahead::default() };
        let (head_dim, slots) = (self.head_dim, block.slots);
        let vectors = &self.vectors[pack.at..pack.at + R * head_dim].as_chunks::<R>().0[..head_dim];
        let scores = aligned(&mut self.scores, R * KEY_BLOCK).as_chunks_mut::<KEY_BLOCK>().0;
        let Some(scores) = scores.first_chunk_mut::<R>() else {
            return;
        };
        if block.is_in_place {
            let tile = ScoreTile {
                level,
                queries: vectors,
                integers: (&self.int8, pack.at),
                ahead,
                slots,
                scores,
            };
            with_plane!(Plane block.keys, F, keys => F::score(tile, keys));
        } else {
            let keys = aligned(&mut self.keys, KEY_BLOCK * head_dim);
            score::<F32, R>(level, vectors, keys, Ahead::default(), slots, scores);
        }
        for (row, scores) in scores.iter().enumerate().take(pack.rows) {
            out[row * out_stride..][..block.tokens].copy_from_slice(&scores[..block.tokens]);
        }
    }
}
