//! A model's sampling defaults and end tokens.

use std::path::Path;

use crate::ModelError;
use crate::fields::{Fields, read_json};

/// Largest plausible temperature and penalty.
const LARGEST_FACTOR: f64 = 1e6;

/// The defaults of generation_config.json; missing ids come from config.json.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Tokens that end a generation.
    pub eos: Vec<u32>,
    /// The token at the start of a text.
    pub bos: Option<u32>,
    /// True to sample; `Some(false)` means greedy decoding.
    pub sample: Option<bool>,
    /// Divides logits.
    pub temperature: Option<f32>,
    /// Likeliest tokens to choose from.
    pub top_k: Option<usize>,
    /// Probability mass to choose from.
    pub top_p: Option<f32>,
    /// Least probability, relative to the likeliest token's.
    pub min_p: Option<f32>,
    /// Penalty on repeated tokens.
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
        let number = |name: &str, most: f64| -> Result<Option<f32>, ModelError> {
            let number = fields.optional_within(name, 0.0..=most)?;
            Ok(number.map(|number| number as f32))
        };
        let bos = match fields.optional_token_id("bos_token_id")? {
            Some(bos) => Some(bos),
            None => config.optional_token_id("bos_token_id")?,
        };
        let repeat_penalty = number("repetition_penalty", LARGEST_FACTOR)?;
        if repeat_penalty == Some(0.0) {
            return Err(fields.error("repetition_penalty", "must be above 0, found 0"));
        }
        Ok(GenerationDefaults {
            eos: ids("eos_token_id")?,
            bos,
            sample: fields.optional_flag("do_sample")?,
            temperature: number("temperature", LARGEST_FACTOR)?,
            // In Hugging Face's files 0 disables it.
            top_k: fields.optional_count("top_k")?.filter(|top_k| *top_k > 0),
            top_p: number("top_p", 1.0)?,
            min_p: number("min_p", 1.0)?,
            repeat_penalty,
        })
    }
}
