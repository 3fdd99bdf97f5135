//! Builds the attention of a plan.

use std::sync::Arc;

use super::super::latent::{LatentAttention, LatentOutput};
use super::{HeadNorms, Inputs, Plan};
use crate::blocks::{Attention, KeyValue, Norm, Projection, Rotary, RotarySettings};
use crate::layer::{Rows, Step};
use crate::weights::Checkpoint;
use crate::{AttentionShape, ModelConfig, ModelError};

/// Settings shared by the attention of all layers.
pub(super) struct Parts {
    rotary: Arc<Rotary>,
    /// The rotation of layers with a window, or the identity.
    other: Arc<Rotary>,
    /// The rotation's factor on heads that are normalised after it, where it only changes the norm's epsilon.
    magnitude: f32,
}

/// The projection of the result of attention.
pub(super) enum AttentionOutput {
    Plain(Projection),
    Latent(LatentOutput),
}

impl AttentionOutput {
    /// The step that writes the projected result to `to`.
    pub(super) fn step(self, to: Rows) -> Step {
        match self {
            AttentionOutput::Plain(projection) => Step::Project {
                projection,
                from: Rows::Attended,
                to,
            },
            AttentionOutput::Latent(output) => output.step(to),
        }
    }
}

/// Norms of query and key heads, and factors on rotated queries.
type Heads = (Option<Norm>, Option<Norm>, Option<Vec<f32>>);

impl Parts {
    pub(super) fn new(plan: &Plan, config: &ModelConfig) -> Result<Parts, ModelError> {
        let width = plan.rotated_width(config);
        let settings = |fields| RotarySettings::from_fields(fields, width, config.max_position);
        let mut rotary = Rotary::new(&settings(&plan.fields)?);
        let magnitude = match plan.head_norms {
            HeadNorms::Rotated(_) | HeadNorms::Bare => rotary.take_magnitude(),
            _ => 1.0,
        };
        if plan.turns_back {
            rotary = rotary.reversed();
        }
        let mut other = match &plan.local_rotation {
            Some(local) => Rotary::new(&settings(local)?),
            None => Rotary::still(rotary.dim()),
        };
        if let Some(growth) = plan.query_growth {
            let has_still = (0..config.layers).any(|layer| plan.positions.lack(config, layer));
            let grows = if has_still { &mut other } else { &mut rotary };
            *grows = grows.with_query_growth(growth);
        }
        Ok(Parts {
            other: Arc::new(other),
            rotary: Arc::new(rotary),
            magnitude,
        })
    }

    pub(super) fn attention(
        &self,
        plan: &Plan,
        config: &ModelConfig,
        weights: &mut Checkpoint,
        layer: usize,
        norm: Arc<Norm>,
    ) -> Result<(Attention, AttentionOutput), ModelError> {
        let prefix = format!("model.layers.{layer}");
        if let Some(latent) = &plan.latent {
            let is_still = plan.positions.lack(config, layer);
            let rotary = if is_still { &self.other } else { &self.rotary };
            let rotary = (Arc::clone(rotary), usize::from(is_still));
            return latent_attention((plan, latent), config, weights, layer, (norm, rotary));
        }
        let shape = config.attention_of(layer);
        let [query, key, value] = plan.inputs(config, weights, &prefix, &shape)?;
        let factors = &plan.factors;
        let is_local = config.windows.get(layer).is_some_and(Option::is_some);
        let is_other = match plan.local_rotation {
            Some(_) => is_local,
            None => plan.positions.lack(config, layer),
        };
        let (query_norm, key_norm, query_weights) = match plan.head_norms {
            HeadNorms::BareWherePositioned if is_other => (None, None, None),
            _ => plan.heads(config, weights, &prefix, self.magnitude)?,
        };
        let output = Projection::load(
            weights,
            &format!("{prefix}.{}", plan.output),
            config.hidden_size,
            shape.attended_width(),
            plan.output_bias,
        )?;
        let mut rotary = Arc::clone(if is_other { &self.other } else { &self.rotary });
        if let Some(query_weights) = query_weights {
            rotary = Arc::new(rotary.with_query_weights(query_weights));
        }
        let sinks = match plan.sinks.filter(|_| shape.has_sinks) {
            Some(name) => {
                let name = format!("{prefix}.{name}");
                // GGUF files have the name with a suffix.
                let ended = format!("{name}.weight");
                let name = if weights.info(&ended).is_some() { ended } else { name };
                Some(weights.vector(&name, shape.heads)?.into())
            }
            None => None,
        };
        let attention = Attention {
            norm,
            shape,
            query: query.scaled(factors.query, 1.0),
            latent_query: None,
            indexer: None,
            query_norm,
            key_value: Some(KeyValue {
                key: key.scaled(factors.key, factors.key_bias),
                value: Some(value.scaled(factors.value, factors.value_bias)),
                value_norm: None,
                key_norm,
            }),
            sinks,
            rotary,
            rotary_table: usize::from(is_other),
        };
        let output = output.scaled(factors.attended, factors.attended);
        Ok((attention, AttentionOutput::Plain(output)))
    }
}

impl Plan {
    /// The projections to queries, keys and values.
    fn inputs(
        &self,
        config: &ModelConfig,
        weights: &mut Checkpoint,
        prefix: &str,
        shape: &AttentionShape,
    ) -> Result<[Projection; 3], ModelError> {
        let (hidden, queries) = (config.hidden_size, shape.query_width());
        let (keys, values, biased) = (shape.keys_width(), shape.values_width(), self.input_bias);
        match self.inputs {
            Inputs::Separate(names) => {
                let [query, key, value] = names.map(|name| format!("{prefix}.{name}"));
                if self.interleaved {
                    for (name, heads) in [(&query, shape.heads), (&key, shape.kv_heads)] {
                        for kind in ["weight", "bias"] {
                            weights.interleave(&format!("{name}.{kind}"), heads, config.rotary_dim);
                        }
                    }
                }
                let mut load = |name: &str, outputs| Projection::load(weights, name, outputs, hidden, biased);
                Ok([load(&query, queries)?, load(&key, keys)?, load(&value, values)?])
            }
            Inputs::Stacked(name) => Projection::load_parts(
                weights,
                &format!("{prefix}.{name}"),
                1,
                [queries, keys, values],
                hidden,
                biased,
            ),
            Inputs::ByHead(name) => {
                let own = queries / shape.kv_heads;
                let rows = [own, shape.key_width, shape.value_width];
                Projection::load_parts(
                    weights,
                    &format!("{prefix}.{name}"),
                    shape.kv_heads,
                    rows,
                    hidden,
                    biased,
                )
            }
        }
    }

    /// The norms of heads.
    fn heads(
        &self,
        config: &ModelConfig,
        weights: &mut Checkpoint,
        prefix: &str,
        magnitude: f32,
    ) -> Result<Heads, ModelError> {
        let (width, epsilon) = (config.head_dim, config.norm_epsilon);
        // Scaling heads before their norm is equal to dividing the norm's epsilon.
        let behind = epsilon / (magnitude * magnitude);
        let name = |name: &str| format!("{prefix}.{name}");
        let mut rms = |part: &str, width| -> Result<Norm, ModelError> {
            Ok(Norm::Rms {
                weight: weights.vector(&format!("{}.weight", name(part)), width)?,
                epsilon,
            })
        };
        Ok(match self.head_norms {
            HeadNorms::None => (None, None, None),
            HeadNorms::Bare | HeadNorms::BareWherePositioned => {
                let bare = || Norm::Rms {
                    weight: vec![1.0; width],
                    epsilon: behind,
                };
                (Some(bare()), Some(bare()), None)
            }
            HeadNorms::Each([query, key]) => (Some(rms(query, width)?), Some(rms(key, width)?), None),
            HeadNorms::All([query, key]) => {
                let norms = (rms(query, config.query_width())?, rms(key, config.kv_width())?);
                (Some(norms.0), Some(norms.1), None)
            }
            HeadNorms::EachLayer(parts) => {
                let [query, key] = parts.map(|part| self.norm_of(width, epsilon, weights, &name(part)));
                (Some(query?), Some(key?), None)
            }
            HeadNorms::Own([query, key]) => {
                let mut own = |part: &str, heads: usize| {
                    let weight = weights.array(&format!("{}.weight", name(part)), &[heads, width])?;
                    Ok::<Norm, ModelError>(self.groups(config, weight))
                };
                (Some(own(query, config.heads)?), Some(own(key, config.kv_heads)?), None)
            }
            HeadNorms::OwnTensors([query, key]) => {
                let mut own = |part: &str, heads: usize| {
                    let of_head = |head| weights.vector(&format!("{}.norms.{head}.weight", name(part)), width);
                    let weight: Vec<Vec<f32>> = (0..heads).map(of_head).collect::<Result<_, _>>()?;
                    Ok::<Norm, ModelError>(self.groups(config, weight.concat()))
                };
                (Some(own(query, config.heads)?), Some(own(key, config.kv_heads)?), None)
            }
            HeadNorms::Rotated([query, key]) => {
                // A norm without weights commutes with a rotation. Only products of query and key matter, so the
                // query gets the weights of both.
                let [query, key] = [query, key].map(|part| weights.vector(&format!("{}.weight", name(part)), width));
                let products = query?.iter().zip(key?).map(|(query, key)| query * key).collect();
                let bare = || Norm::Rms {
                    weight: vec![1.0; width],
                    epsilon: behind,
                };
                (Some(bare()), Some(bare()), Some(products))
            }
        })
    }

    /// A norm of each head with its own weights, `[heads, head_dim]`, in the order of the projections' rows.
    fn groups(&self, config: &ModelConfig, mut weight: Vec<f32>) -> Norm {
        let rotated = config.rotary_dim;
        if self.interleaved {
            for head in weight.chunks_exact_mut(config.head_dim) {
                let stored = head[..rotated].to_vec();
                for (pair, values) in stored.chunks_exact(2).enumerate() {
                    head[pair] = values[0];
                    head[pair + rotated / 2] = values[1];
                }
            }
        }
        Norm::Groups {
            weight,
            group: config.head_dim,
            epsilon: config.norm_epsilon,
        }
    }
}

/// The attention of a latent layer, with its indexer if it has one.
fn latent_attention(
    (plan, latent): (&Plan, &LatentAttention),
    config: &ModelConfig,
    weights: &mut Checkpoint,
    layer: usize,
    (norm, rotary): (Arc<Norm>, (Arc<Rotary>, usize)),
) -> Result<(Attention, AttentionOutput), ModelError> {
    let name = format!("model.layers.{layer}.self_attn");
    let (mut attention, output) = latent.build(weights, &name, config.hidden_size, norm, rotary)?;
    if let Some(indexer) = &plan.indexer {
        attention.indexer = indexer.build(weights, &format!("{name}.indexer"), config.hidden_size, layer)?;
    }
    Ok((attention, AttentionOutput::Latent(output)))
}
