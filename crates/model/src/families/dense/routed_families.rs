//! Families with experts whose attention is not Llama's: a function each, which says how the family differs.

use serde_json::{Value, json};

use super::expert_families::{
    HEAD_NORMS, expert_defaults, glm4_moe_layers, granite_moe, with_experts, with_layer_types,
};
use super::layer_norm_families::cohere;
use super::plan::Planned;
use super::rms_families::{exaone4, olmo2};
use super::{AttentionGate, Block, Gate, HeadNorms, Inputs, LayerParts, MlpNames, NormKind, Plan, Positions};
use crate::blocks::{ExpertSettings, FusedLayout, QueryGrowth, Scoring, WeightSum};
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;
use crate::layer::Opening;
use crate::{AttentionShape, ModelError};

/// The divisor of weights in relatives of DeepSeek-V3.
const NEARLY_PLAIN: WeightSum = WeightSum {
    added: 1e-20,
    least: 0.0,
};

/// The number of layers, of a plausible size.
fn layer_count(fields: &Fields) -> Result<usize, ModelError> {
    Ok(fields.size("num_hidden_layers")?.min(LARGEST_COUNT))
}

/// The same fields with the type of each feed-forward part, where they list none and `is_dense` says which have no experts.
fn with_mlp_types(fields: &Fields, is_dense: impl Fn(usize) -> bool) -> Result<Fields, ModelError> {
    if !fields.texts("mlp_layer_types")?.is_empty() {
        return Ok(fields.clone());
    }
    let kind = |layer| if is_dense(layer) { "dense" } else { "sparse" };
    let kinds: Vec<&str> = (0..layer_count(fields)?).map(kind).collect();
    Ok(fields.clone().with("mlp_layer_types", kinds))
}

/// The rotations of a plan whose settings have one for each kind of layers; `defaults` holds both.
fn rotate_by_kind(plan: &mut Plan, defaults: Value) -> Result<(), ModelError> {
    let parameters = plan.fields.get("rope_parameters").cloned().unwrap_or(defaults);
    let of_kind = |kind: &str| parameters.get(kind).cloned();
    let global = of_kind("full_attention").unwrap_or_else(|| json!({}));
    // Where no layer is of a kind, settings may leave it out.
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

pub(super) fn sarvam_moe(fields: &Fields) -> Planned {
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
    let mut plan = glm4_moe_layers(&fields)?;
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
    let size = |name: &str| super::mixer_families::size(&plan.fields, name);
    let (heads, kv_heads, width) = (
        size("num_attention_heads")?,
        size("num_key_value_heads")?,
        size("head_dim")?,
    );
    let of_layers = match super::mixer_families::indices(&plan.fields, "num_attention_heads_per_layer")? {
        None => vec![heads; kinds.len()],
        Some(own) if own.len() == kinds.len() && own.iter().all(|heads| (1..=LARGEST_COUNT).contains(heads)) => own,
        Some(_) => {
            let problem = format!("must list the heads of each of {} layers", kinds.len());
            return Err(plan.fields.error("num_attention_heads_per_layer", problem));
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
    plan.shapes = of_layers.into_iter().map(shape).collect();
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

pub(super) fn cohere2_moe(fields: &Fields) -> Planned {
    let defaults = json!({
        "rope_theta": 10_000.0, "sliding_window": 4096, "head_dim": 128, "num_experts": 8, "num_experts_per_tok": 2,
        "num_shared_experts": 0, "norm_topk_prob": true,
    });
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
    // The first layers count by themselves.
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
    // Layers with the base 0 carry no positions.
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

pub(super) fn mimo_v2_flash(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "sliding_window": 129, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "norm_topk_prob": true,
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
    plan.factors.value = scale.unwrap_or(1.0);
    let size = |name: &str| -> Result<usize, ModelError> {
        match plan.fields.size(name)? {
            size if size <= LARGEST_COUNT => Ok(size),
            size => Err(plan
                .fields
                .error(name, format!("{size} is not plausible, {LARGEST_COUNT} is the limit"))),
        }
    };
    let (heads, kv_heads) = (size("num_attention_heads")?, size("num_key_value_heads")?);
    let widths = [size("head_dim")?, size("v_head_dim")?];
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
    // Within a chunk all that is before a token is read: longer texts are not.
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
        Some(_) => super::mixer_families::indices(&plan.fields, "moe_layers")?.unwrap_or_default(),
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

/// For each layer true if its keys carry positions.
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
