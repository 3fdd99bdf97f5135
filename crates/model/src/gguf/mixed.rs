//! Settings of architectures with latent attention, short convolutions or Mamba2, which GGUF spells differently.

use serde_json::{Map, Value, json};

use super::architecture::Architecture;
use super::own_keys::OwnKeys;
use crate::ModelError;
use crate::config::LARGEST_COUNT;
use crate::weights::Checkpoint;

/// Adds the settings that follow from several keys, or from a file's tensors.
pub(super) fn settings(
    architecture: Architecture,
    keys: &OwnKeys<'_>,
    weights: &Checkpoint,
    settings: &mut Map<String, Value>,
) -> Result<(), ModelError> {
    match architecture {
        Architecture::MiniCpm3 | Architecture::Deepseek2 | Architecture::Mistral4 => {
            latent(architecture, keys, weights, settings)
        }
        Architecture::Deepseek32 | Architecture::GlmDsa => {
            latent(architecture, keys, weights, settings)?;
            indexers(keys, weights, settings)
        }
        Architecture::KimiLinear => {
            latent(architecture, keys, weights, settings)?;
            kimi(keys, weights, settings)
        }
        Architecture::Lfm2 | Architecture::Lfm2Moe => short_convolutions(keys, weights, settings),
        Architecture::GraniteHybrid => {
            mamba(keys, weights, "mamba", settings)?;
            granite(keys, weights, settings)
        }
        Architecture::FalconH1 => {
            mamba(keys, weights, "mamba", settings)?;
            falcon_h1(keys, weights, settings)
        }
        Architecture::Mamba2 => {
            // Files give zero for parts that the family does not have.
            for name in ["num_attention_heads", "num_key_value_heads", "intermediate_size"] {
                settings.insert(name.into(), 1.into());
            }
            mamba(keys, weights, "mixer", settings)
        }
        Architecture::NemotronH | Architecture::NemotronHMoe => {
            mamba(keys, weights, "mixer", settings)?;
            nemotron(keys, weights, settings)
        }
        _ => Ok(()),
    }
}

/// The magnitudes of a scaled rotation. Files have a tenth of one; the other is assumed equal.
pub(super) fn magnitudes(keys: &OwnKeys<'_>, rotation: &mut Map<String, Value>) -> Result<(), ModelError> {
    if let Some(tenth) = keys.number("rope.scaling.yarn_log_multiplier")? {
        for name in ["mscale", "mscale_all_dim"] {
            rotation.insert(name.into(), json!(10.0 * tenth));
        }
    }
    Ok(())
}

fn latent(
    architecture: Architecture,
    keys: &OwnKeys<'_>,
    weights: &Checkpoint,
    settings: &mut Map<String, Value>,
) -> Result<(), ModelError> {
    let number = |key: &str| keys.number(key)?.ok_or_else(|| keys.missing(key));
    let rotated = number("rope.dimension_count")?;
    // Older files give the widths of the expanded heads.
    let key_width = match keys.number("attention.key_length_mla")? {
        Some(width) => width,
        None => number("attention.key_length")?,
    };
    if key_width <= rotated {
        let problem = format!("is {rotated}, which leaves nothing of heads of {key_width}");
        return Err(keys.error("rope.dimension_count", problem));
    }
    settings.insert("qk_rope_head_dim".into(), json!(rotated));
    settings.insert("qk_nope_head_dim".into(), json!(key_width - rotated));
    settings.insert("kv_lora_rank".into(), json!(number("attention.kv_lora_rank")?));
    let query_rank = keys.json("attention.q_lora_rank")?.unwrap_or(Value::Null);
    settings.insert("q_lora_rank".into(), query_rank);
    let value_width = match keys.json("attention.value_length_mla")? {
        Some(width) => Some(width),
        None => keys.json("attention.value_length")?,
    };
    let value_width = match (architecture, value_width) {
        // Files of MiniCPM3 give the width of a value only by the output projection's width.
        (Architecture::MiniCpm3, None) => {
            let output = weights.info("model.layers.0.self_attn.o_proj.weight");
            let inputs = output.and_then(|info| info.shape.get(1)).copied().unwrap_or(0);
            Some(json!(inputs as f64 / number("attention.head_count")?))
        }
        (_, width) => width,
    };
    if let Some(width) = value_width {
        settings.insert("v_head_dim".into(), width);
    }
    settings.remove("num_key_value_heads");
    Ok(())
}

/// The sizes of indexers, and the layers with one.
fn indexers(keys: &OwnKeys<'_>, weights: &Checkpoint, settings: &mut Map<String, Value>) -> Result<(), ModelError> {
    let sizes = [
        ("attention.indexer.head_count", "index_n_heads"),
        ("attention.indexer.key_length", "index_head_dim"),
        ("attention.indexer.top_k", "index_topk"),
    ];
    keys.insert_required(&sizes, settings)?;
    let kinds = kinds(
        settings,
        keys,
        weights,
        ("self_attn.indexer.wk.weight", "full", "shared"),
    )?;
    settings.insert("indexer_types".into(), kinds);
    Ok(())
}

/// The number of layers of a file.
pub(super) fn layer_count(settings: &Map<String, Value>, keys: &OwnKeys<'_>) -> Result<usize, ModelError> {
    let count = settings.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0) as usize;
    if count > LARGEST_COUNT {
        let problem = format!("{count} is not plausible, {LARGEST_COUNT} is the limit");
        return Err(keys.error("block_count", problem));
    }
    Ok(count)
}

/// The layers of a file, and the name of a part in each.
fn layers<'a>(
    settings: &Map<String, Value>,
    keys: &OwnKeys<'_>,
    part: &'a str,
) -> Result<impl Iterator<Item = String> + use<'a>, ModelError> {
    Ok((0..layer_count(settings, keys)?).map(move |layer| format!("model.layers.{layer}.{part}")))
}

/// The kind of each layer: `with` if it has the tensor `part`, otherwise `without`.
fn kinds(
    settings: &Map<String, Value>,
    keys: &OwnKeys<'_>,
    weights: &Checkpoint,
    (part, with, without): (&str, &str, &str),
) -> Result<Value, ModelError> {
    let kind = |name: String| if weights.info(&name).is_some() { with } else { without };
    Ok(layers(settings, keys, part)?.map(kind).collect::<Vec<_>>().into())
}

/// True if some layer has a tensor.
fn any(
    settings: &Map<String, Value>,
    keys: &OwnKeys<'_>,
    weights: &Checkpoint,
    part: &str,
) -> Result<bool, ModelError> {
    Ok(layers(settings, keys, part)?.any(|name| weights.info(&name).is_some()))
}

/// The layers with Kimi Delta Attention, and the sizes of its heads.
fn kimi(keys: &OwnKeys<'_>, weights: &Checkpoint, settings: &mut Map<String, Value>) -> Result<(), ModelError> {
    let types = kinds(
        settings,
        keys,
        weights,
        ("self_attn.A", "linear_attention", "full_attention"),
    )?;
    settings.insert("layer_types".into(), types);
    let heads = layers(settings, keys, "self_attn.b_proj.weight")?.find_map(|name| weights.info(&name));
    if let Some(heads) = heads.and_then(|info| info.shape.first()) {
        settings.insert("linear_num_heads".into(), (*heads).into());
    }
    keys.insert_required(&[("kda.head_dim", "linear_head_dim")], settings)
}

fn short_convolutions(
    keys: &OwnKeys<'_>,
    weights: &Checkpoint,
    settings: &mut Map<String, Value>,
) -> Result<(), ModelError> {
    for (key, setting) in [
        ("shortconv.l_cache", "conv_L_cache"),
        ("attention.layer_norm_rms_epsilon", "norm_eps"),
    ] {
        if let Some(value) = keys.json(key)? {
            settings.insert(setting.into(), value);
        }
    }
    settings.insert("block_auto_adjust_ff_dim".into(), false.into());
    let biased = any(settings, keys, weights, "conv.in_proj.bias")?;
    settings.insert("conv_bias".into(), biased.into());
    let types = kinds(settings, keys, weights, ("conv.conv.weight", "conv", "full_attention"))?;
    settings.insert("layer_types".into(), types);
    Ok(())
}

/// The sizes of a Mamba2 whose tensors are below `name`.
fn mamba(
    keys: &OwnKeys<'_>,
    weights: &Checkpoint,
    name: &str,
    settings: &mut Map<String, Value>,
) -> Result<(), ModelError> {
    for (key, setting) in [
        ("ssm.conv_kernel", "mamba_d_conv"),
        ("ssm.state_size", "mamba_d_state"),
        ("ssm.group_count", "mamba_n_groups"),
        ("ssm.time_step_rank", "mamba_n_heads"),
        ("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
    ] {
        if let Some(value) = keys.json(key)? {
            settings.insert(setting.into(), value);
        }
    }
    if let (Some(width), Some(heads)) = (keys.number("ssm.inner_size")?, keys.number("ssm.time_step_rank")?) {
        let head = width / heads;
        if head.fract() != 0.0 {
            let problem = format!("{width} is not a multiple of ssm.time_step_rank {heads}");
            return Err(keys.error("ssm.inner_size", problem));
        }
        settings.insert("mamba_d_head".into(), json!(head));
    }
    for (part, setting) in [
        ("in_proj.bias", "mamba_proj_bias"),
        ("in_proj.bias", "use_bias"),
        ("conv1d.bias", "mamba_conv_bias"),
        ("out_proj.bias", "projectors_bias"),
        ("norm.weight", "mamba_rms_norm"),
    ] {
        let has = any(settings, keys, weights, &format!("{name}.{part}"))?;
        settings.insert(setting.into(), has.into());
    }
    let biased = any(settings, keys, weights, "self_attn.q_proj.bias")?;
    settings.insert("attention_bias".into(), biased.into());
    Ok(())
}

fn granite(keys: &OwnKeys<'_>, weights: &Checkpoint, settings: &mut Map<String, Value>) -> Result<(), ModelError> {
    const ROTATES: &str = "rope.scaling.finetuned";
    // Bamba's files use this architecture name, with an order of query rows that does not fit a partial rotation.
    if keys.json(ROTATES)? == Some(true.into()) {
        return Err(keys.error(
            ROTATES,
            "is true, as in files of Bamba, which are not supported; use its directory",
        ));
    }
    let types = kinds(
        settings,
        keys,
        weights,
        ("mamba.A", "linear_attention", "full_attention"),
    )?;
    settings.insert("layer_types".into(), types);
    settings.entry("num_local_experts").or_insert(0.into());
    settings.insert("feed_forward_apart".into(), true.into());
    let names = ["shared_mlp", "mlp.shared_expert"].map(|name| format!("model.layers.0.{name}.gate_proj.weight"));
    let inner = names.iter().find_map(|name| weights.info(name));
    if let Some(rows) = inner.and_then(|info| info.shape.first()) {
        settings.insert("shared_intermediate_size".into(), (*rows).into());
    }
    if keys.factor("attention.scale")?.is_none() {
        settings.insert("attention_multiplier".into(), Value::Null);
    }
    Ok(())
}

fn falcon_h1(keys: &OwnKeys<'_>, weights: &Checkpoint, settings: &mut Map<String, Value>) -> Result<(), ModelError> {
    if weights.info("lm_head.weight").is_none() {
        let problem =
            "has no output.weight beside it, and the factor on logits is in no other tensor; use the directory";
        return Err(keys.error("vocab_size", problem));
    }
    // All factors are in the weights.
    settings.insert("mamba_norm_before_gate".into(), false.into());
    let biased = any(settings, keys, weights, "feed_forward.gate_proj.bias")?;
    settings.insert("mlp_bias".into(), biased.into());
    Ok(())
}

fn nemotron(keys: &OwnKeys<'_>, weights: &Checkpoint, settings: &mut Map<String, Value>) -> Result<(), ModelError> {
    let kind = |layer: String| {
        let has = |part: &str| weights.info(&format!("{layer}{part}")).is_some();
        if has("A") {
            "linear_attention"
        } else if has("q_proj.weight") {
            "full_attention"
        } else if weights.info(&layer.replace("mixer.", "mlp.gate.weight")).is_some() {
            "moe"
        } else {
            "mlp"
        }
    };
    let types: Vec<&str> = layers(settings, keys, "mixer.")?.map(kind).collect();
    settings.insert("layers_block_type".into(), types.into());
    let biased = any(settings, keys, weights, "mixer.up_proj.bias")?;
    settings.insert("mlp_bias".into(), biased.into());
    // Files lack the least time step.
    settings.insert("time_step_min".into(), json!(0.0));
    Ok(())
}
