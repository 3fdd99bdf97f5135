//! Tiles of tokens × groups of outputs, blocked for the caches.

use std::borrow::Cow;
use std::cell::RefCell;

use rayon::prelude::*;

use super::layout::{Group, group};
use super::{BEST_TILE_TOKENS, Element, F32, GROUP, GROUP_BLOCKS, GroupSums, PANEL, RoundedBf16, TILE_TOKENS};
use crate::LANES;
use crate::machine::Isa;
use crate::tasks::{Product, RowsPiece, for_pieces};

/// Tokens whose sums stay in cache while a group's weights are read.
const CHUNK_TOKENS: usize = 96;
/// Number of activations below which one thread rounds them all.
const SERIAL_ACTIVATIONS: usize = 1 << 16;

thread_local! {
    /// Rounded activations, kept between calls.
    static ROUNDED: RefCell<Vec<[u16; 2]>> = const { RefCell::new(Vec::new()) };
}

/// As [`multiply`], for activations in pairs: `input` is `[tokens, inputs]`.
pub(crate) fn multiply_pairs<E: Element<Value = [f32; 2]>>(
    isa: Isa,
    products: Vec<Product<'_>>,
    inputs: usize,
    input: &[f32],
) {
    let rows = match inputs % 2 {
        0 => Cow::Borrowed(input),
        _ => Cow::Owned(
            input
                .chunks_exact(inputs)
                .flat_map(|row| row.iter().copied().chain([0.0]))
                .collect(),
        ),
    };
    multiply::<E>(isa, products, inputs, bytemuck::cast_slice(&rows));
}

/// As [`multiply`], with activations rounded to bfloat16 first: `input` is `[tokens, inputs]`.
pub(crate) fn multiply_rounded(isa: Isa, products: Vec<Product<'_>>, inputs: usize, input: &[f32]) {
    // Taken, not borrowed: while this thread waits for others, it may start another product.
    let mut rounded = ROUNDED.take();
    let steps = inputs.div_ceil(RoundedBf16::INPUTS);
    rounded.resize(input.len() / inputs * steps, [0; 2]);
    let round = |(rounded, row): (&mut [[u16; 2]], &[f32])| {
        let (rounded, padding) = rounded.as_flattened_mut().split_at_mut(inputs);
        isa.round(row, rounded);
        padding.fill(0);
    };
    if input.len() < SERIAL_ACTIVATIONS {
        rounded.chunks_mut(steps).zip(input.chunks(inputs)).for_each(round);
    } else {
        rounded
            .par_chunks_mut(steps)
            .zip(input.par_chunks(inputs))
            .for_each(round);
    }
    multiply::<RoundedBf16>(isa, products, inputs, &rounded);
    ROUNDED.set(rounded);
}

/// `output[token, out] = Σ input[token, in] · weight[out, in]` for every product; `input` is `[tokens, steps]`.
pub(crate) fn multiply<E: Element>(isa: Isa, products: Vec<Product<'_>>, inputs: usize, input: &[E::Value]) {
    let steps = inputs.div_ceil(E::INPUTS);
    for_pieces(products, inputs, GROUP, |piece| {
        let RowsPiece {
            packed,
            outputs,
            first_token,
            first_output,
            mut rows,
        } = piece;
        let width = rows[0].len();
        let mut sums = vec![GroupSums::default(); rows.len().min(CHUNK_TOKENS)];
        let mut widened = match rows.len() {
            tokens if E::WIDENS && tokens > TILE_TOKENS => vec![[0.0; LANES]; PANEL * GROUP_BLOCKS],
            _ => Vec::new(),
        };
        for first in (0..width).step_by(GROUP) {
            let group = group::<E>(packed, outputs, inputs, first_output + first);
            for (chunk, rows) in rows.chunks_mut(CHUNK_TOKENS).enumerate() {
                let start = first_token + chunk * CHUNK_TOKENS;
                let input = &input[start * steps..][..rows.len() * steps];
                let sums = &mut sums[..rows.len()];
                sums.fill(GroupSums::default());
                if rows.len() <= TILE_TOKENS {
                    few(isa, &group, input, steps, sums)
                } else {
                    panels(isa, &group, input, steps, &mut widened, sums)
                }
                for (row, sums) in rows.iter_mut().zip(sums) {
                    let row = &mut row[first..(first + GROUP).min(width)];
                    row.copy_from_slice(&sums.as_flattened()[..row.len()]);
                }
            }
        }
    });
}

/// Multiplies at most [`TILE_TOKENS`] tokens: all panels in one pass, unless each has scales.
fn few<E: Element>(isa: Isa, group: &Group<'_, E>, input: &[E::Value], steps: usize, sums: &mut [GroupSums]) {
    if !E::SCALED {
        return tile(isa, group, input, steps, 0..steps, sums);
    }
    let Group { blocks, scales, .. } = *group;
    for (index, weights) in group.weights.chunks(PANEL * blocks).enumerate() {
        let start = index * PANEL;
        let range = start..start + weights.len() / blocks;
        let panel = Group::<E> { weights, ..*group };
        scales.add::<E>(index, sums, |sums| tile(isa, &panel, input, steps, range, sums));
    }
}

/// Many tokens: a panel of weights, widened once if necessary, stays in the first-level cache while all tokens use
/// it.
fn panels<E: Element>(
    isa: Isa,
    group: &Group<'_, E>,
    input: &[E::Value],
    steps: usize,
    widened: &mut [[f32; LANES]],
    sums: &mut [GroupSums],
) {
    let Group {
        weights,
        blocks,
        scales,
    } = *group;
    let tiles = sums.len().div_ceil(BEST_TILE_TOKENS);
    let panel_end = |start: usize| steps.min(start + PANEL);
    for start in (0..steps).step_by(PANEL) {
        let end = panel_end(start);
        let panel = &weights[start * blocks..end * blocks];
        if E::WIDENS {
            isa.widen::<E>(panel, &mut widened[..panel.len()]);
        }
        // Tiles of nearly equal height, so that all keep the multipliers busy.
        let following: &[u8] = bytemuck::cast_slice(&weights[end * blocks..panel_end(end) * blocks]);
        let mut shares = following.chunks(following.len().div_ceil(tiles).max(1));
        let mut first = 0;
        for index in 0..tiles {
            isa.prefetch(shares.next().unwrap_or_default());
            let next = sums.len() * (index + 1) / tiles;
            let input = &input[first * steps..next * steps];
            let sums = &mut sums[first..next];
            if E::WIDENS {
                let weights = &widened[..panel.len()];
                let panel = Group::<F32> {
                    weights,
                    blocks,
                    scales,
                };
                let input = bytemuck::cast_slice(input);
                scales.add::<E>(start / PANEL, sums, |sums| {
                    tile(isa, &panel, input, steps, start..end, sums)
                });
            } else {
                let panel = Group::<E> {
                    weights: panel,
                    ..*group
                };
                tile(isa, &panel, input, steps, start..end, sums);
            }
            first = next;
        }
    }
}

/// Multiplies at most [`TILE_TOKENS`] tokens with the group's weights for the steps in `range`.
fn tile<E: Element>(
    isa: Isa,
    group: &Group<'_, E>,
    input: &[E::Value],
    steps: usize,
    range: core::ops::Range<usize>,
    sums: &mut [GroupSums],
) {
    let mut rows = [&input[..0]; TILE_TOKENS];
    for (row, values) in rows.iter_mut().zip(input.chunks_exact(steps)) {
        *row = &values[range.clone()];
    }
    isa.float_tile::<E>(group.weights, group.blocks, &rows[..sums.len()], sums);
}
