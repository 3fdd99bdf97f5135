//! Tiles of tokens × groups of outputs, blocked for the caches.

use super::layout::group;
use super::{BEST_TILE_TOKENS, Element, F32, GROUP, GROUP_BLOCKS, GroupSums, Kind, PANEL, TILE_TOKENS};
use crate::LANES;
use crate::isa::Isa;
use crate::tasks::for_pieces;

/// Tokens whose sums are kept at hand while the weights of a group pass by.
const CHUNK_TOKENS: usize = 96;

/// `output[token, out] = Σ input[token, in] · weight[out, in]`
pub(crate) fn multiply<E: Element>(
    isa: Isa,
    packed: &[u8],
    outputs: usize,
    inputs: usize,
    input: &[f32],
    output: &mut [f32],
) {
    for_pieces(output, outputs, inputs, GROUP, |first_token, first_output, rows| {
        let width = rows[0].len();
        let mut sums = vec![GroupSums::default(); rows.len().min(CHUNK_TOKENS)];
        let mut widened = match E::KIND {
            Kind::F16 | Kind::Bf16 if rows.len() > TILE_TOKENS => vec![[0.0; LANES]; PANEL * GROUP_BLOCKS],
            _ => Vec::new(),
        };
        for first in (0..width).step_by(GROUP) {
            let group = group::<E>(packed, outputs, inputs, first_output + first);
            for (chunk, rows) in rows.chunks_mut(CHUNK_TOKENS).enumerate() {
                let start = first_token + chunk * CHUNK_TOKENS;
                let input = &input[start * inputs..][..rows.len() * inputs];
                let sums = &mut sums[..rows.len()];
                sums.fill(GroupSums::default());
                match rows.len() <= TILE_TOKENS {
                    true => tile::<E>(isa, group.weights, group.blocks, input, inputs, 0..inputs, sums),
                    false => panels::<E>(isa, group.weights, group.blocks, input, inputs, &mut widened, sums),
                }
                for (row, sums) in rows.iter_mut().zip(sums) {
                    let row = &mut row[first..(first + GROUP).min(width)];
                    row.copy_from_slice(&sums.as_flattened()[..row.len()]);
                }
            }
        }
    });
}

/// Many tokens: a panel of weights is widened once and stays in the first cache while all tokens pass.
fn panels<E: Element>(
    isa: Isa,
    weights: &[[E::Bits; LANES]],
    blocks: usize,
    input: &[f32],
    inputs: usize,
    widened: &mut [[f32; LANES]],
    sums: &mut [GroupSums],
) {
    let tiles = sums.len().div_ceil(BEST_TILE_TOKENS);
    for start in (0..inputs).step_by(PANEL) {
        let end = start + panel_len(start, inputs);
        let panel = &weights[start * blocks..end * blocks];
        let panel: &[[f32; LANES]] = match E::KIND {
            Kind::F32 => bytemuck::cast_slice(panel),
            Kind::F16 | Kind::Bf16 => {
                let widened = &mut widened[..panel.len()];
                isa.widen::<E>(panel, widened);
                widened
            }
        };
        // Tiles of nearly equal height, so that none is too low to keep the multipliers busy.
        let following: &[u8] = bytemuck::cast_slice(&weights[end * blocks..][..panel_len(end, inputs) * blocks]);
        let mut shares = following.chunks(following.len().div_ceil(tiles).max(1));
        let mut first = 0;
        for index in 0..tiles {
            isa.prefetch(shares.next().unwrap_or_default());
            let next = sums.len() * (index + 1) / tiles;
            let input = &input[first * inputs..next * inputs];
            tile::<F32>(isa, panel, blocks, input, inputs, start..end, &mut sums[first..next]);
            first = next;
        }
    }
}

/// Inputs of the panel that begins at `start`.
fn panel_len(start: usize, inputs: usize) -> usize {
    PANEL.min(inputs - start)
}

/// At most [`TILE_TOKENS`] tokens; `weights` are those of the inputs in `range`.
fn tile<E: Element>(
    isa: Isa,
    weights: &[[E::Bits; LANES]],
    blocks: usize,
    input: &[f32],
    inputs: usize,
    range: core::ops::Range<usize>,
    sums: &mut [GroupSums],
) {
    let mut rows = [&input[..0]; TILE_TOKENS];
    for (row, values) in rows.iter_mut().zip(input.chunks_exact(inputs)) {
        *row = &values[range.clone()];
    }
    isa.float_tile::<E>(weights, blocks, &rows[..sums.len()], sums);
}
