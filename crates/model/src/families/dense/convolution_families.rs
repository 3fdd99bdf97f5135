//! Families with short-convolution layers: LFM2 and LFM3.

use serde_json::{Value, json};

use super::mixer_families::{indices, kinds, size};
use super::plan::Planned;
use super::{AttentionGate, Block, Gate, HeadNorms, LayerParts, MixerPlan, MlpNames, Plan};
use crate::blocks::{ExpertSettings, Scoring, WeightSum};
use crate::fields::Fields;
use crate::layer::Opening;
use crate::{ModelError, ShortConvolutionShape, StateShape};

pub(super) fn lfm2(fields: &Fields) -> Planned {
    let mut plan = Plan::new(
        fields,
        json!({"conv_L_cache": 3, "rope_theta": 1_000_000.0, "num_key_value_heads": 8}),
    );
    // Names of the first files.
    for (older, name) in [
        ("tie_embedding", "tie_word_embeddings"),
        ("block_ff_dim", "intermediate_size"),
    ] {
        if let Some(value) = plan.fields.get(older).cloned() {
            plan.fields = plan.fields.with(name, value);
        }
    }
    let inner = lfm2_inner(&plan.fields)?;
    plan.fields = plan.fields.with("intermediate_size", inner);
    lfm2_layers(plan)
}

pub(super) fn lfm2_moe(fields: &Fields) -> Planned {
    let defaults = json!({
        "conv_L_cache": 3, "rope_theta": 1_000_000.0, "num_key_value_heads": 8, "num_dense_layers": 2,
        "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "norm_topk_prob": true,
    });
    let mut plan = lfm2_layers(Plan::new(fields, defaults))?;
    let experts = ExpertSettings::read(&plan.fields)?.with_scoring(Scoring::Sigmoid);
    let sum = experts.rules.sum.map(|_| WeightSum {
        added: 1e-6,
        least: 0.0,
    });
    plan.experts = Some(experts.with_sum(sum));
    Ok(plan)
}

/// The layers of LFM2.
fn lfm2_layers(mut plan: Plan) -> Planned {
    plan.fields = plan.fields.with_default("tie_word_embeddings", true);
    plan.epsilon = "norm_eps";
    plan.block = Block::Before(["operator_norm", "ffn_norm"]);
    plan.final_norm = "model.embedding_norm";
    plan.output = "self_attn.out_proj";
    plan.head_norms = HeadNorms::Each(["self_attn.q_layernorm", "self_attn.k_layernorm"]);
    let convolution = convolutions(&mut plan)?;
    let layers = size(&plan.fields, "num_hidden_layers")?;
    plan.layers = match plan.fields.texts("layer_types")? {
        types if !types.is_empty() => kinds(&plan.fields, &types, |kind| match kind {
            "conv" => Some(convolution),
            "full_attention" => Some(LayerParts::ATTENTION),
            _ => None,
        })?,
        _ => {
            let attends = indices(&plan.fields, "full_attn_idxs")?;
            let attends = |layer| attends.as_ref().is_none_or(|attends| attends.contains(&layer));
            let parts = |layer| {
                if attends(layer) {
                    LayerParts::ATTENTION
                } else {
                    convolution
                }
            };
            (0..layers).map(parts).collect()
        }
    };
    Ok(plan)
}

pub(super) fn lfm3(fields: &Fields) -> Planned {
    let defaults = json!({
        "tie_word_embeddings": true, "num_key_value_heads": 4, "head_dim": 128, "conv_L_cache": 7,
        "sliding_window": 256, "rope_theta": 1_000_000.0,
    });
    let mut plan = Plan::new(fields, defaults).attention_bias("attention_bias", false)?;
    plan.epsilon = "norm_eps";
    plan.final_norm = "model.embedding_norm";
    plan.block = if plan.fields.flag("use_sandwich_norm", true)? {
        Block::Both(["operator_norm", "post_operator_norm", "ffn_norm", "post_ffn_norm"])
    } else {
        Block::Before(["operator_norm", "ffn_norm"])
    };
    plan.head_norms = HeadNorms::Each(["self_attn.q_norm", "self_attn.k_norm"]);
    let gate = AttentionGate {
        name: "self_attn.gate_proj",
        is_wide: false,
        opening: Opening::Sigmoid,
    };
    plan.gate = plan.fields.flag("use_attention_gate", true)?.then_some(gate);
    let convolution = convolutions(&mut plan)?;
    let sliding = LayerParts {
        slides: true,
        ..LayerParts::ATTENTION
    };
    let layers = size(&plan.fields, "num_hidden_layers")?;
    plan.layers = match plan.fields.texts("layer_types")? {
        types if !types.is_empty() => kinds(&plan.fields, &types, |kind| match kind {
            "conv" => Some(convolution),
            "full_attention" => Some(LayerParts::ATTENTION),
            "sliding_attention" => Some(sliding),
            _ => None,
        })?,
        _ => {
            let parts = |layer| match layer % 4 {
                2 => LayerParts::ATTENTION,
                0 if layer > 0 => sliding,
                _ => convolution,
            };
            (0..layers).map(parts).collect()
        }
    };
    lfm3_rotations(&mut plan)?;
    Ok(plan)
}

/// Sets the tensor names of the convolutions and feed-forward parts; returns the parts of a convolution layer.
fn convolutions(plan: &mut Plan) -> Result<LayerParts, ModelError> {
    plan.mlp = MlpNames {
        gate: Gate::Tensor("feed_forward.w1"),
        up: "feed_forward.w3",
        down: "feed_forward.w2",
    };
    plan.mixer = MixerPlan::ShortConvolution {
        name: "conv",
        biased: plan.fields.flag("conv_bias", false)?,
    };
    Ok(LayerParts::mixer(StateShape::ShortConvolution(ShortConvolutionShape {
        channels: size(&plan.fields, "hidden_size")?,
        kernel: size(&plan.fields, "conv_L_cache")?,
    })))
}

/// The two rotations of LFM3. In layers without a window only the first pairs of a head rotate, at the same rates as
/// elsewhere.
fn lfm3_rotations(plan: &mut Plan) -> Result<(), ModelError> {
    let head_dim = size(&plan.fields, "head_dim")?;
    let theta = plan.fields.get("rope_theta").cloned().unwrap_or(json!(1_000_000.0));
    let parameters = match plan.fields.get("rope_parameters").cloned() {
        Some(mut parameters) => {
            // Layers of a kind without a base use the class's base.
            for kind in ["full_attention", "sliding_attention"] {
                if let Some(Value::Object(own)) = parameters.get_mut(kind)
                    && own.get("rope_theta").is_none_or(Value::is_null)
                {
                    own.insert("rope_theta".into(), theta.clone());
                }
            }
            parameters
        }
        None => json!({
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5},
        }),
    };
    let of_kind = |kind: &str| parameters.get(kind).cloned().unwrap_or(json!({}));
    let (mut full, local) = (of_kind("full_attention"), of_kind("sliding_attention"));
    if full.get("rope_type").and_then(Value::as_str) == Some("proportional") {
        let part = full.get("partial_rotary_factor").and_then(Value::as_f64).unwrap_or(1.0);
        let turned = (part * head_dim as f64) as usize / 2;
        let stretch = full.get("factor").and_then(Value::as_f64).unwrap_or(1.0);
        // A pair with infinite scaling does not rotate.
        let factors: Vec<f64> = (0..head_dim / 2)
            .map(|pair| if pair < turned { stretch } else { 1e300 })
            .collect();
        let theta = full.get("rope_theta").cloned().unwrap_or(json!(1_000_000.0));
        full = json!({"rope_type": "factors", "factors": factors, "rope_theta": theta});
    }
    let local = json!({"rope_parameters": local});
    plan.local_rotation = Some(Fields::new(plan.fields.path(), local)?);
    plan.fields = plan
        .fields
        .clone()
        .with("rope_theta", Value::Null)
        .with("rope_parameters", full);
    Ok(())
}

/// The inner width of the feed-forward part, which LFM2 computes from its setting.
fn lfm2_inner(fields: &Fields) -> Result<usize, ModelError> {
    let inner = fields.size("intermediate_size")?;
    if !fields.flag("block_auto_adjust_ff_dim", true)? {
        return Ok(inner);
    }
    let inner = 2 * inner / 3;
    let of_default = fields.with_default("block_ffn_dim_multiplier", 1.0);
    let Some(multiplier) = of_default.optional_positive("block_ffn_dim_multiplier")? else {
        return Ok(inner);
    };
    let multiple = fields.optional_size("block_multiple_of")?.unwrap_or(256);
    Ok(((multiplier * inner as f64) as usize).next_multiple_of(multiple))
}
