//! Settings of single layers of Gemma 4 and Muse Glimmer, which GGUF spells differently.

use serde_json::{Map, Value, json};

use super::header::Metadata;
use super::own_keys::OwnKeys;
use crate::ModelError;
use crate::fields::Fields;

const PATTERN: &str = "attention.sliding_window_pattern";
const KV_HEADS: &str = "attention.head_count_kv";
const INNER: &str = "feed_forward_length";
const WIDTH: &str = "attention.key_length_swa";
const SHARED: &str = "attention.shared_kv_layers";

/// Adds the settings of single layers; `settings` has the kinds of layers, and `has` tells which tensors exist.
pub(super) fn layers(
    keys: &OwnKeys<'_>,
    known: &Fields,
    settings: &mut Map<String, Value>,
    has: &impl Fn(&str) -> bool,
) -> Result<(), ModelError> {
    let kinds = settings.get("layer_types").and_then(Value::as_array);
    let Some(slides) = kinds.map(|kinds| {
        kinds
            .iter()
            .map(|kind| kind == "sliding_attention")
            .collect::<Vec<bool>>()
    }) else {
        return Err(keys.missing(PATTERN));
    };
    let layers = slides.len();
    let (global, local) = (known.size("head_dim")?, size(keys, WIDTH)?);
    if keys
        .number("attention.value_length_swa")?
        .is_some_and(|width| width != local as f64)
    {
        let problem = format!("must equal attention.key_length_swa {local}; other models are not supported");
        return Err(keys.error("attention.value_length_swa", problem));
    }
    let kv_heads = sizes(keys, KV_HEADS, layers)?;
    let mut listed = Map::new();
    for layer in 0..layers {
        let width = if slides[layer] { local } else { global };
        let own = json!({"head_dim": width, "num_key_value_heads": kv_heads[layer]});
        listed.insert(layer.to_string(), own);
    }
    settings.insert("per_layer_config".into(), listed.into());
    settings.insert("head_dim".into(), local.into());
    settings.insert("num_key_value_heads".into(), kv_heads[0].into());
    let shared = keys.number(SHARED)?.unwrap_or(0.0) as usize;
    settings.insert("num_kv_shared_layers".into(), shared.into());
    let own = layers.saturating_sub(shared);
    feed_forward(&sizes(keys, INNER, layers)?, own, keys, settings)?;
    let value = |layer: usize| has(&format!("model.layers.{layer}.self_attn.v_proj.weight"));
    let lacks_values = (0..own).any(|layer| !slides[layer] && !value(layer));
    settings.insert("attention_k_eq_v".into(), lacks_values.into());
    let inputs = keys.number("embedding_length_per_layer_input")?.unwrap_or(0.0);
    settings.insert("hidden_size_per_layer_input".into(), json!(inputs));
    // Zero means none.
    if keys.number("final_logit_softcapping")? == Some(0.0) {
        settings.insert("final_logit_softcapping".into(), Value::Null);
    }
    Ok(())
}

/// The feed-forward width of `inner` layers; the first `own` have their own keys.
fn feed_forward(
    inner: &[usize],
    own: usize,
    keys: &OwnKeys<'_>,
    settings: &mut Map<String, Value>,
) -> Result<(), ModelError> {
    let base = inner[0];
    let is_wide = inner.iter().any(|width| *width != base);
    let expected = |layer: usize| if is_wide && layer >= own { 2 * base } else { base };
    if let Some(layer) = (0..inner.len()).find(|layer| inner[*layer] != expected(*layer)) {
        let problem = format!(
            "is {} in layer {layer} and {base} in the first; such layers are not supported",
            inner[layer]
        );
        return Err(keys.error(INNER, problem));
    }
    settings.insert("intermediate_size".into(), base.into());
    settings.insert("use_double_wide_mlp".into(), is_wide.into());
    Ok(())
}

/// The rotations of both kinds of layers; `global` comes from the file's own keys and factors.
pub(super) fn rotations(keys: &OwnKeys<'_>, global: Map<String, Value>) -> Result<Value, ModelError> {
    if global.get("rope_type").and_then(Value::as_str) != Some("factors") {
        let problem = "is without the tensor rope_freqs; the model cannot be built without it";
        return Err(keys.error("rope.dimension_count", problem));
    }
    let theta = keys.json("rope.freq_base_swa")?.unwrap_or(json!(10_000.0));
    let mut local = json!({"rope_theta": theta});
    if let Some(dim) = keys.json("rope.dimension_count_swa")? {
        local["rotary_dim"] = dim;
    }
    Ok(json!({"full_attention": global, "sliding_attention": local}))
}

/// A required size.
fn size(keys: &OwnKeys<'_>, key: &str) -> Result<usize, ModelError> {
    keys.number(key)?
        .map(|size| size as usize)
        .ok_or_else(|| keys.missing(key))
}

/// A size for each layer, from a list or from one number for all.
pub(super) fn sizes(keys: &OwnKeys<'_>, key: &str, layers: usize) -> Result<Vec<usize>, ModelError> {
    let Some(Metadata::List(list)) = keys.metadata(key) else {
        return Ok(vec![size(keys, key)?; layers]);
    };
    let of_value = |value| match value {
        Ok(Metadata::Integer(number)) => usize::try_from(number)
            .ok()
            .filter(|number| (1..=1 << 31).contains(number)),
        _ => None,
    };
    let read: Option<Vec<usize>> = list.values().map(of_value).collect();
    match read.filter(|read| read.len() == layers) {
        Some(read) => Ok(read),
        None => {
            let problem = format!("must be a whole number from 1, or {layers} of them");
            Err(keys.error(key, problem))
        }
    }
}

/// Adds settings that Muse Glimmer files spell differently: layers without a window have no positions, and logits
/// have a factor.
pub(super) fn muse_glimmer(keys: &OwnKeys<'_>, settings: &mut Map<String, Value>) -> Result<(), ModelError> {
    if let Some(kinds) = settings.get("layer_types").and_then(Value::as_array) {
        let bases = kinds.iter().map(|kind| u64::from(kind == "sliding_attention"));
        let bases: Vec<u64> = bases.collect();
        settings.insert("layer_rope_theta".into(), bases.into());
    }
    if let Some(scale) = keys.json("logit_scale")? {
        settings.insert("output_multiplier".into(), scale);
    }
    // Zero means none.
    if matches!(keys.number("final_logit_softcapping")?, None | Some(0.0)) {
        settings.insert("final_logit_softcapping".into(), Value::Null);
    }
    Ok(())
}
