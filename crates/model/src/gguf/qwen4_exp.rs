//! Settings of Qwen4-Exp, from metadata and from the sizes of tensors.

use serde_json::{Map, Value, json};

use super::header::Metadata;
use super::names::NGRAM_TABLE;
use super::own_keys::OwnKeys;
use crate::ModelError;
use crate::weights::Checkpoint;

/// Keys of all files, and their settings.
const KEYS: &[(&str, &str)] = &[
    ("hyper_connection.count", "hc_count"),
    ("hyper_connection.low_rank", "hc_lowrank"),
    ("attention.indexer.head_count", "indexer_n_heads"),
    ("attention.indexer.key_length", "indexer_head_dim"),
    ("attention.indexer.top_k", "indexer_budget"),
];

/// Keys of files with a table of n-grams, and their settings.
const NGRAM_KEYS: &[(&str, &str)] = &[
    ("ple.ngram_size", "ngram_size"),
    ("ple.heads_per_ngram", "heads_per_ngram"),
    ("ple.conv_kernel", "ple_conv_kernel_size"),
    ("ple.eos_token_id", "ngram_end_of_text"),
];

/// Lists of files with a table of n-grams, and their settings.
const NGRAM_LISTS: &[(&str, &str)] = &[
    ("ple.layer_multipliers", "ngram_factors"),
    ("ple.head_offsets", "ngram_offsets"),
    ("ple.head_vocab_sizes", "ngram_sizes"),
];

/// Adds the settings of streams, of indexers and of a table of n-grams.
pub(super) fn settings(
    keys: &OwnKeys<'_>,
    weights: &mut Checkpoint,
    settings: &mut Map<String, Value>,
) -> Result<(), ModelError> {
    keys.insert_required(KEYS, settings)?;
    let ratios = numbers(keys, "attention.compress_ratios")?;
    let Some(ratio) = ratios.iter().copied().find(|ratio| *ratio > 0) else {
        return Err(keys.error("attention.compress_ratios", "lists no layer with attention"));
    };
    if ratios.iter().any(|other| ![0, ratio].contains(other)) {
        let problem = "lists two ratios other than 0; layers of two sizes are not supported";
        return Err(keys.error("attention.compress_ratios", problem));
    }
    settings.insert("indexer_compress_ratio".into(), ratio.into());
    settings.insert("indexer_kv_heads".into(), 1.into());
    // Files lack this setting, and llama.cpp computes with this value.
    settings.insert("output_gate_type".into(), "sigmoid".into());
    if keys.metadata("ple.layers").is_some() {
        ngrams(keys, weights, settings)?;
    }
    Ok(())
}

/// The settings of the table, whose tensor gets the name that it has in the directory.
fn ngrams(keys: &OwnKeys<'_>, weights: &mut Checkpoint, settings: &mut Map<String, Value>) -> Result<(), ModelError> {
    let layers = numbers(keys, "ple.layers")?;
    let [layer] = layers[..] else {
        let problem = format!(
            "lists {} layers; files with one table of n-grams are supported",
            layers.len()
        );
        return Err(keys.error("ple.layers", problem));
    };
    let own = format!("model.layers.{layer}.ple");
    let table = format!("{NGRAM_TABLE}.weight");
    let renamed = format!("{own}.ple_embedding.ngram_embedding.weight");
    weights.rename(|name| {
        if name == table {
            renamed.clone()
        } else {
            name.to_owned()
        }
    });
    // Files lack the number of which the rows are a multiple.
    if let Some(rows) = weights.info(&renamed).and_then(|info| info.shape.first()) {
        settings.insert("ngram_table_rows".into(), (*rows).into());
    }
    // The settings count layers from 1.
    settings.insert("ple_layer_ids".into(), json!([layer.saturating_add(1)]));
    keys.insert_required(NGRAM_KEYS, settings)?;
    for (key, setting) in NGRAM_LISTS {
        settings.insert((*setting).into(), numbers(keys, key)?.into());
    }
    let inputs = weights
        .info(&format!("{own}.key_proj.weight"))
        .and_then(|info| info.shape.get(1));
    if let Some(inputs) = inputs {
        settings.insert("ple_embed_dim".into(), (*inputs).into());
    }
    Ok(())
}

/// A list of whole numbers from 0.
fn numbers(keys: &OwnKeys<'_>, key: &str) -> Result<Vec<u64>, ModelError> {
    let number = |value| match value {
        Ok(Metadata::Integer(number)) => u64::try_from(number).ok().filter(|number| *number <= i64::MAX as u64),
        _ => None,
    };
    let numbers: Option<Vec<u64>> = keys.required_list(key)?.values().map(number).collect();
    numbers.ok_or_else(|| keys.error(key, "must list whole numbers from 0"))
}
