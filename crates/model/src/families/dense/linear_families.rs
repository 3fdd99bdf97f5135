//! Families with layers of linear attention: Gated DeltaNet, Kimi Delta Attention and lightning attention.

use serde_json::{Value, json};

use super::super::latent::LatentAttention;
use super::super::qwen3_5::recurrent_shape;
use super::expert_families::{HEAD_NORMS, expert_defaults, mixtral, with_experts};
use super::mixer_families::{check_mixer_activation, hybrid_kinds, indices, kinds, size};
use super::plan::Planned;
use super::rms_families::olmo2;
use super::{HeadNorms, LayerParts, MixerPlan, NormedStream, Plan, Positions};
use crate::blocks::{Activation, ExpertSettings};
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;
use crate::{GatedDeltaNetShape, KimiDeltaShape, LightningShape, ModelError, StateShape};

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

/// The settings of Kimi Linear under the names of related families. Settings of linear layers stand in one place.
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

/// Gated DeltaNet layers in Llama's style, attention layers in OLMo 2's.
pub(super) fn olmo_hybrid(fields: &Fields) -> Planned {
    let heads = size(fields, "num_attention_heads")?;
    let mut plan = olmo2(&fields.with_default("rms_norm_eps", 1e-6).without("head_dim"))?;
    let fields = &plan.fields;
    let layers = size(fields, "num_hidden_layers")?;
    // A null base means no rotation.
    let rotation = fields.object("rope_parameters")?.map(|rotation| rotation.values());
    let base = rotation.and_then(|rotation| rotation.get("rope_theta").cloned());
    if base.or(fields.values().get("rope_theta").cloned()) == Some(Value::Null) {
        plan.positions = Positions::Listed(vec![false; layers]);
    }
    let count = |name: &str, default: usize| match fields.get(name) {
        Some(_) => size(fields, name),
        None => Ok(default),
    };
    let key_heads = count("linear_num_key_heads", heads)?;
    let value_heads = count("linear_num_value_heads", heads)?;
    if !value_heads.is_multiple_of(key_heads) {
        let problem = format!("{value_heads} value heads are not a multiple of the {key_heads} key heads");
        return Err(fields.error("linear_num_value_heads", problem));
    }
    let key_dim = count(
        "linear_key_head_dim",
        3 * size(fields, "hidden_size")? / (4 * key_heads),
    )?;
    let state = StateShape::GatedDeltaNet(GatedDeltaNetShape {
        key_heads,
        value_heads,
        key_dim,
        value_dim: count("linear_value_head_dim", 2 * key_dim)?,
        kernel: count("linear_conv_kernel_dim", 4)?,
    });
    check_mixer_activation(fields, "hidden_act")?;
    let grows = fields.flag("linear_allow_neg_eigval", true)?;
    plan.mixer = MixerPlan::GatedDeltaNet {
        name: "linear_attn",
        is_apart: true,
        strength_limit: if grows { 2.0 } else { 1.0 },
        epsilon: 1e-5,
    };
    let types = match plan.fields.texts("layer_types")? {
        types if !types.is_empty() => types,
        _ => {
            let attends = |layer: usize| layer % 4 == 3 || (layers < 4 && layer + 1 == layers);
            let kind = |layer| {
                if attends(layer) {
                    "full_attention"
                } else {
                    "linear_attention"
                }
            };
            (0..layers).map(|layer| kind(layer).to_owned()).collect()
        }
    };
    plan.layers = hybrid_kinds(&plan.fields, &types, state)?;
    plan.part_renames = &[
        (".attention_layer_norm.", ".input_layernorm."),
        (".feedforward_layer_norm.", ".post_attention_layernorm."),
    ];
    Ok(plan)
}

/// Gated DeltaNet layers, and attention layers whose keys carry positions where they have a window.
pub(super) fn lara_mini(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 4, "head_dim": 128, "rms_norm_eps": 1e-6, "sliding_window": 512, "num_experts": 128,
        "num_experts_per_tok": 4, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "norm_topk_prob": true, "linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "tie_word_embeddings": true,
    });
    let mut plan = Plan::new(fields, expert_defaults(fields, defaults)).attention_bias("attention_bias", false)?;
    let fields = &plan.fields;
    check_mixer_activation(fields, "hidden_act")?;
    let state = StateShape::GatedDeltaNet(recurrent_shape(fields)?);
    plan.mixer = MixerPlan::GatedDeltaNet {
        name: "linear_attn",
        is_apart: false,
        strength_limit: 1.0,
        epsilon: fields.optional_epsilon("rms_norm_eps")?.unwrap_or(1e-6) as f32,
    };
    const PERIOD: [&str; 5] = [
        "linear_attention",
        "sliding_attention",
        "linear_attention",
        "full_attention",
        "sliding_attention",
    ];
    let types = match fields.texts("layer_types")? {
        types if !types.is_empty() => types,
        _ => (0..size(fields, "num_hidden_layers")?)
            .map(|layer| PERIOD[layer % PERIOD.len()].to_owned())
            .collect(),
    };
    plan.layers = kinds(fields, &types, |kind| match kind {
        "linear_attention" => Some(LayerParts::mixer(state)),
        "full_attention" => Some(LayerParts::ATTENTION),
        "sliding_attention" => Some(LayerParts {
            slides: true,
            ..LayerParts::ATTENTION
        }),
        _ => None,
    })?;
    plan.positions = Positions::InWindows;
    plan.head_norms = HeadNorms::Each(HEAD_NORMS);
    with_experts(plan, |experts| experts)
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
