//! Families with Mamba2 layers.

use serde_json::{Value, json};

use super::plan::{Factors, Planned};
use super::{Block, Gate, LayerParts, MixerPlan, MlpNames, Plan, Positions};
use crate::blocks::{Activation, ExpertSettings, Mamba2Factors, Mamba2Norm, Mamba2Settings, Scoring};
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;
use crate::{Mamba2Shape, ModelError, StateShape};

pub(super) fn granite_hybrid(fields: &Fields) -> Planned {
    let defaults = json!({
        "attention_multiplier": 1.0, "rms_norm_eps": 1e-6, "num_local_experts": 8, "shared_intermediate_size": 1024,
        "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_head": "auto", "mamba_d_conv": 4,
        "mamba_expand": 2,
    });
    let mut plan = Plan::new(fields, defaults).attention_bias("attention_bias", false)?;
    if plan.fields.optional_count("num_local_experts")? != Some(0) {
        let fields = plan.fields.with_default("num_experts_per_tok", 2);
        let experts = ExpertSettings::read(&fields)?;
        plan.experts = Some(experts.with_scoring(Scoring::SoftmaxOfChosen));
    }
    let inner = plan.fields.size("shared_intermediate_size")?;
    plan.fields = plan.fields.with("intermediate_size", inner);
    plan = plan.multipliers()?.mlp_bias("mlp_bias", false)?;
    // GGUF files store the gate separately.
    plan.mlp = if plan.fields.flag("feed_forward_apart", false)? {
        MlpNames {
            gate: Gate::Tensor("shared_mlp.gate_proj"),
            up: "shared_mlp.up_proj",
            down: "shared_mlp.down_proj",
        }
    } else {
        MlpNames {
            gate: Gate::Stacked,
            up: "shared_mlp.input_linear",
            down: "shared_mlp.output_linear",
        }
    };
    let layers = size(&plan.fields, "num_hidden_layers")?;
    if plan.fields.text("position_embedding_type")? != Some("rope") {
        plan.positions = Positions::Listed(vec![false; layers]);
    }
    let state = plan.mamba("mamba", None)?;
    plan.layers = match plan.fields.texts("layer_types")? {
        types if !types.is_empty() => hybrid_kinds(&plan.fields, &types, state)?,
        _ => vec![LayerParts::mixer(state); layers],
    };
    if plan.layers.iter().any(|layer| layer.state.is_some()) {
        check_mixer_activation(&plan.fields, "hidden_act")?;
    }
    Ok(plan)
}

pub(super) fn bamba(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "mamba_n_heads": 128, "mamba_n_groups": 1,
        "mamba_d_state": 256, "mamba_d_head": "auto", "mamba_d_conv": 4, "mamba_expand": 2,
    });
    // transformers reads a share other than 0.5 only from `rope_parameters`.
    let fields = &fields.clone().with("partial_rotary_factor", 0.5);
    let mut plan = Plan::new(fields, defaults)
        .attention_bias("attention_bias", false)?
        .mlp_bias("mlp_bias", false)?;
    name_as_bamba(&mut plan);
    let state = plan.mamba("mamba", None)?;
    let attends = indices(&plan.fields, "attn_layer_indices")?.unwrap_or_default();
    let parts = |layer| {
        if attends.contains(&layer) {
            LayerParts::ATTENTION
        } else {
            LayerParts::mixer(state)
        }
    };
    plan.layers = (0..size(&plan.fields, "num_hidden_layers")?).map(parts).collect();
    check_mixer_activation(&plan.fields, "hidden_act")?;
    Ok(plan)
}

pub(super) fn falcon_h1(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "mamba_n_heads": 128, "mamba_n_groups": 1,
        "mamba_d_state": 256, "mamba_d_head": "auto", "mamba_d_conv": 4, "mamba_expand": 2, "mamba_d_ssm": 1024,
    });
    let mut plan = Plan::new(fields, defaults)
        .attention_bias("attention_bias", false)?
        .mlp_bias("mlp_bias", false)?;
    name_as_bamba(&mut plan);
    let fields = &plan.fields;
    let factor = |name: &str| Ok::<f64, ModelError>(fields.optional_number(name)?.unwrap_or(1.0));
    let [gate, down] = multipliers(fields, "mlp_multipliers")?;
    let (input, key) = (factor("attention_in_multiplier")?, factor("key_multiplier")?);
    let factors = Factors {
        query: input,
        key: input * key,
        key_bias: key,
        value: input,
        value_bias: 1.0,
        attended: factor("attention_out_multiplier")?,
        gate,
        down,
    };
    let mixer_factors = Mamba2Factors {
        input: factor("ssm_in_multiplier")?,
        parts: multipliers(fields, "ssm_multipliers")?,
        output: factor("ssm_out_multiplier")?,
    };
    let (embedding_scale, logit_scale) = (factor("embedding_multiplier")?, factor("lm_head_multiplier")?);
    (plan.embedding_scale, plan.logit_scale) = (embedding_scale, logit_scale);
    plan.factors = factors;
    let inner = plan.fields.optional_size("mamba_d_ssm")?;
    let state = plan.mamba("mamba", inner)?;
    let has_norm = plan.fields.flag("mamba_rms_norm", false)?;
    let before_gate = plan.fields.flag("mamba_norm_before_gate", true)?;
    let output_bias = plan.fields.flag("projectors_bias", false)?;
    if let MixerPlan::Mamba2 { settings, factors, .. } = &mut plan.mixer {
        *factors = mixer_factors;
        settings.output_bias = output_bias;
        let norm = settings.norm.filter(|_| has_norm);
        settings.norm = norm.map(|norm| Mamba2Norm { before_gate, ..norm });
    }
    let both = LayerParts {
        attends: true,
        ..LayerParts::mixer(state)
    };
    plan.layers = vec![both; size(&plan.fields, "num_hidden_layers")?];
    check_mixer_activation(&plan.fields, "hidden_act")?;
    Ok(plan)
}

/// Sets the names of norms and feed-forward parts to Bamba's and Falcon-H1's.
fn name_as_bamba(plan: &mut Plan) {
    plan.block = Block::Before(["input_layernorm", "pre_ff_layernorm"]);
    plan.final_norm = "model.final_layernorm";
    plan.mlp = MlpNames {
        gate: Gate::Tensor("feed_forward.gate_proj"),
        up: "feed_forward.up_proj",
        down: "feed_forward.down_proj",
    };
}

pub(super) fn mamba2(fields: &Fields) -> Planned {
    // Settings for attention and a feed-forward part, which this family does not have.
    let defaults = json!({
        "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 1, "max_position_embeddings": 1 << 20,
        "num_heads": 128, "head_dim": 64, "n_groups": 8, "state_size": 128, "conv_kernel": 4, "layer_norm_epsilon": 1e-5,
    });
    let mut plan = Plan::new(fields, defaults);
    check_mixer_activation(&plan.fields, "hidden_act")?;
    let settings = &plan.fields;
    let renamed = [
        ("mamba_n_heads", "num_heads"),
        ("mamba_d_head", "head_dim"),
        ("mamba_n_groups", "n_groups"),
        ("mamba_d_state", "state_size"),
        ("mamba_d_conv", "conv_kernel"),
        ("mamba_proj_bias", "use_bias"),
        ("mamba_conv_bias", "use_conv_bias"),
        ("rms_norm_eps", "layer_norm_epsilon"),
    ];
    plan.fields = with_names(settings, &renamed).with("head_dim", 2);
    plan.epsilon = "layer_norm_epsilon";
    plan.block = Block::One("norm");
    plan.final_norm = "model.norm_f";
    let state = plan.mamba("mixer", None)?;
    let layer = LayerParts {
        feeds: false,
        ..LayerParts::mixer(state)
    };
    plan.layers = vec![layer; size(&plan.fields, "num_hidden_layers")?];
    Ok(plan)
}

pub(super) fn nemotron_h(fields: &Fields) -> Planned {
    let defaults = json!({
        "num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8,
        "ssm_state_size": 128, "conv_kernel": 4, "layer_norm_epsilon": 1e-5, "time_step_min": 0.001,
    });
    let mut plan = Plan::new(fields, defaults)
        .mlp_bias("mlp_bias", false)?
        .ungated("mixer.up_proj", "mixer.down_proj");
    let renamed = [
        ("mamba_n_heads", "mamba_num_heads"),
        ("mamba_d_head", "mamba_head_dim"),
        ("mamba_n_groups", "n_groups"),
        ("mamba_d_state", "ssm_state_size"),
        ("mamba_d_conv", "conv_kernel"),
        ("mamba_conv_bias", "use_conv_bias"),
        ("rms_norm_eps", "layer_norm_epsilon"),
    ];
    check_mixer_activation(&plan.fields, "mamba_hidden_act")?;
    let biased = plan.fields.flag("use_bias", false)?;
    // transformers ties no embeddings in this family, despite the setting.
    plan.fields = with_names(&plan.fields, &renamed)
        .with("mamba_proj_bias", biased)
        .with("tie_word_embeddings", false);
    // Time steps have a minimum and no maximum.
    let least = plan.fields.optional_number("time_step_min")?.unwrap_or(0.0);
    plan.fields = plan.fields.with("time_step_limit", json!([least, null]));
    plan.epsilon = "layer_norm_epsilon";
    plan.activation = ("mlp_hidden_act", "relu2");
    plan.block = Block::One("norm");
    plan.final_norm = "model.norm_f";
    plan.inputs = super::Inputs::Separate(["mixer.q_proj", "mixer.k_proj", "mixer.v_proj"]);
    plan.output = "mixer.o_proj";
    if plan.fields.get("sliding_window").is_some() {
        return Err(plan.fields.error("sliding_window", "is not supported for this family"));
    }
    let state = plan.mamba("mixer", None)?;
    let only = |state, attends, feeds| {
        Some(LayerParts {
            state,
            attends,
            slides: false,
            feeds,
        })
    };
    let types = nemotron_types(&plan.fields)?;
    plan.layers = kinds(&plan.fields, &types, |kind| match kind {
        "linear_attention" | "mamba" => only(Some(state), false, false),
        "full_attention" | "attention" => only(None, true, false),
        "mlp" | "moe" => only(None, false, true),
        _ => None,
    })?;
    plan.fields = plan.fields.with("num_hidden_layers", types.len());
    plan.positions = Positions::Listed(vec![false; types.len()]);
    if types.iter().any(|kind| kind == "moe") {
        plan.experts = Some(nemotron_experts(&plan.fields, &types)?);
    }
    Ok(plan)
}

fn nemotron_experts(fields: &Fields, types: &[String]) -> Result<ExpertSettings, ModelError> {
    if let Some(width) = fields.optional_count("moe_latent_size")?.filter(|width| *width > 0) {
        let problem = format!("is {width}: experts between narrower projections are not supported");
        return Err(fields.error("moe_latent_size", problem));
    }
    let fields = fields
        .with_default("num_experts_per_tok", 2)
        .with_default("norm_topk_prob", true);
    let mut experts = ExpertSettings::read(&fields)?.with_noaux();
    experts.sparse = types.iter().map(|kind| kind == "moe").collect();
    experts.activation = Activation::from_fields(&fields, "mlp_hidden_act", "relu2")?;
    experts.gated = false;
    Ok(experts)
}

/// The kinds of layers of Nemotron-H, which older files encode as one character each.
fn nemotron_types(fields: &Fields) -> Result<Vec<String>, ModelError> {
    for name in ["layers_block_type", "layer_types"] {
        let types = fields.texts(name)?;
        if !types.is_empty() {
            return Ok(types);
        }
    }
    let Some(pattern) = fields.text("hybrid_override_pattern")? else {
        let problem = "is missing; the kinds of layers stand there";
        return Err(fields.error("layers_block_type", problem));
    };
    let kind = |sign| match sign {
        'M' => Ok("linear_attention".to_owned()),
        '*' => Ok("full_attention".to_owned()),
        '-' => Ok("mlp".to_owned()),
        'E' => Ok("moe".to_owned()),
        other => Err(fields.error(
            "hybrid_override_pattern",
            format!("holds {other:?}, which names no kind of layer"),
        )),
    };
    pattern.chars().take(LARGEST_COUNT).map(kind).collect()
}

impl Plan {
    /// The state of Mamba2 layers with Bamba's setting names; `inner` is the width of all heads if a setting gives
    /// it.
    fn mamba(&mut self, name: &'static str, inner: Option<usize>) -> Result<StateShape, ModelError> {
        let fields = &self.fields;
        let heads = size(fields, "mamba_n_heads")?;
        let head_dim = match fields.get("mamba_d_head").and_then(Value::as_str) {
            Some("auto") => {
                let inner = match inner {
                    Some(inner) => inner,
                    None => size(fields, "mamba_expand")? * fields.size("hidden_size")?,
                };
                if !inner.is_multiple_of(heads) {
                    let problem = format!("{heads} heads do not divide {inner} values");
                    return Err(fields.error("mamba_n_heads", problem));
                }
                inner / heads
            }
            _ => size(fields, "mamba_d_head")?,
        };
        let shape = Mamba2Shape {
            heads,
            head_dim,
            state_width: size(fields, "mamba_d_state")?,
            groups: size(fields, "mamba_n_groups")?,
            kernel: size(fields, "mamba_d_conv")?,
        };
        let biased = fields.flag("mamba_proj_bias", false)?;
        self.mixer = MixerPlan::Mamba2 {
            name,
            settings: Mamba2Settings {
                input_bias: biased,
                convolution_bias: fields.flag("mamba_conv_bias", true)?,
                output_bias: biased,
                time_step_limits: time_step_limits(fields)?,
                norm: Some(Mamba2Norm {
                    groups: shape.groups,
                    epsilon: fields.optional_epsilon("rms_norm_eps")?.unwrap_or(1e-5) as f32,
                    before_gate: false,
                }),
            },
            factors: Mamba2Factors::default(),
        };
        Ok(StateShape::Mamba2(shape))
    }
}

/// Refuses other activations after the convolutions of mixer layers.
pub(super) fn check_mixer_activation(fields: &Fields, name: &str) -> Result<(), ModelError> {
    match fields.text(name)?.unwrap_or("silu") {
        "silu" | "swish" => Ok(()),
        other => {
            let problem = format!("is {other:?}; layers with a state of this family are computed with silu alone");
            Err(fields.error(name, problem))
        }
    }
}

/// Renames settings, `(name, its name in the file)`, unless `name` exists.
fn with_names(fields: &Fields, names: &[(&str, &str)]) -> Fields {
    names.iter().fold(fields.clone(), |fields, (name, found)| {
        let value = fields.get(name).or_else(|| fields.get(found)).cloned();
        fields.with(name, value.unwrap_or(Value::Null))
    })
}

/// A size whose square is still a plausible count.
pub(super) fn size(fields: &Fields, name: &str) -> Result<usize, ModelError> {
    match fields.size(name)? {
        size if size > LARGEST_COUNT => {
            Err(fields.error(name, format!("{size} is not plausible, {LARGEST_COUNT} is the limit")))
        }
        size => Ok(size),
    }
}

/// The parts of each layer according to its kind.
pub(super) fn kinds(
    fields: &Fields,
    types: &[String],
    parts: impl Fn(&str) -> Option<LayerParts>,
) -> Result<Vec<LayerParts>, ModelError> {
    let of = |(layer, kind): (usize, &String)| {
        parts(kind).ok_or_else(|| {
            let problem = format!("makes layer {layer} {kind:?}, which is not supported for this family");
            fields.error("layer_types", problem)
        })
    };
    types.iter().enumerate().map(of).collect()
}

/// The kind of each layer, for families in which a layer has either Mamba2 or attention.
pub(super) fn hybrid_kinds(
    fields: &Fields,
    types: &[String],
    state: StateShape,
) -> Result<Vec<LayerParts>, ModelError> {
    kinds(fields, types, |kind| match kind {
        "linear_attention" | "mamba" => Some(LayerParts::mixer(state)),
        "full_attention" | "attention" => Some(LayerParts::ATTENTION),
        _ => None,
    })
}

/// A list of layer numbers.
pub(super) fn indices(fields: &Fields, name: &str) -> Result<Option<Vec<usize>>, ModelError> {
    let Some(value) = fields.get(name) else {
        return Ok(None);
    };
    let numbers = value.as_array().map(|numbers| {
        let number = |number: &Value| number.as_u64().map(|number| number as usize);
        numbers.iter().map(number).collect::<Option<Vec<_>>>()
    });
    match numbers.flatten() {
        Some(numbers) => Ok(Some(numbers)),
        None => Err(fields.error(name, "must be a list of numbers of layers")),
    }
}

/// A list of `COUNT` factors; ones if it is absent.
fn multipliers<const COUNT: usize>(fields: &Fields, name: &str) -> Result<[f64; COUNT], ModelError> {
    let Some(value) = fields.get(name) else {
        return Ok([1.0; COUNT]);
    };
    let numbers = value
        .as_array()
        .map(|numbers| numbers.iter().map(Value::as_f64).collect::<Option<Vec<_>>>());
    let numbers = numbers.flatten().and_then(|numbers| numbers.try_into().ok());
    numbers.ok_or_else(|| fields.error(name, format!("must be a list of {COUNT} numbers")))
}

/// The smallest and the largest time step; an infinite maximum means none.
fn time_step_limits(fields: &Fields) -> Result<[f32; 2], ModelError> {
    const NAME: &str = "time_step_limit";
    let Some(value) = fields.get(NAME) else {
        return Ok([0.0, f32::INFINITY]);
    };
    let limits = match value.as_array().map(Vec::as_slice) {
        Some([least, largest]) => least.as_f64().map(|least| {
            let largest = largest.as_f64().unwrap_or(f64::INFINITY);
            [least as f32, largest as f32]
        }),
        _ => None,
    };
    match limits {
        Some(limits) if limits[0] <= limits[1] => Ok(limits),
        _ => Err(fields.error(NAME, "must be the least and the largest time step")),
    }
}
