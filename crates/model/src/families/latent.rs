//! Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): the cache holds one latent per token, which every
//! head reads.
//!
//! The matrices that would expand latents to keys and values are applied to the queries and after attention instead.
//! Only rounding differs.

use std::sync::Arc;

use crate::blocks::{Attention, HeadProjection, KeyValue, LatentQuery, Norm, Projection, Rotary};
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;
use crate::layer::{Rows, Step};
use crate::weights::Checkpoint;
use crate::{AttentionShape, ModelConfig, ModelError};

/// Epsilon of latent norms, independent of the settings for other norms.
const EPSILON: f32 = 1e-6;

/// The sizes and settings of a family's latent attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct LatentAttention {
    heads: usize,
    /// Width of the latent from which queries are computed, if there is one (`q_lora_rank`).
    query_rank: Option<usize>,
    /// Width of the latent of keys and values (`kv_lora_rank`).
    rank: usize,
    /// Elements of a query without a position (`qk_nope_head_dim`).
    plain: usize,
    /// Elements with positions (`qk_rope_head_dim`).
    pub(super) rotated: usize,
    /// Elements of a value (`v_head_dim`).
    value: usize,
    /// True if the two dimensions of a rotated pair are adjacent.
    interleaved: bool,
    /// The projections of the layer's input and of the result have biases.
    biased: bool,
    scale: f64,
}

impl LatentAttention {
    /// Reads the settings, which have DeepSeek's names.
    pub(super) fn read(fields: &Fields, interleaved: bool) -> Result<LatentAttention, ModelError> {
        let size = |name: &str| match fields.size(name)? {
            size if size > LARGEST_COUNT => {
                Err(fields.error(name, format!("{size} is not plausible, {LARGEST_COUNT} is the limit")))
            }
            size => Ok(size),
        };
        let query_rank = fields.get("q_lora_rank").map(|_| size("q_lora_rank")).transpose()?;
        let (plain, rotated) = (size("qk_nope_head_dim")?, size("qk_rope_head_dim")?);
        if !rotated.is_multiple_of(2) {
            return Err(fields.error("qk_rope_head_dim", format!("{rotated} is odd, rotation needs pairs")));
        }
        Ok(LatentAttention {
            heads: size("num_attention_heads")?,
            query_rank,
            rank: size("kv_lora_rank")?,
            plain,
            rotated,
            value: size("v_head_dim")?,
            interleaved,
            biased: fields.flag("attention_bias", false)?,
            scale: ((plain + rotated) as f64).sqrt().recip() * magnitude(fields)?.powi(2),
        })
    }

    /// Ignores the magnitude of a scaled rotation, for heads without positions.
    pub(super) fn without_magnitude(self) -> LatentAttention {
        let scale = ((self.plain + self.rotated) as f64).sqrt().recip();
        LatentAttention { scale, ..self }
    }

    /// The settings with the head width of `ModelConfig`.
    pub(super) fn with_head_dim(&self, fields: &Fields) -> Fields {
        fields.clone().with("head_dim", self.shape().key_width)
    }

    /// The shape of every layer.
    pub(super) fn shape(&self) -> AttentionShape {
        AttentionShape {
            heads: self.heads,
            kv_heads: 1,
            key_width: self.rank + self.rotated,
            value_width: self.rank,
            shares: None,
            has_sinks: false,
            is_latent: true,
        }
    }

    /// Sets the attention shape of all layers.
    pub(super) fn configure(&self, config: &mut ModelConfig) {
        config.attention = vec![self.shape(); config.layers];
        config.kv_heads = 1;
        config.attention_scale = self.scale as f32;
        let (heads, width) = (self.heads, self.plain + self.rotated);
        // Queries as in `LatentQuery`, and results as in `Step::ProjectHeads`.
        let queries = self.query_rank.unwrap_or(0) + heads * (width + self.plain + self.rank);
        config.attention_scratch = queries.max(heads * (self.rank + 2 * self.value));
    }

    /// Loads the tensors below `name`. Returns the attention and the step that writes its result to the layer's
    /// branch.
    pub(super) fn build(
        &self,
        weights: &mut Checkpoint,
        name: &str,
        hidden: usize,
        norm: Arc<Norm>,
        (rotary, rotary_table): (Arc<Rotary>, usize),
    ) -> Result<(Attention, LatentOutput), ModelError> {
        let part = |part: &str| format!("{name}.{part}");
        let (heads, width) = (self.heads, self.plain + self.rotated);
        let queries = if self.query_rank.is_some() {
            "q_b_proj"
        } else {
            "q_proj"
        };
        if self.interleaved {
            weights.interleave_from(&part(&format!("{queries}.weight")), heads, self.plain, self.rotated);
            for kind in ["weight", "bias"] {
                weights.interleave_from(&part(&format!("kv_a_proj_with_mqa.{kind}")), 1, self.rank, self.rotated);
            }
        }
        let norm_of = |weights: &mut Checkpoint, name: &str, width: usize| -> Result<Norm, ModelError> {
            Ok(Norm::Rms {
                weight: weights.vector(&part(&format!("{name}.weight")), width)?,
                epsilon: EPSILON,
            })
        };
        let narrow = match self.query_rank {
            None => None,
            Some(rank) => Some((
                Projection::load(weights, &part("q_a_proj"), rank, hidden, self.biased)?,
                norm_of(weights, "q_a_layernorm", rank)?,
            )),
        };
        let inputs = self.query_rank.unwrap_or(hidden);
        let query = Projection::load(weights, &part(queries), heads * width, inputs, false)?;
        let key = part("kv_a_proj_with_mqa");
        let key = Projection::load(weights, &key, self.rank + self.rotated, hidden, self.biased)?;
        let key_norm = norm_of(weights, "kv_a_layernorm", self.rank)?;
        let [absorb, values] = self.heads(weights, name)?;
        let attention = Attention {
            norm,
            shape: self.shape(),
            query,
            latent_query: Some(Box::new(LatentQuery { narrow, absorb })),
            indexer: None,
            query_norm: None,
            key_value: Some(KeyValue {
                key,
                value: None,
                value_norm: None,
                key_norm: Some(key_norm),
            }),
            sinks: None,
            rotary,
            rotary_table,
        };
        let output = Projection::load(weights, &part("o_proj"), hidden, heads * self.value, self.biased)?;
        Ok((
            attention,
            LatentOutput {
                heads: values,
                projection: output,
            },
        ))
    }

    /// The heads' matrices into the latent space and out of it. Most GGUF files store the two separately, the first
    /// transposed.
    fn heads(&self, weights: &mut Checkpoint, name: &str) -> Result<[HeadProjection; 2], ModelError> {
        let part = |part: &str| format!("{name}.{part}");
        let (heads, rank) = (self.heads, self.rank);
        if weights.info(&part("k_b_proj.weight")).is_some() {
            let keys = HeadProjection::load(weights, &part("k_b_proj"), heads, rank, self.plain)?;
            let values = HeadProjection::load(weights, &part("v_b_proj"), heads, self.value, rank)?;
            return Ok([keys, values]);
        }
        let name = part("kv_b_proj");
        let [keys, values] = HeadProjection::load_pair(weights, &name, heads, [self.plain, self.value], rank)?;
        Ok([keys.transposed(&name)?, values])
    }
}

/// The projection of the result of latent attention.
pub(super) struct LatentOutput {
    heads: HeadProjection,
    projection: Projection,
}

impl LatentOutput {
    /// The step that writes the projected result to `to`.
    pub(super) fn step(self, to: Rows) -> Step {
        Step::ProjectHeads {
            heads: self.heads,
            projection: self.projection,
            to,
        }
    }
}

/// The magnitude of a scaled rotation on each side of a score (`mscale_all_dim`).
fn magnitude(fields: &Fields) -> Result<f64, ModelError> {
    let parameters = match fields.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => fields.object("rope_scaling")?,
    };
    let Some(parameters) = parameters else { return Ok(1.0) };
    let kind = parameters.text("rope_type")?.or(parameters.text("type")?);
    let all = parameters.optional_number("mscale_all_dim")?.unwrap_or(0.0);
    if all == 0.0 || matches!(kind, None | Some("default")) {
        return Ok(1.0);
    }
    let factor = parameters.positive("factor")?;
    Ok(if factor <= 1.0 {
        1.0
    } else {
        0.1 * all * factor.ln() + 1.0
    })
}
