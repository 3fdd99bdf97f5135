//! A linear layer: packed weights and an optional bias.

use std::ops::Range;
use std::sync::Arc;

use riffle_linear::{PackedMatrix, WeightFormat};

use super::low_rank::LowRank;
use super::rows::for_rows;
use crate::inputs::InputSums;
use crate::weights::Checkpoint;
use crate::{ModelError, SegmentPart};

/// `output = weight · input + bias`, and the parts of adapters.
pub struct Projection {
    weight: PackedMatrix,
    bias: Option<Box<[f32]>>,
    /// Sums of the projection's inputs, if they are recorded.
    sums: Option<Arc<InputSums>>,
    low_rank: Vec<LowRank>,
}

impl Projection {
    /// Loads `{name}.weight` and, if requested, `{name}.bias`.
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

    /// Loads a fused tensor as its stacked projections: `outputs` rows of each, once for each of `heads` heads.
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
        // The parts of a fused tensor have the same input.
        let mut sums = weights.input_sums(&format!("{name}.weight"), inputs);
        let unpacked = |source| ModelError::Pack {
            tensor: format!("{name}.lora_A"),
            source,
        };
        let adapted = weights.low_rank(name)?.into_iter();
        let adapted = adapted.map(|part| Ok((LowRank::shared(&part)?, part)));
        let adapted: Vec<_> = adapted.collect::<Result<_, _>>().map_err(unpacked)?;
        let low_rank = |own: Range<usize>| -> Result<Vec<LowRank>, ModelError> {
            let parts = adapted
                .iter()
                .map(|(down, part)| LowRank::new(part, down, stride, own.clone()));
            parts.collect::<Result<_, _>>().map_err(unpacked)
        };
        let mut part = 0;
        let mut first = 0;
        let mut failure = None;
        let projections = matrices.map(|weight| {
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
                low_rank: low_rank(own.clone()).unwrap_or_else(|error| {
                    failure = Some(error);
                    Vec::new()
                }),
            }
        });
        failure.map_or(Ok(projections), Err)
    }

    /// Applies factors to the weights and the bias.
    pub(crate) fn scaled(mut self, weight: f64, bias: f64) -> Projection {
        if weight != 1.0 {
            self.weight = self.weight.with_factor(weight as f32);
            self.low_rank.iter_mut().for_each(|part| part.scale *= weight as f32);
        }
        if let Some(values) = self.bias.as_mut().filter(|_| bias != 1.0) {
            values.iter_mut().for_each(|value| *value *= bias as f32);
        }
        self
    }

    /// Loads these rows of tensor `name`, `[rows, inputs]`, as separate projections without biases.
    pub(crate) fn load_rows<const PARTS: usize>(
        weights: &mut Checkpoint,
        name: &str,
        rows: usize,
        inputs: usize,
        parts: [Vec<usize>; PARTS],
    ) -> Result<[Projection; PARTS], ModelError> {
        let matrices = weights.matrices_of_rows(name, rows, inputs, parts)?;
        Ok(matrices.map(|weight| Projection::of_parts(weight, None)))
    }

    /// A packed matrix and a bias with one value per output.
    pub(crate) fn of_parts(weight: PackedMatrix, bias: Option<Vec<f32>>) -> Projection {
        Projection {
            weight,
            bias: bias.map(Vec::into_boxed_slice),
            sums: None,
            low_rank: Vec::new(),
        }
    }

    /// Loads the vector `{name}.weight` as a matrix of one row.
    pub(crate) fn row(weights: &mut Checkpoint, name: &str, inputs: usize) -> Result<Projection, ModelError> {
        let name = format!("{name}.weight");
        let values = weights.vector(&name, inputs)?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        match PackedMatrix::pack(WeightFormat::F32, 1, inputs, &bytes) {
            Ok(weight) => Ok(Projection::of_parts(weight, None)),
            Err(source) => Err(ModelError::Pack { tensor: name, source }),
        }
    }

    /// `[outputs, inputs]`.
    pub fn weight(&self) -> &PackedMatrix {
        &self.weight
    }

    /// `[outputs]`.
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// `input` is `[rows, inputs]`, `output` `[rows, outputs]`; `parts` assigns the rows to segments.
    pub(crate) fn apply(&self, input: &[f32], output: &mut [f32], parts: &[SegmentPart]) {
        self.observe(input);
        self.weight.matmul(input, output);
        self.add_bias(output);
        self.add_low_rank(input, output, parts);
    }

    /// Several projections of one input.
    pub(crate) fn apply_all<const COUNT: usize>(
        projections: [&Projection; COUNT],
        input: &[f32],
        mut outputs: [&mut [f32]; COUNT],
        parts: &[SegmentPart],
    ) {
        projections.iter().for_each(|projection| projection.observe(input));
        let weights = projections.map(|projection| &projection.weight);
        PackedMatrix::matmul_all(weights, input, outputs.each_mut().map(|output| &mut **output));
        for (projection, output) in projections.into_iter().zip(outputs) {
            projection.add_bias(output);
            projection.add_low_rank(input, output, parts);
        }
    }

    /// Adds the parts of adapters to the rows of the segments that use them.
    fn add_low_rank(&self, input: &[f32], output: &mut [f32], parts: &[SegmentPart]) {
        let first = parts.first().map_or(0, |part| part.rows.start);
        let (inputs, outputs) = (self.weight.in_features(), self.weight.out_features());
        for low_rank in &self.low_rank {
            for part in parts {
                let scale = part.adapters.get(low_rank.adapter);
                if scale != 0.0 {
                    let (begin, end) = (part.rows.start - first, part.rows.end - first);
                    low_rank.add(
                        scale,
                        &input[begin * inputs..end * inputs],
                        &mut output[begin * outputs..end * outputs],
                    );
                }
            }
        }
    }

    fn observe(&self, input: &[f32]) {
        if let Some(sums) = &self.sums {
            sums.add(input);
        }
    }

    /// Adds the bias to rows, `[rows, outputs]`.
    fn add_bias(&self, output: &mut [f32]) {
        if let Some(bias) = &self.bias {
            add_bias(output, bias);
        }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let low_rank: u64 = self.low_rank.iter().map(LowRank::bytes).sum();
        self.weight.bytes() as u64 + self.bias.as_ref().map_or(0, |bias| 4 * bias.len() as u64) + low_rank
    }
}

/// Adds a bias to rows, `[rows, bias]`.
pub(super) fn add_bias(output: &mut [f32], bias: &[f32]) {
    for_rows(output, bias.len(), |_, row| {
        for (value, bias) in row.iter_mut().zip(bias) {
            *value += bias;
        }
    });
}
