//! Families with experts, whose layers differ in heads, gates, windows or positions: one function each.

use serde_json::{Value, json};

use super::expert_families::{HEAD_NORMS, with_experts, with_layer_types};
use super::layer_norm_families::cohere;
use super::mixer_families::{indices, size};
use super::plan::Planned;
use super::routed_families::{NEARLY_PLAIN, layer_count, rotate_by_kind, with_mlp_types};
use super::{AttentionGate, Block, Gate, HeadNorms, LayerParts, MlpNames, NormKind, Plan, Positions};
use crate::blocks::{ExpertSettings, FusedLayout, QueryGrowth, Scoring, WeightSum};
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;
use crate::layer::Opening;
use crate::{AttentionShape, ModelError};

pub(super) fn afmoe(fields: &Fields) -> Planned {
    let defaults = json!({
        "head_dim": 128, "num_dense_layers": 1, "num_experts": 64, "num_experts_per_tok": 6, "num_shared_experts": 2,
        "moe_intermediate_size": 1408, "sliding_window": 1024,
    });
    let mut plan = Plan::new(fields, defaults).attention_bias("attention_bias", false)?;
    plan.block = Block::Both([
        "input_layernorm",
        "post_attention_layernorm",
        "pre_mlp_layernorm",
        "post_mlp_layernorm",
    ]);
    plan.head_norms = HeadNorms::Each(HEAD_NORMS);
    plan.gate = Some(AttentionGate {
        name: "self_attn.gate_proj",
        is_wide: true,
        opening: Opening::Sigmoid,
    });
    plan.positions = Positions::InWindows;
    let period = plan.fields.optional_size("global_attn_every_n_layers")?.unwrap_or(4);
    plan.fields = with_layer_types(&plan.fields, |layer| !(layer + 1).is_multiple_of(period))?;
    let slides = |kind: &String| LayerParts {
        slides: kind == "sliding_attention",
        ..LayerParts::ATTENTION
    };
    plan.layers = plan.fields.texts("layer_types")?.iter().map(slides).collect();
    if plan.fields.flag("mup_enabled", false)? {
        plan.embedding_scale = (plan.fields.size("hidden_size")? as f64).sqrt();
    }
    let scale = plan.fields.optional_positive("route_scale")?.unwrap_or(1.0);
    with_experts(plan, |mut experts| {
        experts.rules.scale = scale as f32;
        experts.with_scoring(Scoring::Sigmoid).with_sum(Some(NEARLY_PLAIN))
    })
}

pub(super) fn laguna(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "sliding_window": 512, "num_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    });
    let mut plan = Plan::new(fields, defaults).attention_bias("attention_bias", false)?;
    if plan
        .fields
        .optional_number("moe_router_logit_softcapping")?
        .unwrap_or(0.0)
        > 0.0
    {
        let problem = "must be 0: routers whose logits are bent are not supported";
        return Err(plan.fields.error("moe_router_logit_softcapping", problem));
    }
    plan.head_norms = HeadNorms::Each(HEAD_NORMS);
    let by_head = match plan.fields.get("gating") {
        None => true,
        Some(gating) => gating.as_bool() == Some(true) || gating.as_str() == Some("per-head"),
    };
    plan.gate = Some(AttentionGate {
        name: "self_attn.g_proj",
        is_wide: !by_head,
        opening: Opening::Softplus,
    });
    plan.fields = with_layer_types(&plan.fields, |_| false)?;
    plan.fields = with_mlp_types(&plan.fields, |layer| layer == 0)?;
    let kinds = plan.fields.texts("layer_types")?;
    let parts = |kind: &String| LayerParts {
        slides: kind == "sliding_attention",
        ..LayerParts::ATTENTION
    };
    plan.layers = kinds.iter().map(parts).collect();
    plan.shapes = laguna_shapes(&plan.fields, kinds.len())?;
    let rotations = json!({
        "full_attention": {"rope_type": "default", "rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
    });
    rotate_by_kind(&mut plan, rotations)?;
    let scale = plan
        .fields
        .optional_positive("moe_routed_scaling_factor")?
        .unwrap_or(1.0);
    with_experts(plan, |mut experts| {
        experts.rules.scale = scale as f32;
        experts.with_scoring(Scoring::Sigmoid).with_sum(Some(WeightSum::PLAIN))
    })
}

/// The attention of each layer; layers differ in query heads.
fn laguna_shapes(fields: &Fields, layers: usize) -> Result<Vec<AttentionShape>, ModelError> {
    let count = |name: &str| size(fields, name);
    let (heads, kv_heads, width) = (
        count("num_attention_heads")?,
        count("num_key_value_heads")?,
        count("head_dim")?,
    );
    let of_layers = match indices(fields, "num_attention_heads_per_layer")? {
        None => vec![heads; layers],
        Some(own) if own.len() == layers && own.iter().all(|heads| (1..=LARGEST_COUNT).contains(heads)) => own,
        Some(_) => {
            let problem = format!("must list the heads of each of {layers} layers");
            return Err(fields.error("num_attention_heads_per_layer", problem));
        }
    };
    let shape = |heads: usize| AttentionShape {
        heads,
        kv_heads,
        key_width: width,
        value_width: width,
        shares: None,
        has_sinks: false,
        is_latent: false,
    };
    Ok(of_layers.into_iter().map(shape).collect())
}

pub(super) fn cohere2_moe(fields: &Fields) -> Planned {
    let defaults = json!({
        "rope_theta": 10_000.0, "sliding_window": 4096, "head_dim": 128, "num_experts": 8, "num_experts_per_tok": 2,
        "num_shared_experts": 0, "norm_topk_prob": true,
    });
    if fields.object("rope_scaling")?.is_some() {
        let problem = "is a setting that transformers does not read for this family; name it rope_parameters";
        return Err(fields.error("rope_scaling", problem));
    }
    let mut plan = cohere(&Plan::new(fields, defaults).fields)?;
    plan.head_norms = HeadNorms::None;
    if plan.fields.get("rms_norm_eps").is_some() {
        plan.norm = NormKind::Rms;
        plan.epsilon = "rms_norm_eps";
    }
    let dense = plan.fields.optional_count("first_k_dense_replace")?.unwrap_or(0);
    plan.fields = with_mlp_types(&plan.fields, |layer| layer < dense)?;
    let period = |name: &str, default| Ok::<usize, ModelError>(plan.fields.optional_size(name)?.unwrap_or(default));
    let periods = [
        period("prefix_dense_sliding_window_pattern", 1)?,
        period("sliding_window_pattern", 4)?,
    ];
    // The first layers are counted separately.
    let slides = |layer: usize| match layer.checked_sub(dense) {
        None => !(layer + 1).is_multiple_of(periods[0]),
        Some(layer) => !(layer + 1).is_multiple_of(periods[1]),
    };
    plan.fields = with_layer_types(&plan.fields, slides)?;
    plan.slides = Some(|_| false);
    let kinds = plan.fields.texts("layer_types")?;
    let mlps = plan.fields.texts("mlp_layer_types")?;
    let turns = |(kind, mlp): (&String, &String)| kind == "sliding_attention" || (mlp == "dense" && periods[0] == 1);
    plan.positions = Positions::Listed(kinds.iter().zip(&mlps).map(turns).collect());
    let width = plan.fields.size("intermediate_size")?;
    plan.fields = plan.fields.with("moe_intermediate_size", width);
    if let Some(width) = plan.fields.optional_size("prefix_dense_intermediate_size")? {
        plan.fields = plan.fields.with("intermediate_size", width);
    }
    let averages = match plan.fields.text("shared_expert_combination_strategy")? {
        None | Some("average") => plan.fields.optional_count("num_shared_experts")?.unwrap_or(0) > 0,
        Some("sum") => false,
        Some(other) => {
            let problem = format!("{other:?} is not supported; supported are average, sum");
            return Err(plan.fields.error("shared_expert_combination_strategy", problem));
        }
    };
    let scoring = match plan.fields.text("expert_selection_fn")? {
        None | Some("softmax") => Scoring::SoftmaxOfChosen,
        Some("sigmoid") => Scoring::SigmoidOfChosen,
        Some(other) => {
            let problem = format!("{other:?} is not supported; supported are softmax, sigmoid");
            return Err(plan.fields.error("expert_selection_fn", problem));
        }
    };
    with_experts(plan, |mut experts| {
        if averages {
            experts.rules.scale = 0.5;
            experts.shared_scale = 0.5;
        }
        experts.with_scoring(scoring)
    })
}

pub(super) fn mimo_v2_flash(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "sliding_window": 129, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "norm_topk_prob": true,
        "attention_value_scale": 0.707,
    });
    let mut plan = Plan::new(fields, defaults);
    if let Some(before) = plan.fields.optional_count("sliding_window_size")? {
        plan.fields = plan.fields.with("sliding_window", before + 1);
    }
    plan.input_bias = plan.fields.flag("attention_bias", false)?;
    plan.fields = with_layer_types(&plan.fields, |layer| layer != 0 && !(layer + 1).is_multiple_of(6))?;
    plan.fields = with_mlp_types(&plan.fields, |layer| layer == 0)?;
    plan.slides = Some(|_| false);
    plan.sinks = Some("self_attn.attention_sink_bias");
    let scale = plan.fields.optional_positive("attention_value_scale")?;
    let scale = scale.unwrap_or(1.0);
    (plan.factors.value, plan.factors.value_bias) = (scale, scale);
    let count = |name: &str| size(&plan.fields, name);
    let (heads, kv_heads) = (count("num_attention_heads")?, count("num_key_value_heads")?);
    let widths = [count("head_dim")?, count("v_head_dim")?];
    // Layers with a window have twice as many KV heads, and sinks.
    let shape = |kind: &String| {
        let slides = kind == "sliding_attention";
        AttentionShape {
            heads,
            kv_heads: if slides { 2 * kv_heads } else { kv_heads },
            key_width: widths[0],
            value_width: widths[1],
            shares: None,
            has_sinks: slides,
            is_latent: false,
        }
    };
    plan.shapes = plan.fields.texts("layer_types")?.iter().map(shape).collect();
    let partial = json!({"rope_type": "default", "rope_theta": 5_000_000.0, "partial_rotary_factor": 0.334});
    let local = json!({"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.334});
    rotate_by_kind(
        &mut plan,
        json!({"full_attention": partial, "sliding_attention": local}),
    )?;
    with_experts(plan, ExpertSettings::with_noaux)
}

pub(super) fn llama4(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 500_000.0, "num_experts_per_tok": 1,
        "num_local_experts": 16, "intermediate_size_mlp": 16_384, "attention_chunk_size": 8192,
    });
    let mut plan = Plan::new(fields, defaults).attention_bias("attention_bias", false)?;
    plan.interleaved = true;
    plan.mlp = MlpNames {
        gate: Gate::Tensor("feed_forward.gate_proj"),
        up: "feed_forward.up_proj",
        down: "feed_forward.down_proj",
    };
    let layers = layer_count(&plan.fields)?;
    let turns = llama4_turns(&plan.fields, layers)?;
    if plan.fields.flag("use_qk_norm", true)? {
        plan.head_norms = HeadNorms::BareWherePositioned;
    }
    if plan.fields.flag("attn_temperature_tuning", true)? && turns.contains(&false) {
        plan.query_growth = Some(QueryGrowth {
            factor: plan.fields.optional_number("attn_scale")?.unwrap_or(0.1) as f32,
            period: plan.fields.optional_positive("floor_scale")?.unwrap_or(8192.0) as f32,
            ahead: 1,
        });
    }
    plan.positions = Positions::Listed(turns);
    // Within a chunk, a token reads everything before it; longer texts are refused.
    let kinds = plan.fields.texts("layer_types")?;
    let is_chunked = kinds.is_empty() || kinds.iter().any(|kind| kind == "chunked_attention");
    if let Some(chunk) = plan
        .fields
        .optional_size("attention_chunk_size")?
        .filter(|_| is_chunked)
    {
        let most = plan.fields.size("max_position_embeddings")?.min(chunk);
        plan.fields = plan.fields.with("max_position_embeddings", most);
    }
    plan.fields = plan.fields.without("layer_types");
    let step = plan.fields.optional_size("interleave_moe_layer_step")?.unwrap_or(1);
    let sparse: Vec<usize> = match plan.fields.get("moe_layers") {
        None => (step - 1..layers).step_by(step).collect(),
        Some(_) => indices(&plan.fields, "moe_layers")?.unwrap_or_default(),
    };
    plan.fields = with_mlp_types(&plan.fields, |layer| !sparse.contains(&layer))?;
    let width = plan.fields.size("intermediate_size")?;
    let dense = plan.fields.size("intermediate_size_mlp")?;
    plan.fields = plan
        .fields
        .with("moe_intermediate_size", width)
        .with("shared_expert_intermediate_size", width)
        .with("intermediate_size", dense);
    with_experts(plan, |mut experts| {
        experts.weighs_input = true;
        experts.layout = FusedLayout {
            transposed: true,
            alternating: false,
        };
        experts.with_scoring(Scoring::SigmoidOfChosen).with_sum(None)
    })
}

/// For each layer, true if its keys have positions.
fn llama4_turns(fields: &Fields, layers: usize) -> Result<Vec<bool>, ModelError> {
    let interval = fields.optional_size("no_rope_layer_interval")?.unwrap_or(4);
    match fields.get("no_rope_layers") {
        Some(Value::Array(flags)) if flags.len() == layers => {
            Ok(flags.iter().map(|flag| flag.as_u64() != Some(0)).collect())
        }
        Some(Value::Array(flags)) if !flags.is_empty() => {
            let problem = format!("must list a number for each of {layers} layers");
            Err(fields.error("no_rope_layers", problem))
        }
        _ => Ok((1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect()),
    }
}
