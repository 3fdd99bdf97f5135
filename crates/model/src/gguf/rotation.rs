//! The rotation of queries and keys, from a GGUF file's metadata and its tensors of factors.

use serde_json::{Map, Value, json};

use super::own_keys::OwnKeys;
use crate::ModelError;
use crate::weights::Checkpoint;

const TYPE: &str = "rope.scaling.type";
const ATTENTION_FACTOR: &str = "rope.scaling.attn_factor";

/// The settings of `rope_parameters` in the model's directory.
pub(super) fn rotation(keys: &OwnKeys<'_>, weights: &mut Checkpoint) -> Result<Map<String, Value>, ModelError> {
    let mut rotation = single_values(keys)?;
    let factor = factor(keys)?;
    if let Some(factor) = factor {
        rotation.insert("factor".into(), json!(factor));
    }
    let kind = match keys.text(TYPE)? {
        Some(kind) => kind,
        // A factor without a type divides every angle.
        None if factor.is_some() => "linear",
        None => "none",
    };
    let divides = kind != "none" && factor.is_some_and(|factor| factor != 1.0);
    let stored = StoredFactors::take(weights)?;
    let names = stored.names();
    let rope_type = match (stored.single, stored.short, stored.long) {
        (None, Some(short), Some(long)) => {
            rotation.insert("short_factor".into(), short);
            rotation.insert("long_factor".into(), long);
            if let Some(factor) = keys.number(ATTENTION_FACTOR)? {
                rotation.insert("attention_factor".into(), json!(factor));
            }
            "longrope"
        }
        (Some(single), None, None) if matches!(kind, "none" | "linear") && !divides => {
            rotation.insert("factors".into(), single);
            "factors"
        }
        (None, None, None) => match kind {
            "none" => "default",
            "longrope" => {
                let problem = "is \"longrope\", but the tensors rope_factors_short and rope_factors_long are missing; take another file of the model";
                return Err(keys.error(TYPE, problem));
            }
            other => other,
        },
        _ => {
            let problem = format!("is {kind:?} with the tensors {names}; such a rotation is not supported");
            return Err(keys.error(TYPE, problem));
        }
    };
    if rope_type != "longrope"
        && let Some(factor) = keys.number(ATTENTION_FACTOR)?.filter(|factor| *factor != 1.0)
    {
        let problem = format!("is {factor}, which is supported for longrope alone");
        return Err(keys.error(ATTENTION_FACTOR, problem));
    }
    rotation.insert("rope_type".into(), rope_type.into());
    Ok(rotation)
}

/// Settings stored under a single GGUF key.
fn single_values(keys: &OwnKeys<'_>) -> Result<Map<String, Value>, ModelError> {
    let mut rotation = Map::new();
    for (key, setting) in [
        ("rope.freq_base", "rope_theta"),
        ("rope.dimension_count", "rotary_dim"),
        (
            "rope.scaling.original_context_length",
            "original_max_position_embeddings",
        ),
        ("rope.scaling.yarn_beta_fast", "beta_fast"),
        ("rope.scaling.yarn_beta_slow", "beta_slow"),
    ] {
        if let Some(value) = keys.json(key)? {
            rotation.insert(setting.into(), value);
        }
    }
    Ok(rotation)
}

/// The divisor of positions; zero means none, and the second key is the older one.
fn factor(keys: &OwnKeys<'_>) -> Result<Option<f64>, ModelError> {
    let factor = match keys.number("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.number("rope.scale_linear")?,
    };
    Ok(factor.filter(|factor| *factor != 0.0))
}

/// Divisors of angles from a file's tensors, as JSON.
struct StoredFactors {
    single: Option<Value>,
    short: Option<Value>,
    long: Option<Value>,
}

impl StoredFactors {
    fn take(weights: &mut Checkpoint) -> Result<StoredFactors, ModelError> {
        let mut factors = |name: &str| -> Result<Option<Value>, ModelError> {
            let Some(length) = weights.info(name).map(|info| info.shape[0]) else {
                return Ok(None);
            };
            Ok(Some(json!(weights.vector(name, length)?)))
        };
        Ok(StoredFactors {
            single: factors("rope_freqs.weight")?,
            short: factors("rope_factors_short.weight")?,
            long: factors("rope_factors_long.weight")?,
        })
    }

    /// The existing tensors.
    fn names(&self) -> String {
        let tensors = [
            (&self.single, "rope_freqs"),
            (&self.short, "rope_factors_short"),
            (&self.long, "rope_factors_long"),
        ];
        let found: Vec<&str> = tensors
            .iter()
            .filter(|(factors, _)| factors.is_some())
            .map(|(_, name)| *name)
            .collect();
        found.join(", ")
    }
}
