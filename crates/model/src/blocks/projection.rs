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
        let [projection] = Projection::load_parts(weights, name, [outputs], inputs, biased)?;
        Ok(projection)
    }

    /// Takes a fused tensor as the projections it is stacked from.
    pub(crate) fn load_parts<const PARTS: usize>(
        weights: &mut Checkpoint,
        name: &str,
        outputs: [usize; PARTS],
        inputs: usize,
        biased: bool,
    ) -> Result<[Projection; PARTS], ModelError> {
        let matrices = weights.matrices(&format!("{name}.weight"), outputs, inputs)?;
        let bias = match biased {
            true => Some(weights.vector(&format!("{name}.bias"), outputs.iter().sum())?),
            false => None,
        };
        let mut rest = bias.as_deref();
        let mut part = 0;
        Ok(matrices.map(|weight| {
            let bias = rest.map(|values| {
                let (bias, after) = values.split_at(outputs[part]);
                rest = Some(after);
                bias.to_vec()
            });
            part += 1;
            Projection { weight, bias }
        }))
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
