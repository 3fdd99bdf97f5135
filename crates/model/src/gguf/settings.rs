//! Metadata of GGUF files as the settings of config.json the families read.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::header::{Header, Metadata};
use crate::ModelError;
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;
use crate::weights::Checkpoint;

/// The architectures GGUF files name that some family computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
    Qwen35,
    Phi2,
    Phi3,
    Gemma2,
    Gemma3,
}

/// Name in the file, architecture, name in config.json.
const ARCHITECTURES: &[(&str, Architecture, &str)] = &[
    ("llama", Architecture::Llama, "LlamaForCausalLM"),
    ("qwen2", Architecture::Qwen2, "Qwen2ForCausalLM"),
    ("qwen3", Architecture::Qwen3, "Qwen3ForCausalLM"),
    ("qwen35", Architecture::Qwen35, "Qwen3_5ForCausalLM"),
    ("phi2", Architecture::Phi2, "PhiForCausalLM"),
    ("phi3", Architecture::Phi3, "Phi3ForCausalLM"),
    ("gemma2", Architecture::Gemma2, "Gemma2ForCausalLM"),
    ("gemma3", Architecture::Gemma3, "Gemma3ForCausalLM"),
];

/// Metadata below the architecture's name, and the setting it is.
const SETTINGS: &[(&str, &str)] = &[
    ("embedding_length", "hidden_size"),
    ("block_count", "num_hidden_layers"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("context_length", "max_position_embeddings"),
    ("vocab_size", "vocab_size"),
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
];

/// The architecture a file names.
pub(super) fn architecture(path: &Path, header: &Header) -> Result<Architecture, ModelError> {
    let Some(Metadata::Text(found)) = header.metadata.get("general.architecture") else {
        return Err(ModelError::CorruptWeights {
            path: path.to_owned(),
            problem: "general.architecture is missing".into(),
        });
    };
    match ARCHITECTURES.iter().find(|(name, ..)| name == found) {
        Some((_, architecture, _)) => Ok(*architecture),
        None => Err(ModelError::UnknownArchitecture {
            found: found.clone(),
            known: ARCHITECTURES.iter().map(|(name, ..)| *name).collect(),
        }),
    }
}

/// The settings of a file; some of them are told by which tensors there are.
pub(super) fn fields(
    path: &Path,
    architecture: Architecture,
    header: &Header,
    weights: &mut Checkpoint,
) -> Result<Fields, ModelError> {
    let (prefix, family) = ARCHITECTURES
        .iter()
        .find(|(_, known, _)| *known == architecture)
        .map_or(("", ""), |(prefix, _, family)| (*prefix, *family));
    let metadata = |name: &str| header.metadata.get(&format!("{prefix}.{name}")).map(to_json);
    let mut settings = Map::new();
    settings.insert("architectures".into(), json!([family]));
    for (name, setting) in SETTINGS {
        if let Some(value) = metadata(name) {
            settings.insert((*setting).to_owned(), value);
        }
    }
    let has = |name: &str| weights.info(name).is_some();
    let first = |part: &str| has(&format!("model.layers.0.{part}.bias"));
    settings.insert("tie_word_embeddings".into(), (!has("lm_head.weight")).into());
    settings.insert("attention_bias".into(), first("self_attn.q_proj").into());
    settings.insert("mlp_bias".into(), first("mlp.gate_proj").into());
    if let (None, Some(embedding)) = (settings.get("vocab_size"), weights.info("model.embed_tokens.weight")) {
        settings.insert("vocab_size".into(), embedding.shape[0].into());
    }
    for (name, setting) in [("eos_token_id", "eos_token_id"), ("bos_token_id", "bos_token_id")] {
        if let Some(value) = header.metadata.get(&format!("tokenizer.ggml.{name}")) {
            settings.insert(setting.into(), to_json(value));
        }
    }
    // Zero means none. Files made from Mistral models are of the Llama architecture and do not tell their window; they
    // are computed without one, as llama.cpp does.
    if let Some(window) = metadata("attention.sliding_window").filter(|window| window.as_u64() != Some(0)) {
        settings.insert("sliding_window".into(), window);
    }

    if architecture == Architecture::Qwen35 {
        hybrid(path, &metadata, &mut settings, &has)?;
    }

    // What the rest depends on is read with the usual checks.
    let read = Fields::new(path, Value::Object(settings.clone()))?;
    let (hidden, heads) = (read.size("hidden_size")?, read.size("num_attention_heads")?);
    let head_dim = read.optional_size("head_dim")?.unwrap_or(hidden / heads);
    if metadata("attention.value_length").is_some_and(|length| length.as_u64() != Some(head_dim as u64)) {
        return Err(read.error(
            &format!("{prefix}.attention.value_length"),
            "must equal attention.key_length; other models are not supported",
        ));
    }
    settings.insert("head_dim".into(), head_dim.into());
    if matches!(architecture, Architecture::Gemma2 | Architecture::Gemma3) {
        // The files do not tell the scale: it is by head_dim but for the models of 27 billion weights.
        let by_width = matches!(
            (architecture, read.size("num_hidden_layers")?),
            (Architecture::Gemma2, 46) | (Architecture::Gemma3, 62)
        );
        let scalar = if by_width { hidden / heads } else { head_dim };
        settings.insert("query_pre_attn_scalar".into(), scalar.into());
        settings.insert("norms_include_one".into(), true.into());
    }
    let mut rotation = rotation(&metadata, weights)?;
    if let Some(dim) = metadata("rope.dimension_count").and_then(|dim| dim.as_f64()) {
        rotation.insert("partial_rotary_factor".into(), json!(dim / head_dim as f64));
    }
    let rotation = match architecture {
        Architecture::Gemma3 => {
            let local = metadata("rope.freq_base_swa").unwrap_or(json!(10_000.0));
            json!({"full_attention": rotation, "sliding_attention": {"rope_theta": local}})
        }
        _ => Value::Object(rotation),
    };
    settings.insert("rope_parameters".into(), rotation);
    Fields::new(path, Value::Object(settings))
}

/// What a model with recurrent layers says otherwise than its directory.
fn hybrid(
    path: &Path,
    metadata: &impl Fn(&str) -> Option<Value>,
    settings: &mut Map<String, Value>,
    has: &impl Fn(&str) -> bool,
) -> Result<(), ModelError> {
    let read = Fields::new(path, Value::Object(settings.clone()))?;
    // Layers that predict further tokens are counted with the others.
    let predicting = metadata("nextn_predict_layers")
        .and_then(|layers| layers.as_u64())
        .unwrap_or(0);
    let layers = read.size("num_hidden_layers")?;
    let layers = usize::try_from(predicting)
        .ok()
        .and_then(|predicting| layers.checked_sub(predicting));
    let Some(layers) = layers.filter(|layers| (1..=LARGEST_COUNT).contains(layers)) else {
        return Err(read.error(
            "block_count",
            format!("leaves no layers beside nextn_predict_layers {predicting}"),
        ));
    };
    settings.insert("num_hidden_layers".into(), layers.into());
    let kinds = (0..layers).map(|layer| match has(&format!("model.layers.{layer}.linear_attn.A")) {
        true => "linear_attention",
        false => "full_attention",
    });
    settings.insert("layer_types".into(), kinds.collect::<Vec<_>>().into());
    let value_heads = read.size("linear_num_value_heads")?;
    if let Some(width) = metadata("ssm.inner_size").and_then(|width| width.as_u64()) {
        settings.insert("linear_value_head_dim".into(), (width / value_heads as u64).into());
    }
    // Value heads are stored in another order, norms with the one added, decays ready for use.
    settings.insert("value_heads_tiled".into(), true.into());
    settings.insert("norms_include_one".into(), true.into());
    settings.insert("decay_rates_stored".into(), true.into());
    Ok(())
}

/// The rotation, from metadata and from the tensors that hold factors.
fn rotation(
    metadata: &impl Fn(&str) -> Option<Value>,
    weights: &mut Checkpoint,
) -> Result<Map<String, Value>, ModelError> {
    let mut rotation = Map::new();
    for (name, setting) in [
        ("rope.freq_base", "rope_theta"),
        ("rope.scaling.factor", "factor"),
        (
            "rope.scaling.original_context_length",
            "original_max_position_embeddings",
        ),
        ("rope.scaling.yarn_beta_fast", "beta_fast"),
        ("rope.scaling.yarn_beta_slow", "beta_slow"),
    ] {
        if let Some(value) = metadata(name) {
            rotation.insert(setting.into(), value);
        }
    }
    let mut factors = |name: &str| -> Result<Option<Value>, ModelError> {
        let Some(length) = weights.info(name).map(|info| info.shape[0]) else {
            return Ok(None);
        };
        Ok(Some(json!(weights.vector(name, length)?)))
    };
    let kind = metadata("rope.scaling.type");
    let kind = kind.as_ref().and_then(Value::as_str).filter(|kind| *kind != "none");
    let single = factors("rope_freqs.weight")?;
    let (short, long) = (
        factors("rope_factors_short.weight")?,
        factors("rope_factors_long.weight")?,
    );
    if let (Some(short), Some(long)) = (short, long) {
        rotation.insert("rope_type".into(), "longrope".into());
        rotation.insert("short_factor".into(), short);
        rotation.insert("long_factor".into(), long);
        if let Some(factor) = metadata("rope.scaling.attn_factor") {
            rotation.insert("attention_factor".into(), factor);
        }
    } else if let Some(single) = single {
        rotation.insert("rope_type".into(), "factors".into());
        rotation.insert("factors".into(), single);
    } else if let Some(kind) = kind {
        rotation.insert("rope_type".into(), kind.into());
    } else if let Some(factor) = metadata("rope.scale_linear") {
        rotation.insert("rope_type".into(), "linear".into());
        rotation.insert("factor".into(), factor);
    }
    Ok(rotation)
}

fn to_json(value: &Metadata) -> Value {
    match value {
        Metadata::Integer(number) => match u64::try_from(*number) {
            Ok(number) => number.into(),
            Err(_) => json!(*number as f64),
        },
        Metadata::Float(number) => json!(number),
        Metadata::Flag(flag) => (*flag).into(),
        Metadata::Text(text) => text.as_str().into(),
        Metadata::List(items) => items.iter().map(to_json).collect::<Vec<_>>().into(),
    }
}
