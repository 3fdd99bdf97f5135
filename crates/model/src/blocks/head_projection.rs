//! A linear layer with a separate matrix for each head.

use rayon::prelude::*;
use riffle_linear::{PackedMatrix, WeightFormat};

use super::rows::for_rows;
use crate::ModelError;
use crate::weights::Checkpoint;

/// `output[head] = weight[head] · input[head]`, without a bias.
pub struct HeadProjection {
    /// Matrices of the heads, at least one; all have the same shape.
    heads: Vec<PackedMatrix>,
}

impl HeadProjection {
    /// Loads `{name}.weight`, `[heads, outputs, inputs]` or with the heads stacked.
    ///
    /// # Errors
    /// [`ModelError`] for a tensor that is missing or of another shape.
    pub fn load(
        weights: &mut Checkpoint,
        name: &str,
        heads: usize,
        outputs: usize,
        inputs: usize,
    ) -> Result<HeadProjection, ModelError> {
        let [heads] = weights.head_matrices(&format!("{name}.weight"), heads, [outputs], inputs)?;
        Ok(HeadProjection { heads })
    }

    /// Loads `{name}.weight` as two projections, whose `outputs` rows are stacked within each head.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_pair(
        weights: &mut Checkpoint,
        name: &str,
        heads: usize,
        outputs: [usize; 2],
        inputs: usize,
    ) -> Result<[HeadProjection; 2], ModelError> {
        let parts = weights.head_matrices(&format!("{name}.weight"), heads, outputs, inputs)?;
        Ok(parts.map(|heads| HeadProjection { heads }))
    }

    /// The projections from outputs to inputs, with transposed matrices. Block formats become f32.
    ///
    /// # Errors
    /// [`ModelError::Pack`] for matrices that are too large; `name` is the name of their tensor.
    pub fn transposed(&self, name: &str) -> Result<HeadProjection, ModelError> {
        let heads = self.heads.iter().map(|matrix| {
            let transposed = transposed(matrix).map_err(|source| ModelError::Pack {
                tensor: name.to_owned(),
                source,
            });
            Ok(transposed?.with_activations(matrix.activations()))
        });
        Ok(HeadProjection {
            heads: heads.collect::<Result<_, ModelError>>()?,
        })
    }

    /// Input values of a head.
    pub fn inputs(&self) -> usize {
        self.heads[0].in_features()
    }

    /// Output values of a head.
    pub fn outputs(&self) -> usize {
        self.heads[0].out_features()
    }

    /// Input values of all heads per token.
    pub fn input_width(&self) -> usize {
        self.heads.len() * self.inputs()
    }

    /// Output values of all heads per token.
    pub fn output_width(&self) -> usize {
        self.heads.len() * self.outputs()
    }

    /// Scratch values per token.
    pub fn scratch_width(&self) -> usize {
        self.input_width() + self.output_width()
    }

    /// Multiplies rows. `input` is `[rows, heads, stride]`; each head reads its first values. `output` is
    /// `[rows, heads, stride]`; each head writes its first values and leaves the others. `scratch` has at least
    /// [`scratch_width`](Self::scratch_width) values per row.
    pub(crate) fn apply(
        &self,
        (input, input_stride): (&[f32], usize),
        (output, output_stride): (&mut [f32], usize),
        scratch: &mut [f32],
    ) {
        let (heads, inputs, outputs) = (self.heads.len(), self.inputs(), self.outputs());
        let rows = input.len() / (heads * input_stride);
        if rows == 0 {
            return;
        }
        let (gathered, scratch) = scratch.split_at_mut(rows * heads * inputs);
        let products = &mut scratch[..rows * heads * outputs];
        // Both buffers are [heads, rows, values].
        let of_heads = gathered
            .par_chunks_mut(rows * inputs)
            .zip(products.par_chunks_mut(rows * outputs));
        of_heads
            .zip(&self.heads)
            .enumerate()
            .for_each(|(head, ((gathered, product), matrix))| {
                let input = input.chunks_exact(heads * input_stride);
                for (gathered, row) in gathered.chunks_exact_mut(inputs).zip(input) {
                    gathered.copy_from_slice(&row[head * input_stride..][..inputs]);
                }
                matrix.matmul(gathered, product);
            });
        let products = &*products;
        for_rows(output, heads * output_stride, |row, output| {
            for (head, output) in output.chunks_exact_mut(output_stride).enumerate() {
                output[..outputs].copy_from_slice(&products[(head * rows + row) * outputs..][..outputs]);
            }
        });
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.heads.iter().map(|matrix| matrix.bytes() as u64).sum()
    }
}

/// The matrix with rows for columns.
fn transposed(matrix: &PackedMatrix) -> Result<PackedMatrix, riffle_linear::LinearError> {
    let (rows, columns) = (matrix.out_features(), matrix.in_features());
    let format = matrix.format();
    let element_bytes = match format {
        WeightFormat::F32 => 4,
        WeightFormat::F16 | WeightFormat::Bf16 => 2,
        _ => 0,
    };
    if element_bytes > 0 && matrix.is_plain() {
        let stored = matrix.unpack();
        let element = |at: usize| &stored[(at % rows * columns + at / rows) * element_bytes..][..element_bytes];
        let bytes: Vec<u8> = (0..rows * columns).flat_map(element).copied().collect();
        return PackedMatrix::pack(format, columns, rows, &bytes);
    }
    let mut stored = vec![0.0; rows * columns];
    for (row, values) in stored.chunks_exact_mut(columns).enumerate() {
        matrix.row_into(row, values);
    }
    let element = |at: usize| stored[at % rows * columns + at / rows].to_le_bytes();
    let bytes: Vec<u8> = (0..rows * columns).flat_map(element).collect();
    PackedMatrix::pack(WeightFormat::F32, columns, rows, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, columns: usize, seed: usize) -> PackedMatrix {
        let values = (0..rows * columns).map(|at| ((at * 37 + seed * 11) % 19) as f32 - 9.0);
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        PackedMatrix::pack(WeightFormat::F32, rows, columns, &bytes).unwrap()
    }

    #[test]
    fn each_head_multiplies_its_own_values_and_leaves_those_behind_them() {
        let (heads, outputs, inputs, rows) = (3, 4, 5, 2);
        let projection = HeadProjection {
            heads: (0..heads).map(|head| matrix(outputs, inputs, head)).collect(),
        };
        let (input_stride, output_stride) = (7, 6);
        let input: Vec<f32> = (0..rows * heads * input_stride)
            .map(|at| (at % 13) as f32 - 6.0)
            .collect();
        let mut output = vec![0.5; rows * heads * output_stride];
        let mut scratch = vec![0.0; rows * projection.scratch_width()];
        projection.apply((&input, input_stride), (&mut output, output_stride), &mut scratch);
        for (at, found) in output.iter().enumerate() {
            let (row, head, place) = (
                at / (heads * output_stride),
                at / output_stride % heads,
                at % output_stride,
            );
            let values = &input[(row * heads + head) * input_stride..][..inputs];
            let expected = if place < outputs {
                let weights =
                    (0..inputs).map(|column| (((place * inputs + column) * 37 + head * 11) % 19) as f32 - 9.0);
                weights.zip(values).map(|(weight, value)| weight * value).sum()
            } else {
                0.5
            };
            assert_eq!(*found, expected, "row {row}, head {head}, output {place}");
        }
    }

    #[test]
    fn a_transposed_projection_reads_the_columns() {
        let projection = HeadProjection {
            heads: vec![matrix(3, 5, 1).with_factor(2.0), matrix(3, 5, 2)],
        };
        let transposed = projection.transposed("weight").unwrap();
        assert_eq!((transposed.inputs(), transposed.outputs()), (3, 5));
        for (matrix, transposed) in projection.heads.iter().zip(&transposed.heads) {
            for row in 0..3 {
                let (mut values, mut column) = (vec![0.0; 5], vec![0.0; 3]);
                matrix.row_into(row, &mut values);
                for (at, value) in values.iter().enumerate() {
                    transposed.row_into(at, &mut column);
                    assert_eq!(column[row], *value);
                }
            }
        }
    }
}
