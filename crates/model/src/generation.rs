//! How a model wants to be sampled and where it stops.

use std::path::Path;

use crate::ModelError;
use crate::fields::{Fields, read_json};

/// The defaults of generation_config.json, with ids from config.json where it has none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Tokens any of which ends a generation.
    pub eos: Vec<u32>,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// Whether to sample at all; `Some(false)` asks for the likeliest token.
    pub sample: Option<bool>,
    /// Divides logits.
    pub temperature: Option<f32>,
    /// Likeliest tokens to choose from.
    pub top_k: Option<usize>,
    /// Probability mass to choose from.
    pub top_p: Option<f32>,
    /// Least probability, relative to the likeliest token's.
    pub min_p: Option<f32>,
    /// Penalty on tokens that occurred.
    pub repeat_penalty: Option<f32>,
}

impl GenerationDefaults {
    pub(crate) fn from_directory(directory: &Path, config: &Fields) -> Result<GenerationDefaults, ModelError> {
        let path = directory.join("generation_config.json");
        let value = read_json(&path)?.unwrap_or_else(|| serde_json::json!({}));
        let fields = Fields::new(&path, value)?;
        let ids = |name: &str| -> Result<Vec<u32>, ModelError> {
            let own = fields.token_ids(name)?;
            if own.is_empty() {
                config.token_ids(name)
            } else {
                Ok(own)
            }
        };
        let number = |name: &str| -> Result<Option<f32>, ModelError> {
            Ok(fields.optional_number(name)?.map(|number| number as f32))
        };
        Ok(GenerationDefaults {
            eos: ids("eos_token_id")?,
            bos: ids("bos_token_id")?.first().copied(),
            sample: fields.optional_flag("do_sample")?,
            temperature: number("temperature")?,
            // 0 switches it off in Hugging Face's files.
            top_k: match fields.get("top_k").and_then(serde_json::Value::as_u64) {
                Some(0) => None,
                _ => fields.optional_size("top_k")?,
            },
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repeat_penalty: number("repetition_penalty")?,
        })
    }
}
