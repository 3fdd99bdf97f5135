//! Models in one GGUF file, or in shards of one.
//!
//! A GGUF file is read as the Hugging Face model it was made from: [`names`] gives its tensors and [`settings`] its
//! metadata their names there, so that every family is written once.

mod header;
mod names;
mod pre_tokenizers;
mod settings;
mod tokenizer;

use std::fs::File;
use std::path::{Path, PathBuf};

use header::{Header, Metadata};
use tokenizer::Vocabulary;

use crate::load::Parts;
use crate::weights::{Checkpoint, map};
use crate::{GenerationDefaults, ModelError, RopeScaling, Tokenizer, families};

/// Reads everything of a GGUF model but its weights' data.
pub(crate) fn open(path: &Path, scaling: Option<&RopeScaling>) -> Result<Parts, ModelError> {
    let (header, file) = read(path)?;
    let architecture = settings::architecture(path, &header)?;
    let mut weights = Checkpoint::default();
    let shards = shards(path, &header)?;
    let first_tensors = names::translate(path, architecture, &header)?;
    weights.add_file(path.to_owned(), file, first_tensors)?;
    for shard in shards {
        let (shard_header, file) = read(&shard)?;
        let tensors = names::translate(
            &shard,
            architecture,
            &Header {
                metadata: header.metadata.clone(),
                ..shard_header
            },
        )?;
        weights.add_file(shard, file, tensors)?;
    }
    let fields = settings::fields(path, architecture, &header, &mut weights)?;
    let fields = RopeScaling::apply(scaling, fields)?;
    let (family, name) = families::find(&fields)?;
    let config = (family.configure)(&fields, &name)?;
    let vocabulary = Vocabulary::read(path, &header)?;
    let vocabulary = vocabulary.as_ref();
    let generation = GenerationDefaults {
        eos: match vocabulary {
            Some(vocabulary) => vocabulary.stops()?,
            None => fields.token_ids("eos_token_id")?,
        },
        bos: fields.token_ids("bos_token_id")?.first().copied(),
        ..GenerationDefaults::default()
    };
    Ok(Parts {
        path: path.to_owned(),
        format: "gguf",
        fields,
        family,
        config,
        weights,
        tokenizer: vocabulary.map(Vocabulary::tokenizer).transpose()?,
        tokenizer_path: path.to_owned(),
        chat_template: vocabulary.map(Vocabulary::chat_template).transpose()?.flatten(),
        generation,
    })
}

/// Reads the tokenizer alone; `None` where the file has none.
pub(crate) fn open_tokenizer(path: &Path) -> Result<Option<Tokenizer>, ModelError> {
    let (header, _) = read(path)?;
    let vocabulary = Vocabulary::read(path, &header)?;
    vocabulary.as_ref().map(Vocabulary::tokenizer).transpose()
}

fn read(path: &Path) -> Result<(Header, File), ModelError> {
    let io = |source| ModelError::Io {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    // An empty file cannot be mapped.
    if file.metadata().map_err(io)?.len() < 4 {
        return Err(not_a_model(path));
    }
    let map = map(&file).map_err(io)?;
    if !map.starts_with(b"GGUF") {
        return Err(not_a_model(path));
    }
    let header = header::parse(&map).map_err(|problem| ModelError::CorruptWeights {
        path: path.to_owned(),
        problem,
    })?;
    Ok((header, file))
}

fn not_a_model(path: &Path) -> ModelError {
    ModelError::NotAModel {
        path: path.to_owned(),
        problem: "it is a file but not a GGUF file".into(),
    }
}

/// The other files of a model whose first file is `path`, named `…-00001-of-0000N.gguf`.
fn shards(path: &Path, header: &Header) -> Result<Vec<PathBuf>, ModelError> {
    let count = match header.metadata.get("split.count") {
        Some(Metadata::Integer(count)) if *count > 1 => *count,
        _ => return Ok(Vec::new()),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(stem) = name.strip_suffix(&format!("-00001-of-{count:05}.gguf")) else {
        return Err(ModelError::NotAModel {
            path: path.to_owned(),
            problem: format!(
                "it is one of {count} shards but not named …-00001-of-{count:05}.gguf; give the first shard"
            ),
        });
    };
    if count > 99_999 {
        return Err(not_a_model(path));
    }
    (2..=count)
        .map(|shard| {
            let file = format!("{stem}-{shard:05}-of-{count:05}.gguf");
            let shard_path = path.with_file_name(&file);
            if shard_path.exists() {
                return Ok(shard_path);
            }
            Err(ModelError::MissingFile {
                directory: path.parent().unwrap_or(Path::new(".")).to_owned(),
                file,
                hint: "download every shard of the model into one directory",
            })
        })
        .collect()
}
