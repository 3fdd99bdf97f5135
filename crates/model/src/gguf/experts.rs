//! The settings of mixtures of experts, from metadata and from the sizes of tensors.

use serde_json::{Map, Value, json};

use super::architecture::Architecture;
use super::settings::OwnKeys;
use crate::ModelError;
use crate::config::LARGEST_COUNT;
use crate::weights::Checkpoint;

/// Keys, and the settings that they are where they are not 0.
const KEYS: &[(&str, &str)] = &[
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("expert_weights_scale", "routed_scaling_factor"),
];
/// Numbers of functions that make scores of logits: none named, softmax, sigmoid, softmax over the chosen.
const ANY: f64 = 0.0;
const SOFTMAX: f64 = 1.0;
const SIGMOID: f64 = 2.0;
const SOFTMAX_OF_CHOSEN: f64 = 3.0;

/// Adds the settings of a file with experts; `layers` are the model's own.
pub(super) fn experts(
    architecture: Architecture,
    keys: &OwnKeys<'_>,
    weights: &Checkpoint,
    layers: usize,
    settings: &mut Map<String, Value>,
) -> Result<(), ModelError> {
    let Some(count) = keys.json("expert_count")?.filter(|count| count.as_f64() != Some(0.0)) else {
        return Ok(());
    };
    settings.insert("num_experts".into(), count);
    for (key, setting) in KEYS {
        if let Some(value) = keys.json(key)?.filter(|value| value.as_f64() != Some(0.0)) {
            settings.insert((*setting).to_owned(), value);
        }
    }
    check_scores(architecture, keys)?;
    let divides = match keys.json("expert_weights_norm")? {
        Some(divides) => divides,
        // Files of this architecture do not say it.
        None => json!(architecture.divides_weights()),
    };
    settings.insert("norm_topk_prob".into(), divides);
    let name = |layer: usize, part: &str| format!("model.layers.{layer}.mlp.{part}.weight");
    let rows = |layer: usize, part: &str, dimension: usize| {
        let info = weights.info(&name(layer, part))?;
        info.shape.get(dimension).copied()
    };
    // Which layers have experts, and how wide these are, is said by their tensors.
    let is_sparse = |layer: &usize| weights.info(&name(*layer, "gate")).is_some();
    let (sparse, dense): (Vec<usize>, Vec<usize>) = (0..layers.min(LARGEST_COUNT)).partition(is_sparse);
    if sparse.is_empty() {
        return Err(keys.error("expert_count", "is not 0, but no layer has a router of experts"));
    }
    let width = sparse.first().and_then(|layer| {
        let fused = || Some(rows(*layer, "experts.gate_up_proj", 1)? / 2);
        rows(*layer, "experts.up_proj", 1).or_else(fused)
    });
    let shared = sparse
        .first()
        .and_then(|layer| rows(*layer, "shared_expert.up_proj", 0));
    if let Some(width) = width {
        settings.insert("moe_intermediate_size".into(), width.into());
        // Models without dense layers may leave it out.
        settings.entry("intermediate_size").or_insert_with(|| width.into());
    }
    settings.insert("shared_expert_intermediate_size".into(), shared.unwrap_or(0).into());
    settings.insert("mlp_only_layers".into(), dense.into());
    for (setting, value) in [
        ("first_k_dense_replace", 0),
        ("moe_layer_start_index", 0),
        ("decoder_sparse_step", 1),
        ("moe_layer_interval", 1),
    ] {
        settings.insert(setting.into(), value.into());
    }
    Ok(())
}

/// The function that a file names must be the architecture's.
fn check_scores(architecture: Architecture, keys: &OwnKeys<'_>) -> Result<(), ModelError> {
    const KEY: &str = "expert_gating_func";
    let own: &[f64] = match architecture {
        Architecture::Dots1 | Architecture::Glm4Moe | Architecture::MiniMaxM2 => &[ANY, SIGMOID],
        Architecture::GptOss => &[ANY, SOFTMAX, SOFTMAX_OF_CHOSEN],
        _ => &[ANY, SOFTMAX],
    };
    match keys.number(KEY)? {
        Some(number) if !own.contains(&number) => Err(keys.error(
            KEY,
            format!("is {number}, which is not supported for this architecture"),
        )),
        _ => Ok(()),
    }
}
