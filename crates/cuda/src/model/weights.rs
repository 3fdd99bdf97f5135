//! A decoder's description with its weights on a device.

use std::sync::Arc;

use riffle_linear::PackedMatrix;
use riffle_model::{
    Activation, Attention, Decoder, Layer, Mixer, Mlp, ModelConfig, Norm, Projection, Rotary, Rows, Step,
};

use super::recurrence::DeviceMixer;
use crate::ops::{self, DeviceMatrix};
use crate::{CudaError, DeviceBuffer, Gpu, Region, Stream};

/// A decoder with its weights on a device.
pub struct DeviceModel {
    pub(super) gpu: Gpu,
    pub(super) config: ModelConfig,
    pub(super) embedding: DeviceMatrix,
    pub(super) embedding_scale: Option<f32>,
    pub(super) layers: Vec<DeviceLayer>,
    pub(super) final_norm: DeviceNorm,
    pub(super) head: Option<DeviceMatrix>,
    pub(super) head_bias: Option<DeviceBuffer>,
    pub(super) logit_cap: Option<f32>,
    weight_bytes: u64,
}

pub(super) struct DeviceLayer {
    pub(super) attention: Option<DeviceAttention>,
    pub(super) steps: Vec<DeviceStep>,
}

pub(super) struct DeviceAttention {
    pub(super) norm: DeviceNorm,
    pub(super) query: DeviceProjection,
    pub(super) key: DeviceProjection,
    pub(super) value: DeviceProjection,
    pub(super) query_norm: Option<DeviceNorm>,
    pub(super) key_norm: Option<DeviceNorm>,
    pub(super) rotary: Arc<Rotary>,
    pub(super) rotary_table: usize,
}

/// [`Step`] with its weights on the device.
pub(super) enum DeviceStep {
    Normalise {
        norm: DeviceNorm,
        from: Rows,
        to: Rows,
    },
    Project {
        projection: DeviceProjection,
        from: Rows,
        to: Rows,
    },
    FeedForward(DeviceMlp),
    Recur(Box<DeviceMixer>),
    OpenGate {
        norm: DeviceNorm,
        gate: DeviceProjection,
    },
    Add(Rows),
}

pub(super) enum DeviceNorm {
    Rms {
        weight: DeviceBuffer,
        epsilon: f32,
    },
    Layer {
        weight: DeviceBuffer,
        bias: DeviceBuffer,
        epsilon: f32,
    },
}

pub(super) struct DeviceProjection {
    weight: DeviceMatrix,
    bias: Option<DeviceBuffer>,
}

pub(super) struct DeviceMlp {
    pub(super) gate: Option<DeviceProjection>,
    pub(super) up: DeviceProjection,
    pub(super) down: DeviceProjection,
    pub(super) activation: ops::Activation,
}

impl DeviceModel {
    /// Uploads a decoder's weights to a device, layer by layer. Each layer is freed in main memory once it has arrived.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], a lost device.
    pub fn upload(gpu: &Gpu, decoder: Decoder) -> Result<DeviceModel, CudaError> {
        let mut bytes = 0;
        let mut upload = Upload { gpu, bytes: &mut bytes };
        let Decoder {
            config,
            embedding,
            embedding_scale,
            layers,
            final_norm,
            head,
            head_bias,
            logit_cap,
            // Only the CPU makes drafts and sums of inputs.
            predictor: _,
            input_sums: _,
            // Engines compute vectors and scores of texts only on the CPU.
            score_head: _,
            // Engines refuse a device for such models.
            embedding_norm: _,
            layer_inputs: _,
            positions: _,
            streams: _,
            expert_cache: _,
        } = decoder;
        let head = head.map(|head| upload.matrix(&head)).transpose()?;
        let embedding_on_device = upload.matrix(&embedding)?;
        drop(embedding);
        let layers = layers.into_iter().map(|layer| upload.layer(&config, layer));
        let layers = layers.collect::<Result<_, _>>()?;
        Ok(DeviceModel {
            embedding: embedding_on_device,
            embedding_scale,
            layers,
            final_norm: upload.norm(&final_norm)?,
            head,
            head_bias: head_bias.map(|bias| upload.vector(&bias)).transpose()?,
            logit_cap,
            config,
            gpu: gpu.clone(),
            weight_bytes: bytes,
        })
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Bytes of weights on the device.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Largest scratch of a product over `rows` rows.
    pub(super) fn scratch_bytes(&self, rows: usize) -> usize {
        let of = |projection: &DeviceProjection| projection.weight.scratch_bytes(rows);
        let layers = self.layers.iter().flat_map(|layer| {
            let attention = layer.attention.iter();
            let attention =
                attention.flat_map(move |attention| [&attention.query, &attention.key, &attention.value].map(of));
            let steps = layer.steps.iter().map(move |step| match step {
                DeviceStep::Project { projection, .. } => of(projection),
                DeviceStep::FeedForward(mlp) => of(&mlp.up).max(of(&mlp.down)),
                DeviceStep::Recur(mixer) => {
                    let projections = [&mixer.mixed, &mixer.gate, &mixer.strength, &mixer.decay, &mixer.output];
                    projections.map(of).into_iter().max().unwrap_or(0)
                }
                DeviceStep::OpenGate { gate, .. } => of(gate),
                DeviceStep::Normalise { .. } | DeviceStep::Add(_) => 0,
            });
            attention.chain(steps)
        });
        let head = self.head.as_ref().unwrap_or(&self.embedding).scratch_bytes(rows);
        layers.max().unwrap_or(0).max(head)
    }
}

/// Uploads weights to a device, and counts their bytes.
pub(super) struct Upload<'a> {
    gpu: &'a Gpu,
    bytes: &'a mut u64,
}

impl Upload<'_> {
    fn matrix(&mut self, matrix: &PackedMatrix) -> Result<DeviceMatrix, CudaError> {
        let (outputs, inputs) = (matrix.out_features(), matrix.in_features());
        let uploaded = DeviceMatrix::upload(self.gpu, matrix.format(), outputs, inputs, &matrix.unpack())?;
        *self.bytes += uploaded.bytes() as u64;
        Ok(uploaded)
    }

    pub(super) fn vector(&mut self, values: &[f32]) -> Result<DeviceBuffer, CudaError> {
        *self.bytes += size_of_val(values) as u64;
        self.gpu.upload(values)
    }

    pub(super) fn projection(&mut self, projection: &Projection) -> Result<DeviceProjection, CudaError> {
        Ok(DeviceProjection {
            weight: self.matrix(projection.weight())?,
            bias: projection.bias().map(|bias| self.vector(bias)).transpose()?,
        })
    }

    fn norm(&mut self, norm: &Norm) -> Result<DeviceNorm, CudaError> {
        Ok(match norm {
            Norm::Rms { weight, epsilon } => DeviceNorm::Rms {
                weight: self.vector(weight)?,
                epsilon: *epsilon,
            },
            Norm::Layer { weight, bias, epsilon } => DeviceNorm::Layer {
                weight: self.vector(weight)?,
                bias: self.vector(bias)?,
                epsilon: *epsilon,
            },
            Norm::Groups { .. } => {
                return Err(CudaError::Part {
                    part: "a norm of groups",
                });
            }
            Norm::Identity { .. } => {
                return Err(CudaError::Part {
                    part: "a layer without a norm before it",
                });
            }
        })
    }

    fn layer(&mut self, config: &ModelConfig, layer: Layer) -> Result<DeviceLayer, CudaError> {
        let attention = layer.attention.map(|attention| self.attention(attention)).transpose()?;
        let steps = layer.steps.into_iter().map(|step| self.step(config, step));
        Ok(DeviceLayer {
            attention,
            steps: steps.collect::<Result<_, _>>()?,
        })
    }

    fn attention(&mut self, attention: Attention) -> Result<DeviceAttention, CudaError> {
        let own = attention
            .key_value
            .expect("engines refuse a device for layers that read the keys of others");
        assert!(
            attention.sinks.is_none(),
            "engines refuse a device for layers with sinks"
        );
        Ok(DeviceAttention {
            norm: self.norm(&attention.norm)?,
            query: self.projection(&attention.query)?,
            key: self.projection(&own.key)?,
            value: self.projection(&own.value.expect("engines refuse a device for latent layers"))?,
            query_norm: attention.query_norm.map(|norm| self.norm(&norm)).transpose()?,
            key_norm: own.key_norm.map(|norm| self.norm(&norm)).transpose()?,
            rotary: attention.rotary,
            rotary_table: attention.rotary_table,
        })
    }

    fn step(&mut self, config: &ModelConfig, step: Step) -> Result<DeviceStep, CudaError> {
        Ok(match step {
            Step::Normalise { norm, from, to } => DeviceStep::Normalise {
                norm: self.norm(&norm)?,
                from,
                to,
            },
            Step::Project { projection, from, to } => DeviceStep::Project {
                projection: self.projection(&projection)?,
                from,
                to,
            },
            Step::ProjectHeads { .. } => {
                return Err(CudaError::Part {
                    part: "a matrix of each head",
                });
            }
            Step::FeedForward(mlp) => DeviceStep::FeedForward(self.mlp(&mlp)?),
            Step::Recur(Mixer::GatedDeltaNet(mixer)) => {
                DeviceStep::Recur(Box::new(DeviceMixer::upload(self, config, &mixer)?))
            }
            Step::Recur(_) => unreachable!("engines refuse a device for other states"),
            Step::Experts(_) => unreachable!("engines refuse a device for mixtures of experts"),
            Step::LayerInput(_) | Step::Laurel(_) | Step::Streams(_) | Step::Scale(_) => {
                unreachable!("engines refuse a device for layers that differ")
            }
            Step::OpenGate { norm, gate, .. } => DeviceStep::OpenGate {
                norm: self.norm(&norm)?,
                gate: self.projection(&gate)?,
            },
            Step::Add(rows) => DeviceStep::Add(rows),
        })
    }

    fn mlp(&mut self, mlp: &Mlp) -> Result<DeviceMlp, CudaError> {
        let (gate, up, down, activation) = match mlp {
            Mlp::Gated {
                gate,
                up,
                down,
                activation,
            } => (Some(gate), up, down, activation),
            Mlp::Plain { up, down, activation } => (None, up, down, activation),
            Mlp::Sparse { .. } => return Err(CudaError::Part { part: "sparse gates" }),
        };
        Ok(DeviceMlp {
            gate: gate.map(|gate| self.projection(gate)).transpose()?,
            up: self.projection(up)?,
            down: self.projection(down)?,
            activation: match activation {
                Activation::Silu => ops::Activation::Silu,
                Activation::GeluTanh => ops::Activation::GeluTanh,
                _ => {
                    return Err(CudaError::Part {
                        part: "this activation",
                    });
                }
            },
        })
    }
}

impl DeviceNorm {
    /// `output[row] = norm(input[row])` for rows of `width`; they may be the same.
    pub(super) fn apply(
        &self,
        stream: &Stream,
        output: Region<'_>,
        input: Region<'_>,
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        let input = ops::Rows {
            data: input,
            rows,
            width,
        };
        match self {
            DeviceNorm::Rms { weight, epsilon } => ops::rms_norm(stream, output, &input, weight.all(), *epsilon),
            DeviceNorm::Layer { weight, bias, epsilon } => {
                ops::layer_norm(stream, output, &input, weight.all(), bias.all(), *epsilon)
            }
        }
    }
}

impl DeviceProjection {
    /// `output = weight · input + bias`.
    pub(super) fn apply(
        &self,
        stream: &Stream,
        output: Region<'_>,
        input: Region<'_>,
        rows: usize,
        scratch: Region<'_>,
    ) -> Result<(), CudaError> {
        self.weight.multiply(stream, output, input, rows, scratch)?;
        match &self.bias {
            Some(bias) => ops::add_to_rows(stream, output, bias.all(), rows, self.weight.outputs()),
            None => Ok(()),
        }
    }
}
