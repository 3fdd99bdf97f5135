//! A linear layer after a pooled state.

use std::path::Path;

use riffle_linear::PackedMatrix;

use crate::ModelError;
use crate::fields::{Fields, read_json};
use crate::weights::{Checkpoint, open_directory};

/// The function after a [`Dense`] layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DenseActivation {
    /// None.
    Identity,
    /// The hyperbolic tangent.
    Tanh,
}

/// A linear layer of a text's vector, with a function after it.
#[derive(Clone)]
pub struct Dense {
    // [outputs, inputs]
    weight: std::sync::Arc<PackedMatrix>,
    // [outputs]
    bias: Option<Vec<f32>>,
    outputs: usize,
    activation: DenseActivation,
}

/// A layer with unread weights.
pub(super) struct DenseFiles {
    weights: Checkpoint,
    inputs: usize,
    outputs: usize,
    has_bias: bool,
    activation: DenseActivation,
}

impl std::fmt::Debug for Dense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dense")
            .field("outputs", &self.outputs)
            .field("activation", &self.activation)
            .finish_non_exhaustive()
    }
}

impl Dense {
    /// Elements of the layer's result.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Reads the layer `name` from `(inputs, outputs)` elements.
    pub(crate) fn load(
        weights: &mut Checkpoint,
        name: &str,
        (inputs, outputs): (usize, usize),
        has_bias: bool,
        activation: DenseActivation,
    ) -> Result<Dense, ModelError> {
        let weight = weights.matrix(&format!("{name}.weight"), outputs, inputs)?;
        let bias = has_bias.then(|| weights.vector(&format!("{name}.bias"), outputs));
        Ok(Dense {
            weight: std::sync::Arc::new(weight),
            bias: bias.transpose()?,
            outputs,
            activation,
        })
    }

    /// A matrix alone, `[outputs, inputs]`.
    pub(crate) fn of_matrix(matrix: PackedMatrix) -> Dense {
        Dense {
            outputs: matrix.out_features(),
            weight: std::sync::Arc::new(matrix),
            bias: None,
            activation: DenseActivation::Identity,
        }
    }

    /// The layer's result for a vector.
    pub(crate) fn apply(&self, input: &[f32]) -> Vec<f32> {
        let mut output = vec![0.0; self.outputs];
        self.weight.matmul(input, &mut output);
        if let Some(bias) = &self.bias {
            output.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
        if self.activation == DenseActivation::Tanh {
            output.iter_mut().for_each(|value| *value = value.tanh());
        }
        output
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.weight.bytes() as u64 + self.bias.as_ref().map_or(0, |bias| 4 * bias.len() as u64)
    }
}

impl DenseFiles {
    /// Opens the folder of a layer for vectors of `inputs` elements. The inner error explains why it is unsupported.
    pub(super) fn open(folder: &Path, inputs: usize) -> Result<Result<Self, String>, ModelError> {
        let path = folder.join("config.json");
        let Some(value) = read_json(&path)? else {
            return Ok(Err(format!("{} is missing", path.display())));
        };
        let fields = Fields::new(&path, value)?;
        let function = fields
            .text("activation_function")?
            .unwrap_or("torch.nn.modules.activation.Tanh");
        let activation = match function.rsplit('.').next() {
            Some("Identity") => DenseActivation::Identity,
            Some("Tanh") => DenseActivation::Tanh,
            _ => return Ok(Err(format!("activation_function {function:?} is not supported"))),
        };
        for setting in ["module_input_name", "module_output_name"] {
            let name = fields.text(setting)?.unwrap_or("sentence_embedding");
            if name != "sentence_embedding" {
                return Ok(Err(format!("{setting} {name:?} is not supported")));
            }
        }
        let taken = fields.size("in_features")?;
        if taken != inputs {
            return Err(fields.error(
                "in_features",
                format!("is {taken}, and the vectors before it have {inputs} elements"),
            ));
        }
        Ok(Ok(Self {
            weights: open_directory(folder)?,
            inputs,
            outputs: fields.size("out_features")?,
            has_bias: fields.flag("bias", true)?,
            activation,
        }))
    }

    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.weights.file_bytes()
    }

    pub(super) fn weights(&self) -> &Checkpoint {
        &self.weights
    }

    /// A layer with its weights beside the model's, as `{name}.weight`, for vectors of `inputs` elements; `None` if
    /// there is none.
    pub(super) fn beside(weights: &mut Checkpoint, name: &str, inputs: usize) -> Result<Option<Dense>, ModelError> {
        let info = weights.info(&format!("{name}.weight"));
        let Some(outputs) = info.and_then(|info| info.shape.first().copied()) else {
            return Ok(None);
        };
        Dense::load(weights, name, (inputs, outputs), false, DenseActivation::Identity).map(Some)
    }

    /// Reads the weights.
    pub(super) fn load(mut self) -> Result<Dense, ModelError> {
        let shape = (self.inputs, self.outputs);
        Dense::load(&mut self.weights, "linear", shape, self.has_bias, self.activation)
    }
}
