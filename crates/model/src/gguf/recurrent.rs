//! Settings of models with recurrent layers. A file's layer count includes the layers that predict further tokens.

use serde_json::{Map, Value, json};

use super::architecture::Architecture;
use super::own_keys::OwnKeys;
use crate::ModelError;
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;

/// The number of the model's own layers, without the layers that predict further tokens.
pub(super) fn own_layers(keys: &OwnKeys<'_>, known: &Fields) -> Result<usize, ModelError> {
    let predicting = known.optional_count("num_nextn_predict_layers")?.unwrap_or(0);
    let layers = known.size("num_hidden_layers")?.checked_sub(predicting);
    layers
        .filter(|layers| (1..=LARGEST_COUNT).contains(layers))
        .ok_or_else(|| {
            keys.error(
                "block_count",
                format!("leaves no layers beside nextn_predict_layers {predicting}"),
            )
        })
}

/// Settings of a model with recurrent layers that GGUF spells differently.
pub(super) fn hybrid(
    architecture: Architecture,
    keys: &OwnKeys<'_>,
    known: &Fields,
    settings: &mut Map<String, Value>,
    has: &impl Fn(&str) -> bool,
) -> Result<(), ModelError> {
    let layers = own_layers(keys, known)?;
    settings.insert("num_hidden_layers".into(), layers.into());
    let recurrent: Vec<bool> = (0..layers)
        .map(|layer| has(&format!("model.layers.{layer}.linear_attn.A")))
        .collect();
    check_recurrent(keys, known, &recurrent)?;
    let kinds = recurrent.iter().map(|recurrent| match recurrent {
        true => "linear_attention",
        false => "full_attention",
    });
    settings.insert("layer_types".into(), kinds.collect::<Vec<_>>().into());
    let value_heads = known.size("linear_num_value_heads")?;
    if let Some(width) = keys.number("ssm.inner_size")? {
        let head = width / value_heads as f64;
        if head.fract() != 0.0 {
            let problem = format!("{width} is not a multiple of ssm.time_step_rank {value_heads}");
            return Err(keys.error("ssm.inner_size", problem));
        }
        settings.insert("linear_value_head_dim".into(), json!(head));
    }
    // Value heads are stored in another order, norms with one added, and decays precomputed.
    settings.insert(
        "value_heads_tiled".into(),
        (architecture != Architecture::Qwen3Next).into(),
    );
    settings.insert("decay_rates_stored".into(), true.into());
    Ok(())
}

/// Checks that the recurrent layers in the tensors match the metadata.
fn check_recurrent(keys: &OwnKeys<'_>, known: &Fields, recurrent: &[bool]) -> Result<(), ModelError> {
    const LIST: &str = "attention.recurrent_layers";
    const INTERVAL: &str = "full_attention_interval";
    let (key, named) = if let Some(list) = keys.header.list(&keys.name(LIST))? {
        (LIST, list.flags().map_err(|problem| keys.error(LIST, problem))?)
    } else if let Some(interval) = keys.json(INTERVAL)? {
        let interval = known.clone().with(INTERVAL, interval).size(INTERVAL)?;
        let named = (1..=recurrent.len()).map(|layer| !layer.is_multiple_of(interval));
        (INTERVAL, named.collect())
    } else {
        return Ok(());
    };
    let differs = |layer: &usize| named.get(*layer) != Some(&recurrent[*layer]);
    match (0..recurrent.len()).find(differs) {
        None => Ok(()),
        Some(layer) => {
            let kind = if recurrent[layer] { "recurrent" } else { "attention" };
            let problem = format!("does not agree with the tensors of layer {layer}, which are those of {kind}");
            Err(keys.error(key, problem))
        }
    }
}
