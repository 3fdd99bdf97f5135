//! Families with layers of linear attention: Kimi Delta Attention and lightning attention.

use serde_json::json;

use super::super::latent::LatentAttention;
use super::expert_families::mixtral;
use super::mixer_families::{check_mixer_activation, hybrid_kinds, indices};
use super::plan::Planned;
use super::{LayerParts, MixerPlan, NormedStream, Plan, Positions};
use crate::blocks::{Activation, ExpertSettings};
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;
use crate::{KimiDeltaShape, LightningShape, ModelError, StateShape};

pub(super) fn kimi_linear(fields: &Fields) -> Planned {
    let defaults = json!({
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5,
        "num_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 1024,
        "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.446, "linear_head_dim": 128,
        "linear_num_heads": 32, "linear_conv_kernel_dim": 4, "max_position_embeddings": 1 << 20,
    });
    let mut plan = Plan::new(&kimi_names(fields)?, defaults);
    check_mixer_activation(&plan.fields, "hidden_act")?;
    // transformers uses the other layers' name for dense layers.
    plan.part_renames = &[
        (".block_sparse_moe.gate_proj.", ".mlp.gate_proj."),
        (".block_sparse_moe.up_proj.", ".mlp.up_proj."),
        (".block_sparse_moe.down_proj.", ".mlp.down_proj."),
    ];
    let layers = layer_count(&plan.fields)?;
    // Heads carry no positions.
    plan.positions = Positions::Listed(vec![false; layers]);
    plan.latent = Some(LatentAttention::read(&plan.fields, false)?.without_magnitude());
    let state = StateShape::KimiDelta(KimiDeltaShape {
        heads: plan.fields.size("linear_num_heads")?.min(LARGEST_COUNT),
        head_dim: plan.fields.size("linear_head_dim")?.min(LARGEST_COUNT),
        kernel: plan.fields.size("linear_conv_kernel_dim")?.min(LARGEST_COUNT),
    });
    plan.mixer = MixerPlan::KimiDelta {
        name: "self_attn",
        epsilon: plan.fields.optional_epsilon("rms_norm_eps")?.unwrap_or(1e-5) as f32,
    };
    plan.layers = match plan.fields.texts("layer_types")? {
        types if !types.is_empty() => hybrid_kinds(&plan.fields, &types, state)?,
        _ => alternating(layers, state, |layer| layer > 0 && layer.is_multiple_of(4)),
    };
    if plan.fields.get("mlp_layer_types").is_none() {
        let dense = plan.fields.optional_count("first_k_dense_replace")?.unwrap_or(1);
        let kind = |layer| if layer < dense { "dense" } else { "sparse" };
        plan.fields = plan
            .fields
            .with("mlp_layer_types", (0..layers).map(kind).collect::<Vec<_>>());
    }
    let kinds = plan.fields.texts("mlp_layer_types")?;
    if kinds.iter().any(|kind| kind == "sparse") {
        plan.experts = Some(ExpertSettings::read(&plan.fields)?.with_noaux());
    }
    Ok(plan)
}

/// The settings of Kimi Linear under the names of related families, with those of its linear layers in one place.
fn kimi_names(fields: &Fields) -> Result<Fields, ModelError> {
    let mut fields = fields.clone();
    for (own, name) in [
        ("model_max_length", "max_position_embeddings"),
        ("moe_renormalize", "norm_topk_prob"),
        ("num_expert_group", "n_group"),
        ("num_experts_per_token", "num_experts_per_tok"),
        ("num_shared_experts", "n_shared_experts"),
        ("num_local_experts", "num_experts"),
    ] {
        if let Some(value) = fields.get(own).cloned() {
            fields = fields.with(name, value).without(own);
        }
    }
    let Some(linear) = fields.object("linear_attn_config")? else {
        return Ok(fields);
    };
    for (own, name) in [
        ("head_dim", "linear_head_dim"),
        ("num_heads", "linear_num_heads"),
        ("short_conv_kernel_size", "linear_conv_kernel_dim"),
    ] {
        if let Some(value) = linear.get(own).cloned() {
            fields = fields.with(name, value);
        }
    }
    if fields.get("layer_types").is_none()
        && let (Some(attends), Some(_)) = (indices(&linear, "full_attn_layers")?, linear.get("kda_layers"))
    {
        // Layers are counted from 1.
        let kind = |layer: usize| {
            if attends.contains(&(layer + 1)) {
                "full_attention"
            } else {
                "linear_attention"
            }
        };
        let kinds: Vec<&str> = (0..layer_count(&fields)?).map(kind).collect();
        fields = fields.with("layer_types", kinds);
    }
    Ok(fields)
}

pub(super) fn minimax(fields: &Fields) -> Planned {
    let fields = fields.with_default("rope_theta", 1_000_000.0);
    let mut plan = mixtral(&fields)?;
    let layers = layer_count(&plan.fields)?;
    let heads = plan.fields.size("num_attention_heads")?.min(LARGEST_COUNT);
    let head_dim = match plan.fields.optional_size("head_dim")? {
        Some(head_dim) => head_dim.min(LARGEST_COUNT),
        None => plan.fields.size("hidden_size")? / heads,
    };
    let state = StateShape::Lightning(LightningShape { heads, head_dim });
    let parts = match plan.fields.texts("layer_types")? {
        types if !types.is_empty() => hybrid_kinds(&plan.fields, &types, state)?,
        _ => alternating(layers, state, |layer| layer.is_multiple_of(2)),
    };
    let has_window = plan.fields.get("sliding_window").is_some();
    plan.slides = None;
    plan.layers = parts
        .into_iter()
        .map(|parts| LayerParts {
            slides: parts.attends && has_window,
            ..parts
        })
        .collect();
    let factors = |kind: &str| -> Result<[f64; 2], ModelError> {
        let (kept, added) = (format!("{kind}_alpha_factor"), format!("{kind}_beta_factor"));
        let kept = plan.fields.optional_number(&kept)?.unwrap_or(1.0);
        Ok([kept, plan.fields.optional_positive(&added)?.unwrap_or(1.0)])
    };
    plan.normed_stream = Some(NormedStream {
        mixer: factors("linear_attn")?,
        attention: factors("full_attn")?,
        feed: factors("mlp")?,
    });
    plan.mixer = MixerPlan::Lightning {
        name: "self_attn",
        activation: Activation::from_fields(&plan.fields, "hidden_act", "silu")?,
    };
    Ok(plan)
}

fn layer_count(fields: &Fields) -> Result<usize, ModelError> {
    Ok(fields.size("num_hidden_layers")?.min(LARGEST_COUNT))
}

/// Attention layers where `attends` is true, layers with a state elsewhere.
fn alternating(layers: usize, state: StateShape, attends: impl Fn(usize) -> bool) -> Vec<LayerParts> {
    let parts = |layer| {
        if attends(layer) {
            LayerParts::ATTENTION
        } else {
            LayerParts::mixer(state)
        }
    };
    (0..layers).map(parts).collect()
}
