//! Models in Hugging Face form: a directory of JSON files and safetensors.

use std::path::Path;
use std::time::Instant;

use crate::embedding::EmbeddingFiles;
use crate::fields::{Fields, read_json};
use crate::load::{Parts, milliseconds_since};
use crate::tokenizer::{TokenizerSettings, tokenizer_file};
use crate::weights::{Quantisation, quantised};
use crate::{
    ChatTemplate, GenerationDefaults, InfillTokens, LoadOptions, ModelConfig, ModelError, RopeScaling, Tokenizer,
    families, weights,
};

pub(crate) const CONFIG_FILE: &str = "config.json";

/// The sizes of the model with the settings at `path`, a `config.json`. Only this file is read.
///
/// # Errors
/// As [`inspect`](crate::inspect), of the settings.
pub fn configure(path: &Path, options: &LoadOptions) -> Result<ModelConfig, ModelError> {
    let fields = text_settings(path, options)?.ok_or_else(|| ModelError::NotFound { path: path.to_owned() })?;
    let (_, config) = families::configure(&fields, options.families)?;
    Ok(config)
}

/// The settings of the text model in a `config.json`; `None` if there is no such file.
fn text_settings(path: &Path, options: &LoadOptions) -> Result<Option<Fields>, ModelError> {
    let Some(value) = read_json(path)? else {
        return Ok(None);
    };
    let fields = families::text_fields(Fields::new(path, value)?)?;
    RopeScaling::apply(options.rope_scaling.as_ref(), fields).map(Some)
}

/// Reads everything of a directory except its weights' data.
pub(crate) fn open(path: &Path, options: &LoadOptions) -> Result<Parts, ModelError> {
    let Some(mut fields) = text_settings(&path.join(CONFIG_FILE), options)? else {
        return Err(ModelError::MissingFile {
            directory: path.to_owned(),
            file: CONFIG_FILE.into(),
            hint: "give the directory that holds config.json and the weights, or a GGUF file",
        });
    };
    let mut opened = None;
    if families::is_wrapper(&fields) && fields.get("tie_word_embeddings").is_none() {
        let weights = opened.insert(weights::open_directory(path)?);
        fields = fields.with("tie_word_embeddings", weights.info("lm_head.weight").is_none());
    }
    let (family, mut config) = families::configure(&fields, options.families)?;
    let settings = TokenizerSettings::from_directory(path)?;
    let mut weights = match opened {
        Some(weights) => weights,
        None => weights::open_directory(path)?,
    };
    families::name_bare_tensors(&mut weights);
    let quantisation = Quantisation::read(&fields)?;
    let found = quantised::bind(quantisation.as_ref().unwrap_or(&Quantisation::default()), &mut weights)?;
    if found > 0 && quantisation.is_none() {
        config.set_quantised(Quantisation::default().method);
    }
    for (stored, known) in family.renames {
        weights.rename(|name| match name.strip_prefix(stored) {
            Some(rest) => format!("{known}{rest}"),
            None => name.to_owned(),
        });
    }
    let embedding = EmbeddingFiles::from_directory(path, config.hidden_size, config.is_bidirectional)?;
    let start = Instant::now();
    let tokenizer = Tokenizer::from_directory(path, &settings)?
        .map(|tokenizer| tokenizer.without_added_tokens_from(config.vocab_size))
        .transpose()?
        .map(|tokenizer| {
            if embedding.lowers {
                tokenizer.in_lower_case()
            } else {
                tokenizer
            }
        });
    let tokenizer_ms = milliseconds_since(start);
    Ok(Parts {
        path: path.to_owned(),
        format: "safetensors",
        embedding,
        infill: tokenizer.as_ref().and_then(InfillTokens::of_vocabulary),
        reranking_prompt: None,
        family,
        config,
        loads_predictor: false,
        weights,
        tokenizer,
        tokenizer_ms,
        tokenizer_path: tokenizer_file(path),
        chat_template: ChatTemplate::from_directory(path, settings)?,
        generation: GenerationDefaults::from_directory(path, &fields)?,
        fields,
    })
}
