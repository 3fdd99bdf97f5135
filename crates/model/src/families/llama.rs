//! Llama: RMS norms before attention and feed-forward, rotary positions, grouped queries, SwiGLU.

use std::sync::Arc;

use super::Family;
use crate::blocks::{Activation, Attention, Mlp, Norm, Projection, Rotary, RotarySettings};
use crate::decoder::{Decoder, DecoderLayer};
use crate::fields::Fields;
use crate::weights::Checkpoint;
use crate::workspace::Pass;
use crate::{ModelConfig, ModelError};

pub(super) const FAMILY: Family = Family {
    architectures: &["LlamaForCausalLM"],
    model_type: "llama",
    configure,
    build,
};

fn configure(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
    let mut config = ModelConfig::from_fields(fields, architecture)?;
    config.rotary_dim = RotarySettings::from_fields(fields, config.head_dim, config.max_position)?.dim;
    Activation::from_fields(fields, "hidden_act")?;
    Ok(config)
}

fn build(fields: &Fields, config: &ModelConfig, weights: &mut Checkpoint) -> Result<Decoder, ModelError> {
    let rotary = Arc::new(Rotary::new(&RotarySettings::from_fields(
        fields,
        config.head_dim,
        config.max_position,
    )?));
    let attention_bias = fields.flag("attention_bias", false)?;
    let mlp_bias = fields.flag("mlp_bias", false)?;
    let activation = Activation::from_fields(fields, "hidden_act")?;
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let (query_width, kv_width) = (config.query_width(), config.kv_width());
    let norm = |weights: &mut Checkpoint, name: &str| -> Result<Norm, ModelError> {
        Ok(Norm::Rms {
            weight: weights.vector(name, hidden)?,
            epsilon: config.norm_epsilon,
        })
    };
    let mut layers: Vec<Box<dyn DecoderLayer>> = Vec::new();
    for layer in 0..config.layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let mut project =
            |part: &str, outputs, inputs, biased| Projection::load(weights, &name(part), outputs, inputs, biased);
        let attention = Attention {
            query: project("self_attn.q_proj", query_width, hidden, attention_bias)?,
            key: project("self_attn.k_proj", kv_width, hidden, attention_bias)?,
            value: project("self_attn.v_proj", kv_width, hidden, attention_bias)?,
            output: project("self_attn.o_proj", hidden, query_width, attention_bias)?,
            query_norm: None,
            key_norm: None,
        };
        let mlp = Mlp::Gated {
            gate: project("mlp.gate_proj", inner, hidden, mlp_bias)?,
            up: project("mlp.up_proj", inner, hidden, mlp_bias)?,
            down: project("mlp.down_proj", hidden, inner, mlp_bias)?,
            activation,
        };
        layers.push(Box::new(Layer {
            attention_norm: norm(weights, &name("input_layernorm.weight"))?,
            attention,
            mlp_norm: norm(weights, &name("post_attention_layernorm.weight"))?,
            mlp,
            rotary: Arc::clone(&rotary),
        }));
    }
    let final_norm = norm(weights, "model.norm.weight")?;
    Decoder::new(config, weights, layers, final_norm)
}

struct Layer {
    attention_norm: Norm,
    attention: Attention,
    mlp_norm: Norm,
    mlp: Mlp,
    rotary: Arc<Rotary>,
}

impl DecoderLayer for Layer {
    fn forward(&self, config: &ModelConfig, pass: &mut Pass<'_>, hidden: &mut [f32]) -> Result<(), ModelError> {
        self.attention
            .attend(pass, config, &self.attention_norm, (0, &self.rotary), hidden)?;
        pass.for_row_blocks(hidden, |rows| {
            self.attention.output.apply(rows.attended, rows.branch);
            rows.add_branch();
            self.mlp_norm.apply(rows.hidden, rows.normed);
            self.mlp.apply(rows.normed, rows.inner, rows.inner_gate, rows.branch);
            rows.add_branch();
        });
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.attention_norm.bytes() + self.attention.bytes() + self.mlp_norm.bytes() + self.mlp.bytes()
    }
}
