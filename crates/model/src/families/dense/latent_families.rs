//! Families with latent attention.

use serde_json::{Value, json};

use super::super::indexer::IndexerPlan;
use super::super::latent::LatentAttention;
use super::Plan;
use super::plan::Planned;
use crate::ModelError;
use crate::blocks::{ExpertSettings, QueryGrowth, Scoring};
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;

pub(super) fn minicpm3(fields: &Fields) -> Planned {
    let (hidden, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    let defaults = json!({
        "tie_word_embeddings": true, "kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32, "rms_norm_eps": 1e-5, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256,
    });
    let mut plan = Plan::new(fields, defaults).mlp_bias("mlp_bias", false)?;
    if plan.fields.get("v_head_dim").is_none() {
        plan.fields = plan.fields.with("v_head_dim", hidden / heads);
    }
    plan = plan.scales_of_width_and_depth()?;
    plan.latent = Some(LatentAttention::read(&plan.fields, false)?);
    Ok(plan)
}

pub(super) fn deepseek_v2(fields: &Fields) -> Planned {
    let defaults = json!({
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "rms_norm_eps": 1e-6, "first_k_dense_replace": 0, "n_shared_experts": 2, "moe_intermediate_size": 1407,
    });
    let mut plan = Plan::new(fields, defaults).mlp_bias("mlp_bias", false)?;
    plan.latent = Some(LatentAttention::read(&plan.fields, true)?);
    if has_experts(&plan.fields)? {
        // A group's score is its best expert's, in methods with groups.
        match plan.fields.text("topk_method")? {
            None | Some("greedy") => plan.fields = plan.fields.with("n_group", Value::Null),
            Some("group_limited_greedy") => {}
            Some(other) => {
                let problem = format!("{other:?} is not supported; supported are greedy, group_limited_greedy");
                return Err(plan.fields.error("topk_method", problem));
            }
        }
        plan.experts = Some(ExpertSettings::read(&plan.fields)?.with_sum(None));
    }
    Ok(plan)
}

pub(super) fn deepseek_v3(fields: &Fields) -> Planned {
    // Sarvam uses the class of DeepSeek-V3.
    match fields.text("model_type")? {
        Some("sarvam_mla") => deepseek_v3_with(&sarvam_names(fields)?, 1),
        _ => deepseek_v3_with(fields, 3),
    }
}

/// Sarvam's settings under the names of DeepSeek-V3.
fn sarvam_names(fields: &Fields) -> Result<Fields, ModelError> {
    let mut fields = fields
        .with_default("q_lora_rank", Value::Null)
        .with_default("n_group", 1)
        .with_default("topk_group", 1);
    for (older, name) in [
        ("num_experts", "n_routed_experts"),
        ("num_shared_experts", "n_shared_experts"),
    ] {
        if let Some(value) = fields.get(older).cloned() {
            fields = fields.with_default(name, value).without(older);
        }
    }
    if let Some(rotation) = fields.object("rope_scaling")?
        && rotation.text("type")? == Some("deepseek_yarn")
    {
        let mut rotation = rotation.values();
        rotation.insert("type".into(), "yarn".into());
        fields = fields.with("rope_scaling", rotation);
    }
    Ok(fields)
}

/// DeepSeek-V3 with a default number of dense first layers.
fn deepseek_v3_with(fields: &Fields, dense: usize) -> Planned {
    let defaults = json!({
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "rms_norm_eps": 1e-6, "first_k_dense_replace": dense, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048, "n_group": 8, "topk_group": 4, "norm_topk_prob": true,
        "routed_scaling_factor": 2.5,
    });
    let mut plan = Plan::new(fields, defaults);
    let interleaved = plan.fields.flag("rope_interleave", true)?;
    plan.latent = Some(LatentAttention::read(&plan.fields, interleaved)?);
    if has_experts(&plan.fields)? {
        plan.experts = Some(ExpertSettings::read(&plan.fields)?.with_noaux());
    }
    Ok(plan)
}

pub(super) fn axk1(fields: &Fields) -> Planned {
    let mut fields = fields.clone();
    // Counted from 0; the first layers are dense.
    if let Some(step) = fields.optional_size("moe_layer_freq")?.filter(|step| *step > 1) {
        let dense = fields.optional_count("first_k_dense_replace")?.unwrap_or(1);
        let layers = 0..fields.size("num_hidden_layers")?.min(LARGEST_COUNT);
        let is_sparse = |layer: usize| layer >= dense && layer.is_multiple_of(step);
        let kind = |layer: usize| if is_sparse(layer) { "sparse" } else { "dense" };
        fields = fields.with_default("mlp_layer_types", layers.map(kind).collect::<Vec<_>>());
    }
    let mut plan = deepseek_v3_with(&fields, 1)?;
    plan.expert_norm = Some("post_mlp_layernorm");
    Ok(plan)
}

pub(super) fn mistral4(fields: &Fields) -> Planned {
    let defaults = json!({
        "kv_lora_rank": 256, "q_lora_rank": 1024, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "n_group": 1,
        "topk_group": 1, "num_experts_per_tok": 4, "routed_scaling_factor": 1.0,
    });
    let known = defaults.as_object().into_iter().flatten();
    let mut fields = known.fold(fields.clone(), |fields, (name, value)| {
        fields.with_default(name, value.clone())
    });
    let Some(parameters) = fields.object("rope_parameters")? else {
        let problem = "is missing; the growth of queries with their position stands there";
        return Err(fields.error("rope_parameters", problem));
    };
    let mut rotation = parameters.values();
    // The latent rotation already covers this part of a head.
    rotation.remove("partial_rotary_factor");
    fields = fields.with("rope_parameters", rotation);
    let mut plan = deepseek_v3_with(&fields, 0)?;
    if let Some(growth) = parameters.optional_number("llama_4_scaling_beta")? {
        plan.query_growth = Some(QueryGrowth {
            factor: growth as f32,
            period: parameters.positive("original_max_position_embeddings")? as f32,
            ahead: 0,
        });
    }
    plan.experts = plan.experts.map(|experts| experts.with_scoring(Scoring::Softmax));
    Ok(plan)
}

pub(super) fn deepseek_v32(fields: &Fields) -> Planned {
    let defaults = json!({ "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64 });
    with_indexer(Plan::new(fields, defaults).fields.without("indexer_types"), false)
}

pub(super) fn glm_moe_dsa(fields: &Fields) -> Planned {
    let defaults = json!({
        "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "rms_norm_eps": 1e-5, "n_group": 1,
        "topk_group": 1, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32,
    });
    let mut fields = Plan::new(fields, defaults).fields;
    if fields.get("indexer_types").is_none() {
        let kinds = indexer_types(&fields)?;
        fields = fields.with("indexer_types", kinds);
    }
    with_indexer(fields, true)
}

/// DeepSeek-V3 with layers that read an indexer's selection. The rotation of its heads is always interleaved.
fn with_indexer(fields: Fields, interleaved: bool) -> Planned {
    let mut plan = deepseek_v3_with(&fields.without("rope_interleave"), 3)?;
    plan.indexer = Some(IndexerPlan::read(&plan.fields, interleaved)?);
    Ok(plan)
}

/// Layers with their own indexer if not listed: by a pattern of letters, or every n-th from a layer on.
fn indexer_types(fields: &Fields) -> Result<Vec<&'static str>, ModelError> {
    const SETTING: &str = "index_topk_pattern";
    let layers = fields.size("num_hidden_layers")?.min(LARGEST_COUNT);
    if let Some(pattern) = fields.text(SETTING)? {
        let kinds = pattern.chars().map(|letter| match letter {
            'F' => Ok("full"),
            'S' => Ok("shared"),
            other => Err(fields.error(SETTING, format!("{other:?} is not supported; supported are F, S"))),
        });
        return kinds.collect();
    }
    let every = fields.optional_count("index_topk_freq")?.unwrap_or(1).max(1);
    let first = fields.optional_count("index_skip_topk_offset")?.unwrap_or(2);
    let is_full = |layer: usize| (layer + 1).saturating_sub(first).is_multiple_of(every);
    let kind = |layer: usize| if is_full(layer) { "full" } else { "shared" };
    Ok((0..layers).map(kind).collect())
}

pub(super) fn glm4_moe_lite(fields: &Fields) -> Planned {
    let defaults = json!({
        "kv_lora_rank": 512, "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
        "rms_norm_eps": 1e-5, "n_shared_experts": 1, "num_experts_per_tok": 4, "moe_intermediate_size": 1536,
        "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.8,
    });
    let mut plan = Plan::new(fields, defaults);
    let interleaved = plan.fields.flag("rope_interleave", true)?;
    plan.latent = Some(LatentAttention::read(&plan.fields, interleaved)?);
    // Without listed types, all layers except the first have experts.
    plan.fields = plan.fields.with_default("first_k_dense_replace", 1);
    let layers = plan.fields.size("num_hidden_layers")?;
    let kinds = plan.fields.texts("mlp_layer_types")?;
    let has_sparse = if kinds.is_empty() {
        layers > 1
    } else {
        kinds.iter().any(|kind| kind == "sparse")
    };
    if has_sparse {
        plan.experts = Some(ExpertSettings::read(&plan.fields)?.with_noaux());
    }
    Ok(plan)
}

pub(super) fn youtu(fields: &Fields) -> Planned {
    let defaults = json!({
        "tie_word_embeddings": true, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-6,
    });
    let mut plan = Plan::new(fields, defaults);
    let interleaved = plan.fields.flag("rope_interleave", true)?;
    plan.latent = Some(LatentAttention::read(&plan.fields, interleaved)?);
    Ok(plan)
}

/// True if layers from `first_k_dense_replace` on, or the listed ones, are mixtures of experts.
fn has_experts(fields: &Fields) -> Result<bool, ModelError> {
    if fields.optional_count("n_routed_experts")?.unwrap_or(0) == 0 {
        return Ok(false);
    }
    let kinds = fields.texts("mlp_layer_types")?;
    if !kinds.is_empty() {
        return Ok(kinds.iter().any(|kind| kind == "sparse"));
    }
    let dense = fields.optional_count("first_k_dense_replace")?.unwrap_or(0);
    Ok(dense < fields.size("num_hidden_layers")?)
}
