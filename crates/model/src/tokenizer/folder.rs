//! The tokenizer files of a model folder.

use std::path::{Path, PathBuf};

use riffle_files::TOKENIZER_FILES;

use super::pipeline::Pipeline;
use super::settings::TokenizerSettings;
use super::{Tokenizer, broken, description, sentence_piece_file, tekken, unsupported};
use crate::ModelError;
use crate::fields::read_text_file;

/// A tokenizer as described by a file.
pub(super) struct Source {
    pub(super) pipeline: Pipeline,
    /// The tokens at the start and end of a text, if the file gives them.
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
}

/// The reason a file gives no tokenizer.
pub(super) enum SourceError {
    Broken(String),
    /// The file's kind of tokenizer is unsupported.
    Unsupported(String),
}

impl From<String> for SourceError {
    fn from(problem: String) -> SourceError {
        SourceError::Broken(problem)
    }
}

type Reader = fn(&[u8], &TokenizerSettings) -> Result<Source, SourceError>;

/// Readers of the [`TOKENIZER_FILES`], in order.
const READERS: [Reader; 3] = [read_description, sentence_piece_file::read, tekken::read];

/// The tokenizer file of a folder; without one, the path where it is missing.
pub(crate) fn tokenizer_file(directory: &Path) -> PathBuf {
    let mut paths = TOKENIZER_FILES.map(|file| directory.join(file)).into_iter();
    let found = paths.find(|path| path.exists());
    found.unwrap_or_else(|| directory.join(TOKENIZER_FILES[0]))
}

fn read_description(bytes: &[u8], _: &TokenizerSettings) -> Result<Source, SourceError> {
    Ok(Source {
        pipeline: description::read(bytes)?,
        bos: None,
        eos: None,
    })
}

impl Tokenizer {
    /// Reads tokenizer.json, tokenizer.model or tekken.json; `None` if the directory has no tokenizer.
    pub(crate) fn from_directory(
        directory: &Path,
        settings: &TokenizerSettings,
    ) -> Result<Option<Tokenizer>, ModelError> {
        for (file, read) in TOKENIZER_FILES.into_iter().zip(READERS) {
            let path = directory.join(file);
            let Some(bytes) = read_text_file(&path)? else {
                continue;
            };
            let source = read(&bytes, settings).map_err(|error| match error {
                SourceError::Broken(problem) => broken(&path, &problem),
                SourceError::Unsupported(kind) => {
                    unsupported(&path, &kind, "use a model whose tokenizer is byte pairs or unigram")
                }
            })?;
            drop(bytes);
            let mut tokenizer = Tokenizer::new(&path, source.pipeline, source.bos, source.eos)?;
            let named = |role, text: &Option<String>| tokenizer.resolve(settings, role, text.as_deref());
            let (bos, eos) = (named("bos_token", &settings.bos)?, named("eos_token", &settings.eos)?);
            tokenizer.bos = bos.or(tokenizer.bos);
            tokenizer.eos = eos.or(tokenizer.eos);
            if let (true, Some(bos)) = (settings.demands_bos, tokenizer.bos) {
                tokenizer.adds_bos = tokenizer.encode("a", true)?.first() != Some(&bos);
            }
            return Ok(Some(tokenizer));
        }
        Ok(None)
    }
}
