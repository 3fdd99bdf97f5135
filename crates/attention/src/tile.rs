//! Drives the kernels over one block of keys: which stripes of it, for which tile of rows.

use core::marker::PhantomData;

use crate::block::{Block, active, aligned, stripes_of, whole};
use crate::call::{Call, Output, Tile};
use crate::gathered::Gathered;
use crate::kernel::{
    Accumulate, AccumulateInt8, AccumulateQuantised, AddMass, Ahead, Bf16, Element, F16, F32, KEY_BLOCK, QuantisedTile,
    STRIPES, ScoreInt8, Slot, Softmax, WidenKeys, WidenValues, score, with_lead,
};
use crate::partial::Sums;
use crate::simd::Level;
use crate::visible::{Visible, low_bits};
use crate::workspace::Workspace;
use crate::{Format, LANES, Plane, Span};

impl<V: Visible> Call<'_, V> {
    pub(crate) fn block(
        &self,
        workspace: &mut Workspace,
        first: usize,
        rows: usize,
        block: &Block,
        output: &mut Output,
    ) {
        let (group, start) = (self.queries.group, self.queries.start + first);
        let valid = low_bits(block.span.len());
        let in_range = low_bits(self.range.end.saturating_sub(block.span.start))
            & !low_bits(self.range.start.saturating_sub(block.span.start));
        let allowed = valid & in_range;
        let shared = self.visible.block_bits(block.span);
        let uniform = self.visible.uniform(block.span, shared, start, rows);
        workspace.bits.clear();
        let mut union = shared & allowed;
        if !uniform {
            union = 0;
            for query in start..start + rows {
                let bits = self.visible.row_bits(block.span, shared, query) & allowed;
                union |= bits;
                workspace.bits.push(bits);
            }
        }
        if union == 0 {
            return;
        }
        let total = rows * group;
        let biased = self.visible.bias(block.span.start).is_some();
        let mut slots = [Slot::default(); STRIPES];
        let slots_len = active(union, block.span.len(), &mut slots);
        let keys_only = matches!(output, Output::Mass { .. });
        self.widen(workspace, block, &slots[..slots_len], total, keys_only);
        // By what each row sees, which later tokens of the block cannot change.
        let uniform = uniform || workspace.bits.iter().all(|bits| *bits == union);
        if !uniform || self.looks_ahead(total) || biased || !Gathered::pays(union, slots_len) {
            let part = Part {
                first,
                rows,
                biased,
                uniform,
                union,
                places: None,
            };
            return self.tiles(workspace, block, &part, output);
        }
        let mut gathered = core::mem::take(&mut workspace.gathered);
        let len = KEY_BLOCK * self.kv.head_dim;
        let keys = match block.keys {
            Plane::F32(data) => data,
            _ => &*aligned(&mut workspace.keys, len),
        };
        let values = match block.values {
            _ if keys_only => None,
            Plane::F32(data) => Some(data),
            _ => Some(&*aligned(&mut workspace.values, len)),
        };
        let (places, keys, values) = gathered.take(union, keys, values, self.kv.head_dim);
        let part = Part {
            first,
            rows,
            biased,
            uniform,
            union: low_bits(places.len()),
            places: Some(places),
        };
        let block = Block {
            span: Span::new(block.span.start, block.span.start + places.len()),
            keys: Plane::F32(keys),
            values: Plane::F32(values),
            next: None,
        };
        self.tiles(workspace, &block, &part, output);
        workspace.gathered = gathered;
    }

    /// The tiles of a query block over a block whose keys and values are widened as far as they have to be.
    fn tiles(&self, workspace: &mut Workspace, block: &Block, part: &Part, output: &mut Output) {
        let Part {
            first,
            rows,
            biased,
            uniform,
            union,
            places,
        } = *part;
        let group = self.queries.group;
        let total = rows * group;
        let keys_only = matches!(output, Output::Mass { .. });
        let keys_in_place = self.reads_keys_in_place(block.keys.format(), total);
        let values_in_place = self.reads_values_in_place(block.values.format(), total);
        let mut bias = [0.0; KEY_BLOCK];
        let mut slots = [Slot::default(); STRIPES];
        let mut at = 0;
        let mut packed = 0;
        while at < total {
            let tile = self.tile(at, total);
            let bits = if uniform {
                union
            } else {
                let positions = at / group..(at + tile.rows - 1) / group + 1;
                workspace.bits[positions].iter().fold(0, |all, bits| all | bits)
            };
            if bits != 0 {
                let slots_len = active(bits, block.span.len(), &mut slots);
                let slots = &slots[..slots_len];
                if biased {
                    for (bias, slot) in bias.chunks_exact_mut(LANES).zip(slots) {
                        for (lane, bias) in bias.iter_mut().enumerate().take(slot.tokens) {
                            *bias = self
                                .visible
                                .bias(block.span.start + slot.stripe * LANES + lane)
                                .unwrap_or(0.0);
                        }
                    }
                }
                let work = TileWork {
                    group,
                    tile,
                    first_row: first * group + at,
                    queries: packed,
                    slots,
                    bits: (!uniform || bits != whole(slots)).then_some(bits),
                    uniform,
                    bias: biased.then_some(&bias),
                    keys_in_place,
                    values_in_place,
                    ahead: match self.looks_ahead(total) {
                        true => self.ahead(block, slots, &tile, total, keys_only),
                        false => Default::default(),
                    },
                    places,
                };
                match tile.width {
                    1 => self.tile_block::<1>(workspace, block, &work, output),
                    2 => self.tile_block::<2>(workspace, block, &work, output),
                    4 => self.tile_block::<4>(workspace, block, &work, output),
                    6 => self.tile_block::<6>(workspace, block, &work, output),
                    8 => self.tile_block::<8>(workspace, block, &work, output),
                    _ => self.tile_block::<12>(workspace, block, &work, output),
                }
            }
            packed += tile.width * self.kv.head_dim;
            at += tile.rows;
        }
    }

    /// Widens what is not read as it lies.
    fn widen(&self, workspace: &mut Workspace, block: &Block, slots: &[Slot], total: usize, keys_only: bool) {
        let len = KEY_BLOCK * self.kv.head_dim;
        if !self.reads_keys_in_place(block.keys.format(), total) {
            let out = aligned(&mut workspace.keys, len);
            self.level.run(WidenKeys {
                keys: block.keys,
                slots,
                head_dim: self.kv.head_dim,
                out,
            });
        }
        if !keys_only && !self.reads_values_in_place(block.values.format(), total) {
            let out = aligned(&mut workspace.values, len);
            self.level.run(WidenValues {
                values: block.values,
                slots,
                head_dim: self.kv.head_dim,
                out,
            });
        }
    }

    /// What a tile asks for beside scoring the block's keys, and beside accumulating its values.
    ///
    /// Planes that are read as they lie come from memory while the first tile reads them. Those that are widened did so
    /// before, so that the tiles, at their rows of `total`, ask for the next block between them.
    fn ahead<'b>(
        &self,
        block: &Block<'b>,
        slots: &[Slot],
        tile: &Tile,
        total: usize,
        keys_only: bool,
    ) -> (Ahead<'b>, Ahead<'b>) {
        let (Some(begin), Some(end)) = (slots.first(), slots.last()) else {
            return Default::default();
        };
        let tokens = (end.stripe - begin.stripe) * LANES + end.tokens;
        let read = |plane| stripes_of(plane, begin.stripe * LANES, tokens, self.kv.head_dim);
        let lead = |plane: Plane<'b>, in_place: bool| match in_place {
            true => with_lead(self.level, plane),
            false => (plane, usize::MAX),
        };
        let keys_lead = |keys: Plane<'b>| lead(keys, self.reads_keys_in_place(keys.format(), total));
        let values_lead = |values: Plane<'b>| lead(values, self.reads_values_in_place(values.format(), total));
        let keys_in_place = self.reads_keys_in_place(block.keys.format(), total);
        let values_in_place = self.reads_values_in_place(block.values.format(), total);
        let next_keys = block.next.map(|(keys, _)| keys_lead(keys));
        let next_values = block.next.map(|(_, values)| values_lead(values)).filter(|_| !keys_only);
        let (keys, values) = (keys_lead(read(block.keys)), values_lead(read(block.values)));
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
            (_, true) => (
                first(Ahead::new(own_keys, Some(values))),
                first(Ahead::new(Some(values), next_keys)),
            ),
        }
    }

    fn tile_block<const R: usize>(
        &self,
        workspace: &mut Workspace,
        block: &Block,
        work: &TileWork,
        output: &mut Output,
    ) {
        let (level, head_dim) = (self.level, self.kv.head_dim);
        let rows = work.tile.rows;
        let Workspace {
            queries,
            int8,
            scores,
            keys,
            values,
            bits,
            ..
        } = workspace;
        let queries = &queries[work.queries..work.queries + R * head_dim].as_chunks::<R>().0[..head_dim];
        let scores = aligned(scores, R * KEY_BLOCK).as_chunks_mut::<KEY_BLOCK>().0;
        let Some(scores) = scores.first_chunk_mut::<R>() else {
            return;
        };
        let slots = work.slots;

        let (beside_keys, beside_values) = work.ahead;
        match block.keys {
            Plane::F32(data) => score::<F32, R>(level, queries, data, beside_keys, slots, scores),
            Plane::F16(data) if work.keys_in_place && R <= 8 => {
                score::<F16, R>(level, queries, data, beside_keys, slots, scores)
            }
            Plane::Bf16(data) if work.keys_in_place && R <= 8 => {
                score::<Bf16, R>(level, queries, data, beside_keys, slots, scores)
            }
            Plane::Q8_0(data) if work.keys_in_place && R <= 8 => {
                level.run(ScoreInt8::<R, false> {
                    queries: int8.tile(work.queries, R, head_dim),
                    keys: data,
                    ahead: beside_keys,
                    slots,
                    head_dim,
                    scores,
                });
            }
            Plane::Q4_0(data) if work.keys_in_place && R <= 8 => {
                level.run(ScoreInt8::<R, true> {
                    queries: int8.tile(work.queries, R, head_dim),
                    keys: data,
                    ahead: beside_keys,
                    slots,
                    head_dim,
                    scores,
                });
            }
            _ => score::<F32, R>(
                level,
                queries,
                aligned(keys, KEY_BLOCK * head_dim),
                beside_keys,
                slots,
                scores,
            ),
        }

        let mut masks = [[0u16; STRIPES]; R];
        let masks = work.bits.map(|all| {
            for (r, mask) in masks.iter_mut().enumerate().take(rows) {
                let row = (work.tile.first + r) / work.group;
                let bits = if work.uniform { all } else { bits[row] };
                for (mask, slot) in mask.iter_mut().zip(slots) {
                    *mask = (bits >> (slot.stripe * LANES)) as u16;
                }
            }
            &masks
        });

        let range = work.first_row..work.first_row + rows;
        if let Some(Sums { m, l, o }) = output.sums() {
            let mut keep = [1.0; R];
            level.run(Softmax {
                scores,
                slots: slots.len(),
                masks,
                bias: work.bias,
                soft_cap: self.options.soft_cap,
                places: work.places,
                m: &mut m[range.clone()],
                l: &mut l[range.clone()],
                keep: &mut keep,
            });
            let o = &mut o[range.start * head_dim..range.end * head_dim];
            let (weights, keep) = (&*scores, &keep);
            match block.values {
                Plane::F32(data) => accumulate::<F32, R>(level, weights, data, beside_values, slots, keep, o, head_dim),
                Plane::F16(data) if work.values_in_place && R <= 8 => {
                    accumulate::<F16, R>(level, weights, data, beside_values, slots, keep, o, head_dim);
                }
                Plane::Bf16(data) if work.values_in_place && R <= 8 => {
                    accumulate::<Bf16, R>(level, weights, data, beside_values, slots, keep, o, head_dim);
                }
                Plane::Q8_0(values) | Plane::Q4_0(values) if work.values_in_place && R <= 8 => {
                    let four_bits = block.values.format() == Format::Q4_0;
                    let tile = QuantisedTile {
                        weights,
                        values,
                        ahead: beside_values,
                        slots,
                        keep,
                        o,
                        head_dim,
                    };
                    match (level.int8_dot(), four_bits) {
                        (true, false) => level.run(AccumulateInt8::<R, false>(tile)),
                        (true, true) => level.run(AccumulateInt8::<R, true>(tile)),
                        (false, false) => level.run(AccumulateQuantised::<R, false>(tile)),
                        (false, true) => level.run(AccumulateQuantised::<R, true>(tile)),
                    }
                }
                _ => {
                    let data = aligned(values, KEY_BLOCK * head_dim);
                    accumulate::<F32, R>(level, weights, data, beside_values, slots, keep, o, head_dim);
                }
            }
        } else if let Output::Mass {
            log_sum_exp,
            origin,
            mass,
        } = output
        {
            let mut sums = [0.0; KEY_BLOCK];
            level.run(AddMass {
                scores,
                slots: slots.len(),
                masks,
                soft_cap: self.options.soft_cap,
                log_sum_exp: &log_sum_exp[range],
                mass: &mut sums,
            });
            for (sums, slot) in sums.chunks_exact(LANES).zip(slots) {
                for (lane, sum) in sums.iter().enumerate().take(slot.tokens) {
                    let place = slot.stripe * LANES + lane;
                    let place = work.places.map_or(place, |places| places[place]);
                    let at = (block.span.start + place).checked_sub(*origin);
                    if let Some(mass) = at.and_then(|at| mass.get_mut(at)) {
                        *mass += sum;
                    }
                }
            }
        }
    }
}

/// A query block's part of a block.
struct Part<'a> {
    /// The block's first position, and how many it has.
    first: usize,
    rows: usize,
    biased: bool,
    /// Whether all rows see the same.
    uniform: bool,
    /// What any of them sees.
    union: u128,
    /// Where tokens that were gathered stood in their block.
    places: Option<&'a [usize]>,
}

/// One tile's part of a block.
struct TileWork<'a> {
    group: usize,
    tile: Tile,
    /// The tile's first row within the whole call.
    first_row: usize,
    /// Where its packed queries begin.
    queries: usize,
    slots: &'a [Slot],
    /// Bits of the tile where a mask is needed.
    bits: Option<u128>,
    uniform: bool,
    bias: Option<&'a [f32; KEY_BLOCK]>,
    /// Whether the planes are read as they lie, rather than widened.
    keys_in_place: bool,
    values_in_place: bool,
    /// What the tile asks for beside scoring keys, and beside accumulating values.
    ahead: (Ahead<'a>, Ahead<'a>),
    places: Option<&'a [usize]>,
}

fn accumulate<E: Element, const R: usize>(
    level: Level,
    weights: &[[f32; KEY_BLOCK]; R],
    values: &[E::Raw],
    ahead: Ahead,
    slots: &[Slot],
    keep: &[f32; R],
    o: &mut [f32],
    head_dim: usize,
) {
    level.run(Accumulate::<E, R> {
        weights,
        values,
        ahead,
        slots,
        keep,
        o,
        head_dim,
        element: PhantomData,
    });
}
