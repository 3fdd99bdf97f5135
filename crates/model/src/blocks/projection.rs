//! A linear layer: packed weights and an optional bias.

use riffle_linear::PackedMatrix;

use super::rows::for_rows;
use crate::ModelError;
use crate::weights::Checkpoint;

/// `output = weight · input + bias`.
pub(crate) struct Projection {
    weight: PackedMatrix,
    bias: Option<Vec<f32>>,
}

impl Projection {
    /// Takes `{name}.weight` and, if asked for, `{name}.bias`.
    pub(crate) fn load(
        weights: &mut Checkpoint,
        name: &str,
        outputs: usize,
        inputs: usize,
        biased: bool,
    ) -> Result<Projection, ModelError> {
        let mut parts = Projection::load_parts(weights, name, &[outputs], inputs, biased)?;
        parts.pop().ok_or_else(|| ModelError::MissingTensor {
            tensor: format!("{name}.weight"),
        })
    }

    /// Takes a fused tensor as the projections it is stacked from.
    pub(crate) fn load_parts(
        weights: &mut Checkpoint,
        name: &str,
        outputs: &[usize],
        inputs: usize,
        biased: bool,
    ) -> Result<Vec<Projection>, ModelError> {
        let matrices = weights.matrix_parts(&format!("{name}.weight"), outputs, inputs)?;
        let bias = match biased {
            true => Some(weights.vector(&format!("{name}.bias"), outputs.iter().sum())?),
            false => None,
        };
        let mut start = 0;
        Ok(matrices
            .into_iter()
            .zip(outputs)
            .map(|(weight, outputs)| {
                let bias = bias.as_ref().map(|bias| bias[start..start + outputs].to_vec());
                start += outputs;
                Projection { weight, bias }
            })
            .collect())
    }

    /// `input` is `[rows, inputs]`, `output` `[rows, outputs]`.
    pub(crate) fn apply(&self, input: &[f32], output: &mut [f32]) {
        self.weight.matmul(input, output);
        if let Some(bias) = &self.bias {
            for_rows(output, bias.len(), |_, row| {
                for (value, bias) in row.iter_mut().zip(bias) {
                    *value += bias;
                }
            });
        }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.weight.bytes() as u64 + self.bias.as_ref().map_or(0, |bias| 4 * bias.len() as u64)
    }
}
