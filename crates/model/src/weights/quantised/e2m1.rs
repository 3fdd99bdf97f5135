//! 4-bit floats (2 bits of exponent, 1 of mantissa) with 8-bit scales per 32 (MXFP4) or per 16 (NVFP4).
//!
//! A byte in a file has two neighbours, the first in its low bits. A byte of a packed block has two weights that are
//! half a group apart.

use rayon::prelude::*;
use riffle_linear::WeightFormat;

use super::recipe::{Made, Parts, Recipe, Source, float8, plain_rows, power_of_two};
use crate::ModelError;

const VALUES: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// The scales of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum E2m1 {
    /// MXFP4: a power of two (E8M0) for each 32 values.
    Mx,
    /// NVFP4: an E4M3 scale for each 16 values, and a scale for the tensor. The latter divides if `divides` is true,
    /// and multiplies otherwise.
    Nv { divides: bool },
}

impl E2m1 {
    /// Columns that share a scale.
    pub(crate) fn group(self) -> usize {
        match self {
            E2m1::Mx => 32,
            E2m1::Nv { .. } => 16,
        }
    }

    /// The packed format with exactly these values.
    pub(crate) fn format(self, columns: usize) -> WeightFormat {
        let format = match self {
            E2m1::Mx => WeightFormat::Mxfp4,
            E2m1::Nv { .. } => WeightFormat::Nvfp4,
        };
        if columns.is_multiple_of(format.block_weights()) {
            format
        } else {
            WeightFormat::F32
        }
    }

    pub(super) fn make(self, recipe: &Recipe, sources: &Parts<Source<'_>>) -> Result<Made, ModelError> {
        let (codes, scales) = (sources.codes.bytes, sources.scales.bytes);
        let value = |byte: u8| match self {
            E2m1::Mx => power_of_two(byte),
            // A negative scale has no code in a packed block.
            E2m1::Nv { .. } if byte > 0x80 => f32::NAN,
            E2m1::Nv { .. } => float8(byte),
        };
        if let Some(element) = scales.iter().position(|byte| value(*byte).is_nan()) {
            return Err(sources.scales.not_finite(element, f32::NAN));
        }
        let bytes = match recipe.format {
            WeightFormat::F32 => plain_rows(recipe, |row, values| {
                let (codes, groups) = (&codes[row * recipe.columns / 2..], recipe.columns / self.group());
                for (column, to) in values.iter_mut().enumerate() {
                    let code = codes[column / 2] >> (4 * (column % 2)) & 15;
                    *to = VALUES[usize::from(code)] * value(scales[row * groups + column / self.group()]);
                }
            }),
            format => self.blocks(codes, scales, format.block_weights()),
        };
        let factor = match sources.whole {
            None => 1.0,
            Some(whole) => {
                let scale = whole.scales()?[0];
                let factor = if self == (E2m1::Nv { divides: true }) {
                    scale.recip()
                } else {
                    scale
                };
                if !factor.is_finite() {
                    return Err(whole.not_finite(0, factor));
                }
                factor
            }
        };
        Ok(Made {
            bytes,
            factor,
            order: None,
        })
    }

    /// Blocks of `weights` weights: their scales, then the codes of each group, with low bits for its first half.
    /// Rows are whole blocks, so rows and matrices are contiguous: `codes` may be `[.., rows, columns / 2]` or
    /// `[experts, rows, groups, 16]`, as in gpt-oss.
    pub(crate) fn blocks(self, codes: &[u8], scales: &[u8], weights: usize) -> Vec<u8> {
        let (group, count) = (self.group(), weights / self.group());
        let mut bytes = vec![0; codes.len() * 2 / weights * (count + weights / 2)];
        let blocks = bytes.par_chunks_mut(count + weights / 2);
        let stored = codes.par_chunks(weights / 2).zip(scales.par_chunks(count));
        blocks.zip(stored).for_each(|(block, (codes, scales))| {
            let (to_scales, to_codes) = block.split_at_mut(count);
            to_scales.copy_from_slice(scales);
            let code = |at: usize| codes[at / 2] >> (4 * (at % 2)) & 15;
            for (at, to) in to_codes.iter_mut().enumerate() {
                let (part, place) = (at / (group / 2), at % (group / 2));
                *to = code(part * group + place) | code(part * group + place + group / 2) << 4;
            }
        });
        bytes
    }
}

#[cfg(test)]
mod tests {
    use riffle_linear::PackedMatrix;

    use super::*;

    /// The layout of gpt-oss: `mlp.experts.gate_up_proj_blocks` `[experts, rows, groups, 16]` and `_scales`
    /// `[experts, rows, groups]`. The expected weights follow
    /// `transformers.integrations.mxfp4.convert_moe_packed_tensors`: the value of each byte's low half, then of its
    /// high half, times 2^(scale − 127).
    #[test]
    fn experts_of_gpt_oss_become_blocks_of_mxfp4() {
        let (experts, rows, groups) = (2, 3, 4);
        let blocks: Vec<u8> = (0..experts * rows * groups * 16)
            .map(|at| (at * 89 + at / 7) as u8)
            .collect();
        let scales: Vec<u8> = (0..experts * rows * groups)
            .map(|at| (110 + at * 5 % 30) as u8)
            .collect();
        let packed = E2m1::Mx.blocks(&blocks, &scales, 32);
        let columns = 32 * groups;
        let matrix = PackedMatrix::pack(WeightFormat::Mxfp4, experts * rows, columns, &packed).unwrap();
        for row in 0..experts * rows {
            let mut found = vec![0.0; columns];
            matrix.row_into(row, &mut found);
            let expected = (0..columns).map(|column| {
                let byte = blocks[row * columns / 2 + column / 2];
                let code = if column % 2 == 0 { byte & 15 } else { byte >> 4 };
                let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
                let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
                sign * magnitude * f32::powi(2.0, i32::from(scales[row * groups + column / 32]) - 127)
            });
            assert!(found.iter().copied().eq(expected), "row {row}");
        }
    }
}
