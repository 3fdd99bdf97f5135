//! Settings missing in config.json, with the defaults of transformers' classes.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::ModelError;
use crate::blocks::EXPERT_COUNTS;
use crate::fields::Fields;

/// The default settings of each type of text model. `scripts/make_text_defaults.py` writes the file.
static DEFAULTS: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    let defaults: Value = serde_json::from_str(include_str!("text_defaults.json")).expect("the file is checked in");
    defaults.as_object().cloned().unwrap_or_default()
});

/// Sizes that config.json of a plain text model always has. A file without them is damaged.
const SIZES: [&str; 5] = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
];

/// Adds the defaults of the class of `model_type`, except sizes.
pub(super) fn with_class_defaults(fields: Fields) -> Result<Fields, ModelError> {
    let Some(model_type) = fields.text("model_type")?.map(str::to_owned) else {
        return Ok(fields);
    };
    with_defaults(fields, &model_type, &SIZES)
}

/// True if a class around a text model ties embeddings by default.
pub(super) fn is_tied_by_default(class: &str) -> bool {
    let tied = DEFAULTS
        .get(class)
        .and_then(|defaults| defaults.get("tie_word_embeddings"));
    tied.and_then(Value::as_bool).unwrap_or(false)
}

/// The settings of the text model in `class`, with all defaults of both classes. The wrapper decides if embeddings are
/// tied.
pub(super) fn with_wrapped_defaults(mut fields: Fields, class: &str, text_type: &str) -> Result<Fields, ModelError> {
    let own = DEFAULTS.get(class).and_then(|defaults| defaults.get("text_config"));
    if let Some(Value::Object(own)) = own {
        fields = with_missing(fields, own, &[])?;
    }
    with_defaults(fields, text_type, &["tie_word_embeddings"])
}

fn with_defaults(fields: Fields, model_type: &str, but_for: &[&str]) -> Result<Fields, ModelError> {
    match DEFAULTS.get(model_type) {
        Some(Value::Object(defaults)) => with_missing(fields, defaults, but_for),
        _ => Ok(fields),
    }
}

/// Adds the defaults that no setting of the same meaning replaces.
fn with_missing(mut fields: Fields, defaults: &Map<String, Value>, but_for: &[&str]) -> Result<Fields, ModelError> {
    let mut has_base = false;
    for place in ["rope_parameters", "rope_scaling"] {
        let rotation = fields.object(place)?;
        has_base |= rotation.is_some_and(|rotation| rotation.get("rope_theta").is_some());
    }
    let has_experts = EXPERT_COUNTS.iter().any(|name| fields.get(name).is_some());
    for (name, value) in defaults {
        let name = name.as_str();
        let is_elsewhere = (name == "rope_theta" && has_base) || (EXPERT_COUNTS.contains(&name) && has_experts);
        if but_for.contains(&name) || is_elsewhere {
            continue;
        }
        fields = fields.with_default(name, value.clone());
    }
    Ok(fields)
}
