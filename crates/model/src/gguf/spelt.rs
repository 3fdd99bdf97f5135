//! Settings of plain architectures that GGUF spells differently.

use serde_json::{Map, Value, json};

use super::architecture::Architecture;
use super::gemma4::sizes;
use super::own_keys::OwnKeys;
use crate::ModelError;
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;
use crate::weights::Checkpoint;

/// Adds settings; `known` are the settings so far, and `has` tells if a tensor exists.
pub(super) fn settings(
    architecture: Architecture,
    keys: &OwnKeys<'_>,
    known: &Fields,
    settings: &mut Map<String, Value>,
    has: &impl Fn(&str) -> bool,
) -> Result<(), ModelError> {
    match architecture {
        Architecture::Apertus => activations(keys, settings)?,
        Architecture::GraniteSwa => positions(keys, settings)?,
        Architecture::Falcon => {
            let (hidden, kv_heads) = (known.size("hidden_size")?, known.optional_size("num_key_value_heads")?);
            for (setting, value) in [
                ("new_decoder_architecture", json!(true)),
                ("num_kv_heads", json!(kv_heads)),
                (
                    "ffn_hidden_size",
                    json!(known.optional_size("intermediate_size")?.unwrap_or(4 * hidden)),
                ),
                ("layer_norm_epsilon", json!(known.optional_number("layer_norm_eps")?)),
                ("bias", json!(has("model.layers.0.self_attention.query_key_value.bias"))),
                (
                    "num_ln_in_parallel_attn",
                    json!(1 + usize::from(has("model.layers.0.ln_attn.weight"))),
                ),
                ("stacked_inputs", json!(true)),
            ] {
                settings.insert(setting.into(), value);
            }
        }
        Architecture::Gpt2 | Architecture::StarCoder => {
            for (setting, own) in [
                ("n_embd", "hidden_size"),
                ("n_layer", "num_hidden_layers"),
                ("n_head", "num_attention_heads"),
                ("n_positions", "max_position_embeddings"),
                ("n_inner", "intermediate_size"),
            ] {
                settings.insert(setting.into(), known.size(own)?.into());
            }
            let has_one_key = known.optional_size("num_key_value_heads")? == Some(1);
            settings.insert("multi_query".into(), has_one_key.into());
            settings.insert(
                "layer_norm_epsilon".into(),
                json!(known.optional_number("layer_norm_eps")?),
            );
            settings.insert("stacked_inputs".into(), true.into());
        }
        Architecture::MiniCpm => scales_of_width_and_depth(keys, known, settings)?,
        Architecture::GptNeoX => {
            let biased = has("model.layers.0.attention.query_key_value.bias");
            settings.insert("attention_bias".into(), biased.into());
            settings.insert("stacked_inputs".into(), true.into());
        }
        _ => {}
    }
    Ok(())
}

/// The factors of MiniCPM. Older files lack them and hold its first models.
fn scales_of_width_and_depth(
    keys: &OwnKeys<'_>,
    known: &Fields,
    settings: &mut Map<String, Value>,
) -> Result<(), ModelError> {
    let (hidden, layers) = (
        known.size("hidden_size")? as f64,
        known.size("num_hidden_layers")? as f64,
    );
    let depth = keys
        .factor("residual_scale")?
        .map_or(1.4, |residual| residual * layers.sqrt());
    let base = keys.factor("logit_scale")?.map_or(256.0, |divisor| hidden / divisor);
    settings.insert(
        "scale_emb".into(),
        json!(keys.factor("embedding_scale")?.unwrap_or(12.0)),
    );
    settings.insert("scale_depth".into(), json!(depth));
    settings.insert("dim_model_base".into(), json!(base));
    Ok(())
}

/// xIELU's parameters for each layer, which are outside the architecture's keys.
fn activations(keys: &OwnKeys<'_>, settings: &mut Map<String, Value>) -> Result<(), ModelError> {
    for name in ["alpha_p", "alpha_n", "beta", "eps"] {
        let key = format!("xielu.{name}");
        let values = match keys.header.list(&key)? {
            Some(list) => list.numbers().map_err(|problem| keys.header.error(&key, problem))?,
            None => {
                return Err(keys
                    .header
                    .error(&key, "is missing; the model cannot be built without it"));
            }
        };
        settings.insert(format!("xielu_{name}"), json!(values));
    }
    Ok(())
}

/// The layers with positions; directories mark others by a base of zero.
fn positions(keys: &OwnKeys<'_>, settings: &mut Map<String, Value>) -> Result<(), ModelError> {
    const PATTERN: &str = "attention.rope_pattern";
    let Some(list) = keys.header.list(&keys.name(PATTERN))? else {
        return Ok(());
    };
    let flags = list.flags().map_err(|problem| keys.error(PATTERN, problem))?;
    let theta = keys.number("rope.freq_base")?.unwrap_or(10_000.0);
    let bases = flags.iter().map(|turns| if *turns { theta } else { 0.0 });
    settings.insert("layer_rope_theta".into(), bases.collect::<Vec<_>>().into());
    Ok(())
}

/// The query heads of each layer of Laguna, the layers with a window, and the kind of gates: one value for a head, or
/// one for each of its dimensions.
pub(super) fn laguna(
    keys: &OwnKeys<'_>,
    weights: &Checkpoint,
    settings: &mut Map<String, Value>,
) -> Result<(), ModelError> {
    let layers = settings.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0);
    if !(1..=LARGEST_COUNT as u64).contains(&layers) {
        return Err(keys.error("block_count", format!("must be 1 to {LARGEST_COUNT}, found {layers}")));
    }
    let heads = sizes(keys, "attention.head_count", layers as usize)?;
    let gate = weights.info("model.layers.0.self_attn.g_proj.weight");
    let by_head = gate.is_some_and(|gate| gate.shape.first() == heads.first());
    let kind = if by_head { "per-head" } else { "per-element" };
    settings.insert("gating".into(), kind.into());
    // Files without a pattern have a window in three layers of four, as llama.cpp reads them.
    let has_window = keys
        .number("attention.sliding_window")?
        .is_some_and(|window| window > 0.0);
    let kind = |layer: usize| {
        if has_window && !layer.is_multiple_of(4) {
            "sliding_attention"
        } else {
            "full_attention"
        }
    };
    settings.insert(
        "layer_types".into(),
        (0..heads.len()).map(kind).collect::<Vec<_>>().into(),
    );
    settings.insert("num_attention_heads".into(), heads.iter().max().copied().into());
    settings.insert("num_attention_heads_per_layer".into(), heads.into());
    Ok(())
}
