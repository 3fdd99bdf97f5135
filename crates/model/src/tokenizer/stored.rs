//! The tokens of a folder's tokenizer as lists, for files that store lists.

use std::collections::HashMap;
use std::path::Path;

use riffle_files::TOKENIZER_FILES;
use serde_json::Value;

use super::sentence_pieces::UNUSED;
use super::{
    BYTE, CONTROL, NORMAL, TokenizerSettings, UNKNOWN, USER_DEFINED, broken, pair, sentence_piece_file, unsupported,
};
use crate::ModelError;
use crate::fields::{read_json, read_text_file};

/// The score of a piece that merges do not produce.
const NEVER_MERGED: f32 = -1e9;

/// Tokens by id, and the algorithm from text to tokens.
pub(crate) struct StoredTokens {
    pub(crate) texts: Vec<String>,
    pub(crate) kinds: Vec<u8>,
    pub(crate) model: StoredModel,
}

/// The algorithm from words to tokens.
pub(crate) enum StoredModel {
    /// Pieces of characters, merged by score.
    Pieces(Vec<f32>),
    /// Characters that represent bytes, merged in this order.
    Bytes(Vec<String>),
}

impl StoredTokens {
    /// Reads tokenizer.model, or else tokenizer.json, with at least `count` ids; `None` if the folder has neither.
    ///
    /// # Errors
    /// [`ModelError`] for a damaged tokenizer, or a kind that lists cannot represent.
    pub(crate) fn read(
        directory: &Path,
        settings: &TokenizerSettings,
        count: usize,
    ) -> Result<Option<StoredTokens>, ModelError> {
        let [json_path, model_path] = [TOKENIZER_FILES[0], TOKENIZER_FILES[1]].map(|file| directory.join(file));
        let json = read_json(&json_path)?;
        let mut tokens = match (read_text_file(&model_path)?, &json) {
            (Some(bytes), _) => {
                let pieces = sentence_piece_file::pieces(&bytes).map_err(|problem| broken(&model_path, &problem))?;
                let Some((texts, kinds, scores)) = pieces else {
                    return Err(unsupported(
                        &model_path,
                        "unigram model",
                        "only merges of pieces can be written to GGUF",
                    ));
                };
                StoredTokens {
                    texts,
                    kinds,
                    model: StoredModel::Pieces(scores),
                }
            }
            (None, Some(json)) => of_description(json).map_err(|problem| broken(&json_path, &problem))?,
            (None, None) => return Ok(None),
        };
        let listed = json
            .iter()
            .flat_map(|json| json["added_tokens"].as_array().into_iter().flatten());
        for token in listed {
            let id = token["id"].as_u64().and_then(|id| u32::try_from(id).ok());
            if let (Some(id), Some(text)) = (id, token["content"].as_str()) {
                tokens.add(id, text, token["special"].as_bool() == Some(true));
            }
        }
        if json.is_none() {
            for token in settings.with_added_tokens(Vec::new()) {
                tokens.add(token.id, &token.text, token.special);
            }
        }
        tokens.fill(count);
        Ok(Some(tokens))
    }

    /// Adds a token that is matched before a text is split.
    fn add(&mut self, id: u32, text: &str, is_special: bool) {
        let id = id as usize;
        // Ids far beyond the others would allocate memory that no vocabulary needs.
        if id > self.texts.len() + (1 << 16) {
            return;
        }
        self.fill(id + 1);
        text.clone_into(&mut self.texts[id]);
        let keeps = matches!(self.kinds[id], UNKNOWN | BYTE);
        if !keeps {
            self.kinds[id] = if is_special { CONTROL } else { USER_DEFINED };
        }
    }

    fn fill(&mut self, count: usize) {
        for id in self.texts.len()..count {
            self.texts.push(format!("[PAD{id}]"));
            self.kinds.push(UNUSED);
            if let StoredModel::Pieces(scores) = &mut self.model {
                scores.push(NEVER_MERGED);
            }
        }
    }
}

/// The vocabulary and the merges of a tokenizer.json.
fn of_description(json: &Value) -> Result<StoredTokens, String> {
    let model = &json["model"];
    let kind = model["type"].as_str().unwrap_or("BPE");
    if kind != "BPE" {
        return Err(format!("a model of type {kind} cannot be written to GGUF"));
    }
    let vocabulary = model["vocab"].as_object().ok_or("its vocabulary is missing")?;
    let mut texts = vec![None; vocabulary.len()];
    for (text, id) in vocabulary {
        let id = id
            .as_u64()
            .and_then(|id| usize::try_from(id).ok())
            .ok_or("an id is no whole number")?;
        if id > vocabulary.len() + (1 << 16) {
            return Err(format!("its id {id} is far beyond its {} tokens", vocabulary.len()));
        }
        if id >= texts.len() {
            texts.resize(id + 1, None);
        }
        texts[id] = Some(text.clone());
    }
    let mut merges = Vec::new();
    for merge in model["merges"].as_array().into_iter().flatten() {
        let merge = match merge {
            Value::String(merge) => merge.clone(),
            Value::Array(tokens) if tokens.len() == 2 => {
                format!(
                    "{} {}",
                    tokens[0].as_str().unwrap_or_default(),
                    tokens[1].as_str().unwrap_or_default()
                )
            }
            _ => return Err("a merge is not two tokens".to_owned()),
        };
        merges.push(merge);
    }
    let unknown = model["unk_token"].as_str();
    let is_pieces = model["byte_fallback"].as_bool() == Some(true);
    let kinds: Vec<u8> = texts
        .iter()
        .map(|text| kind_of(text.as_deref(), unknown, is_pieces))
        .collect();
    let texts: Vec<String> = texts
        .into_iter()
        .enumerate()
        .map(|(id, text)| text.unwrap_or_else(|| format!("[PAD{id}]")))
        .collect();
    let model = if is_pieces {
        StoredModel::Pieces(scores(&texts, &merges))
    } else {
        StoredModel::Bytes(merges)
    };
    Ok(StoredTokens { texts, kinds, model })
}

fn kind_of(text: Option<&str>, unknown: Option<&str>, is_pieces: bool) -> u8 {
    match text {
        None => UNUSED,
        Some(_) if !is_pieces => NORMAL,
        Some(text) if Some(text) == unknown => UNKNOWN,
        Some(text) if text.len() == 6 && text.starts_with("<0x") && text.ends_with('>') => BYTE,
        Some(_) => NORMAL,
    }
}

/// Scores that give the order of the merges: the first has the highest.
fn scores(texts: &[String], merges: &[String]) -> Vec<f32> {
    let mut ranks = HashMap::new();
    for (rank, merge) in merges.iter().enumerate() {
        if let Some((left, right)) = pair(merge) {
            ranks.entry(format!("{left}{right}")).or_insert(rank);
        }
    }
    let score = |text: &String| ranks.get(text).map_or(NEVER_MERGED, |rank| -(*rank as f32));
    texts.iter().map(score).collect()
}
