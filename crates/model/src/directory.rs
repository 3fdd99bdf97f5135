//! Models as Hugging Face stores them: a directory of JSON files and safetensors.

use std::path::Path;
use std::time::Instant;

use crate::fields::{Fields, read_json};
use crate::load::{Parts, milliseconds_since};
use crate::tokenizer::{TOKENIZER_FILE, TokenizerSettings};
use crate::{
    ChatTemplate, GenerationDefaults, LoadOptions, ModelConfig, ModelError, RopeScaling, Tokenizer, families, weights,
};

pub(crate) const CONFIG_FILE: &str = "config.json";

/// The sizes that the settings at `path`, a `config.json`, describe. Nothing beside them is read.
///
/// # Errors
/// As [`inspect`](crate::inspect), of the settings.
pub fn configure(path: &Path, options: &LoadOptions) -> Result<ModelConfig, ModelError> {
    let value = read_json(path)?.ok_or_else(|| ModelError::NotFound { path: path.to_owned() })?;
    let fields = Fields::new(path, value)?.of_text_model()?;
    let fields = RopeScaling::apply(options.rope_scaling.as_ref(), fields)?;
    let (_, config) = families::configure(&fields, options.families)?;
    Ok(config)
}

/// Reads everything of a directory but its weights' data.
pub(crate) fn open(path: &Path, options: &LoadOptions) -> Result<Parts, ModelError> {
    let config_path = path.join(CONFIG_FILE);
    let Some(value) = read_json(&config_path)? else {
        return Err(ModelError::MissingFile {
            directory: path.to_owned(),
            file: CONFIG_FILE.into(),
            hint: "give the directory that holds config.json and the weights, or a GGUF file",
        });
    };
    let mut fields = families::text_fields(Fields::new(&config_path, value)?)?;
    if families::is_wrapper(&fields) && fields.get("tie_word_embeddings").is_none() {
        let has_head = weights::open_directory(path)?.info("lm_head.weight").is_some();
        fields = fields.with("tie_word_embeddings", !has_head);
    }
    let fields = RopeScaling::apply(options.rope_scaling.as_ref(), fields)?;
    let (family, config) = families::configure(&fields, options.families)?;
    let settings = TokenizerSettings::from_directory(path)?;
    let mut weights = weights::open_directory(path)?;
    for (stored, known) in family.renames {
        weights.rename(|name| match name.strip_prefix(stored) {
            Some(rest) => format!("{known}{rest}"),
            None => name.to_owned(),
        });
    }
    let start = Instant::now();
    let tokenizer = Tokenizer::from_directory(path, &settings)?;
    let tokenizer_ms = milliseconds_since(start);
    Ok(Parts {
        path: path.to_owned(),
        format: "safetensors",
        family,
        config,
        loads_predictor: false,
        weights,
        tokenizer,
        tokenizer_ms,
        tokenizer_path: path.join(TOKENIZER_FILE),
        chat_template: ChatTemplate::from_directory(path, settings)?,
        generation: GenerationDefaults::from_directory(path, &fields)?,
        fields,
    })
}
