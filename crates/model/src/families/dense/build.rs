//! Builds a model from a plan.

use std::sync::Arc;

use super::attention::{AttentionOutput, Parts};
use super::{AttentionGate, Block, Gate, Inputs, LayerParts, NormKind, Plan};
use crate::blocks::{Activation, Experts, Mlp, Norm, PositionTable, Projection, RotarySettings, softplus};
use crate::decoder::Decoder;
use crate::layer::{Layer, Rows, Step};
use crate::weights::Checkpoint;
use crate::{AttentionShape, ModelConfig, ModelError};

/// Reads the sizes of a model.
pub(in crate::families) fn configure(plan: &Plan, architecture: &str) -> Result<ModelConfig, ModelError> {
    let fields = &plan.fields;
    let mut config = match &plan.latent {
        Some(latent) => ModelConfig::from_fields(&latent.with_head_dim(fields), architecture)?,
        None => ModelConfig::from_fields(fields, architecture)?,
    };
    if let Some(latent) = &plan.latent {
        latent.configure(&mut config);
    }
    if let Some(indexer) = &plan.indexer {
        indexer.configure(&mut config);
    }
    plan.set_states(&mut config)?;
    config.norm_epsilon = fields.optional_epsilon(plan.epsilon)?.unwrap_or(1e-5) as f32;
    let (rotated, most) = (plan.rotated_width(&config), config.max_position);
    config.rotary_dim = RotarySettings::from_fields(fields, rotated, most)?.dim;
    if let Some(local) = &plan.local_rotation {
        let local = RotarySettings::from_fields(local, rotated, most)?.dim;
        config.rotary_dim = config.rotary_dim.max(local);
    }
    if let Some(scale) = plan.attention_scale {
        config.attention_scale = scale as f32;
    }
    config.soft_cap = plan.soft_cap.map(|cap| cap as f32);
    if let Some(slides) = plan.slides.filter(|_| fields.get("sliding_window").is_some()) {
        config.set_windows(fields, slides)?;
    }
    let has_still = (0..config.layers).any(|layer| plan.positions.lack(&config, layer));
    config.rotary_tables = 1 + usize::from(has_still || plan.local_rotation.is_some());
    config.host_only = match fields.text(plan.activation.0)? {
        Some("xielu") => Some("activation xielu"),
        _ => Activation::from_fields(fields, plan.activation.0, plan.activation.1)?.host_only(),
    };
    config.host_only = plan.host_only(&config);
    if !plan.shapes.is_empty() {
        config.attention = plan.shapes.clone();
    } else if plan.sinks.is_some() {
        let shape = AttentionShape {
            has_sinks: true,
            ..config.attention_of(0)
        };
        config.attention = vec![shape; config.layers];
    }
    let gate_width = |gate: AttentionGate| {
        (0..config.layers)
            .map(|layer| gate.width(&config.attention_of(layer)))
            .max()
    };
    config.gate_width = plan.gate.and_then(gate_width).unwrap_or(0);
    if let Some(experts) = &plan.experts {
        experts.configure(fields, &mut config)?;
    }
    Ok(config)
}

/// Loads the weights of a model.
pub(in crate::families) fn build(
    plan: &Plan,
    config: &ModelConfig,
    weights: &mut Checkpoint,
) -> Result<Decoder, ModelError> {
    if !plan.part_renames.is_empty() {
        weights.rename(|name| {
            let renames = plan.part_renames.iter();
            renames.fold(name.to_owned(), |name, (stored, known)| name.replace(stored, known))
        });
    }
    let mut final_norm = plan.norm(config, weights, plan.final_norm)?;
    scale_norm(&mut final_norm, plan.logit_scale);
    let mut decoder = Decoder::new(config, weights, final_norm)?;
    if plan.stores_turned {
        plan.turn_matrices(config, weights);
    }
    if let (Some(norm), Some(experts)) = (plan.expert_norm, &plan.experts) {
        // Files contain the tensor for dense layers too, which do not use it.
        let dense = (0..config.layers).filter(|layer| !experts.is_sparse(*layer));
        let unused: Vec<String> = dense.map(|layer| format!("model.layers.{layer}.{norm}.")).collect();
        weights.forget(|name| unused.iter().any(|beginning| name.starts_with(beginning)));
    }
    let parts = Parts::new(plan, config)?;
    for layer in 0..config.layers {
        let layer = plan.layer(&parts, config, weights, layer)?;
        decoder.layers.push(layer);
    }
    let embedding_scale = plan.embedding_scale / plan.residual_scale;
    decoder.embedding_scale = (embedding_scale != 1.0).then_some(embedding_scale as f32);
    decoder.logit_cap = plan.logit_cap.map(|cap| cap as f32);
    if let Some((name, first)) = plan.position_table {
        let table = PositionTable::load(weights, name, first, config.max_position, config.hidden_size)?;
        decoder.positions = Some(table);
    }
    if plan.has_embedding_norm {
        decoder.embedding_norm = Some(plan.norm(config, weights, "model.embedding_norm")?);
    }
    if plan.head_bias {
        decoder.head_bias = Some(weights.vector("lm_head.bias", config.vocab_size)?);
    }
    Ok(decoder)
}

/// Scales the output of a norm.
fn scale_norm(norm: &mut Norm, factor: f64) {
    if factor == 1.0 {
        return;
    }
    let scale = |values: &mut Vec<f32>| values.iter_mut().for_each(|value| *value *= factor as f32);
    match norm {
        Norm::Rms { weight, .. } | Norm::Groups { weight, .. } => scale(weight),
        Norm::Layer { weight, bias, .. } => {
            scale(weight);
            scale(bias);
        }
        Norm::Identity { .. } => {}
    }
}

impl Plan {
    /// Marks the matrices of all layers as stored with rows and columns exchanged.
    fn turn_matrices(&self, config: &ModelConfig, weights: &mut Checkpoint) {
        let inputs = match self.inputs {
            Inputs::Separate(names) => names.to_vec(),
            Inputs::Stacked(name) | Inputs::ByHead(name) => vec![name],
        };
        for layer in 0..config.layers {
            for part in inputs.iter().chain(&[self.output, self.mlp.up, self.mlp.down]) {
                weights.turn(&format!("model.layers.{layer}.{part}.weight"));
            }
        }
    }

    /// A norm of the residual stream, divided by the factor on branches.
    pub(super) fn norm(&self, config: &ModelConfig, weights: &mut Checkpoint, name: &str) -> Result<Norm, ModelError> {
        let epsilon = f64::from(config.norm_epsilon) / self.residual_scale.powi(2);
        self.norm_of(config.hidden_size, epsilon as f32, weights, name)
    }

    /// A norm of a branch, before it is added to the residual stream.
    pub(super) fn branch_norm(
        &self,
        config: &ModelConfig,
        weights: &mut Checkpoint,
        name: &str,
    ) -> Result<Arc<Norm>, ModelError> {
        let norm = self.norm_of(config.hidden_size, config.norm_epsilon, weights, name)?;
        Ok(Arc::new(norm))
    }

    /// A norm of another width.
    pub(super) fn norm_of(
        &self,
        width: usize,
        epsilon: f32,
        weights: &mut Checkpoint,
        name: &str,
    ) -> Result<Norm, ModelError> {
        let mut vector = |part: &str| weights.vector(&format!("{name}.{part}"), width);
        let plus_one = |mut weight: Vec<f32>| -> Result<Vec<f32>, ModelError> {
            let added = super::super::added_to_norms(&self.fields)?;
            weight.iter_mut().for_each(|weight| *weight += added);
            Ok(weight)
        };
        Ok(match self.norm {
            NormKind::Rms => Norm::Rms {
                weight: vector("weight")?,
                epsilon,
            },
            NormKind::RmsPlusOne => Norm::Rms {
                weight: plus_one(vector("weight")?)?,
                epsilon,
            },
            NormKind::Layer => Norm::Layer {
                weight: vector("weight")?,
                bias: vector("bias")?,
                epsilon,
            },
            NormKind::LayerPlusOne => Norm::Layer {
                weight: plus_one(vector("weight")?)?,
                bias: vector("bias")?,
                epsilon,
            },
            NormKind::Unbiased => Norm::Layer {
                weight: vector("weight")?,
                bias: vec![0.0; width],
                epsilon,
            },
            NormKind::BareRms => Norm::Rms {
                weight: vec![1.0; width],
                epsilon,
            },
            NormKind::Bare => Norm::Layer {
                weight: vec![1.0; width],
                bias: vec![0.0; width],
                epsilon,
            },
        })
    }

    fn layer(
        &self,
        parts: &Parts,
        config: &ModelConfig,
        weights: &mut Checkpoint,
        layer: usize,
    ) -> Result<Layer, ModelError> {
        // An attention layer with norms after its parts is built as in models without mixers.
        let is_plain = |own: &&LayerParts| own.state.is_none() && matches!(self.block, Block::After(_));
        if let Some(own) = self.layers.get(layer).filter(|own| !is_plain(own)) {
            return self.mixed_layer(parts, config, weights, (layer, own));
        }
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let mut norm = |part: &str| self.norm(config, weights, &name(part)).map(Arc::new);
        let branch = |part: &str, weights: &mut Checkpoint| self.branch_norm(config, weights, &name(part));
        let identity = || {
            Arc::new(Norm::Identity {
                width: config.hidden_size,
            })
        };
        let (before, steps) = match self.block {
            Block::Before([attention, mlp]) => (norm(attention)?, Norms::before(norm(mlp)?)),
            Block::After([attention, mlp]) => {
                let [attention, mlp] = [branch(attention, weights)?, branch(mlp, weights)?];
                (identity(), Norms::both([attention, identity(), mlp]))
            }
            Block::Both([attention, after, mlp, last]) => {
                let [attention, mlp] = [norm(attention)?, norm(mlp)?];
                let [after, last] = [branch(after, weights)?, branch(last, weights)?];
                (attention, Norms::both([after, mlp, last]))
            }
            // Layers with a single part are listed, so they are built above.
            Block::One(name) => (norm(name)?, Norms::before(norm(name)?)),
            Block::Parallel(attention, mlp) => {
                let attention = norm(attention)?;
                let mlp = match mlp {
                    Some(mlp) => norm(mlp)?,
                    None => Arc::clone(&attention),
                };
                (attention, Norms::parallel(mlp))
            }
        };
        let (attention, output) = parts.attention(self, config, weights, layer, before)?;
        let mlp = self.feed(config, weights, layer)?;
        let after_mlp = match (self.expert_norm, &mlp) {
            (Some(norm), Step::Experts(_)) => Some(branch(norm, weights)?),
            _ => steps.after_mlp,
        };
        Ok(Layer {
            attention: Some(attention),
            steps: Norms { after_mlp, ..steps }.around(output, mlp),
        })
    }

    /// The step of a layer's feed-forward part.
    pub(super) fn feed(
        &self,
        config: &ModelConfig,
        weights: &mut Checkpoint,
        layer: usize,
    ) -> Result<Step, ModelError> {
        let name = format!("model.layers.{layer}");
        Ok(match self.experts.as_ref().filter(|experts| experts.is_sparse(layer)) {
            Some(experts) => Step::Experts(Box::new(Experts::load(weights, &name, config.hidden_size, experts)?)),
            None => Step::FeedForward(self.feed_forward(config, weights, &format!("{name}."))?),
        })
    }

    /// The feed-forward part of the layer with the name prefix `prefix`.
    pub(super) fn feed_forward(
        &self,
        config: &ModelConfig,
        weights: &mut Checkpoint,
        prefix: &str,
    ) -> Result<Mlp, ModelError> {
        let (hidden, inner, biased) = (config.hidden_size, config.intermediate_size, self.mlp_bias);
        let name = |part: &str| format!("{prefix}{part}");
        let activation = match self.fields.text(self.activation.0)? {
            Some("xielu") => self.xielu(weights, prefix)?,
            _ => Activation::from_fields(&self.fields, self.activation.0, self.activation.1)?,
        };
        let [gate, up] = match self.mlp.gate {
            Gate::Stacked => {
                let parts = Projection::load_parts(weights, &name(self.mlp.up), 1, [inner, inner], hidden, biased)?;
                parts.map(Some)
            }
            Gate::Tensor(gate) => {
                let gate = Projection::load(weights, &name(gate), inner, hidden, biased)?;
                [Some(gate.scaled(self.factors.gate, self.factors.gate)), None]
            }
            Gate::None => [None, None],
        };
        let up = match up {
            Some(up) => up,
            None => Projection::load(weights, &name(self.mlp.up), inner, hidden, biased)?,
        };
        let down = Projection::load(weights, &name(self.mlp.down), hidden, inner, biased)?;
        let down = down.scaled(self.factors.down, self.factors.down);
        Ok(match gate {
            Some(gate) => Mlp::Gated {
                gate,
                up,
                down,
                activation,
            },
            None => Mlp::Plain { up, down, activation },
        })
    }

    /// xIELU with the weights of the layer with the name prefix `prefix`; GGUF files list them as settings.
    fn xielu(&self, weights: &mut Checkpoint, prefix: &str) -> Result<Activation, ModelError> {
        let layer = prefix.trim_end_matches('.').rsplit('.').next();
        let layer: Option<usize> = layer.and_then(|layer| layer.parse().ok());
        let mut value = |name: &str, shape: &[usize]| -> Result<f32, ModelError> {
            let setting = format!("xielu_{name}");
            match self.fields.get(&setting) {
                None => Ok(weights.array(&format!("{prefix}mlp.act_fn.{name}"), shape)?[0]),
                Some(listed) => {
                    let found = layer.and_then(|layer| listed.get(layer)?.as_f64());
                    let problem = "must list a number for each layer";
                    found
                        .map(|value| value as f32)
                        .ok_or_else(|| self.fields.error(&setting, problem))
                }
            }
        };
        let slope = value("beta", &[])?;
        Ok(Activation::Xielu {
            above: softplus(value("alpha_p", &[1])?),
            below: slope + softplus(value("alpha_n", &[1])?),
            slope,
            limit: value("eps", &[])?,
        })
    }
}

/// The norms of a layer after the one before attention.
struct Norms {
    after_attention: Option<Arc<Norm>>,
    before_mlp: Arc<Norm>,
    after_mlp: Option<Arc<Norm>>,
    /// True if the feed-forward part reads the same input as attention.
    is_parallel: bool,
}

impl Norms {
    fn before(mlp: Arc<Norm>) -> Norms {
        Norms {
            after_attention: None,
            before_mlp: mlp,
            after_mlp: None,
            is_parallel: false,
        }
    }

    fn both([after, mlp, last]: [Arc<Norm>; 3]) -> Norms {
        Norms {
            after_attention: Some(after),
            before_mlp: mlp,
            after_mlp: Some(last),
            is_parallel: false,
        }
    }

    fn parallel(mlp: Arc<Norm>) -> Norms {
        Norms {
            is_parallel: true,
            ..Norms::before(mlp)
        }
    }

    /// A layer's steps after attention.
    fn around(self, output: AttentionOutput, mlp: Step) -> Vec<Step> {
        let normalise = |norm, from, to| Step::Normalise { norm, from, to };
        let before_mlp = normalise(self.before_mlp, Rows::Hidden, Rows::Normed);
        let mut steps = Vec::new();
        let project = |to| output.step(to);
        if self.is_parallel {
            steps.extend([before_mlp, project(Rows::Branch), Step::Add(Rows::Branch)]);
        } else {
            match self.after_attention {
                Some(norm) => steps.extend([project(Rows::Normed), normalise(norm, Rows::Normed, Rows::Branch)]),
                None => steps.push(project(Rows::Branch)),
            }
            steps.extend([Step::Add(Rows::Branch), before_mlp]);
        }
        steps.push(mlp);
        match self.after_mlp {
            Some(norm) => steps.extend([normalise(norm, Rows::Branch, Rows::Normed), Step::Add(Rows::Normed)]),
            None => steps.push(Step::Add(Rows::Branch)),
        }
        steps
    }
}
