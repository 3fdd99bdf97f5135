//! Families with mixtures of experts: one function each, with the differences from Llama.

use serde_json::{Value, json};

use super::plan::Planned;
use super::rms_families::{granite, hunyuan};
use super::{HeadNorms, NormKind, Plan};
use crate::ModelError;
use crate::blocks::{Activation, EXPERT_COUNTS, ExpertSettings, FusedLayout, Scoring, WeightSum};
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;

pub(super) const HEAD_NORMS: [&str; 2] = ["self_attn.q_norm", "self_attn.k_norm"];

/// Adds a type for each layer if the settings list none; `slides` decides which have a window.
pub(super) fn with_layer_types(fields: &Fields, slides: impl Fn(usize) -> bool) -> Result<Fields, ModelError> {
    if !fields.texts("layer_types")?.is_empty() {
        return Ok(fields.clone());
    }
    let kind = |layer| {
        if slides(layer) {
            "sliding_attention"
        } else {
            "full_attention"
        }
    };
    let layers = 0..fields.size("num_hidden_layers")?.min(LARGEST_COUNT);
    Ok(fields.clone().with("layer_types", layers.map(kind).collect::<Vec<_>>()))
}

/// Defaults without the number of experts, for settings that have it under another name.
pub(super) fn expert_defaults(fields: &Fields, mut defaults: Value) -> Value {
    if let Some(defaults) = defaults
        .as_object_mut()
        .filter(|_| EXPERT_COUNTS.iter().any(|name| fields.get(name).is_some()))
    {
        EXPERT_COUNTS.iter().for_each(|name| _ = defaults.remove(*name));
    }
    defaults
}

pub(super) fn with_experts(mut plan: Plan, experts: impl FnOnce(ExpertSettings) -> ExpertSettings) -> Planned {
    plan.experts = Some(experts(ExpertSettings::read(&plan.fields)?));
    Ok(plan)
}

pub(super) fn qwen3_moe(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    });
    let mut plan = Plan::new(fields, expert_defaults(fields, defaults)).attention_bias("attention_bias", false)?;
    plan.head_norms = HeadNorms::Each(HEAD_NORMS);
    if plan.fields.flag("use_sliding_window", false)? {
        plan.fields = plan.fields.with_default("sliding_window", 4096);
        plan.slides = Some(|_| true);
    }
    // The text model of Qwen3-VL always divides, despite the settings.
    let divides = plan.fields.text("model_type")? == Some("qwen3_vl_moe_text");
    with_experts(plan, |experts| {
        if divides {
            experts.with_sum(Some(WeightSum::PLAIN))
        } else {
            experts
        }
    })
}

pub(super) fn qwen2_moe(fields: &Fields) -> Planned {
    let defaults = json!({
        "rms_norm_eps": 1e-6, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    });
    let mut plan = Plan::new(fields, expert_defaults(fields, defaults));
    plan.input_bias = plan.fields.flag("qkv_bias", true)?;
    if plan.fields.flag("use_sliding_window", false)? {
        let end = plan.fields.optional_count("max_window_layers")?.unwrap_or(28);
        plan.fields = plan.fields.with_default("sliding_window", 4096);
        plan.fields = with_layer_types(&plan.fields, |layer| layer < end && layer.is_multiple_of(2))?;
        plan.slides = Some(|_| true);
    }
    with_experts(plan, |experts| experts)
}

pub(super) fn mixtral(fields: &Fields) -> Planned {
    let defaults = json!({"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2});
    let mut plan = Plan::new(fields, expert_defaults(fields, defaults));
    plan.slides = Some(|_| true);
    with_experts(plan, |experts| experts.with_sum(Some(WeightSum::PLAIN)))
}

pub(super) fn olmoe(fields: &Fields) -> Planned {
    let defaults = json!({"num_experts": 64, "num_experts_per_tok": 8});
    let mut plan = Plan::new(fields, expert_defaults(fields, defaults)).attention_bias("attention_bias", false)?;
    plan.head_norms = HeadNorms::All(HEAD_NORMS);
    with_experts(plan, |experts| experts)
}

pub(super) fn granite_moe(fields: &Fields) -> Planned {
    let fields = fields
        .with_default("num_local_experts", 8)
        .with_default("num_experts_per_tok", 2);
    with_experts(granite(&fields)?, |experts| {
        experts.with_scoring(Scoring::SoftmaxOfChosen)
    })
}

pub(super) fn ernie4_5_moe(fields: &Fields) -> Planned {
    let defaults = json!({
        "tie_word_embeddings": true, "num_key_value_heads": 4, "rope_theta": 500_000.0, "moe_intermediate_size": 1536,
        "moe_k": 6, "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
    });
    let mut plan = Plan::new(fields, defaults)
        .attention_bias("use_bias", false)?
        .mlp_bias("use_bias", false)?;
    plan.interleaved = true;
    let least = plan.fields.optional_positive("moe_norm_min")?.unwrap_or(1e-12) as f32;
    // The class that reads pictures has experts for them, whose width follows the others' width.
    let has_pictures = plan.fields.text("model_type")? == Some("ernie4_5_vl_moe_text");
    if let Some(Value::Array(widths)) = plan.fields.get("moe_intermediate_size").filter(|_| has_pictures) {
        let width = widths.first().cloned().unwrap_or(Value::Null);
        plan.fields = plan.fields.clone().with("moe_intermediate_size", width);
    }
    with_experts(plan, |mut experts| {
        experts.has_pictures = has_pictures;
        experts.with_sum(Some(WeightSum { added: 0.0, least }))
    })
}

pub(super) fn hunyuan_moe(fields: &Fields) -> Planned {
    // The experts have the width of the shared block, which exists unless settings disable it.
    let fields = fields
        .with_default("num_shared_expert", 1)
        .with("moe_intermediate_size", Value::Null);
    with_experts(hunyuan(&fields)?, |experts| experts.with_sum(Some(WeightSum::PLAIN)))
}

pub(super) fn phimoe(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 8, "rope_theta": 1_000_000.0, "num_local_experts": 16, "num_experts_per_tok": 2,
    });
    let mut plan = Plan::new(fields, defaults).attention_bias("attention_bias", false)?;
    plan.norm = NormKind::Layer;
    plan.head_bias = plan.fields.flag("lm_head_bias", false)?;
    plan.slides = Some(|_| true);
    plan.fields = phimoe_rotation(plan.fields)?;
    let jitter = plan.fields.optional_positive("router_jitter_noise")?.unwrap_or(0.01) as f32;
    let experts = ExpertSettings::read(&plan.fields)?;
    if experts.shape.used > 2 {
        let problem = format!("{} experts of a token are more than 2", experts.shape.used);
        return Err(plan.fields.error("num_experts_per_tok", problem));
    }
    plan.experts = Some(experts.with_scoring(Scoring::SparseMixer { jitter }));
    Ok(plan)
}

/// The settings with only the short factors of LongRoPE and its magnitude. transformers 5 uses these for every
/// length, other programs use the long ones beyond the original length; longer texts are therefore refused.
fn phimoe_rotation(mut fields: Fields) -> Result<Fields, ModelError> {
    for name in ["rope_parameters", "rope_scaling"] {
        let Some(parameters) = fields.object(name)?.filter(|own| own.get("short_factor").is_some()) else {
            continue;
        };
        let (short, long) = (
            parameters.positive("short_mscale")?,
            parameters.positive("long_mscale")?,
        );
        if short != long {
            let problem = format!("is {long} and short_mscale {short}; two magnitudes are not supported");
            return Err(parameters.error("long_mscale", problem));
        }
        let original = match parameters.optional_size("original_max_position_embeddings")? {
            Some(original) => original,
            None => fields.size("original_max_position_embeddings")?,
        };
        let mut rotation = parameters.values();
        let factors = rotation.remove("short_factor").unwrap_or_default();
        rotation.remove("long_factor");
        rotation.insert("rope_type".into(), "factors".into());
        rotation.insert("type".into(), "factors".into());
        rotation.insert("factors".into(), factors);
        rotation.insert("attention_factor".into(), short.into());
        let most = fields.size("max_position_embeddings")?.min(original);
        fields = fields.with(name, rotation).with("max_position_embeddings", most);
    }
    Ok(fields)
}

pub(super) fn dots1(fields: &Fields) -> Planned {
    let defaults = json!({"num_key_value_heads": 32, "rms_norm_eps": 1e-6, "sliding_window": 4096});
    let mut plan = Plan::new(fields, defaults).attention_bias("attention_bias", false)?;
    let first = plan.fields.optional_count("max_window_layers")?.unwrap_or(62);
    plan.fields = with_layer_types(&plan.fields, |layer| layer >= first)?;
    if plan.fields.get("sliding_window").is_some() {
        plan.slides = Some(|_| false);
    }
    plan.head_norms = HeadNorms::Each(HEAD_NORMS);
    with_experts(plan, ExpertSettings::with_noaux)
}

pub(super) fn glm4_moe(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 8, "partial_rotary_factor": 0.5, "first_k_dense_replace": 1, "norm_topk_prob": true,
        "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128,
    });
    let mut plan = Plan::new(fields, defaults);
    plan.input_bias = plan.fields.flag("attention_bias", false)?;
    if plan.fields.flag("use_qk_norm", false)? {
        plan.head_norms = HeadNorms::Each(HEAD_NORMS);
    }
    with_experts(plan, ExpertSettings::with_noaux)
}

pub(super) fn minimax_m2(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 5_000_000.0,
        "num_local_experts": 256, "num_experts_per_tok": 8,
    });
    let mut plan = Plan::new(fields, expert_defaults(fields, defaults));
    plan.head_norms = HeadNorms::All(HEAD_NORMS);
    // Released models name the rotated dimensions.
    let width = plan.fields.size("head_dim")?;
    if let Some(rotated) = plan.fields.optional_size("rotary_dim")?
        && plan.fields.object("rope_parameters")?.is_none()
    {
        plan.fields = plan
            .fields
            .with_default("partial_rotary_factor", rotated as f64 / width as f64);
    }
    with_experts(plan, |experts| {
        experts.with_scoring(Scoring::Sigmoid).with_sum(Some(WeightSum::PLAIN))
    })
}

pub(super) fn gpt_oss(fields: &Fields) -> Planned {
    let defaults = json!({
        "head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128, "rope_theta": 150_000.0,
        "num_local_experts": 128, "num_experts_per_tok": 4,
    });
    let mut plan = Plan::new(fields, expert_defaults(fields, defaults)).attention_bias("attention_bias", true)?;
    plan.sinks = Some("self_attn.sinks");
    plan.slides = Some(|layer| layer.is_multiple_of(2));
    let is_stretched = ["rope_parameters", "rope_scaling"].map(|name| plan.fields.get(name).is_some());
    if is_stretched == [false; 2] {
        let rotation = json!({
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
            "original_max_position_embeddings": 4096,
        });
        plan.fields = plan.fields.with("rope_parameters", rotation);
    }
    let number = |name: &str, default: f64| {
        Ok::<f32, ModelError>(plan.fields.optional_positive(name)?.unwrap_or(default) as f32)
    };
    let mut experts = ExpertSettings::read(&plan.fields)?.with_scoring(Scoring::SoftmaxOfChosen);
    experts.activation = Activation::ClampedSilu {
        alpha: number("swiglu_alpha", 1.702)?,
        limit: number("swiglu_limit", 7.0)?,
    };
    experts.router_bias = true;
    experts.biased = true;
    experts.layout = FusedLayout {
        transposed: true,
        alternating: true,
    };
    plan.experts = Some(experts);
    Ok(plan)
}
