//! Runs the kernels over one block of keys for the tiles of a query block.

use alloc::vec::Vec;
use core::ops::Range;

use crate::block::{Block, Next, active, aligned, stripes_of, whole};
use crate::call::{Call, Output, QueryBlock, Tile};
use crate::format::{F32, PlaneFormat, ScoreTile, with_plane};
use crate::gathered::Gathered;
use crate::kernel::{
    Accumulate, AddMass, Ahead, KEY_BLOCK, STRIPES, Slot, Softmax, WeighedRows, score, widen_keys, widen_values,
    with_lead,
};
use crate::partial::Sums;
use crate::visible::{Visible, low_bits};
use crate::workspace::Workspace;
use crate::{Format, LANES, Plane, Span};

impl<V: Visible> Call<'_, V> {
    pub(crate) fn block(&self, workspace: &mut Workspace, queries: QueryBlock, block: &Block, output: &mut Output) {
        if self.rounds(block, output) {
            return self.rounded_block(workspace, queries, block, output);
        }
        let seen = self.seen(&mut workspace.bits, queries, block.span);
        self.exact_block(workspace, queries, block, seen, output);
    }

    /// Lets `queries` read a block in single precision; `seen` is the result of [`seen`](Self::seen).
    pub(crate) fn exact_block(
        &self,
        workspace: &mut Workspace,
        queries: QueryBlock,
        block: &Block,
        (union, uniform): (u128, bool),
        output: &mut Output,
    ) {
        if union == 0 {
            return;
        }
        let total = queries.positions * self.queries.group;
        let mut slots = [Slot::default(); STRIPES];
        let slots_len = active(union, block.span.len(), &mut slots);
        let keys_only = matches!(output, Output::Mass { .. });
        let biased = self.visible.bias(block.span.start).is_some();
        let gathered = uniform && !self.looks_ahead(total) && !biased && Gathered::pays(union, slots_len);
        self.widen(
            workspace,
            block,
            &slots[..slots_len],
            (!gathered).then_some(total),
            keys_only,
        );
        let part = TilePart {
            queries,
            biased,
            uniform,
            union,
            places: None,
        };
        if gathered {
            self.gathered_tiles(workspace, block, part, output)
        } else {
            self.tiles(workspace, block, &part, output)
        }
    }

    /// The tokens of a block that some query sees, and true if all see the same tokens. Otherwise `bits` receives the
    /// tokens of each position.
    pub(crate) fn seen(&self, bits: &mut Vec<u128>, queries: QueryBlock, block: Span) -> (u128, bool) {
        let start = self.queries.start + queries.first;
        let valid = low_bits(block.len());
        let in_range = low_bits(self.range.end.saturating_sub(block.start))
            & !low_bits(self.range.start.saturating_sub(block.start));
        let allowed = valid & in_range;
        let shared = self.visible.block_bits(block);
        bits.clear();
        if self.visible.uniform(block, shared, start, queries.positions) {
            return (shared & allowed, true);
        }
        bits.extend(
            (start..start + queries.positions).map(|query| self.visible.row_bits(block, shared, query) & allowed),
        );
        let union = bits.iter().fold(0, |union, bits| union | bits);
        // The tokens that each row sees decide, so that later tokens of the block change nothing.
        (union, bits.iter().all(|bits| *bits == union))
    }

    /// [`tiles`](Self::tiles) over the visible tokens, gathered.
    fn gathered_tiles(&self, workspace: &mut Workspace, block: &Block, part: TilePart, output: &mut Output) {
        let mut gathered = core::mem::take(&mut workspace.gathered);
        let (key_len, value_len) = (KEY_BLOCK * self.kv.head_dim, KEY_BLOCK * self.value_dim);
        let keys = match block.keys {
            Plane::F32(data) => data,
            _ => &*aligned(&mut workspace.keys, key_len),
        };
        let values = match block.values {
            _ if matches!(output, Output::Mass { .. }) => None,
            Plane::F32(data) if !block.is_latent => Some(data),
            _ => Some(&*aligned(&mut workspace.values, value_len)),
        };
        let (places, keys, values) = gathered.take(part.union, keys, values, self.widths());
        let part = TilePart {
            union: low_bits(places.len()),
            places: Some(places),
            ..part
        };
        let block = Block {
            span: Span::new(block.span.start, block.span.start + places.len()),
            keys: Plane::F32(keys),
            values: Plane::F32(values),
            is_latent: false,
            next: Next::Following(None),
        };
        self.tiles(workspace, &block, &part, output);
        workspace.gathered = gathered;
    }

    /// Runs the tiles of a query block over a block of keys and values, which are already widened if necessary.
    fn tiles(&self, workspace: &mut Workspace, block: &Block, part: &TilePart, output: &mut Output) {
        let group = self.queries.group;
        let total = part.queries.positions * group;
        let keys_only = matches!(output, Output::Mass { .. });
        let keys_in_place = self.reads_keys_in_place(block.keys.format(), total);
        let values_in_place = self.reads_values_in_place(block, total);
        let mut bias = [0.0; KEY_BLOCK];
        let mut slots = [Slot::default(); STRIPES];
        let mut at = 0;
        let mut packed = 0;
        while at < total {
            let tile = self.tile(at, total);
            let bits = part.bits_of(&tile, group, &workspace.bits);
            if bits != 0 {
                let slots_len = active(bits, block.span.len(), &mut slots);
                let slots = &slots[..slots_len];
                if part.biased {
                    self.fill_bias(block.span.start, slots, &mut bias);
                }
                let work = TileWork {
                    bias: part.biased.then_some(&bias),
                    keys_in_place,
                    values_in_place,
                    ahead: if self.looks_ahead(total) {
                        self.ahead(block, slots, &tile, total, keys_only)
                    } else {
                        Default::default()
                    },
                    places: part.places,
                    ..part.work(tile, packed, slots, bits, group)
                };
                self.tile_of_any_width(workspace, block, &work, output);
            }
            packed += tile.width * self.kv.head_dim;
            at += tile.rows;
        }
    }

    /// Fills the bias of each token in the slots of the block at `start`.
    fn fill_bias(&self, start: usize, slots: &[Slot], bias: &mut [f32; KEY_BLOCK]) {
        for (bias, slot) in bias.chunks_exact_mut(LANES).zip(slots) {
            for (lane, bias) in bias.iter_mut().enumerate().take(slot.tokens) {
                let position = start + slot.stripe * LANES + lane;
                *bias = self.visible.bias(position).unwrap_or(0.0);
            }
        }
    }

    /// Widens the planes that `total` rows do not read in place; without a number, all planes but f32.
    fn widen(&self, workspace: &mut Workspace, block: &Block, slots: &[Slot], total: Option<usize>, keys_only: bool) {
        let (keys, values) = (block.keys.format(), block.values.format());
        let keys_in_place = total.map_or(keys == Format::F32, |total| self.reads_keys_in_place(keys, total));
        if !keys_in_place {
            let out = aligned(&mut workspace.keys, KEY_BLOCK * self.kv.head_dim);
            widen_keys(self.level, block.keys, slots, self.kv.head_dim, out);
        }
        if keys_only {
            return;
        }
        if block.is_latent {
            self.turn_values(workspace, block, slots, !keys_in_place);
        } else if !total.map_or(values == Format::F32, |total| self.reads_values_in_place(block, total)) {
            let out = aligned(&mut workspace.values, KEY_BLOCK * self.value_dim);
            widen_values(self.level, block.values, slots, self.value_dim, out);
        }
    }

    /// The memory that a tile prefetches while it scores the block's keys, and while it accumulates values.
    ///
    /// If the block is read in part, the first tile prefetches the stripes that are read next.
    ///
    /// Otherwise the first tile loads unwidened planes of this block from memory. Widened planes are loaded already, so
    /// the tiles prefetch the next block; each takes its rows' share of `total`.
    fn ahead<'b>(
        &self,
        block: &Block<'b>,
        slots: &[Slot],
        tile: &Tile,
        total: usize,
        keys_only: bool,
    ) -> (Ahead<'b>, Ahead<'b>) {
        if let Next::Scattered([next_keys, next_values]) = block.next {
            return match self.reads_values_in_place(block, total) {
                _ if tile.first > 0 => Default::default(),
                _ if keys_only => (Ahead::runs(next_keys), Ahead::default()),
                true => {
                    let [_, values] = block.runs(slots, self.widths());
                    (Ahead::runs(values), Ahead::runs(next_keys))
                }
                false => (Ahead::runs(next_keys), Ahead::runs(next_values)),
            };
        }
        let (Some(begin), Some(end)) = (slots.first(), slots.last()) else {
            return Default::default();
        };
        let tokens = (end.stripe - begin.stripe) * LANES + end.tokens;
        let read = |plane, width| stripes_of(plane, begin.stripe * LANES, tokens, width);
        let lead = |plane: Plane<'b>, in_place: bool| {
            if in_place {
                with_lead(self.level, plane)
            } else {
                (plane, usize::MAX)
            }
        };
        let keys_lead = |keys: Plane<'b>| lead(keys, self.reads_keys_in_place(keys.format(), total));
        let keys_in_place = self.reads_keys_in_place(block.keys.format(), total);
        let values_in_place = self.reads_values_in_place(block, total);
        let values_lead = |values: Plane<'b>| lead(values, values_in_place);
        let next_keys = block.following().map(|(keys, _)| keys_lead(keys));
        let next_values = block.following().map(|(_, values)| values_lead(values));
        let next_values = next_values.filter(|_| !keys_only && !block.is_latent);
        let keys = keys_lead(read(block.keys, self.kv.head_dim));
        let own_keys = Some(keys).filter(|_| keys_in_place);
        let first = |ahead: Ahead<'b>| if tile.first == 0 { ahead } else { Ahead::default() };
        if keys_only {
            return (first(Ahead::new(own_keys, next_keys)), Ahead::default());
        }
        match (keys_in_place, values_in_place) {
            (false, false) => {
                let share = |next| Ahead::new(None, next).share(tile.first..tile.first + tile.rows, total);
                (share(next_keys), share(next_values))
            }
            (true, false) => (
                first(Ahead::new(own_keys, next_values)),
                first(Ahead::new(None, next_keys)),
            ),
            (_, true) => {
                let values = Some(values_lead(read(block.values, self.value_dim)));
                (
                    first(Ahead::new(own_keys, values)),
                    first(Ahead::new(values, next_keys)),
                )
            }
        }
    }

    fn tile_of_any_width(&self, workspace: &mut Workspace, block: &Block, work: &TileWork, output: &mut Output) {
        match work.tile.width {
            1 => self.tile_block::<1>(workspace, block, work, output),
            2 => self.tile_block::<2>(workspace, block, work, output),
            3 => self.tile_block::<3>(workspace, block, work, output),
            4 => self.tile_block::<4>(workspace, block, work, output),
            6 => self.tile_block::<6>(workspace, block, work, output),
            8 => self.tile_block::<8>(workspace, block, work, output),
            _ => self.tile_block::<12>(workspace, block, work, output),
        }
    }

    fn tile_block<const R: usize>(
        &self,
        workspace: &mut Workspace,
        block: &Block,
        work: &TileWork,
        output: &mut Output,
    ) {
        self.score_tile::<R>(workspace, block.keys, work);
        let mut masks = [[0; STRIPES]; R];
        let masks = work.bits.map(|all| {
            work.fill_masks(all, &workspace.bits, &mut masks);
            &masks
        });
        if let Some(sums) = output.sums() {
            self.accumulate_tile(workspace, block.values, work, masks, sums);
        } else {
            self.add_tile_mass(workspace, block.span.start, work, masks, output);
        }
    }

    /// Writes the tile's logits with the slots' keys to the workspace.
    fn score_tile<const R: usize>(&self, workspace: &mut Workspace, keys: Plane, work: &TileWork) {
        let (level, head_dim, slots, ahead) = (self.level, self.kv.head_dim, work.slots, work.ahead.0);
        let queries = &workspace.queries[work.queries..work.queries + R * head_dim];
        let queries = &queries.as_chunks::<R>().0[..head_dim];
        let scores = scores_of::<R>(&mut workspace.scores);
        if !work.keys_in_place {
            let widened = aligned(&mut workspace.keys, KEY_BLOCK * head_dim);
            return score::<F32, R>(level, queries, widened, ahead, slots, scores);
        }
        let tile = ScoreTile {
            level,
            queries,
            integers: (&workspace.int8, work.queries),
            ahead,
            slots,
            scores,
        };
        with_plane!(Plane keys, F, keys => F::score(tile, keys));
    }

    /// Turns the workspace's logits into weights and adds the weighted values.
    fn accumulate_tile<const R: usize>(
        &self,
        workspace: &mut Workspace,
        values: Plane,
        work: &TileWork,
        masks: Option<&[[u16; STRIPES]; R]>,
        Sums { m, l, o }: Sums,
    ) {
        let (level, head_dim, range) = (self.level, self.value_dim, work.rows());
        let weights = scores_of::<R>(&mut workspace.scores);
        let mut keep = [1.0; R];
        level.run(Softmax {
            scores: weights,
            slots: work.slots.len(),
            masks,
            bias: work.bias,
            soft_cap: self.options.soft_cap,
            places: work.places,
            m: &mut m[range.clone()],
            l: &mut l[range.clone()],
            keep: &mut keep,
        });
        let rows = WeighedRows {
            weights,
            masks,
            ahead: work.ahead.1,
            slots: work.slots,
            keep: &keep,
            o: &mut o[range.start * head_dim..range.end * head_dim],
            head_dim,
        };
        if work.values_in_place {
            with_plane!(Plane values, F, values => F::accumulate(level, rows, values));
        } else {
            let values = aligned(&mut workspace.values, KEY_BLOCK * head_dim);
            level.run(Accumulate::<F32, R> { rows, values });
        }
    }

    /// Turns the workspace's logits into weights and adds them to the mass of their keys, in the block at `start`.
    fn add_tile_mass<const R: usize>(
        &self,
        workspace: &mut Workspace,
        start: usize,
        work: &TileWork,
        masks: Option<&[[u16; STRIPES]; R]>,
        output: &mut Output,
    ) {
        let Output::Mass {
            log_sum_exp,
            origin,
            mass,
        } = output
        else {
            return;
        };
        let mut sums = [0.0; KEY_BLOCK];
        self.level.run(AddMass {
            scores: scores_of::<R>(&mut workspace.scores),
            slots: work.slots.len(),
            masks,
            soft_cap: self.options.soft_cap,
            log_sum_exp: &log_sum_exp[work.rows()],
            mass: &mut sums,
        });
        for (sums, slot) in sums.chunks_exact(LANES).zip(work.slots) {
            for (lane, sum) in sums.iter().enumerate().take(slot.tokens) {
                let place = slot.stripe * LANES + lane;
                let place = work.places.map_or(place, |places| places[place]);
                let at = (start + place).checked_sub(*origin);
                if let Some(mass) = at.and_then(|at| mass.get_mut(at)) {
                    *mass += sum;
                }
            }
        }
    }
}

/// A query block's view of a key block.
pub(crate) struct TilePart<'a> {
    pub(crate) queries: QueryBlock,
    pub(crate) biased: bool,
    /// True if all rows see the same tokens.
    pub(crate) uniform: bool,
    /// The tokens that some row sees.
    pub(crate) union: u128,
    /// Indices of gathered tokens in their block.
    pub(crate) places: Option<&'a [usize]>,
}

impl TilePart<'_> {
    /// The tokens that some row of the tile sees. `bits` gives the tokens of each position, unless all see the same.
    pub(crate) fn bits_of(&self, tile: &Tile, group: usize, bits: &[u128]) -> u128 {
        if self.uniform {
            return self.union;
        }
        let positions = tile.first / group..(tile.first + tile.rows - 1) / group + 1;
        bits[positions].iter().fold(0, |all, bits| all | bits)
    }

    /// The work of a tile on widened planes without a bias. It reads `slots`, and its rows see `bits`. `queries` is
    /// the index of its packed queries.
    pub(crate) fn work<'s>(
        &self,
        tile: Tile,
        queries: usize,
        slots: &'s [Slot],
        bits: u128,
        group: usize,
    ) -> TileWork<'s> {
        TileWork {
            group,
            first_row: self.queries.first * group + tile.first,
            tile,
            queries,
            slots,
            bits: (!self.uniform || bits != whole(slots)).then_some(bits),
            uniform: self.uniform,
            bias: None,
            keys_in_place: false,
            values_in_place: false,
            ahead: Default::default(),
            places: None,
        }
    }
}

/// One tile's view of a key block.
pub(crate) struct TileWork<'a> {
    pub(crate) group: usize,
    pub(crate) tile: Tile,
    /// The tile's first row within the whole call.
    pub(crate) first_row: usize,
    /// Index of the tile's packed queries.
    pub(crate) queries: usize,
    pub(crate) slots: &'a [Slot],
    /// The tokens that the tile sees, if a mask is necessary.
    pub(crate) bits: Option<u128>,
    pub(crate) uniform: bool,
    pub(crate) bias: Option<&'a [f32; KEY_BLOCK]>,
    /// True if the planes are read without widening.
    pub(crate) keys_in_place: bool,
    pub(crate) values_in_place: bool,
    /// The memory to prefetch while scoring keys, and while accumulating values.
    pub(crate) ahead: (Ahead<'a>, Ahead<'a>),
    pub(crate) places: Option<&'a [usize]>,
}

impl TileWork<'_> {
    /// The tile's rows within the whole call.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.tile.rows
    }

    /// Fills the visible tokens of each row and slot: `all` if all see the same tokens, otherwise the `bits` of the
    /// row's position.
    pub(crate) fn fill_masks(&self, all: u128, bits: &[u128], masks: &mut [[u16; STRIPES]]) {
        for (r, mask) in masks.iter_mut().enumerate().take(self.tile.rows) {
            let position = (self.tile.first + r) / self.group;
            let bits = if self.uniform { all } else { bits[position] };
            for (mask, slot) in mask.iter_mut().zip(self.slots) {
                *mask = (bits >> (slot.stripe * LANES)) as u16;
            }
        }
    }
}

/// The logits of a tile of `R` rows, in scratch.
pub(crate) fn scores_of<const R: usize>(scores: &mut Vec<f32>) -> &mut [[f32; KEY_BLOCK]; R] {
    let scores = aligned(scores, R * KEY_BLOCK).as_chunks_mut::<KEY_BLOCK>().0;
    scores.first_chunk_mut::<R>().expect("as long as was asked for")
}
