//! Families with root-mean-square norms: one function each, with the differences from Llama.

use serde_json::{Value, json};

use super::plan::Planned;
use super::{Block, Gate, HeadNorms, Inputs, MlpNames, NormKind, Plan, Positions};
use crate::blocks::QueryGrowth;
use crate::fields::Fields;

/// True for all layers except every fourth.
pub(super) fn all_but_last_of_four(layer: usize) -> bool {
    !(layer + 1).is_multiple_of(4)
}

pub(super) fn smollm3(fields: &Fields) -> Planned {
    let defaults = json!({
        "tie_word_embeddings": true, "num_key_value_heads": 4, "rope_theta": 2_000_000.0, "rms_norm_eps": 1e-6,
    });
    let mut plan = Plan::new(fields, defaults)
        .attention_bias("attention_bias", false)?
        .mlp_bias("mlp_bias", false)?;
    let interval = plan.fields.optional_size("no_rope_layer_interval")?.unwrap_or(4);
    let layers = plan.fields.size("num_hidden_layers")?.min(crate::config::LARGEST_COUNT);
    let listed = match plan.fields.get("no_rope_layers") {
        None => (1..=layers).map(|layer| layer % interval != 0).collect(),
        Some(Value::Array(flags)) if flags.len() == layers => {
            flags.iter().map(|flag| flag.as_u64() != Some(0)).collect()
        }
        Some(_) => {
            let problem = format!("must list a number for each of {layers} layers");
            return Err(plan.fields.error("no_rope_layers", problem));
        }
    };
    plan.positions = Positions::Listed(listed);
    if plan.fields.flag("use_sliding_window", false)? {
        // Layers with positions have no window unless they are listed.
        plan.slides = Some(|_| false);
        if plan.fields.texts("layer_types")?.is_empty() {
            let problem = "is missing, and layers slide; write a type for each layer";
            return Err(plan.fields.error("layer_types", problem));
        }
    }
    Ok(plan)
}

fn gemma_like(fields: &Fields) -> Plan {
    let defaults = json!({"tie_word_embeddings": true, "head_dim": 256, "rms_norm_eps": 1e-6});
    let mut plan = Plan::new(fields, defaults);
    plan.norm = NormKind::RmsPlusOne;
    plan
}

pub(super) fn gemma(fields: &Fields) -> Planned {
    let mut plan = gemma_like(fields).attention_bias("attention_bias", false)?;
    // The first files name the exact form but mean the approximation.
    if plan.fields.text("hidden_act")? == Some("gelu") {
        plan.fields = plan.fields.with("hidden_act", "gelu_pytorch_tanh");
    }
    plan.activation = ("hidden_act", "gelu_pytorch_tanh");
    plan.embedding_scale = (plan.fields.size("hidden_size")? as f64).sqrt();
    Ok(plan)
}

pub(super) fn vaultgemma(fields: &Fields) -> Planned {
    let mut plan = gemma_like(fields).attention_bias("attention_bias", false)?;
    plan.fields = plan
        .fields
        .with_default("sliding_window", 4096)
        .with_default("query_pre_attn_scalar", 256)
        .with_default("attn_logit_softcapping", 50.0)
        .with_default("final_logit_softcapping", 30.0);
    plan.block = Block::Before(["input_layernorm", "pre_feedforward_layernorm"]);
    plan.activation = ("hidden_activation", "gelu_pytorch_tanh");
    plan.embedding_scale = (plan.fields.size("hidden_size")? as f64).sqrt();
    plan.attention_scale = Some(plan.fields.positive("query_pre_attn_scalar")?.sqrt().recip());
    plan.soft_cap = plan.fields.optional_positive("attn_logit_softcapping")?;
    plan.logit_cap = plan.fields.optional_positive("final_logit_softcapping")?;
    plan.slides = Some(|layer| layer % 2 == 0);
    Ok(plan)
}

pub(super) fn seed_oss(fields: &Fields) -> Planned {
    let defaults = json!({"head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-6});
    let mut plan = Plan::new(fields, defaults)
        .attention_bias("attention_bias", true)?
        .mlp_bias("mlp_bias", false)?;
    plan.output_bias = plan.fields.flag("attention_out_bias", false)?;
    Ok(plan)
}

pub(super) fn granite(fields: &Fields) -> Planned {
    let defaults = json!({"attention_multiplier": 1.0, "rms_norm_eps": 1e-6});
    Plan::new(fields, defaults)
        .attention_bias("attention_bias", false)?
        .mlp_bias("mlp_bias", false)?
        .multipliers()
}

/// MiniCPM 1, 2 and 4, whose released folders bring their own code.
pub(super) fn minicpm(fields: &Fields) -> Planned {
    if fields.get("sparse_config").is_some_and(|config| !config.is_null()) {
        let problem = "asks for InfLLM-v2, which is not supported; without this setting the model reads every token";
        return Err(fields.error("sparse_config", problem));
    }
    let defaults = json!({
        "tie_word_embeddings": true, "rms_norm_eps": 1e-6, "scale_emb": 1, "scale_depth": 1, "dim_model_base": 1,
    });
    Plan::new(fields, defaults)
        .attention_bias("attention_bias", false)?
        .scales_of_width_and_depth()
}

pub(super) fn hyperclovax(fields: &Fields) -> Planned {
    let mut plan = Plan::new(fields, json!({"rms_norm_eps": 1e-6}))
        .attention_bias("attention_bias", false)?
        .mlp_bias("mlp_bias", false)?
        .multipliers()?;
    // Granite divides logits by the factor, this family multiplies.
    plan.logit_scale = plan.logit_scale.recip();
    if plan.fields.flag("use_post_norm", true)? {
        plan.block = Block::Both([
            "input_layernorm",
            "post_norm1",
            "post_attention_layernorm",
            "post_norm2",
        ]);
    }
    Ok(plan)
}

pub(super) fn arcee(fields: &Fields) -> Planned {
    let mut plan = Plan::new(fields, Value::Null)
        .attention_bias("attention_bias", false)?
        .mlp_bias("mlp_bias", false)?
        .ungated("mlp.up_proj", "mlp.down_proj");
    plan.activation.1 = "relu2";
    Ok(plan)
}

pub(super) fn olmo2(fields: &Fields) -> Planned {
    let mut plan = Plan::new(fields, Value::Null).attention_bias("attention_bias", false)?;
    plan.block = Block::After(["post_attention_layernorm", "post_feedforward_layernorm"]);
    plan.head_norms = HeadNorms::All(["self_attn.q_norm", "self_attn.k_norm"]);
    Ok(plan)
}

pub(super) fn olmo3(fields: &Fields) -> Planned {
    let mut plan = olmo2(
        &fields
            .with_default("sliding_window", 4096)
            .with_default("rope_theta", 500_000.0),
    )?;
    plan.slides = Some(all_but_last_of_four);
    let fields = &plan.fields;
    let parameters = fields.object("rope_parameters")?;
    let of_type = |kind: &str| parameters.as_ref().and_then(|parameters| parameters.get(kind)).cloned();
    // A scaling and a base without a layer type belong to layers without a window.
    let local = of_type("sliding_attention").unwrap_or(Value::Null);
    plan.local_rotation = Some(Fields::new(
        fields.path(),
        json!({"rope_theta": 500_000.0, "rope_parameters": local}),
    )?);
    if let Some(global) = of_type("full_attention") {
        plan.fields = plan.fields.clone().with("rope_parameters", global);
    }
    Ok(plan)
}

/// EXAONE 3: Llama with other names.
pub(super) fn exaone(fields: &Fields) -> Planned {
    let mut fields = fields.clone();
    // Names of the first files.
    for (name, older) in [
        ("num_hidden_layers", "num_layers"),
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("hidden_act", "activation_function"),
    ] {
        if let Some(value) = fields.get(older).cloned() {
            fields = fields.with(name, value);
        }
    }
    let mut plan = Plan::new(&fields, json!({"num_key_value_heads": 8, "rope_theta": 500_000.0}))
        .attention_bias("attention_bias", false)?
        .mlp_bias("mlp_bias", false)?;
    plan.block = Block::Before(["ln_1", "ln_2"]);
    plan.final_norm = "model.ln_f";
    plan.inputs = Inputs::Separate([
        "attn.attention.q_proj",
        "attn.attention.k_proj",
        "attn.attention.v_proj",
    ]);
    plan.output = "attn.attention.out_proj";
    plan.mlp = MlpNames {
        gate: Gate::Tensor("mlp.c_fc_0"),
        up: "mlp.c_fc_1",
        down: "mlp.c_proj",
    };
    Ok(plan)
}

pub(super) fn exaone4(fields: &Fields) -> Planned {
    let mut plan = Plan::new(fields, json!({"sliding_window": 4096, "num_key_value_heads": 32}));
    plan.block = Block::After(["post_attention_layernorm", "post_feedforward_layernorm"]);
    plan.head_norms = HeadNorms::Each(["self_attn.q_norm", "self_attn.k_norm"]);
    if plan.fields.get("sliding_window").is_some() {
        plan.positions = Positions::InWindows;
        plan.slides = Some(all_but_last_of_four);
        let period = plan.fields.get("sliding_window_pattern");
        let has_default = period.is_none_or(|period| period.as_u64() == Some(4));
        if !has_default && plan.fields.texts("layer_types")?.is_empty() {
            let problem = "must be 4 where no layer_types are listed";
            return Err(plan.fields.error("sliding_window_pattern", problem));
        }
    }
    Ok(plan)
}

pub(super) fn glm(fields: &Fields) -> Planned {
    let defaults = json!({
        "head_dim": 128, "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-7,
    });
    let mut plan = Plan::new(fields, defaults);
    plan.input_bias = plan.fields.flag("attention_bias", true)?;
    plan.interleaved = true;
    plan.mlp = MlpNames {
        gate: Gate::Stacked,
        up: "mlp.gate_up_proj",
        down: "mlp.down_proj",
    };
    Ok(plan)
}

pub(super) fn glm4(fields: &Fields) -> Planned {
    let mut plan = glm(fields)?;
    plan.block = Block::Both([
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    ]);
    Ok(plan)
}

/// The text model of GLM-4.1V: GLM-4 with other defaults. A position has three sections, which are equal in text.
pub(super) fn glm4v(fields: &Fields) -> Planned {
    let (hidden, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    let defaults = [
        ("head_dim", json!(hidden / heads)),
        ("partial_rotary_factor", json!(1.0)),
        ("rms_norm_eps", json!(1e-5)),
    ];
    glm4(
        &defaults
            .into_iter()
            .fold(fields.clone(), |fields, (name, value)| fields.with_default(name, value)),
    )
}

/// The text model of GLM-OCR: GLM-4.1V's without biases.
pub(super) fn glm_ocr(fields: &Fields) -> Planned {
    glm4v(&fields.with_default("attention_bias", false))
}

/// The text model of PaddleOCR: ERNIE 4.5 without interleaved pairs.
pub(super) fn paddle_ocr(fields: &Fields) -> Planned {
    let mut plan = ernie4_5(fields)?;
    plan.interleaved = false;
    Ok(plan)
}

pub(super) fn ernie4_5(fields: &Fields) -> Planned {
    let defaults = json!({
        "tie_word_embeddings": true, "head_dim": 128, "num_key_value_heads": 2, "rope_theta": 500_000.0,
    });
    let mut plan = Plan::new(fields, defaults)
        .attention_bias("use_bias", false)?
        .mlp_bias("use_bias", false)?;
    plan.interleaved = true;
    Ok(plan)
}

pub(super) fn helium(fields: &Fields) -> Planned {
    let defaults = json!({
        "head_dim": 128, "num_key_value_heads": 20, "rms_norm_eps": 1e-8, "rope_theta": 100_000.0,
    });
    let mut plan = Plan::new(fields, defaults).mlp_bias("mlp_bias", false)?;
    plan.input_bias = plan.fields.flag("attention_bias", false)?;
    plan.interleaved = true;
    Ok(plan)
}

pub(super) fn hunyuan(fields: &Fields) -> Planned {
    let mut plan = Plan::new(fields, Value::Null).attention_bias("attention_bias", false)?;
    plan.head_norms = HeadNorms::Rotated(["self_attn.query_layernorm", "self_attn.key_layernorm"]);
    let parameters = match plan.fields.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => plan.fields.object("rope_scaling")?,
    };
    // A "dynamic" scaling with a fixed alpha scales the base, independent of the length.
    if let Some(parameters) = parameters
        && let Some(alpha) = parameters.optional_positive("alpha")?
        && [parameters.text("rope_type")?, parameters.text("type")?].contains(&Some("dynamic"))
    {
        let outer = plan.fields.optional_positive("rope_theta")?.unwrap_or(10_000.0);
        let theta = parameters.optional_positive("rope_theta")?.unwrap_or(outer);
        let width = match plan.fields.optional_size("head_dim")? {
            Some(width) => width,
            None => plan.fields.size("hidden_size")? / plan.fields.size("num_attention_heads")?,
        };
        let stretched = theta * alpha.powf(width as f64 / (width as f64 - 2.0));
        plan.fields = plan
            .fields
            .with("rope_scaling", Value::Null)
            .with("rope_parameters", json!({"rope_theta": stretched}));
    }
    Ok(plan)
}

pub(super) fn apertus(fields: &Fields) -> Planned {
    let mut plan = Plan::new(fields, json!({"hidden_act": "xielu"}))
        .attention_bias("attention_bias", false)?
        .ungated("mlp.up_proj", "mlp.down_proj");
    plan.block = Block::Before(["attention_layernorm", "feedforward_layernorm"]);
    plan.head_norms = HeadNorms::Each(["self_attn.q_norm", "self_attn.k_norm"]);
    let is_stretched = ["rope_parameters", "rope_scaling"].map(|name| plan.fields.get(name).is_some());
    if is_stretched == [false; 2] {
        let rotation = json!({
            "rope_type": "llama3", "rope_theta": 12_000_000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        });
        plan.fields = plan.fields.with("rope_parameters", rotation);
    }
    Ok(plan)
}

/// Granite with windows, a sink for each head, and a rotation base for each layer; zero means no rotation.
pub(super) fn granite_swa(fields: &Fields) -> Planned {
    let defaults = [
        ("tie_word_embeddings", json!(true)),
        ("num_key_value_heads", json!(4)),
        ("rms_norm_eps", json!(1e-5)),
        ("sliding_window", json!(128)),
    ];
    let fields = defaults
        .into_iter()
        .fold(fields.clone(), |fields, (name, value)| fields.with_default(name, value));
    let mut plan = granite(&fields)?;
    plan.slides = Some(|layer| !layer.is_multiple_of(4));
    plan.sinks = Some("self_attn.sinks");
    let layers = plan.fields.size("num_hidden_layers")?;
    let Some(listed) = plan.fields.get("layer_rope_theta") else {
        return Ok(plan);
    };
    let bases: Option<Vec<f64>> = listed
        .as_array()
        .filter(|bases| bases.len() == layers)
        .and_then(|bases| bases.iter().map(Value::as_f64).collect());
    let Some(bases) = bases else {
        let problem = format!("must list a number for each of {layers} layers");
        return Err(plan.fields.error("layer_rope_theta", problem));
    };
    if let Some(base) = bases.iter().find(|base| **base != 0.0) {
        if bases.iter().any(|other| *other != 0.0 && other != base) {
            let problem = "lists several bases; one base, and zero, are supported";
            return Err(plan.fields.error("layer_rope_theta", problem));
        }
        let rotation = plan
            .fields
            .object("rope_parameters")?
            .or(plan.fields.object("rope_scaling")?);
        let mut rotation = rotation.map(|rotation| rotation.values()).unwrap_or_default();
        rotation.insert("rope_theta".into(), json!(base));
        plan.fields = plan
            .fields
            .with("rope_scaling", Value::Null)
            .with("rope_parameters", rotation);
    }
    plan.positions = Positions::Listed(bases.iter().map(|base| *base != 0.0).collect());
    Ok(plan)
}

pub(super) fn emu3(fields: &Fields) -> Planned {
    let defaults = json!({"num_key_value_heads": 8, "rope_theta": 1_000_000.0});
    Plan::new(fields, defaults)
        .attention_bias("attention_bias", false)?
        .mlp_bias("mlp_bias", false)
}

/// Apertus whose head may lack the rows of picture and sound tokens.
pub(super) fn apertus1p5(fields: &Fields) -> Planned {
    let vocabulary = fields.size("vocab_size")?;
    match fields.optional_size("output_vocab_size")? {
        Some(rows) if rows != vocabulary => {
            let problem =
                format!("is {rows} of {vocabulary} tokens; a head of fewer rows than the embedding is not supported");
            Err(fields.error("output_vocab_size", problem))
        }
        _ => apertus(fields),
    }
}

pub(super) fn cwm(fields: &Fields) -> Planned {
    let defaults = json!({"head_dim": 128, "num_key_value_heads": 8, "sliding_window": 8192});
    let mut plan = Plan::new(fields, defaults).mlp_bias("mlp_bias", false)?;
    plan.slides = Some(|layer| layer % 4 != 0);
    let is_stretched = ["rope_parameters", "rope_scaling"].map(|name| plan.fields.get(name).is_some());
    if is_stretched == [false; 2] {
        let rotation = json!({
            "rope_type": "llama3", "rope_theta": 1_000_000.0, "factor": 16.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        });
        plan.fields = plan.fields.with("rope_parameters", rotation);
    }
    Ok(plan)
}

pub(super) fn ministral(fields: &Fields) -> Planned {
    let defaults = json!({"num_key_value_heads": 8, "sliding_window": 4096, "rms_norm_eps": 1e-6});
    let mut plan = Plan::new(fields, defaults);
    plan.slides = Some(|_| true);
    Ok(plan)
}

pub(super) fn ministral3(fields: &Fields) -> Planned {
    let defaults = json!({"head_dim": 128, "num_key_value_heads": 8});
    // The class does not read `layer_types`.
    let mut plan = Plan::new(&fields.clone().without("layer_types"), defaults);
    plan.slides = Some(|_| true);
    let Some(parameters) = plan.fields.object("rope_parameters")? else {
        let problem = "is missing; the growth of queries with their position stands there";
        return Err(plan.fields.error("rope_parameters", problem));
    };
    if let Some(growth) = parameters.optional_number("llama_4_scaling_beta")? {
        let period = parameters.positive("original_max_position_embeddings")?;
        plan.query_growth = Some(QueryGrowth {
            factor: growth as f32,
            period: period as f32,
            ahead: 0,
        });
    }
    Ok(plan)
}

/// Norms of heads have no weights, so they commute with the rotation.
pub(super) fn nanochat(fields: &Fields) -> Planned {
    let defaults = json!({"rms_norm_eps": 1e-6, "final_logit_softcapping": 15.0});
    let mut plan = Plan::new(fields, defaults)
        .attention_bias("attention_bias", false)?
        .ungated("mlp.fc1", "mlp.fc2");
    plan.norm = NormKind::BareRms;
    plan.head_norms = HeadNorms::Bare;
    plan.has_embedding_norm = true;
    plan.turns_back = true;
    plan.activation.1 = "relu2";
    plan.logit_cap = plan.fields.optional_positive("final_logit_softcapping")?;
    Ok(plan)
}
