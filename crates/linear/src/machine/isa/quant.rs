//! Code for quantised weights that instruction sets share, around their own `stretches`.

use crate::LANES;
use crate::quant::{Quant, STRETCH};

/// The part of a block to prefetch during a stretch. Prefetching the whole block at once would overrun the load
/// buffers.
#[inline(always)]
pub(super) fn share<Q: Quant>(block: &[u8], stretch: usize) -> &[u8] {
    let bytes = (LANES * Q::BYTES).div_ceil(Q::WEIGHTS / STRETCH);
    &block[stretch * bytes..(stretch * bytes + bytes).min(LANES * Q::BYTES)]
}

/// Repeats code for each stretch of a block, with its index as a constant. Shifts and offsets then become constants
/// too. After `@` it repeats code for the indices that are given.
macro_rules! for_stretches {
    ($quant:ty, $index:ident => $body:block) => {
        for_stretches!(@ $index $body 0);
        if <$quant>::WEIGHTS >= 2 * STRETCH {
            for_stretches!(@ $index $body 1);
        }
        if <$quant>::WEIGHTS >= 4 * STRETCH {
            for_stretches!(@ $index $body 2 3);
        }
        if <$quant>::WEIGHTS >= 8 * STRETCH {
            for_stretches!(@ $index $body 4 5 6 7);
        }
    };
    (@ $index:ident $body:block $($value:literal)*) => {
        $({ const $index: usize = $value; $body })*
    };
}

pub(super) use for_stretches;

/// Runs the code of one stretch of a block, with a copy for each index.
#[cfg(target_arch = "x86_64")]
macro_rules! at_stretch {
    ($quant:ty, $stretch:expr, $index:ident => $body:block) => {
        if <$quant>::WEIGHTS == STRETCH {
            at_stretch!(@ $index 0 $body)
        } else {
            match $stretch % (<$quant>::WEIGHTS / STRETCH) {
                0 => at_stretch!(@ $index 0 $body),
                1 => at_stretch!(@ $index 1 $body),
                2 => at_stretch!(@ $index 2 $body),
                3 => at_stretch!(@ $index 3 $body),
                4 => at_stretch!(@ $index 4 $body),
                5 => at_stretch!(@ $index 5 $body),
                6 => at_stretch!(@ $index 6 $body),
                _ => at_stretch!(@ $index 7 $body),
            }
        }
    };
    (@ $index:ident $value:literal $body:block) => {{
        const $index: usize = $value;
        $body
    }};
}

#[cfg(target_arch = "x86_64")]
pub(super) use at_stretch;

/// Expands to `unpack` for an instruction set with `values`, `fours`, `eights` and `marked` in scope. If `$signed`,
/// its products take eight-bit values as signed bytes.
#[cfg(target_arch = "x86_64")]
macro_rules! unpack_kernel {
    ($features:literal, $signed:expr) => {
        /// The quants of stretch `INDEX`. The compiler inlines a function with a single caller. `CALLER`, the tokens
        /// of a tile or [`SHARED`](crate::machine::isa::SHARED), makes a copy for each caller.
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) fn unpack<Q: Quant, const INDEX: usize, const CALLER: usize>(block: &[u8], expanded: &mut Expanded) {
            match const { Q::CODES } {
                Codes::Quants => Q::quants(block, INDEX, expanded),
                Codes::Values(table) => {
                    Q::quants(block, INDEX, expanded);
                    let table = if const { $signed && Q::SHAPE.bits == 8 } {
                        table.map(|quant| quant ^ 0x80)
                    } else {
                        *table
                    };
                    for codes in &mut expanded.quants {
                        *codes = values(&table, codes);
                    }
                }
                Codes::Fours(grid, mark) => {
                    let marks = Q::marks(block, INDEX);
                    for group in 0..STRETCH / 4 {
                        let quants = fours(grid.entries, &Q::entries(block, INDEX, group));
                        expanded.quants[group] = marked(quants, mark, &marks, group);
                    }
                }
                Codes::Eights(grid, mark) => {
                    let marks = Q::marks(block, INDEX);
                    for pair in 0..STRETCH / 8 {
                        let [low, high] = eights(grid.entries, &Q::entries(block, INDEX, pair));
                        expanded.quants[2 * pair] = marked(low, mark, &marks, 2 * pair);
                        expanded.quants[2 * pair + 1] = marked(high, mark, &marks, 2 * pair + 1);
                    }
                }
            }
        }
    };
}

/// Expands to `expand` for an instruction set with `unpack`, `widen_halves` and `prefetch_far` in scope.
#[cfg(target_arch = "x86_64")]
macro_rules! expand_kernel {
    ($features:literal) => {
        /// Unpacks stretches for several tokens to share.
        #[inline]
        #[target_feature(enable = $features)]
        fn expand<Q: Quant>(weights: &[u8], expanded: &mut [Expanded]) {
            let blocks = weights.chunks_exact(LANES * Q::BYTES);
            for (block, expanded) in blocks.zip(expanded.chunks_exact_mut(Q::WEIGHTS / STRETCH)) {
                let halves = widen_halves::<Q>(block);
                for_stretches!(Q, INDEX => {
                    prefetch_far(share::<Q>(block, INDEX), AHEAD_BYTES);
                    Q::scales(block, INDEX, &halves, &mut expanded[INDEX]);
                    unpack::<Q, INDEX, SHARED>(block, &mut expanded[INDEX]);
                });
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(super) use {expand_kernel, unpack_kernel};

/// Expands to `quantise`, which writes biases in the form `$bias`, and `widen_halves`. The instruction set must have
/// `load` and `store` in scope.
macro_rules! quant_kernels {
    ($features:literal, $bias:expr) => {
        #[target_feature(enable = $features)]
        pub(super) fn quantise(values: &[f32], shape: Shape, blocks: &mut [ActivationBlock]) {
            crate::quant::quantise(values, shape, $bias, blocks);
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn widen_halves<Q: Quant>(block: &[u8]) -> Halves {
            let [scale, minimum] = Q::HALVES;
            [
                store(load::<F16>(&half_bits(block, scale))),
                store(load::<F16>(&half_bits(block, minimum))),
            ]
        }
    };
}

pub(super) use quant_kernels;

/// Expands to `quant_band` for an instruction set with few registers. `prefetch`, `unpack` and
/// `stretches::<HALVES, MINIMUMS, WIDE, ROWS>` must be in scope. `WIDE` quants use all 8 bits, others at most 7.
#[cfg(target_arch = "aarch64")]
macro_rules! quant_tiles {
    ($features:literal) => {
        /// Unpacks a few stretches at a time into the first-level cache, where every token uses them at once. Memory is
        /// then always busy.
        #[target_feature(enable = $features)]
        pub(in crate::machine::isa) fn quant_band<Q: Quant>(
            weights: &[u8],
            activations: &[ActivationBlock],
            sums: &mut [[f32; LANES]],
        ) {
            if let [sums] = sums {
                return one_token::<Q>(weights, activations, sums);
            }
            const STRETCHES: usize = 8;
            let stretches = activations.len() / sums.len();
            let mut expanded = [Expanded::default(); STRETCHES];
            let bytes = STRETCHES * STRETCH / Q::WEIGHTS * LANES * Q::BYTES;
            for (index, weights) in weights.chunks(bytes).enumerate() {
                let count = weights.len() / (LANES * Q::BYTES) * (Q::WEIGHTS / STRETCH);
                let expanded = &mut expanded[..count];
                expand::<Q>(weights, expanded);
                let tiles = activations.chunks(TILE_TOKENS * stretches);
                for (sums, activations) in sums.chunks_mut(TILE_TOKENS).zip(tiles) {
                    let rows = tile_rows(activations, stretches, index * STRETCHES..index * STRETCHES + count);
                    quant_tile(Q::SHAPE, expanded, &rows[..sums.len()], sums);
                }
            }
        }

        /// Multiplies each stretch as it is unpacked, without passing through memory.
        #[target_feature(enable = $features)]
        fn one_token<Q: Quant>(weights: &[u8], row: &[ActivationBlock], sums: &mut [f32; LANES]) {
            let sums = core::slice::from_mut(sums);
            let blocks = weights.chunks_exact(LANES * Q::BYTES);
            for (block, row) in blocks.zip(row.chunks_exact(Q::WEIGHTS / STRETCH)) {
                let halves = widen_halves::<Q>(block);
                for_stretches!(Q, INDEX => {
                    prefetch(share::<Q>(block, INDEX));
                    let mut expanded = Expanded::default();
                    Q::scales(block, INDEX, &halves, &mut expanded);
                    unpack::<Q, INDEX>(block, &mut expanded);
                    let expanded = core::slice::from_ref(&expanded);
                    quant_tile(Q::SHAPE, expanded, &[&row[INDEX..=INDEX]], sums);
                });
            }
        }

        #[target_feature(enable = $features)]
        fn expand<Q: Quant>(weights: &[u8], expanded: &mut [Expanded]) {
            let blocks = weights.chunks_exact(LANES * Q::BYTES);
            for (block, expanded) in blocks.zip(expanded.chunks_exact_mut(Q::WEIGHTS / STRETCH)) {
                let halves = widen_halves::<Q>(block);
                for_stretches!(Q, INDEX => {
                    prefetch(share::<Q>(block, INDEX));
                    Q::scales(block, INDEX, &halves, &mut expanded[INDEX]);
                    unpack::<Q, INDEX>(block, &mut expanded[INDEX]);
                });
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn quant_tile(shape: Shape, expanded: &[Expanded], rows: &[&[ActivationBlock]], sums: &mut [[f32; LANES]]) {
            match (shape.halves, shape.minimums, shape.bits == 8) {
                (false, false, false) => any_tokens::<false, false, false>(expanded, rows, sums),
                (false, false, true) => any_tokens::<false, false, true>(expanded, rows, sums),
                (false, true, false) => any_tokens::<false, true, false>(expanded, rows, sums),
                (false, true, true) => any_tokens::<false, true, true>(expanded, rows, sums),
                (true, false, false) => any_tokens::<true, false, false>(expanded, rows, sums),
                (true, false, true) => any_tokens::<true, false, true>(expanded, rows, sums),
                (true, true, _) => any_tokens::<true, true, false>(expanded, rows, sums),
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn any_tokens<const HALVES: bool, const MINIMUMS: bool, const WIDE: bool>(
            expanded: &[Expanded],
            rows: &[&[ActivationBlock]],
            sums: &mut [[f32; LANES]],
        ) {
            match *rows {
                [a] => stretches::<HALVES, MINIMUMS, WIDE, 1>(expanded, [a], sums),
                [a, b] => stretches::<HALVES, MINIMUMS, WIDE, 2>(expanded, [a, b], sums),
                [a, b, c] => stretches::<HALVES, MINIMUMS, WIDE, 3>(expanded, [a, b, c], sums),
                [a, b, c, d] => stretches::<HALVES, MINIMUMS, WIDE, 4>(expanded, [a, b, c, d], sums),
                [a, b, c, d, ref rest @ ..] if rest.len() < 4 => {
                    let (low, high) = sums.split_at_mut(4);
                    stretches::<HALVES, MINIMUMS, WIDE, 4>(expanded, [a, b, c, d], low);
                    any_tokens::<HALVES, MINIMUMS, WIDE>(expanded, rest, high);
                }
                [a, b, c, d, e, f, g, h] => {
                    stretches::<HALVES, MINIMUMS, WIDE, 8>(expanded, [a, b, c, d, e, f, g, h], sums)
                }
                _ => unreachable!("a tile takes 1 to {TILE_TOKENS} tokens"),
            }
        }
    };
}

#[cfg(target_arch = "aarch64")]
pub(super) use quant_tiles;
