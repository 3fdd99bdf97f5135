//! Models in one GGUF file, or in several shards.
//!
//! A GGUF file is read as its original Hugging Face model: [`names`] translates its tensor names and [`settings`] its
//! metadata, so that every family is written once.

mod adapter;
mod architecture;
mod ends;
mod experts;
mod export;
mod gemma3n;
mod gemma4;
mod header;
mod keys;
mod list;
mod mixed;
mod names;
mod own_keys;
mod parts;
mod pre_tokenizers;
mod qwen4_exp;
mod reader;
mod recurrent;
mod rotation;
mod settings;
mod source;
mod spelt;
mod tokenizer;
mod word_patterns;
mod word_pieces;
mod writer;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(crate) use adapter::open_adapter;
pub use source::{SourceRows, SourceTensor, WeightSource};
pub use writer::{GgufEntry, GgufTensor, gguf_header};

use header::Header;
use memmap2::Mmap;
use riffle_system::memory::map_file;
use tokenizer::Tokens;

use crate::embedding::EmbeddingFiles;
use crate::fields::Fields;
use crate::load::{Parts, milliseconds_since};
use crate::weights::Checkpoint;
use crate::{GenerationDefaults, InfillTokens, LoadOptions, ModelError, RopeScaling, Tokenizer, families};

/// The format name of these models.
const FORMAT: &str = "gguf";
const SHARD_NUMBER: &str = "split.no";
const SHARD_COUNT: &str = "split.count";
const TENSOR_COUNT: &str = "split.tensors.count";
/// The largest count with five digits in a file's name.
const LARGEST_SHARD_COUNT: i128 = 99_999;

/// Reads everything of a GGUF model except its weights' data.
pub(crate) fn open(path: &Path, options: &LoadOptions) -> Result<Parts, ModelError> {
    let (file, map) = read(path)?;
    let header = Header::parse(path, &map)?;
    keys::check_general(&header)?;
    let architecture = architecture::architecture(&header)?;
    keys::check_settings(&header, architecture, architecture.prefix())?;
    let mut weights = Checkpoint::default();
    let shards = shards(&header)?;
    let mut tensor_count = header.tensors.len();
    let tensors = names::translate(architecture, &header, &header.tensors)?;
    weights.add_file(path.to_owned(), file, tensors)?;
    for (number, shard) in shards.into_iter().enumerate() {
        let (file, map) = read(&shard)?;
        let shard_header = Header::parse(&shard, &map)?;
        keys::check_general(&shard_header)?;
        check_place(&header, &shard_header, number + 1)?;
        tensor_count += shard_header.tensors.len();
        let tensors = names::translate(architecture, &header, &shard_header.tensors)?;
        weights.add_file(shard.clone(), file, tensors)?;
    }
    if let Some(promised) = header
        .integer(TENSOR_COUNT)?
        .filter(|promised| *promised != tensor_count as i128)
    {
        let problem = format!("is {promised}, the files hold {tensor_count} tensors; download every file again");
        return Err(header.error(TENSOR_COUNT, problem));
    }
    let fields = settings::fields(architecture, &header, &mut weights)?;
    let fields = RopeScaling::apply(options.rope_scaling.as_ref(), fields)?;
    let (family, mut config) = families::configure(&fields, options.families)?;
    if weights.bind_factors()? {
        config.host_only = config.host_only.or(Some("weights, which have scales of whole tensors"));
    }
    let start = Instant::now();
    let tokens = Tokens::read(path, &header)?;
    let tokens = tokens.as_ref();
    let tokenizer = tokens.map(Tokens::tokenizer).transpose()?;
    let tokenizer_ms = milliseconds_since(start);
    let generation = generation(tokens, &fields)?;
    let infill = match tokens.map(Tokens::infill).transpose()?.flatten() {
        None => tokenizer.as_ref().and_then(InfillTokens::of_vocabulary),
        named => named,
    };
    Ok(Parts {
        path: path.to_owned(),
        format: FORMAT,
        embedding: embedding(&header, architecture, config.is_bidirectional)?,
        infill,
        reranking_prompt: header.text("tokenizer.chat_template.rerank")?.map(str::to_owned),
        fields,
        family,
        config,
        loads_predictor: false,
        weights,
        tokenizer,
        tokenizer_ms,
        tokenizer_path: path.to_owned(),
        chat_template: tokens.map(Tokens::chat_template).transpose()?.flatten(),
        generation,
    })
}

/// The pooling of a file.
fn embedding(
    header: &Header<'_>,
    architecture: architecture::Architecture,
    is_bidirectional: bool,
) -> Result<EmbeddingFiles, ModelError> {
    let pooling_type = header.integer(&format!("{}.pooling_type", architecture.prefix()))?;
    Ok(EmbeddingFiles::of_gguf(pooling_type, is_bidirectional))
}

/// The tokens that begin a text and end an answer.
fn generation(tokens: Option<&Tokens<'_>>, fields: &Fields) -> Result<GenerationDefaults, ModelError> {
    Ok(GenerationDefaults {
        eos: match tokens {
            Some(tokens) => tokens.ends().to_vec(),
            None => fields.token_ids("eos_token_id")?,
        },
        bos: fields.optional_token_id("bos_token_id")?,
        ..GenerationDefaults::default()
    })
}

/// A model's GGUF tensor names, by the families' names.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`] for a folder that cannot be written as GGUF.
pub(crate) fn stored_names(parts: &Parts) -> Result<BTreeMap<String, String>, ModelError> {
    if parts.format == FORMAT {
        let stored = |name: &String| Some((name.clone(), parts.weights.info(name)?.name.clone()));
        return Ok(parts.weights.names().filter_map(stored).collect());
    }
    let architecture = export::architecture(&parts.fields)?;
    let names = parts.weights.names();
    Ok(names
        .filter_map(|name| Some((name.clone(), names::stored_name(architecture, name)?)))
        .collect())
}

/// Reads only the tokenizer; `None` if the file has none.
pub(crate) fn open_tokenizer(path: &Path) -> Result<Option<Tokenizer>, ModelError> {
    let (_, map) = read(path)?;
    let header = Header::parse(path, &map)?;
    let tokens = Tokens::read(path, &header)?;
    tokens.as_ref().map(Tokens::tokenizer).transpose()
}

fn read(path: &Path) -> Result<(File, Mmap), ModelError> {
    let file = riffle_files::open(path).map_err(|error| ModelError::file(path, error))?;
    let io = |source| ModelError::Io {
        path: path.to_owned(),
        source,
    };
    // An empty file cannot be mapped.
    if file.metadata().map_err(io)?.len() < 4 {
        return Err(not_a_model(path));
    }
    let map = map_file(&file).map_err(io)?;
    if map.starts_with(b"GGUF") {
        Ok((file, map))
    } else {
        Err(not_a_model(path))
    }
}

fn not_a_model(path: &Path) -> ModelError {
    ModelError::NotAModel {
        path: path.to_owned(),
        problem: "it is a file but not a GGUF file".into(),
    }
}

/// The other files of a model whose first file has this `header` and the name `…-00001-of-0000N.gguf`.
fn shards(header: &Header<'_>) -> Result<Vec<PathBuf>, ModelError> {
    let path = header.path;
    let count = match header.integer(SHARD_COUNT)? {
        Some(count) if count > 1 => count,
        _ => return Ok(Vec::new()),
    };
    if count > LARGEST_SHARD_COUNT {
        return Err(header.error(
            SHARD_COUNT,
            format!("{count} is not plausible, {LARGEST_SHARD_COUNT} is the limit"),
        ));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(stem) = name.strip_suffix(&format!("-00001-of-{count:05}.gguf")) else {
        return Err(ModelError::NotAModel {
            path: path.to_owned(),
            problem: format!(
                "it is one of {count} shards but not named …-00001-of-{count:05}.gguf; give the first shard"
            ),
        });
    };
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

/// Checks that a shard's metadata matches its name.
fn check_place(first: &Header<'_>, shard: &Header<'_>, number: usize) -> Result<(), ModelError> {
    let expected = [
        (SHARD_NUMBER, Some(number as i128)),
        (SHARD_COUNT, first.integer(SHARD_COUNT)?),
    ];
    for (key, expected) in expected {
        let found = shard.integer(key)?;
        if let (Some(found), Some(expected)) = (found, expected)
            && found != expected
        {
            let problem =
                format!("is {found}, by the file's name it must be {expected}; rename or download the shards");
            return Err(shard.error(key, problem));
        }
    }
    Ok(())
}
