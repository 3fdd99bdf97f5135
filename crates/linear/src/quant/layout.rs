//! `[outputs / 16][inputs / block][field][unit][16]`: the bytes of GGUF blocks, interleaved over 16 rows.

use rayon::prelude::*;

use super::BlockFormat;
use crate::LANES;

/// Rearranges `source`, the row-major blocks of a file, into `packed`; missing rows of the last 16 stay zero.
pub(crate) fn pack(format: &BlockFormat, source: &[u8], outputs: usize, inputs: usize, packed: &mut [u8]) {
    let blocks = inputs / format.weights;
    let row_bytes = blocks * format.bytes;
    let bands = packed.par_chunks_exact_mut(LANES * row_bytes);
    bands
        .zip(source.par_chunks(LANES * row_bytes))
        .for_each(|(band, rows)| {
            let mut arranged = vec![0; format.bytes];
            for (row, blocks) in rows.chunks_exact(row_bytes).enumerate() {
                for (block, to) in blocks
                    .chunks_exact(format.bytes)
                    .zip(band.chunks_exact_mut(LANES * format.bytes))
                {
                    arranged.copy_from_slice(block);
                    (format.arrange)(&mut arranged);
                    for field in format.fields {
                        let from = &arranged[field.offset..field.offset + field.bytes];
                        let to = &mut to[LANES * field.offset..LANES * (field.offset + field.bytes)];
                        match field.unit {
                            1 => interleave::<1>(from, to, row),
                            2 => interleave::<2>(from, to, row),
                            _ => interleave::<4>(from, to, row),
                        }
                    }
                }
            }
        });
    debug_assert_eq!(source.len(), outputs * row_bytes);
}

/// Writes the units of row `row` to their offsets among 16 rows. The unit size is a constant, so that one instruction
/// moves a unit: model loading spends most of its time here.
fn interleave<const UNIT: usize>(from: &[u8], to: &mut [u8], row: usize) {
    let to = to.as_chunks_mut::<UNIT>().0.chunks_exact_mut(LANES);
    for (from, to) in from.as_chunks::<UNIT>().0.iter().zip(to) {
        to[row] = *from;
    }
}

/// The weights of a file's row.
pub(crate) fn decode(format: &BlockFormat, row: &[u8], weights: &mut [f32]) {
    let blocks = row
        .chunks_exact(format.bytes)
        .zip(weights.chunks_exact_mut(format.weights));
    blocks.for_each(|(block, weights)| (format.dequantise)(block, weights));
}

/// Writes row `row` as f32.
pub(crate) fn row_into(format: &BlockFormat, packed: &[u8], row: usize, output: &mut [f32]) {
    let row_bytes = output.len() / format.weights * format.bytes;
    let band = &packed[row / LANES * LANES * row_bytes..][..LANES * row_bytes];
    let mut block = vec![0; format.bytes];
    for (interleaved, weights) in band
        .chunks_exact(LANES * format.bytes)
        .zip(output.chunks_exact_mut(format.weights))
    {
        for (to, place, unit) in units(format, row % LANES) {
            block[to..to + unit].copy_from_slice(&interleaved[place..place + unit]);
        }
        (format.restore)(&mut block);
        (format.dequantise)(&block, weights);
    }
}

/// Writes the rows in the file's order; `rows` is `[outputs][inputs / block]` of blocks.
pub(crate) fn unpack(format: &BlockFormat, packed: &[u8], inputs: usize, rows: &mut [u8]) {
    let row_bytes = inputs / format.weights * format.bytes;
    rows.par_chunks_mut(row_bytes).enumerate().for_each(|(row, blocks)| {
        let band = &packed[row / LANES * LANES * row_bytes..][..LANES * row_bytes];
        let interleaved = band.chunks_exact(LANES * format.bytes);
        for (block, interleaved) in blocks.chunks_exact_mut(format.bytes).zip(interleaved) {
            for (to, place, unit) in units(format, row % LANES) {
                block[to..to + unit].copy_from_slice(&interleaved[place..place + unit]);
            }
            (format.restore)(block);
        }
    });
}

/// The first block of a file with a scale or minimum that is not finite, and this number.
pub(crate) fn first_not_finite(format: &BlockFormat, blocks: &[u8]) -> Option<(usize, f32)> {
    let numbers = format.numbers?;
    let mut arranged = vec![0; format.bytes];
    blocks
        .chunks_exact(format.bytes)
        .enumerate()
        .find_map(|(index, block)| {
            arranged.copy_from_slice(block);
            if format.arranges_halves {
                (format.arrange)(&mut arranged);
            }
            let number = numbers(&arranged).into_iter().find(|number| !number.is_finite())?;
            Some((index, number))
        })
}

/// Every unit of a row's block: its offset in the block, its offset among 16 rows, and its bytes.
fn units(format: &BlockFormat, row: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    format.fields.iter().flat_map(move |field| {
        (0..field.bytes / field.unit).map(move |index| {
            let place = LANES * field.offset + (index * LANES + row) * field.unit;
            (field.offset + index * field.unit, place, field.unit)
        })
    })
}
