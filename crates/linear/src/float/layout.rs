//! `[outputs / 64][steps][64]`: the weights of a step are adjacent. The last group is narrowed to the 16-output
//! blocks it needs; missing outputs and inputs are zeros.

use rayon::prelude::*;

use super::scales::{self, Scales, scale_bytes};
use super::{Element, GROUP, GROUP_BLOCKS, PANEL};
use crate::LANES;

/// A group of the matrix: its offset in the packed bytes, and its width in blocks.
pub(crate) struct Group<'a, E: Element> {
    /// `[steps, blocks]`
    pub(crate) weights: &'a [[E::Bits; LANES]],
    pub(crate) blocks: usize,
    /// Scales of this group's outputs.
    pub(super) scales: Scales<'a>,
}

/// The group that contains output `first`, a multiple of [`GROUP`].
pub(crate) fn group<E: Element>(packed: &[u8], outputs: usize, inputs: usize, first: usize) -> Group<'_, E> {
    let blocks = (outputs - first).div_ceil(LANES).min(GROUP_BLOCKS);
    let steps = inputs.div_ceil(E::INPUTS);
    let all: &[[E::Bits; LANES]] = bytemuck::cast_slice(packed);
    Group {
        weights: &all[first / LANES * steps..][..blocks * steps],
        blocks,
        scales: Scales::new::<E>(packed, outputs, inputs, first),
    }
}

/// Rearranges `source`, row-major little-endian `[outputs, inputs]`, into `packed`.
pub(crate) fn pack<E: Element>(source: &[u8], outputs: usize, inputs: usize, packed: &mut [u8]) {
    let bytes = size_of::<E::Bits>() / E::INPUTS;
    let padded = inputs.next_multiple_of(E::INPUTS);
    let row_bytes = inputs * bytes + scale_bytes::<E>(inputs);
    scales::pack::<E>(source, outputs, inputs, packed);
    let groups = packed[..outputs.next_multiple_of(LANES) * padded * bytes].par_chunks_mut(GROUP * padded * bytes);
    groups
        .zip(source.par_chunks(GROUP * row_bytes))
        .for_each(|(group, source)| {
            let width = group.len() / (padded * bytes);
            // A few inputs of all rows at a time, so that source and target stay in cache.
            for start in (0..inputs).step_by(32) {
                let end = (start + 32).min(inputs);
                for (row, values) in source.chunks_exact(row_bytes).enumerate() {
                    for input in start..end {
                        let step = input / E::INPUTS * width + row;
                        let to = (step * E::INPUTS + input % E::INPUTS) * bytes;
                        group[to..to + bytes].copy_from_slice(&values[input * bytes..][..bytes]);
                    }
                }
            }
            if cfg!(target_endian = "big") {
                group.chunks_exact_mut(bytes).for_each(<[u8]>::reverse);
            }
        });
}

/// Writes the rows in the file's order: row-major, little-endian.
pub(crate) fn unpack<E: Element>(packed: &[u8], outputs: usize, inputs: usize, rows: &mut [u8]) {
    let bytes = size_of::<E::Bits>() / E::INPUTS;
    rows.par_chunks_mut(inputs * bytes + scale_bytes::<E>(inputs))
        .enumerate()
        .for_each(|(row, values)| {
            let first = row - row % GROUP;
            let group = group::<E>(packed, outputs, inputs, first);
            let (block, lane) = ((row - first) / LANES, row % LANES);
            let (values, row_scales) = values.split_at_mut(inputs * bytes);
            let scales = Scales::new::<E>(packed, outputs, inputs, row);
            for (panel, scale) in row_scales.as_chunks_mut().0.iter_mut().enumerate() {
                *scale = scales.stored(panel).to_le_bytes();
            }
            for (values, vectors) in values
                .chunks_mut(E::INPUTS * bytes)
                .zip(group.weights.chunks_exact(group.blocks))
            {
                values.copy_from_slice(&bytemuck::bytes_of(&vectors[block][lane])[..values.len()]);
                if cfg!(target_endian = "big") {
                    values.chunks_exact_mut(bytes).for_each(<[u8]>::reverse);
                }
            }
        });
}

/// The weights of a file's row.
pub(crate) fn decode<E: Element>(row: &[u8], weights: &mut [f32]) {
    let bytes = size_of::<E::Bits>() / E::INPUTS;
    let (elements, scales) = row.split_at(weights.len() * bytes);
    for (values, stored) in weights.chunks_mut(E::INPUTS).zip(elements.chunks(E::INPUTS * bytes)) {
        let mut bits: E::Bits = bytemuck::Zeroable::zeroed();
        let to = &mut bytemuck::bytes_of_mut(&mut bits)[..stored.len()];
        to.copy_from_slice(stored);
        if cfg!(target_endian = "big") {
            to.chunks_exact_mut(bytes).for_each(<[u8]>::reverse);
        }
        for (index, value) in values.iter_mut().enumerate() {
            *value = E::widen(bits, index);
        }
    }
    if E::SCALED {
        for (values, scale) in weights.chunks_mut(PANEL).zip(scales.as_chunks().0) {
            let scale = scales::packed(f32::from_le_bytes(*scale));
            values.iter_mut().for_each(|value| *value *= scale);
        }
    }
}

/// Writes row `row` as f32.
pub(crate) fn row_into<E: Element>(packed: &[u8], outputs: usize, row: usize, output: &mut [f32]) {
    let first = row - row % GROUP;
    let group = group::<E>(packed, outputs, output.len(), first);
    let (block, lane) = ((row - first) / LANES, row % LANES);
    for (values, vectors) in output
        .chunks_mut(E::INPUTS)
        .zip(group.weights.chunks_exact(group.blocks))
    {
        for (index, value) in values.iter_mut().enumerate() {
            *value = E::widen(vectors[block][lane], index);
        }
    }
    if E::SCALED {
        let scales = Scales::new::<E>(packed, outputs, output.len(), row);
        for (panel, values) in output.chunks_mut(PANEL).enumerate() {
            let scale = scales.of(panel)[0];
            values.iter_mut().for_each(|value| *value *= scale);
        }
    }
}
