//! A linear layer: packed weights and an optional bias.

use std::sync::Arc;

use riffle_linear::PackedMatrix;

use super::rows::for_rows;
use crate::ModelError;
use crate::inputs::InputSums;
use crate::weights::Checkpoint;

/// `output = weight · input + bias`.
pub struct Projection {
    weight: PackedMatrix,
    bias: Option<Vec<f32>>,
    /// Where inputs are summed.
    sums: Option<Arc<InputSums>>,
}

impl Projection {
    /// Takes `{name}.weight` and, if asked for, `{name}.bias`.
    pub fn load(
        weights: &mut Checkpoint,
        name: &str,
        outputs: usize,
        inputs: usize,
        biased: bool,
    ) -> Result<Projection, ModelError> {
        let [projection] = Projection::load_parts(weights, name, 1, [outputs], inputs, biased)?;
        Ok(projection)
    }

    /// Takes a fused tensor as the projections it is stacked from: `outputs` rows of each, once for each of `heads`
    /// heads.
    pub fn load_parts<const PARTS: usize>(
        weights: &mut Checkpoint,
        name: &str,
        heads: usize,
        outputs: [usize; PARTS],
        inputs: usize,
        biased: bool,
    ) -> Result<[Projection; PARTS], ModelError> {
        let matrices = weights.matrices(&format!("{name}.weight"), heads, outputs, inputs)?;
        let stride: usize = outputs.iter().sum();
        let bias = if biased {
            Some(weights.vector(&format!("{name}.bias"), heads * stride)?)
        } else {
            None
        };
        // The parts of a fused tensor have one input.
        let mut sums = weights.input_sums(&format!("{name}.weight"), inputs);
        let mut part = 0;
        let mut first = 0;
        Ok(matrices.map(|weight| {
            let own = first..first + outputs[part];
            (part, first) = (part + 1, own.end);
            let of_heads = |values: &Vec<f32>| {
                values
                    .chunks(stride)
                    .flat_map(|head| head[own.clone()].to_vec())
                    .collect()
            };
            Projection {
                weight,
                bias: bias.as_ref().map(of_heads),
                sums: sums.take(),
            }
        }))
    }

    /// The same with factors on the weights and on the bias.
    pub(crate) fn scaled(mut self, weight: f64, bias: f64) -> Projection {
        if weight != 1.0 {
            self.weight = self.weight.with_factor(weight as f32);
        }
        if let Some(values) = self.bias.as_mut().filter(|_| bias != 1.0) {
            values.iter_mut().for_each(|value| *value *= bias as f32);
        }
        self
    }

    /// `[outputs, inputs]`.
    pub fn weight(&self) -> &PackedMatrix {
        &self.weight
    }

    /// `[outputs]`.
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// `input` is `[rows, inputs]`, `output` `[rows, outputs]`.
    pub(crate) fn apply(&self, input: &[f32], output: &mut [f32]) {
        self.observe(input);
        self.weight.matmul(input, output);
        self.add_bias(output);
    }

    /// Several projections of one input.
    pub(crate) fn apply_all<const COUNT: usize>(
        projections: [&Projection; COUNT],
        input: &[f32],
        mut outputs: [&mut [f32]; COUNT],
    ) {
        projections.iter().for_each(|projection| projection.observe(input));
        let weights = projections.map(|projection| &projection.weight);
        PackedMatrix::matmul_all(weights, input, outputs.each_mut().map(|output| &mut **output));
        for (projection, output) in projections.into_iter().zip(outputs) {
            projection.add_bias(output);
        }
    }

    fn observe(&self, input: &[f32]) {
        if let Some(sums) = &self.sums {
            sums.add(input);
        }
    }

    fn add_bias(&self, output: &mut [f32]) {
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
