//! The files of sentence-transformers in a model's folder: `modules.json`, the folders that it names, and the prompts.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::dense::{Dense, DenseFiles};
use super::{Pooling, TextEmbedding};
use crate::ModelError;
use crate::fields::{Fields, read_json};
use crate::weights::Checkpoint;

/// Maximum number of modules of a list.
const MOST_MODULES: usize = 16;

/// A [`TextEmbedding`] without the weights of its layers.
#[derive(Default)]
pub(crate) struct EmbeddingFiles {
    embedding: TextEmbedding,
    dense: Vec<DenseFiles>,
    /// True if the file is a reranker's, with a head for scores in addition to the head for words.
    pub(crate) ranks: bool,
    /// True if texts become lower case before the tokenizer reads them.
    pub(crate) lowers: bool,
}

impl EmbeddingFiles {
    /// Reads the files of a folder whose model has hidden states of `hidden_size`. Without files, a model that reads in
    /// both directions (`is_bidirectional`) pools the mean, as in sentence-transformers.
    ///
    /// # Errors
    /// Invalid JSON and invalid settings. Unsupported modules give a [`TextEmbedding::refusal`].
    pub(crate) fn from_directory(
        directory: &Path,
        hidden_size: usize,
        is_bidirectional: bool,
    ) -> Result<Self, ModelError> {
        let mut files = Self::default();
        if is_bidirectional {
            files.embedding.pooling = Pooling::Mean;
        }
        if let Some(refusal) = files.read_modules(directory, hidden_size)?.err() {
            files.embedding.refusal = Some(refusal);
            files.dense.clear();
        }
        files.read_prompts(directory)?;
        Ok(files)
    }

    /// Creates the settings from the pooling type of a GGUF file.
    pub(crate) fn of_gguf(pooling_type: Option<i128>, is_bidirectional: bool) -> Self {
        /// `pooling_type` of rerankers, in llama.cpp's numbers.
        const RANK: i128 = 4;
        Self {
            embedding: TextEmbedding::of_gguf(pooling_type, is_bidirectional),
            dense: Vec::new(),
            ranks: pooling_type == Some(RANK),
            lowers: false,
        }
    }

    /// Bytes of the weights in the files.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.dense.iter().map(DenseFiles::file_bytes).sum()
    }

    /// The weights of the layers that have files of their own.
    pub(crate) fn weights(&self) -> impl Iterator<Item = &Checkpoint> {
        self.dense.iter().map(DenseFiles::weights)
    }

    /// Reads the weights. GGUF files store them beside the model's, `weights`.
    ///
    /// # Errors
    /// Layers whose widths do not match hidden states of `hidden_size`.
    pub(crate) fn load(self, weights: &mut Checkpoint, hidden_size: usize) -> Result<TextEmbedding, ModelError> {
        let dense = self.dense.into_iter().map(DenseFiles::load);
        let mut dense = dense.collect::<Result<Vec<_>, _>>()?;
        let mut width = hidden_size;
        for name in ["dense_2", "dense_3"] {
            dense.extend(DenseFiles::beside(weights, name, width)?);
            width = dense.last().map_or(width, Dense::outputs);
        }
        Ok(TextEmbedding {
            dense,
            ..self.embedding
        })
    }

    /// Reads `modules.json` and the folders that it names. The inner error names the unsupported module.
    fn read_modules(&mut self, directory: &Path, hidden_size: usize) -> Result<Result<(), String>, ModelError> {
        let Some(modules) = read_json(&directory.join("modules.json"))? else {
            return Ok(Ok(()));
        };
        let Some(modules) = modules.as_array().filter(|modules| modules.len() <= MOST_MODULES) else {
            return Ok(Err(format!(
                "modules.json holds no list of up to {MOST_MODULES} modules"
            )));
        };
        self.embedding.is_normalised = false;
        self.embedding.ends_texts = false;
        let (mut has_pooling, mut width) = (false, hidden_size);
        for module in modules {
            let text = |name: &str| module.get(name).and_then(Value::as_str).unwrap_or("");
            let kind = text("type").rsplit('.').next().unwrap_or("");
            let folder = text("path");
            if folder.contains("..") || Path::new(folder).is_absolute() {
                return Ok(Err(format!(
                    "modules.json names {folder:?}, which is no folder of the model"
                )));
            }
            let folder = directory.join(folder);
            let refusal = match kind {
                "Transformer" => {
                    self.read_transformer(&folder)?;
                    None
                }
                "Pooling" => {
                    has_pooling = true;
                    self.read_pooling(&folder)?
                }
                "Dense" => match DenseFiles::open(&folder, width)? {
                    Ok(dense) => {
                        width = dense.outputs();
                        self.dense.push(dense);
                        None
                    }
                    Err(problem) => Some(problem),
                },
                "Normalize" => {
                    self.embedding.is_normalised = true;
                    continue;
                }
                other => Some(format!("modules.json names {other:?}, which is not supported")),
            };
            if let Some(refusal) = refusal {
                return Ok(Err(refusal));
            }
            if self.embedding.is_normalised {
                return Ok(Err(
                    "modules.json has a module behind Normalize, which is not supported".to_owned(),
                ));
            }
        }
        self.embedding.is_stated = has_pooling;
        Ok(if has_pooling {
            Ok(())
        } else {
            Err("modules.json names no pooling".to_owned())
        })
    }

    /// Reads the limit on the length of texts, and if they become lower case.
    fn read_transformer(&mut self, folder: &Path) -> Result<(), ModelError> {
        let path = folder.join("sentence_bert_config.json");
        let Some(value) = read_json(&path)? else {
            return Ok(());
        };
        let fields = Fields::new(&path, value)?;
        self.embedding.most_tokens = fields.optional_size("max_seq_length")?;
        self.lowers = fields.flag("do_lower_case", false)?;
        Ok(())
    }

    /// Reads the pooling; returns a reason if it is unsupported.
    fn read_pooling(&mut self, folder: &Path) -> Result<Option<String>, ModelError> {
        let path = folder.join("config.json");
        let Some(value) = read_json(&path)? else {
            return Ok(Some(format!("{} is missing", path.display())));
        };
        let fields = Fields::new(&path, value)?;
        let mut modes = match fields.get("pooling_mode") {
            Some(Value::String(mode)) => vec![mode.clone()],
            _ => fields.texts("pooling_mode")?,
        };
        for (name, value) in fields.values() {
            if let (Some(mode), Value::Bool(true)) = (name.strip_prefix("pooling_mode_"), value) {
                modes.push(mode.trim_end_matches("_token").trim_end_matches("_tokens").to_owned());
            }
        }
        self.embedding.pooling = match modes.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["cls"] => Pooling::First,
            ["mean"] => Pooling::Mean,
            ["lasttoken"] => Pooling::Last,
            _ => return Ok(Some(format!("pooling by {modes:?} is not supported"))),
        };
        let leaves_out = !fields.flag("include_prompt", true)?;
        Ok(leaves_out.then(|| "pooling without the prompt is not supported".to_owned()))
    }

    /// Reads the prompts.
    fn read_prompts(&mut self, directory: &Path) -> Result<(), ModelError> {
        let path = directory.join("config_sentence_transformers.json");
        let Some(value) = read_json(&path)? else {
            return Ok(());
        };
        let fields = Fields::new(&path, value)?;
        if let Some(prompts) = fields.object("prompts")? {
            let text = |(name, value): (String, Value)| Some((name, value.as_str()?.to_owned()));
            self.embedding.prompts = prompts
                .values()
                .into_iter()
                .filter_map(text)
                .collect::<BTreeMap<_, _>>();
        }
        self.embedding.default_prompt = match fields.text("default_prompt_name")? {
            Some(name) if !self.embedding.prompts.contains_key(name) => {
                return Err(fields.error(
                    "default_prompt_name",
                    format!("is {name:?}, which is none of the prompts"),
                ));
            }
            name => name.map(str::to_owned),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> TextEmbedding {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let files = EmbeddingFiles::from_directory(folder.path(), 8, false).unwrap();
        files.load(&mut Checkpoint::default(), 8).unwrap()
    }

    const MODULES: &str = r#"[{"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;

    #[test]
    fn both_spellings_of_a_pooling_are_read() {
        for (pooling, expected) in [
            (
                r#"{"pooling_mode_lasttoken": true, "pooling_mode_cls_token": false}"#,
                Pooling::Last,
            ),
            (r#"{"pooling_mode_mean_tokens": true}"#, Pooling::Mean),
            (r#"{"pooling_mode": "cls"}"#, Pooling::First),
        ] {
            let read = read(&[("modules.json", MODULES), ("1_Pooling/config.json", pooling)]);
            assert_eq!((read.pooling, read.is_normalised), (expected, true), "{pooling}");
            assert_eq!((read.ends_texts, read.is_stated, read.refusal), (false, true, None));
        }
    }

    #[test]
    fn what_is_not_computed_is_named() {
        let normal = [
            ("modules.json", MODULES),
            ("1_Pooling/config.json", r#"{"pooling_mode": "max"}"#),
        ];
        assert!(read(&normal).refusal.unwrap().contains("\"max\""));
        let other = MODULES.replace("models.Pooling", "models.CNN");
        assert!(read(&[("modules.json", &other)]).refusal.unwrap().contains("\"CNN\""));
        let outside = MODULES.replace("1_Pooling", "../other");
        assert!(
            read(&[("modules.json", &outside)])
                .refusal
                .unwrap()
                .contains("no folder of the model")
        );
        assert!(read(&[]).refusal.is_none() && !read(&[]).is_stated);
    }
}
