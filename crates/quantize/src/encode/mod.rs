//! Encoders: convert rows of weights to blocks of GGUF's formats with a small weighted squared error.
//!
//! The formats are ggml's. The search for a scale tries several values for the largest weight. A least-squares fit to
//! the chosen codes follows, as in ggml's `make_qx_quants` and `make_qkx3_quants`. With scales of scales, the block's
//! own scale is rounded first. Each part of the block then takes the multiple with the least error.

mod grid_blocks;
mod k_blocks;
mod lattice;
mod plain_blocks;
mod search;
mod shifted_blocks;
mod super_block;
mod ternary_blocks;
mod value_blocks;

use rayon::prelude::*;
use riffle_linear::WeightFormat;

use crate::QuantizeError;

/// Encodes a block: weights, their factors, the block's bytes.
type EncodeBlock = fn(&[f32], &[f32], &mut [u8]);
/// Encodes a row of floats.
type EncodeRow = fn(&[f32], &mut [u8]);

enum Encoder {
    Floats(EncodeRow),
    Blocks(EncodeBlock),
    /// Blocks of 256 that begin with their scale, with so few values that the nearest ones have a bias.
    CoarseBlocks(EncodeBlock),
    /// Large and small weights count equally.
    EvenBlocks(EncodeBlock),
}

/// The formats that this crate can write.
const ENCODERS: &[(WeightFormat, Encoder)] = &[
    (WeightFormat::F32, Encoder::Floats(plain_blocks::f32)),
    (WeightFormat::F16, Encoder::Floats(plain_blocks::f16)),
    (WeightFormat::Bf16, Encoder::Floats(plain_blocks::bf16)),
    (WeightFormat::Q8_0, Encoder::Blocks(plain_blocks::q8_0)),
    (WeightFormat::Q4_0, Encoder::Blocks(plain_blocks::q4_0)),
    (WeightFormat::Q4_1, Encoder::Blocks(plain_blocks::q4_1)),
    (WeightFormat::Q5_0, Encoder::Blocks(plain_blocks::q5_0)),
    (WeightFormat::Q5_1, Encoder::Blocks(plain_blocks::q5_1)),
    (WeightFormat::Q2K, Encoder::Blocks(k_blocks::q2_k)),
    (WeightFormat::Q3K, Encoder::Blocks(k_blocks::q3_k)),
    (WeightFormat::Q4K, Encoder::Blocks(k_blocks::q4_k)),
    (WeightFormat::Q5K, Encoder::Blocks(k_blocks::q5_k)),
    (WeightFormat::Q6K, Encoder::Blocks(k_blocks::q6_k)),
    (WeightFormat::Iq4Nl, Encoder::Blocks(value_blocks::iq4_nl)),
    (WeightFormat::Iq4Xs, Encoder::Blocks(value_blocks::iq4_xs)),
    (WeightFormat::Iq3S, Encoder::CoarseBlocks(grid_blocks::iq3_s)),
    (WeightFormat::Iq3Xxs, Encoder::CoarseBlocks(grid_blocks::iq3_xxs)),
    (WeightFormat::Iq2S, Encoder::CoarseBlocks(grid_blocks::iq2_s)),
    (WeightFormat::Iq2Xs, Encoder::CoarseBlocks(grid_blocks::iq2_xs)),
    (WeightFormat::Iq2Xxs, Encoder::CoarseBlocks(grid_blocks::iq2_xxs)),
    (WeightFormat::Tq1_0, Encoder::Blocks(ternary_blocks::tq1_0)),
    (WeightFormat::Tq2_0, Encoder::Blocks(ternary_blocks::tq2_0)),
    (WeightFormat::Mxfp4, Encoder::Blocks(value_blocks::mxfp4)),
    (WeightFormat::Nvfp4, Encoder::Blocks(value_blocks::nvfp4)),
    (WeightFormat::Iq1S, Encoder::CoarseBlocks(shifted_blocks::iq1_s)),
    (WeightFormat::Iq1M, Encoder::Blocks(shifted_blocks::iq1_m)),
    (WeightFormat::Q1_0, Encoder::EvenBlocks(ternary_blocks::q1_0)),
    (WeightFormat::Q2_0, Encoder::Blocks(ternary_blocks::q2_0)),
];

/// The formats that [`encode_rows`] supports.
pub fn encodable_formats() -> impl Iterator<Item = WeightFormat> {
    ENCODERS.iter().map(|(format, _)| *format)
}

/// Encodes rows of `columns` weights on the threads of the current rayon pool. `importance` has one number for each
/// column, the mean square of its inputs, at least 0.
///
/// # Errors
/// [`QuantizeError::NoEncoder`]; [`QuantizeError::Row`] if a row is not a whole number of blocks, or if lengths
/// differ.
pub fn encode_rows(
    format: WeightFormat,
    columns: usize,
    rows: &[f32],
    importance: Option<&[f32]>,
    output: &mut [u8],
) -> Result<(), QuantizeError> {
    let Some((_, encoder)) = ENCODERS.iter().find(|(known, _)| *known == format) else {
        return Err(QuantizeError::NoEncoder { format });
    };
    let row_bytes = format.row_bytes(columns).filter(|bytes| *bytes > 0);
    let fits = row_bytes
        .is_some_and(|bytes| rows.len().is_multiple_of(columns) && rows.len() / columns * bytes == output.len());
    let fits = fits && importance.is_none_or(|importance| importance.len() == columns);
    let Some(row_bytes) = row_bytes.filter(|_| fits) else {
        return Err(QuantizeError::Row { format, columns });
    };
    let pairs = rows
        .par_chunks_exact(columns)
        .zip(output.par_chunks_exact_mut(row_bytes));
    pairs.for_each(|(row, output)| encode_row(format, encoder, row, importance, output));
    Ok(())
}

/// Writes factors of a block's squared errors: weights, their importance, factors.
type Factors = fn(&[f32], Option<&[f32]>, &mut [f32]);

/// Encodes a row; `row` and `importance` have the same length.
fn encode_row(format: WeightFormat, encoder: &Encoder, row: &[f32], importance: Option<&[f32]>, output: &mut [u8]) {
    let (encode, factors_of): (&EncodeBlock, Factors) = match encoder {
        Encoder::Floats(encode) => return encode(row, output),
        Encoder::Blocks(encode) | Encoder::CoarseBlocks(encode) => (encode, error_factors),
        Encoder::EvenBlocks(encode) => (encode, even_factors),
    };
    let width = format.block_weights();
    let mut factors = vec![0.0; width];
    let blocks = row
        .chunks_exact(width)
        .zip(output.chunks_exact_mut(format.block_bytes()));
    for (index, (x, block)) in blocks.enumerate() {
        let importance = importance.map(|importance| &importance[index * width..][..width]);
        factors_of(x, importance, &mut factors);
        encode(x, &factors, block);
        if matches!(encoder, Encoder::CoarseBlocks(_)) {
            lengthen(format, x, importance, block);
        }
    }
}

/// Multiplies a block's scale to make its values as long as its weights, or nearly so. The values with the least error
/// are shorter along the weights, by 4% in IQ2_XS. The outputs of every layer would become smaller by as much, which
/// changes a model's answers more than the error that this adds.
fn lengthen(format: WeightFormat, x: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    /// The removed share of the difference. Of 0, 0.7 and 1 it had the least divergence in IQ2_S of Qwen2.5-Coder-1.5B.
    const SHARE: f32 = 0.7;
    let mut values = [0.0; super_block::BLOCK];
    format.decode_row(block, &mut values);
    let (mut squares, mut products) = (0.0, 0.0);
    for (place, (x, value)) in x.iter().zip(&values).enumerate() {
        let factor = importance.map_or(1.0, |importance| importance[place]);
        squares += factor * x * x;
        products += factor * x * value;
    }
    let longer = squares / products;
    if (0.5..2.0).contains(&longer) {
        let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
        let scale = scale * (1.0 + SHARE * (longer - 1.0));
        block[..2].copy_from_slice(&search::to_half(scale).0.to_le_bytes());
    }
}

/// The importance alone.
fn even_factors(_: &[f32], importance: Option<&[f32]>, factors: &mut [f32]) {
    match importance {
        Some(importance) => factors.copy_from_slice(importance),
        None => factors.fill(1.0),
    }
}

/// Factors of a block's squared errors. Large weights count more, as in ggml.
fn error_factors(x: &[f32], importance: Option<&[f32]>, factors: &mut [f32]) {
    let mean_square = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    if mean_square == 0.0 || !mean_square.is_finite() {
        return factors.fill(1.0);
    }
    // The block's own size must not affect its codes.
    let (unit, inverse) = (mean_square.sqrt(), mean_square.sqrt().recip());
    match importance {
        None => {
            for (factor, x) in factors.iter_mut().zip(x) {
                *factor = (unit + x.abs()) * inverse;
            }
        }
        Some(importance) => {
            let mean = importance.iter().sum::<f32>() / importance.len() as f32;
            let scale = if mean > 0.0 { mean.recip() } else { 0.0 };
            for ((factor, x), importance) in factors.iter_mut().zip(x).zip(importance) {
                let size = (2.0 * mean_square + x * x).sqrt() * inverse;
                // The calibration had no input for this weight, but its sign and size still matter.
                *factor = (importance * scale).max(1e-4) * size;
            }
        }
    }
}
