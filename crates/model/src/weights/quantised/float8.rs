//! 8-bit floats with a scale per tensor, per row, or per block of rows and columns.

use rayon::prelude::*;
use riffle_linear::WeightFormat;

use super::recipe::{Made, Parts, Recipe, Source, float8, plain_rows};
use crate::ModelError;

/// Columns per scale in the packed format.
const PANEL: usize = 128;

/// The blocks that share a scale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Float8 {
    pub(crate) block: [usize; 2],
}

impl Float8 {
    /// The blocks of scales of this shape, in a matrix of `rows` rows and `columns` columns; `block` comes from the
    /// settings.
    pub(crate) fn new(scales: &[usize], rows: usize, columns: usize, block: [usize; 2]) -> Option<Float8> {
        let block = match *scales {
            [] | [1] | [1, 1] => [rows, columns],
            [count] | [count, 1] if count == rows => [1, columns],
            [down, across] if [rows.div_ceil(block[0]), columns.div_ceil(block[1])] == [down, across] => block,
            [down, across] if down == rows && columns.is_multiple_of(across) => [1, columns / across],
            _ => return None,
        };
        Some(Float8 { block })
    }

    /// The packed format with exactly these values.
    pub(crate) fn format(self, columns: usize) -> WeightFormat {
        match self.block[1] {
            across if across >= columns || across.is_multiple_of(PANEL) => WeightFormat::F8E4m3,
            _ => WeightFormat::F32,
        }
    }

    pub(super) fn make(self, recipe: &Recipe, sources: &Parts<Source<'_>>) -> Result<Made, ModelError> {
        let (columns, codes) = (recipe.columns, sources.codes.bytes);
        let is_nan = |code: &u8| code & 0x7f == 0x7f;
        let stretches = codes.par_chunks(1 << 14).enumerate();
        if let Some(element) = stretches.find_map_first(|(at, part)| Some((at << 14) + part.iter().position(is_nan)?)) {
            return Err(sources.codes.not_finite(element, f32::NAN));
        }
        let scales = sources.scales.scales()?;
        let across = columns.div_ceil(self.block[1]);
        let scale = |row: usize, column: usize| scales[row / self.block[0] * across + column / self.block[1]];
        let bytes = match recipe.format {
            WeightFormat::F8E4m3 => {
                let row_bytes = recipe.format.row_bytes(columns).unwrap_or_default();
                let mut bytes = vec![0; recipe.rows * row_bytes];
                let rows = bytes
                    .par_chunks_mut(row_bytes)
                    .zip(codes.par_chunks(columns))
                    .enumerate();
                rows.for_each(|(row, (bytes, codes))| {
                    let (to, scales) = bytes.split_at_mut(columns);
                    to.copy_from_slice(codes);
                    for (panel, to) in scales.as_chunks_mut().0.iter_mut().enumerate() {
                        *to = scale(row, panel * PANEL).to_le_bytes();
                    }
                });
                bytes
            }
            _ => plain_rows(recipe, |row, values| {
                for (column, value) in values.iter_mut().enumerate() {
                    *value = float8(codes[row * columns + column]) * scale(row, column);
                }
            }),
        };
        Ok(Made {
            bytes,
            factor: 1.0,
            order: None,
        })
    }
}
