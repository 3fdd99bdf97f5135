//! Translates metadata of GGUF files to the config.json settings that families read.

use serde_json::{Map, Value, json};

use super::architecture::Architecture;
use super::experts::experts;
use super::gemma3n;
use super::gemma4;
use super::header::{Header, Metadata};
use super::mixed;
use super::own_keys::OwnKeys;
use super::qwen4_exp;
use super::recurrent::{hybrid, own_layers};
use super::rotation::rotation;
use super::spelt;
use crate::ModelError;
use crate::fields::Fields;
use crate::weights::Checkpoint;

/// Metadata below the architecture's name, and its setting.
const SETTINGS: &[(&str, &str)] = &[
    ("embedding_length", "hidden_size"),
    ("block_count", "num_hidden_layers"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("attention.layer_norm_epsilon", "norm_eps"),
    ("attention.layer_norm_epsilon", "norm_epsilon"),
    ("context_length", "max_position_embeddings"),
    ("vocab_size", "vocab_size"),
    ("use_parallel_residual", "use_parallel_residual"),
    ("hidden_activation", "hidden_act"),
    ("hidden_activation", "hidden_activation"),
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
    ("nextn_predict_layers", "num_nextn_predict_layers"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
];

/// The keys with number settings, and these settings.
pub(super) fn written_settings() -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_written = |key: &str| !matches!(key, "hidden_activation" | "vocab_size" | "attention.key_length");
    SETTINGS
        .iter()
        .copied()
        .filter(move |(key, _)| is_written(key) && !key.starts_with("ssm.") && !key.starts_with("nextn"))
}

/// The settings of a file; some depend on which tensors exist.
pub(super) fn fields(
    architecture: Architecture,
    header: &Header<'_>,
    weights: &mut Checkpoint,
) -> Result<Fields, ModelError> {
    let (prefix, _, family) = *architecture.row();
    let keys = OwnKeys { header, prefix };
    let mut settings = direct(&keys, family, weights)?;
    if architecture == Architecture::Laguna {
        spelt::laguna(&keys, weights, &mut settings)?;
    }
    let has = |name: &str| weights.info(name).is_some();
    if architecture.is_hybrid() {
        hybrid(
            architecture,
            &keys,
            &read(header, &keys, &settings)?,
            &mut settings,
            &has,
        )?;
    }
    if architecture.has_indexers() {
        let layers = own_layers(&keys, &read(header, &keys, &settings)?)?;
        settings.insert("num_hidden_layers".into(), layers.into());
    }

    let layers = settings.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0);
    experts(architecture, &keys, weights, layers as usize, &mut settings)?;
    if architecture == Architecture::Llama && settings.contains_key("num_experts") {
        settings.insert("architectures".into(), json!(["MixtralForCausalLM"]));
    }
    mixed::settings(architecture, &keys, weights, &mut settings)?;
    if architecture == Architecture::Qwen4Exp {
        qwen4_exp::settings(&keys, weights, &mut settings)?;
    }

    // Settings on which the rest depends are read with the usual checks.
    let known = read(header, &keys, &settings)?;
    let (hidden, heads) = (known.size("hidden_size")?, known.size("num_attention_heads")?);
    let head_dim = known.optional_size("head_dim")?.unwrap_or(hidden / heads);
    if !architecture.is_latent()
        && keys
            .number("attention.value_length")?
            .is_some_and(|length| length != head_dim as f64)
    {
        let problem = format!("must equal attention.key_length {head_dim}; other models are not supported");
        return Err(keys.error("attention.value_length", problem));
    }
    settings.insert("head_dim".into(), head_dim.into());
    windows(architecture, &keys, &known, &mut settings)?;
    let score_width = of_architecture(architecture, &keys, weights, &mut settings)?;
    if matches!(
        architecture,
        Architecture::Granite | Architecture::GraniteHybrid | Architecture::GraniteMoe | Architecture::GraniteSwa
    ) {
        multipliers(&keys, &mut settings)?;
    } else {
        check_scale(&keys, score_width)?;
    }
    let rotation = rotations(architecture, &keys, rotation(&keys, weights)?, &mut settings)?;
    settings.insert("rope_parameters".into(), rotation);
    read(header, &keys, &settings)
}

/// Adds the settings that an architecture spells in its own way. Returns the width whose inverse square root is the
/// attention scale.
fn of_architecture(
    architecture: Architecture,
    keys: &OwnKeys<'_>,
    weights: &Checkpoint,
    settings: &mut Map<String, Value>,
) -> Result<usize, ModelError> {
    let known = read(keys.header, keys, settings)?;
    let has = |name: &str| weights.info(name).is_some();
    let head_dim = known.size("head_dim")?;
    spelt::settings(architecture, keys, &known, settings, &has)?;
    match architecture {
        Architecture::Gemma4 => {
            gemma4::layers(keys, &known, settings, &has)?;
            if let Some(table) = weights.info("model.embed_tokens_per_layer.weight") {
                settings.insert("vocab_size_per_layer_input".into(), table.shape[0].into());
            }
            return Ok(1);
        }
        Architecture::Gemma3n => {
            gemma3n::settings(keys, weights, settings)?;
            return Ok(1);
        }
        Architecture::SmolLm3 | Architecture::Olmo if has("model.layers.0.self_attn.q_proj.bias") => {
            let problem = "names an architecture whose layers have no biases, and the file holds blk.0.attn_q.bias";
            return Err(keys.header.error("general.architecture", problem));
        }
        Architecture::MuseGlimmer => gemma4::muse_glimmer(keys, settings)?,
        Architecture::Bert => {
            if let Some(types) = weights.info("model.embeddings.token_type_embeddings.weight") {
                settings.insert("type_vocab_size".into(), types.shape[0].into());
            }
            // Without the key the model is an encoder, which reads in both directions.
            let is_causal = keys.json("attention.causal")?.and_then(|value| value.as_bool());
            settings.insert("is_decoder".into(), is_causal.unwrap_or(false).into());
        }
        Architecture::Gemma2 | Architecture::Gemma3 | Architecture::GemmaEmbedding => {
            let is_causal = keys.json("attention.causal")?.and_then(|value| value.as_bool());
            let looks_back = is_causal.unwrap_or(architecture != Architecture::GemmaEmbedding);
            settings.insert("use_bidirectional_attention".into(), (!looks_back).into());
            // Files do not give the scale: it follows head_dim, except for the models of 27 billion weights.
            let by_width = matches!(
                (architecture, known.size("num_hidden_layers")?),
                (Architecture::Gemma2, 46) | (Architecture::Gemma3, 62)
            );
            let width = if by_width {
                known.size("hidden_size")? / known.size("num_attention_heads")?
            } else {
                head_dim
            };
            settings.insert("query_pre_attn_scalar".into(), width.into());
            // Zero means none.
            if keys.number("final_logit_softcapping")? == Some(0.0) {
                settings.insert("final_logit_softcapping".into(), Value::Null);
            }
            return Ok(width);
        }
        _ => {}
    }
    Ok(head_dim)
}

/// The rotation of a file in the directory's form: for each kind of layers if they differ.
fn rotations(
    architecture: Architecture,
    keys: &OwnKeys<'_>,
    mut rotation: Map<String, Value>,
    settings: &mut Map<String, Value>,
) -> Result<Value, ModelError> {
    // A key of layers with a window. Files with equal layers have only the other layers' key.
    let of_window = |key: &str| match keys.json(&format!("{key}_swa"))? {
        None => keys.json(key),
        own => Ok(own),
    };
    Ok(match architecture {
        // Files of OLMo 3 have a window, and files of OLMo 2 have none.
        Architecture::Olmo2 if settings.get("sliding_window").is_some_and(|window| !window.is_null()) => {
            settings.insert("architectures".into(), json!(["Olmo3ForCausalLM"]));
            json!({"full_attention": rotation, "sliding_attention": {"rope_theta": of_window("rope.freq_base")?}})
        }
        Architecture::Gemma3 | Architecture::GemmaEmbedding | Architecture::Gemma3n => {
            let local = keys.json("rope.freq_base_swa")?.unwrap_or(json!(10_000.0));
            json!({"full_attention": rotation, "sliding_attention": {"rope_theta": local}})
        }
        Architecture::Gemma4 => gemma4::rotations(keys, rotation)?,
        Architecture::Mellum | Architecture::Laguna => {
            let (theta, dim) = (of_window("rope.freq_base")?, of_window("rope.dimension_count")?);
            json!({"full_attention": rotation, "sliding_attention": {"rope_theta": theta, "rotary_dim": dim}})
        }
        Architecture::PhiMoe if rotation.contains_key("short_factor") => {
            phimoe_magnitude(keys, &mut rotation)?;
            Value::Object(rotation)
        }
        Architecture::GptOss => {
            // The range of the model's scaling is not rounded; files lack this setting.
            rotation.insert("truncate".into(), false.into());
            Value::Object(rotation)
        }
        Architecture::Mistral3 => {
            growing_queries(keys, &mut rotation, settings)?;
            Value::Object(rotation)
        }
        Architecture::Deepseek2 | Architecture::Deepseek32 | Architecture::Mistral4 => {
            mixed::magnitudes(keys, &mut rotation)?;
            query_growth(keys, &mut rotation)?;
            Value::Object(rotation)
        }
        _ => Value::Object(rotation),
    })
}

/// The settings that follow from one key or one tensor.
fn direct(keys: &OwnKeys<'_>, family: &str, weights: &Checkpoint) -> Result<Map<String, Value>, ModelError> {
    let mut settings = Map::new();
    settings.insert("architectures".into(), json!([family]));
    for (key, setting) in SETTINGS {
        // Lists for single layers are read together with their meaning.
        if ["gemma3n", "gemma4", "laguna"].contains(&keys.prefix)
            && matches!(keys.metadata(key), Some(Metadata::List(_)))
        {
            continue;
        }
        if let Some(value) = keys.json(key)? {
            settings.insert((*setting).to_owned(), value);
        }
    }
    let has = |name: &str| weights.info(name).is_some();
    let first = |part: &str| has(&format!("model.layers.0.{part}.bias"));
    // Nemotron files without an output head lack other tensors too, and llama.cpp refuses them.
    let is_tied = !has("lm_head.weight") && family != "NemotronForCausalLM";
    settings.insert("tie_word_embeddings".into(), is_tied.into());
    settings.insert("attention_bias".into(), first("self_attn.q_proj").into());
    let mlp_bias = ["mlp.gate_proj", "mlp.up_proj"].iter().any(|part| first(part));
    settings.insert("mlp_bias".into(), mlp_bias.into());
    settings.insert("use_bias".into(), first("self_attn.q_proj").into());
    settings.insert("use_qkv_bias".into(), first("self_attn.q_proj").into());
    settings.insert("attention_out_bias".into(), first("self_attn.o_proj").into());
    settings.insert("qkv_bias".into(), first("self_attn.q_proj").into());
    settings.insert("lm_head_bias".into(), has("lm_head.bias").into());
    settings.insert(
        "use_qk_norm".into(),
        has("model.layers.0.self_attn.q_norm.weight").into(),
    );
    // Files store the weights of norms with one added.
    settings.insert("norms_include_one".into(), true.into());
    if ["CohereForCausalLM", "Cohere2ForCausalLM", "Cohere2MoeForCausalLM"].contains(&family)
        && let Some(scale) = keys.json("logit_scale")?
    {
        settings.insert("logit_scale".into(), scale);
    }
    if let (None, Some(embedding)) = (settings.get("vocab_size"), weights.info("model.embed_tokens.weight")) {
        settings.insert("vocab_size".into(), embedding.shape[0].into());
    }
    for setting in ["eos_token_id", "bos_token_id"] {
        let key = format!("tokenizer.ggml.{setting}");
        let Some(value) = keys.header.metadata.get(&key) else {
            continue;
        };
        let id = match value {
            Metadata::Integer(id) => u32::try_from(*id).ok(),
            _ => None,
        };
        let Some(id) = id else {
            let problem = format!("must be the id of a token, found {}", value.show());
            return Err(keys.header.error(&key, problem));
        };
        settings.insert(setting.into(), id.into());
    }
    Ok(settings)
}

/// The settings so far; errors use the file's keys.
fn read(header: &Header<'_>, keys: &OwnKeys<'_>, settings: &Map<String, Value>) -> Result<Fields, ModelError> {
    let names = SETTINGS.iter().map(|(key, setting)| (*setting, keys.name(key)));
    Ok(Fields::new(header.path, Value::Object(settings.clone()))?.with_source_names(names))
}

/// The window, and the layers that have it.
fn windows(
    architecture: Architecture,
    keys: &OwnKeys<'_>,
    known: &Fields,
    settings: &mut Map<String, Value>,
) -> Result<(), ModelError> {
    const WINDOW: &str = "attention.sliding_window";
    const PATTERN: &str = "attention.sliding_window_pattern";
    let slides = architecture.slides();
    // Zero means none, as does a missing key if the window has a default.
    match keys.number(WINDOW)? {
        None if !matches!(
            architecture,
            Architecture::Gemma2 | Architecture::Phi3 | Architecture::GptOss
        ) =>
        {
            _ = settings.insert("sliding_window".into(), Value::Null)
        }
        None => {}
        Some(0.0) => _ = settings.insert("sliding_window".into(), Value::Null),
        Some(window) if slides => _ = settings.insert("sliding_window".into(), json!(window)),
        Some(window) if window >= known.size("max_position_embeddings")? as f64 => {}
        Some(window) => {
            let problem = format!("is {window}, which is not supported for this architecture: no layer of it slides");
            return Err(keys.error(WINDOW, problem));
        }
    }
    let layers = known.size("num_hidden_layers")?;
    match keys.header.metadata.get(&keys.name(PATTERN)) {
        None => {}
        Some(Metadata::List(list)) => {
            let flags = list.flags().map_err(|problem| keys.error(PATTERN, problem))?;
            if flags.len() != layers {
                let problem = format!("lists {} layers, the model has {layers}", flags.len());
                return Err(keys.error(PATTERN, problem));
            }
            let kinds = flags.iter().map(|slides| match slides {
                true => "sliding_attention",
                false => "full_attention",
            });
            settings.insert("layer_types".into(), kinds.collect::<Vec<_>>().into());
        }
        Some(Metadata::Integer(2)) if architecture == Architecture::Gemma2 => {}
        Some(Metadata::Integer(period))
            if *period > 0 && matches!(architecture, Architecture::Gemma3 | Architecture::GemmaEmbedding) =>
        {
            settings.insert("sliding_window_pattern".into(), json!(*period as f64));
        }
        Some(other) => {
            let problem = format!("is {}, which is not supported for this architecture", other.show());
            return Err(keys.error(PATTERN, problem));
        }
    }
    Ok(())
}

/// If a file gives the attention scale, it must equal the computed one.
fn check_scale(keys: &OwnKeys<'_>, score_width: usize) -> Result<(), ModelError> {
    let expected = (score_width as f64).sqrt().recip();
    match keys.factor("attention.scale")? {
        Some(scale) if (scale - expected).abs() > 1e-4 * expected => {
            let problem = format!("is {scale}; only {expected}, the inverse root of the head's width, is supported");
            Err(keys.error("attention.scale", problem))
        }
        _ => Ok(()),
    }
}

/// The factors of Granite: on scores, embeddings, branches and, as a divisor, logits.
fn multipliers(keys: &OwnKeys<'_>, settings: &mut Map<String, Value>) -> Result<(), ModelError> {
    for (key, setting) in [
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ] {
        if let Some(factor) = keys.factor(key)? {
            settings.insert(setting.into(), json!(factor));
        }
    }
    Ok(())
}

/// The magnitude of LongRoPE in Phi-3.5-MoE. Its settings give it, files lack it, and it is not the one that follows
/// from the two lengths.
fn phimoe_magnitude(keys: &OwnKeys<'_>, rotation: &mut Map<String, Value>) -> Result<(), ModelError> {
    const ORIGINAL: &str = "rope.scaling.original_context_length";
    const RELEASED: (f64, f64, f64) = (4096.0, 131_072.0, 1.243_163_121_016_122);
    let lengths = (keys.number(ORIGINAL)?, keys.number("context_length")?);
    if lengths != (Some(RELEASED.0), Some(RELEASED.1)) {
        let problem = "is not that of Phi-3.5-MoE, and files lack the magnitude of such a rotation; use the directory";
        return Err(keys.error(ORIGINAL, problem));
    }
    rotation.remove("attention_factor");
    for name in ["short_mscale", "long_mscale"] {
        rotation.insert(name.into(), json!(RELEASED.2));
    }
    Ok(())
}

/// Queries of Ministral 3 grow with their position; the two magnitudes of its scaling are equal and cancel.
fn growing_queries(
    keys: &OwnKeys<'_>,
    rotation: &mut Map<String, Value>,
    settings: &mut Map<String, Value>,
) -> Result<(), ModelError> {
    if keys
        .number("rope.scaling.yarn_log_multiplier")?
        .is_some_and(|number| number != 0.0)
    {
        rotation.insert("attention_factor".into(), json!(1.0));
    }
    if query_growth(keys, rotation)? {
        settings.insert("architectures".into(), json!(["Ministral3ForCausalLM"]));
        settings.insert("sliding_window".into(), Value::Null);
    }
    Ok(())
}

/// Adds the growth of queries with their position; returns true if there is one.
fn query_growth(keys: &OwnKeys<'_>, rotation: &mut Map<String, Value>) -> Result<bool, ModelError> {
    let growth = keys.number("attention.temperature_scale")?;
    let growth = growth.filter(|growth| *growth != 0.0);
    if let Some(growth) = growth {
        rotation.insert("llama_4_scaling_beta".into(), json!(growth));
    }
    Ok(growth.is_some())
}
