//! Families with latent attention and dense feed-forward parts.

use serde_json::json;

use super::super::latent::LatentAttention;
use super::Plan;
use super::plan::Planned;
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
    let fields = &plan.fields;
    let layers = fields.size("num_hidden_layers")? as f64;
    plan.embedding_scale = fields.optional_positive("scale_emb")?.unwrap_or(1.0);
    plan.residual_scale = fields
        .optional_positive("scale_depth")?
        .map_or(1.0, |depth| depth / layers.sqrt());
    plan.logit_scale = fields
        .optional_positive("dim_model_base")?
        .map_or(1.0, |base| base / hidden as f64);
    plan.latent = Some(LatentAttention::read(fields, false)?);
    Ok(plan)
}

pub(super) fn deepseek_v2(fields: &Fields) -> Planned {
    let defaults = json!({
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "rms_norm_eps": 1e-6, "first_k_dense_replace": 0,
    });
    let mut plan = Plan::new(fields, defaults).mlp_bias("mlp_bias", false)?;
    refuse_experts(&plan.fields)?;
    plan.latent = Some(LatentAttention::read(&plan.fields, true)?);
    Ok(plan)
}

pub(super) fn deepseek_v3(fields: &Fields) -> Planned {
    let defaults = json!({
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "rms_norm_eps": 1e-6, "first_k_dense_replace": 3,
    });
    let mut plan = Plan::new(fields, defaults);
    refuse_experts(&plan.fields)?;
    let interleaved = plan.fields.flag("rope_interleave", true)?;
    plan.latent = Some(LatentAttention::read(&plan.fields, interleaved)?);
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

pub(super) fn glm4_moe_lite(fields: &Fields) -> Planned {
    let defaults = json!({
        "kv_lora_rank": 512, "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
        "rms_norm_eps": 1e-5,
    });
    let mut plan = Plan::new(fields, defaults);
    let layers = plan.fields.size("num_hidden_layers")?.min(LARGEST_COUNT);
    let kinds = plan.fields.texts("mlp_layer_types")?;
    let dense = kinds.iter().take_while(|kind| *kind == "dense").count();
    let dense = if kinds.is_empty() { 1 } else { dense };
    if dense < layers {
        let problem = format!("makes layer {dense} a mixture of experts, which is not supported for this family");
        return Err(plan.fields.error("mlp_layer_types", problem));
    }
    let interleaved = plan.fields.flag("rope_interleave", true)?;
    plan.latent = Some(LatentAttention::read(&plan.fields, interleaved)?);
    Ok(plan)
}

/// Refuses layers that are mixtures of experts: those from `first_k_dense_replace` on.
fn refuse_experts(fields: &Fields) -> Result<(), crate::ModelError> {
    let dense = fields.optional_count("first_k_dense_replace")?.unwrap_or(0);
    let experts = fields.optional_count("n_routed_experts")?.unwrap_or(0);
    if experts > 0 && dense < fields.size("num_hidden_layers")? {
        let problem = format!(
            "is {experts} in the layers from {dense} on, and mixtures of experts are not supported for this family"
        );
        return Err(fields.error("n_routed_experts", problem));
    }
    Ok(())
}
