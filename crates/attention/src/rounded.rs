//! Drives the integer kernels of [`Arithmetic::Rounded`] over one block of keys.
//!
//! The rounding of a key or value depends on its block alone; the rounding of a weight depends on the tokens that its
//! own row sees there. So a row has the same bits beside any other rows, for any split of the prompt and any later
//! tokens.

use alloc::vec::Vec;

use crate::block::{Block, active, aligned};
use crate::call::{Call, Output, QueryBlock, Tile};
use crate::format::{Element, F32, PlaneFormat, with_plane};
use crate::gathered::Gathered;
use crate::kernel::{
    AccumulatePairs, Ahead, KEY_BLOCK, PairKeys, PairQueries, PairTile, PairValues, PairWeights, RoundPairKeys,
    RoundPairValues, STRIPES, ScorePairs, Slot, WeighPairs, WidenKeys, WidenValues,
};
use crate::partial::Sums;
use crate::simd::Level;
use crate::tile::{TilePart, TileWork, scores_of};
use crate::visible::Visible;
use crate::workspace::Workspace;
use crate::{Arithmetic, LANES};

/// Scratch of a call in [`Arithmetic::Rounded`].
#[derive(Debug, Default)]
pub(crate) struct Rounded {
    queries: PairQueries,
    keys: PairKeys,
    values: PairValues,
    /// The integers of a tile's rows.
    weights: Vec<PairWeights>,
}

/// True if a row reads so few scattered tokens of a block that they are gathered and computed exactly; rounding would
/// process whole stripes.
fn scattered(bits: u128) -> bool {
    let stripes = (0..STRIPES).filter(|stripe| (bits >> (stripe * LANES)) as u16 != 0);
    bits != 0 && Gathered::pays(bits, stripes.count())
}

impl<V: Visible> Call<'_, V> {
    /// True if a block's contribution to `output` is computed in integers. Scattered tokens and diagonals are
    /// exceptions.
    pub(crate) fn rounds(&self, block: &Block, output: &Output) -> bool {
        let asked = self.options.arithmetic == Arithmetic::Rounded;
        asked && !matches!(output, Output::Mass { .. }) && self.visible.bias(block.span.start).is_none()
    }

    /// Rounds the queries of a block.
    pub(crate) fn pack_rounded(&self, workspace: &mut Workspace, queries: QueryBlock) {
        let total = queries.positions * self.queries.group;
        let packed = &mut workspace.rounded.queries;
        packed.clear();
        let mut at = 0;
        while at < total {
            let tile = self.tile(at, total);
            let rows = self.rows_of(queries, &tile);
            packed.push(self.level, &rows[..tile.rows], tile.width, self.options.scale);
            at += tile.rows;
        }
    }

    /// The unrounded queries of a tile.
    fn rows_of(&self, queries: QueryBlock, tile: &Tile) -> [&[f32]; 12] {
        let group = self.queries.group;
        core::array::from_fn(|r| {
            if r < tile.rows {
                self.queries
                    .query(queries.first + (tile.first + r) / group, (tile.first + r) % group)
            } else {
                &[]
            }
        })
    }

    /// Adds the attention of `queries` over one block of keys.
    pub(crate) fn rounded_block(
        &self,
        workspace: &mut Workspace,
        queries: QueryBlock,
        block: &Block,
        output: &mut Output,
    ) {
        let (mut union, uniform) = self.seen(&mut workspace.bits, queries, block.span);
        if uniform && scattered(union) || !uniform && workspace.bits.iter().any(|bits| scattered(*bits)) {
            if !uniform {
                union = keep(&mut workspace.bits, scattered);
            }
            self.exact_block(workspace, queries, block, (union, uniform), output);
            if uniform {
                return;
            }
            self.seen(&mut workspace.bits, queries, block.span);
            union = keep(&mut workspace.bits, |bits| !scattered(bits));
        }
        let Some(mut sums) = output.sums().filter(|_| union != 0) else {
            return;
        };
        let mut slots = [Slot::default(); STRIPES];
        let slots_len = active(union, block.span.len(), &mut slots);
        self.round_block(workspace, block, &slots[..slots_len]);
        let part = TilePart {
            queries,
            biased: false,
            uniform,
            union,
            places: None,
        };
        self.rounded_tiles(workspace, block, &part, &mut sums);
    }

    /// Rounds the keys and values of some slots.
    fn round_block(&self, workspace: &mut Workspace, block: &Block, slots: &[Slot]) {
        let (key_dim, value_dim) = self.widths();
        if block.is_latent {
            self.turn_values(workspace, block, slots, false);
        }
        let Workspace {
            rounded: Rounded { keys, values, .. },
            keys: wide_keys,
            values: wide_values,
            ..
        } = workspace;
        let task = Rounding {
            level: self.level,
            slots,
            key_dim,
            value_dim,
        };
        with_plane!(Plane block.keys, F, data => F::round_keys(&task, data, wide_keys, keys));
        if block.is_latent {
            return task.values::<F32>(aligned(wide_values, KEY_BLOCK * value_dim), values);
        }
        with_plane!(Plane block.values, F, data => F::round_values(&task, data, wide_values, values));
    }

    fn rounded_tiles(&self, workspace: &mut Workspace, block: &Block, part: &TilePart, sums: &mut Sums) {
        let group = self.queries.group;
        let total = part.queries.positions * group;
        let mut slots = [Slot::default(); STRIPES];
        let (mut at, mut packed) = (0, 0);
        while at < total {
            let tile = self.tile(at, total);
            let bits = part.bits_of(&tile, group, &workspace.bits);
            if bits != 0 {
                let slots_len = active(bits, block.span.len(), &mut slots);
                let slots = &slots[..slots_len];
                let work = TileWork {
                    ahead: block.following().map_or(Default::default(), |(keys, values)| {
                        let share = |next| Ahead::new(None, Some((next, usize::MAX))).share(at..at + tile.rows, total);
                        (share(keys), share(values))
                    }),
                    ..part.work(tile, packed, slots, bits, group)
                };
                match tile.width {
                    1 => self.rounded_tile::<1>(workspace, part.queries, &work, sums),
                    2 => self.rounded_tile::<2>(workspace, part.queries, &work, sums),
                    3 => self.rounded_tile::<3>(workspace, part.queries, &work, sums),
                    4 => self.rounded_tile::<4>(workspace, part.queries, &work, sums),
                    6 => self.rounded_tile::<6>(workspace, part.queries, &work, sums),
                    8 => self.rounded_tile::<8>(workspace, part.queries, &work, sums),
                    _ => self.rounded_tile::<12>(workspace, part.queries, &work, sums),
                }
            }
            packed += tile.width * self.kv.head_dim;
            at += tile.rows;
        }
    }

    fn rounded_tile<const R: usize>(
        &self,
        workspace: &mut Workspace,
        queries: QueryBlock,
        work: &TileWork,
        sums: &mut Sums,
    ) {
        let (level, slots, (key_dim, value_dim)) = (self.level, work.slots, self.widths());
        let mut masks = [[0; STRIPES]; R];
        let masks = work.bits.map(|all| {
            work.fill_masks(all, &workspace.bits, &mut masks);
            &masks
        });
        let scores = scores_of::<R>(&mut workspace.scores);
        let Rounded {
            queries: integers,
            keys,
            values,
            weights,
        } = &mut workspace.rounded;
        let rows = self.rows_of(queries, &work.tile);
        level.run(ScorePairs {
            queries: PairTile::<R>::of(integers, work.queries, key_dim),
            rows: &rows[..work.tile.rows],
            scale: self.options.scale,
            keys,
            slots,
            ahead: work.ahead.0,
            scores,
        });
        let weights = weights_of::<R>(weights);
        let (mut keep, mut unit) = ([1.0; R], [0.0; R]);
        let range = work.rows();
        level.run(WeighPairs {
            scores,
            slots,
            masks,
            soft_cap: self.options.soft_cap,
            values,
            m: &mut sums.m[range.clone()],
            l: &mut sums.l[range.clone()],
            weights,
            keep: &mut keep,
            unit: &mut unit,
        });
        level.run(AccumulatePairs {
            weights,
            values,
            slots,
            ahead: work.ahead.1,
            keep: &keep,
            unit: &unit,
            o: &mut sums.o[range.start * value_dim..range.end * value_dim],
            head_dim: value_dim,
        });
    }
}

/// Clears each row's tokens unless `kept` accepts them. Returns the union of the rows.
fn keep(bits: &mut [u128], kept: impl Fn(u128) -> bool) -> u128 {
    bits.iter_mut().filter(|bits| !kept(**bits)).for_each(|bits| *bits = 0);
    bits.iter().fold(0, |union, bits| union | bits)
}

/// Slots of rounded keys and values.
pub(crate) struct Rounding<'a> {
    level: Level,
    slots: &'a [Slot],
    key_dim: usize,
    value_dim: usize,
}

impl Rounding<'_> {
    pub(crate) fn keys<E: Element>(&self, keys: &[E::Raw], out: &mut PairKeys) {
        self.level.run(RoundPairKeys::<E> {
            keys,
            slots: self.slots,
            head_dim: self.key_dim,
            out,
        });
    }

    pub(crate) fn values<E: Element>(&self, values: &[E::Raw], out: &mut PairValues) {
        self.level.run(RoundPairValues::<E> {
            values,
            slots: self.slots,
            head_dim: self.value_dim,
            out,
        });
    }

    /// Keys widened to f32, in `buffer`.
    pub(crate) fn widened_keys<'b, F: PlaneFormat>(&self, keys: &[F::Raw], buffer: &'b mut Vec<f32>) -> &'b [f32] {
        let out = aligned(buffer, KEY_BLOCK * self.key_dim);
        // The block's first key is subtracted from the others, even if it is not read.
        let beginning = Slot {
            stripe: 0,
            tokens: LANES,
        };
        for slots in [&[beginning], self.slots] {
            self.level.run(WidenKeys::<F> {
                keys,
                slots,
                head_dim: self.key_dim,
                out,
            });
        }
        out
    }

    /// Values widened to f32, in `buffer`.
    pub(crate) fn widened_values<'b, F: PlaneFormat>(&self, values: &[F::Raw], buffer: &'b mut Vec<f32>) -> &'b [f32] {
        let out = aligned(buffer, KEY_BLOCK * self.value_dim);
        self.level.run(WidenValues::<F> {
            values,
            slots: self.slots,
            head_dim: self.value_dim,
            out,
        });
        out
    }
}

/// The integer weights of a tile of `R` rows, in scratch.
fn weights_of<const R: usize>(weights: &mut Vec<PairWeights>) -> &mut [PairWeights; R] {
    if weights.len() < R {
        weights.resize(R, PairWeights::default());
    }
    weights.first_chunk_mut::<R>().expect("as long as was asked for")
}
