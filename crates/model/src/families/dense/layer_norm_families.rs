//! Families whose norms subtract the mean: one function each, with the differences from Llama.

use serde_json::{Value, json};

use super::plan::Planned;
use super::rms_families::{all_but_last_of_four, arcee};
use super::{Block, HeadNorms, Inputs, NormKind, Plan, Positions};
use crate::ModelError;
use crate::fields::Fields;

pub(super) fn nemotron(fields: &Fields) -> Planned {
    let mut plan = arcee(&fields.with_default("partial_rotary_factor", 0.5))?;
    plan.norm = NormKind::LayerPlusOne;
    plan.epsilon = "norm_eps";
    Ok(plan)
}

pub(super) fn jais2(fields: &Fields) -> Planned {
    let mut plan = arcee(
        &fields
            .with_default("attention_bias", true)
            .with_default("mlp_bias", true),
    )?;
    plan.norm = NormKind::Layer;
    plan.epsilon = "layer_norm_eps";
    Ok(plan)
}

pub(super) fn olmo(fields: &Fields) -> Planned {
    let mut plan = Plan::new(fields, Value::Null).attention_bias("attention_bias", false)?;
    plan.norm = NormKind::Bare;
    // A constant, not a setting.
    plan.epsilon = "";
    Ok(plan)
}

pub(super) fn cohere(fields: &Fields) -> Planned {
    let defaults = json!({"tie_word_embeddings": true, "logit_scale": 0.0625, "rope_theta": 500_000.0});
    let mut plan = Plan::new(fields, defaults).attention_bias("attention_bias", false)?;
    plan.norm = NormKind::Unbiased;
    plan.epsilon = "layer_norm_eps";
    plan.block = Block::Parallel("input_layernorm", None);
    plan.interleaved = true;
    plan.logit_scale = plan.fields.positive("logit_scale")?;
    if plan.fields.flag("use_qk_norm", false)? {
        plan.head_norms = HeadNorms::Own(["self_attn.q_norm", "self_attn.k_norm"]);
    }
    Ok(plan)
}

pub(super) fn cohere2(fields: &Fields) -> Planned {
    let theta = fields
        .with_default("rope_theta", 10_000.0)
        .with_default("sliding_window", 4096);
    let mut plan = cohere(&theta)?;
    plan.head_norms = HeadNorms::None;
    plan.positions = Positions::InWindows;
    plan.slides = Some(all_but_last_of_four);
    let period = plan.fields.get("sliding_window_pattern");
    if period.is_some_and(|period| period.as_u64() != Some(4)) && plan.fields.texts("layer_types")?.is_empty() {
        let problem = "must be 4 where no layer_types are listed";
        return Err(plan.fields.error("sliding_window_pattern", problem));
    }
    Ok(plan)
}

/// Cohere 2 with a rotation, or none, for each kind of layers. A position has three sections, which are equal in
/// text.
pub(super) fn cohere_compass(fields: &Fields) -> Planned {
    let scale = fields.get("logit_scale").cloned().unwrap_or(json!(1.0));
    let mut plan = cohere2(&fields.clone().with("logit_scale", scale))?;
    plan.interleaved = false;
    // Without a list no layer has a window.
    plan.slides = Some(|_| false);
    let types = plan.fields.texts("layer_types")?;
    let Some(parameters) = plan.fields.object("rope_parameters")? else {
        let problem = "is missing; the rotation of each kind of layers stands there";
        return Err(plan.fields.error("rope_parameters", problem));
    };
    let of_kind = |kind: &str| parameters.get(kind).cloned();
    let (full, local) = (of_kind("full_attention"), of_kind("sliding_attention"));
    let layers = plan.fields.size("num_hidden_layers")?.min(crate::config::LARGEST_COUNT);
    let slides = |layer: usize| types.get(layer).is_some_and(|kind| kind == "sliding_attention");
    plan.positions = match (&full, &local) {
        (None, None) if parameters.get("rope_theta").is_some() => Positions::InAllLayers,
        _ => Positions::Listed(
            (0..layers)
                .map(|layer| if slides(layer) { local.is_some() } else { full.is_some() })
                .collect(),
        ),
    };
    if let (Some(_), Some(local)) = (&full, &local) {
        plan.local_rotation = Some(Fields::new(plan.fields.path(), json!({"rope_parameters": local}))?);
    }
    if let Some(rotation) = full.or(local) {
        plan.fields = plan.fields.clone().with("rope_parameters", rotation);
    }
    Ok(plan)
}

pub(super) fn starcoder2(fields: &Fields) -> Planned {
    let defaults = json!({"tie_word_embeddings": true, "num_key_value_heads": 2});
    // The class does not read `layer_types`.
    let mut plan = Plan::new(&fields.clone().without("layer_types"), defaults)
        .attention_bias("use_bias", true)?
        .mlp_bias("use_bias", true)?
        .ungated("mlp.c_fc", "mlp.c_proj");
    plan.norm = NormKind::Layer;
    plan.epsilon = "norm_epsilon";
    plan.activation.1 = "gelu_pytorch_tanh";
    plan.slides = Some(|_| true);
    Ok(plan)
}

pub(super) fn stablelm(fields: &Fields) -> Planned {
    let defaults = json!({"partial_rotary_factor": 0.25, "num_key_value_heads": 32});
    let mut plan = Plan::new(fields, defaults);
    plan.input_bias = plan.fields.flag("use_qkv_bias", false)?;
    plan.norm = NormKind::Layer;
    plan.epsilon = "layer_norm_eps";
    if plan.fields.flag("use_parallel_residual", false)? {
        plan.block = Block::Parallel("input_layernorm", None);
    }
    if plan.fields.flag("qk_layernorm", false)? {
        plan.head_norms = HeadNorms::OwnTensors(["self_attn.q_layernorm", "self_attn.k_layernorm"]);
    }
    Ok(plan)
}

/// The settings without a number of KV heads: every query head has its own keys.
fn with_own_keys(fields: &Fields) -> Fields {
    fields.clone().with("num_key_value_heads", Value::Null)
}

/// Queries, keys and values in one tensor: grouped by KV head, or stacked in GGUF files.
fn by_head_or_stacked(fields: &Fields, name: &'static str) -> Result<Inputs, ModelError> {
    Ok(if fields.flag("stacked_inputs", false)? {
        Inputs::Stacked(name)
    } else {
        Inputs::ByHead(name)
    })
}

pub(super) fn gpt_neox(fields: &Fields) -> Planned {
    let partial = fields.get("rotary_pct").cloned().unwrap_or(json!(0.25));
    let theta = fields.get("rotary_emb_base").cloned().unwrap_or(json!(10_000.0));
    let defaults = json!({"partial_rotary_factor": partial, "rope_theta": theta});
    // The class has its own names for the base and the rotated part.
    let own = with_own_keys(fields)
        .without("rope_theta")
        .without("partial_rotary_factor");
    let mut plan = Plan::new(&own, defaults)
        .attention_bias("attention_bias", true)?
        .ungated("mlp.dense_h_to_4h", "mlp.dense_4h_to_h");
    plan.mlp_bias = true;
    plan.norm = NormKind::Layer;
    plan.epsilon = "layer_norm_eps";
    plan.final_norm = "model.final_layer_norm";
    plan.inputs = by_head_or_stacked(&plan.fields, "attention.query_key_value")?;
    plan.output = "attention.dense";
    plan.activation.1 = "gelu";
    if plan.fields.flag("use_parallel_residual", true)? {
        plan.block = Block::Parallel("input_layernorm", Some("post_attention_layernorm"));
    }
    Ok(plan)
}

pub(super) fn persimmon(fields: &Fields) -> Planned {
    let mut plan = Plan::new(&with_own_keys(fields), json!({"partial_rotary_factor": 0.5}))
        .ungated("mlp.dense_h_to_4h", "mlp.dense_4h_to_h");
    (plan.input_bias, plan.output_bias, plan.mlp_bias) = (true, true, true);
    plan.norm = NormKind::Layer;
    plan.epsilon = "layer_norm_eps";
    plan.final_norm = "model.final_layernorm";
    plan.inputs = Inputs::ByHead("self_attn.query_key_value");
    plan.output = "self_attn.dense";
    plan.activation.1 = "relu2";
    if plan.fields.flag("qk_layernorm", true)? {
        plan.head_norms = HeadNorms::EachLayer(["self_attn.q_layernorm", "self_attn.k_layernorm"]);
    }
    Ok(plan)
}

pub(super) fn falcon(fields: &Fields) -> Planned {
    let (hidden, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    let is_new = fields.flag("new_decoder_architecture", false)?;
    let has_one_key = !is_new && fields.flag("multi_query", true)?;
    let kv_heads = match fields.optional_size("num_kv_heads")? {
        _ if has_one_key => 1,
        Some(kv_heads) if is_new => kv_heads,
        _ => heads,
    };
    let inner = fields
        .optional_size("ffn_hidden_size")?
        .unwrap_or(hidden.saturating_mul(4));
    let fields = fields
        .clone()
        .with("num_key_value_heads", kv_heads)
        .with("intermediate_size", inner);
    let defaults = json!({"tie_word_embeddings": true, "max_position_embeddings": 2048});
    let mut plan = Plan::new(&fields, defaults)
        .attention_bias("bias", false)?
        .mlp_bias("bias", false)?
        .ungated("mlp.dense_h_to_4h", "mlp.dense_4h_to_h");
    plan.norm = NormKind::Layer;
    plan.epsilon = "layer_norm_epsilon";
    plan.final_norm = "model.ln_f";
    plan.inputs = if has_one_key {
        Inputs::Stacked("self_attention.query_key_value")
    } else {
        by_head_or_stacked(&plan.fields, "self_attention.query_key_value")?
    };
    plan.output = "self_attention.dense";
    plan.activation = ("activation", "gelu");
    let norms = plan.fields.optional_size("num_ln_in_parallel_attn")?.unwrap_or(2);
    if is_new && norms == 2 {
        // GGUF files name the second norm like the first norm of single-norm models.
        let second = if plan.fields.flag("stacked_inputs", false)? {
            "input_layernorm"
        } else {
            "ln_mlp"
        };
        plan.block = Block::Parallel("ln_attn", Some(second));
    } else if plan.fields.flag("parallel_attn", true)? {
        plan.block = Block::Parallel("input_layernorm", None);
    }
    Ok(plan)
}

pub(super) fn gptj(fields: &Fields) -> Planned {
    let mut sizes = fields.clone();
    for (name, own) in [
        ("hidden_size", "n_embd"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("max_position_embeddings", "n_positions"),
    ] {
        sizes = sizes.with(name, fields.size(own)?);
    }
    let inner = fields.optional_size("n_inner")?;
    let inner = inner.unwrap_or(fields.size("n_embd")?.saturating_mul(4));
    let rotated = fields.optional_size("rotary_dim")?.unwrap_or(64);
    let sizes = sizes
        .with("intermediate_size", inner)
        .with("rope_parameters", json!({"rotary_dim": rotated}));
    let mut plan = Plan::new(&with_own_keys(&sizes), Value::Null).ungated("mlp.fc_in", "mlp.fc_out");
    plan.mlp_bias = true;
    plan.head_bias = true;
    plan.norm = NormKind::Layer;
    plan.epsilon = "layer_norm_epsilon";
    plan.final_norm = "model.ln_f";
    plan.block = Block::Parallel("ln_1", None);
    plan.inputs = Inputs::Separate(["attn.q_proj", "attn.k_proj", "attn.v_proj"]);
    plan.output = "attn.out_proj";
    plan.activation = ("activation_function", "gelu_new");
    plan.interleaved = true;
    Ok(plan)
}
