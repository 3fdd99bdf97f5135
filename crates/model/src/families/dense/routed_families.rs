//! Families with experts and further differences from Llama: one function each.

use serde_json::{Value, json};

use super::expert_families::{HEAD_NORMS, expert_defaults, glm4_moe, granite_moe, with_experts, with_layer_types};
use super::plan::Planned;
use super::rms_families::{exaone4, olmo2};
use super::{Block, HeadNorms, Inputs, Plan, Positions};
use crate::ModelError;
use crate::blocks::{ExpertSettings, FusedLayout, Scoring, WeightSum};
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;

/// The divisor of weights in relatives of DeepSeek-V3.
pub(super) const NEARLY_PLAIN: WeightSum = WeightSum {
    added: 1e-20,
    least: 0.0,
};

/// The number of layers, if plausible.
pub(super) fn layer_count(fields: &Fields) -> Result<usize, ModelError> {
    Ok(fields.size("num_hidden_layers")?.min(LARGEST_COUNT))
}

/// Adds the type of each feed-forward part if the settings list none; `is_dense` decides which have no experts.
pub(super) fn with_mlp_types(fields: &Fields, is_dense: impl Fn(usize) -> bool) -> Result<Fields, ModelError> {
    if !fields.texts("mlp_layer_types")?.is_empty() {
        return Ok(fields.clone());
    }
    let kind = |layer| if is_dense(layer) { "dense" } else { "sparse" };
    let kinds: Vec<&str> = (0..layer_count(fields)?).map(kind).collect();
    Ok(fields.clone().with("mlp_layer_types", kinds))
}

/// The rotations of a plan with separate settings for each kind of layers; `defaults` holds both.
pub(super) fn rotate_by_kind(plan: &mut Plan, defaults: Value) -> Result<(), ModelError> {
    let parameters = plan.fields.get("rope_parameters").cloned().unwrap_or(defaults);
    let of_kind = |kind: &str| parameters.get(kind).cloned();
    let global = of_kind("full_attention").unwrap_or_else(|| json!({}));
    // Settings may omit a kind without layers.
    let local = of_kind("sliding_attention").unwrap_or_else(|| global.clone());
    plan.local_rotation = Some(Fields::new(plan.fields.path(), json!({"rope_parameters": local}))?);
    plan.fields = plan.fields.clone().with("rope_parameters", global);
    Ok(())
}

pub(super) fn mellum(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 4, "head_dim": 128, "rms_norm_eps": 1e-6, "num_experts_per_tok": 8,
        "moe_intermediate_size": 896, "norm_topk_prob": true, "sliding_window": 1024,
    });
    let mut plan = Plan::new(fields, defaults).attention_bias("attention_bias", false)?;
    plan.head_norms = HeadNorms::Each(HEAD_NORMS);
    plan.slides = Some(|_| false);
    let rotations = json!({
        "full_attention": {"rope_type": "default", "rope_theta": 500_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    });
    rotate_by_kind(&mut plan, rotations)?;
    with_experts(plan, |experts| experts)
}

pub(super) fn solar_open(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1_000_000.0, "moe_intermediate_size": 1280,
        "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128, "norm_topk_prob": true,
    });
    let mut plan = Plan::new(fields, defaults);
    plan.input_bias = plan.fields.flag("attention_bias", false)?;
    let width = plan.fields.size("moe_intermediate_size")?;
    plan.fields = plan.fields.with("intermediate_size", width);
    with_experts(plan, ExpertSettings::with_noaux)
}

/// GLM-4.5, and Sarvam, which uses its class.
pub(super) fn glm4_moe_or_sarvam(fields: &Fields) -> Planned {
    match fields.text("model_type")? {
        Some("sarvam_moe") => sarvam_moe(fields),
        _ => glm4_moe(fields),
    }
}

fn sarvam_moe(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 4, "head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 8_000_000.0,
        "partial_rotary_factor": 1.0, "moe_intermediate_size": 1024, "num_experts_per_tok": 6,
        "routed_scaling_factor": 2.5, "use_qk_norm": true,
    });
    let mut fields = Plan::new(fields, defaults).fields;
    for (older, name) in [
        ("num_experts", "n_routed_experts"),
        ("num_shared_experts", "n_shared_experts"),
        ("use_qkv_bias", "attention_bias"),
    ] {
        if let Some(value) = fields.get(older).cloned() {
            fields = fields.with_default(name, value).without(older);
        }
    }
    let mut plan = glm4_moe(&fields)?;
    plan.inputs = Inputs::Stacked("attention.query_key_value");
    plan.output = "attention.dense";
    if plan.fields.flag("use_qk_norm", true)? {
        plan.head_norms = HeadNorms::Each(["attention.query_layernorm", "attention.key_layernorm"]);
    }
    Ok(plan)
}

pub(super) fn hy_v3(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 8, "head_dim": 128, "num_experts": 192, "num_experts_per_tok": 8,
        "num_shared_experts": 1, "moe_intermediate_size": 1536, "router_scaling_factor": 2.826,
    });
    let mut plan = Plan::new(fields, defaults)
        .attention_bias("attention_bias", false)?
        .mlp_bias("mlp_bias", false)?;
    plan.head_norms = HeadNorms::Each(HEAD_NORMS);
    plan.fields = with_mlp_types(&plan.fields, |layer| layer == 0)?;
    let scale = plan.fields.optional_positive("router_scaling_factor")?.unwrap_or(1.0);
    with_experts(plan, |mut experts| {
        experts.rules.scale = scale as f32;
        experts.with_scoring(Scoring::Sigmoid).with_sum(Some(NEARLY_PLAIN))
    })
}

pub(super) fn exaone_moe(fields: &Fields) -> Planned {
    let mut plan = exaone4(fields)?;
    plan.block = Block::Before(["input_layernorm", "post_attention_layernorm"]);
    for (name, value) in [
        ("num_experts_per_tok", json!(8)),
        ("moe_intermediate_size", json!(1024)),
        ("num_shared_experts", json!(1)),
        ("norm_topk_prob", json!(true)),
        ("routed_scaling_factor", json!(2.5)),
        ("first_k_dense_replace", json!(1)),
    ] {
        plan.fields = plan.fields.with_default(name, value);
    }
    with_experts(plan, ExpertSettings::with_noaux)
}

pub(super) fn flex_olmo(fields: &Fields) -> Planned {
    let defaults = json!({
        "rms_norm_eps": 1e-6, "rope_theta": 500_000.0, "num_experts": 7, "num_experts_per_tok": 5,
    });
    let plan = olmo2(&Plan::new(fields, defaults).fields)?;
    with_experts(plan, |experts| experts)
}

pub(super) fn flint(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 4, "head_dim": 128, "rms_norm_eps": 1e-6, "sliding_window": 513, "num_experts": 256,
        "num_experts_per_tok": 6, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 1024,
        "norm_topk_prob": true, "mlp_only_layers": [0, 1],
    });
    let mut plan = Plan::new(fields, expert_defaults(fields, defaults)).attention_bias("attention_bias", false)?;
    let last = layer_count(&plan.fields)?.saturating_sub(1);
    plan.fields = with_layer_types(&plan.fields, |layer| layer >= 2 && layer % 4 != 1 && layer != last)?;
    plan.head_norms = HeadNorms::Each(HEAD_NORMS);
    plan.positions = Positions::InWindows;
    plan.slides = Some(|_| false);
    plan.sinks = Some("self_attn.softmax_offset");
    with_experts(plan, |experts| experts.with_scoring(Scoring::Sigmoid))
}

pub(super) fn kolibri1(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 4, "head_dim": 128, "rms_norm_eps": 1e-6, "sliding_window": 513, "num_experts": 384,
        "num_experts_per_tok": 6, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    });
    let mut plan = Plan::new(fields, expert_defaults(fields, defaults));
    plan.fields = with_layer_types(&plan.fields, |layer| !(layer + 1).is_multiple_of(5))?;
    plan.block = Block::Both([
        "input_layernorm",
        "post_attn_norm",
        "post_attention_layernorm",
        "post_ffn_norm",
    ]);
    plan.head_norms = HeadNorms::Each(HEAD_NORMS);
    plan.positions = Positions::InWindows;
    plan.slides = Some(|_| false);
    let width = plan.fields.size("moe_intermediate_size")?;
    plan.fields = plan.fields.with("intermediate_size", width);
    with_experts(plan, |experts| experts.with_scoring(Scoring::SigmoidOfChosen))
}

pub(super) fn granite_moe_swa(fields: &Fields) -> Planned {
    let fields = fields
        .with_default("sliding_window", 128)
        .with_default("shared_intermediate_size", 0);
    let fields = with_layer_types(&fields, |layer| !layer.is_multiple_of(4))?;
    let mut plan = granite_moe(&fields)?;
    plan.sinks = Some("self_attn.sinks");
    plan.slides = Some(|_| false);
    let layers = layer_count(&plan.fields)?;
    let bases = match plan.fields.get("layer_rope_theta") {
        None => return Ok(plan),
        Some(Value::Array(bases)) if bases.len() == layers => bases.iter().map(Value::as_f64).collect(),
        Some(_) => None,
    };
    let Some(bases): Option<Vec<f64>> = bases else {
        let problem = format!("must list a number for each of {layers} layers");
        return Err(plan.fields.error("layer_rope_theta", problem));
    };
    // Layers with the base 0 have no positions.
    let base = bases.iter().copied().find(|base| *base > 0.0);
    if bases.iter().any(|other| *other != 0.0 && Some(*other) != base) {
        let problem = "gives layers two bases above 0, which is not supported";
        return Err(plan.fields.error("layer_rope_theta", problem));
    }
    if let Some(base) = base {
        plan.fields = match plan.fields.object("rope_parameters")? {
            Some(rotation) => {
                let mut rotation = rotation.values();
                rotation.insert("rope_theta".into(), base.into());
                plan.fields.with("rope_parameters", rotation).without("rope_theta")
            }
            None => plan.fields.with("rope_theta", base),
        };
    }
    if bases.contains(&0.0) {
        plan.positions = Positions::Listed(bases.iter().map(|base| *base != 0.0).collect());
    }
    Ok(plan)
}

pub(super) fn aria_text(fields: &Fields) -> Planned {
    let defaults = json!({
        "rms_norm_eps": 1e-6, "moe_num_experts": 8, "moe_topk": 2, "moe_num_shared_experts": 2,
    });
    let plan = Plan::new(fields, defaults).attention_bias("attention_bias", false)?;
    if plan.fields.text("hidden_act")?.is_some_and(|name| name != "silu") {
        let problem =
            "must be silu: the experts of this family have no other, and its shared block follows the setting";
        return Err(plan.fields.error("hidden_act", problem));
    }
    with_experts(plan, |mut experts| {
        experts.layout = FusedLayout {
            transposed: true,
            alternating: false,
        };
        experts.with_scoring(Scoring::SoftmaxOfChosen)
    })
}
