//! Settings of Gemma 3n, from metadata and from the sizes of tensors.

use serde_json::{Map, Value, json};

use super::gemma4::sizes;
use super::header::Metadata;
use super::mixed::layer_count;
use super::own_keys::OwnKeys;
use crate::ModelError;
use crate::weights::Checkpoint;

/// Keys and their settings.
const KEYS: &[(&str, &str)] = &[
    ("altup.active_idx", "altup_active_idx"),
    ("altup.num_inputs", "altup_num_inputs"),
    ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
    ("attention.shared_kv_layers", "num_kv_shared_layers"),
];

/// Adds the settings of layers, streams and per-layer inputs. A key that the files of llama.cpp always have is
/// required.
pub(super) fn settings(
    keys: &OwnKeys<'_>,
    weights: &Checkpoint,
    settings: &mut Map<String, Value>,
) -> Result<(), ModelError> {
    keys.insert_required(KEYS, settings)?;
    let widths = sizes(keys, "feed_forward_length", layer_count(settings, keys)?)?;
    settings.insert("intermediate_size".into(), widths.into());
    settings.insert("activation_sparsity_deviations".into(), deviations(keys)?);
    for (tensor, setting) in [
        ("model.embed_tokens_per_layer.weight", "vocab_size_per_layer_input"),
        ("model.layers.0.laurel.linear_left.weight", "laurel_rank"),
    ] {
        if let Some(rows) = weights.info(tensor).and_then(|info| info.shape.first()) {
            settings.insert(setting.into(), (*rows).into());
        }
    }
    Ok(())
}

/// For each layer, the number of standard deviations above the mean at which gates open. Minus infinity, which becomes
/// null, means a layer without sparsity.
fn deviations(keys: &OwnKeys<'_>) -> Result<Value, ModelError> {
    const KEY: &str = "activation_sparsity_scale";
    let number = |value| match value {
        Ok(Metadata::Float(number)) if number.is_finite() => Ok(json!(number)),
        Ok(Metadata::Float(f64::NEG_INFINITY)) => Ok(Value::Null),
        Ok(other) => Err(keys.error(KEY, format!("must list numbers, found {}", other.show()))),
        Err(problem) => Err(keys.error(KEY, problem)),
    };
    keys.required_list(KEY)?.values().map(number).collect()
}
