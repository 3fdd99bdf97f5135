//! tokenizer_config.json.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::added::{AddedToken, is_mark};
use super::surroundings::Surroundings;
use crate::ModelError;
use crate::chat::DEFAULT_NAME;
use crate::fields::{Fields, read_json};

const CONFIG_FILE: &str = "tokenizer_config.json";
const ADDED_TOKENS_FILE: &str = "added_tokens.json";
const ADDED_TOKENS: &str = "added_tokens_decoder";

/// Tokenizer classes whose `add_bos_token: true` applies even if tokenizer.json adds no BOS.
const CLASSES_WITH_BOS_RULE: &[&str] = &[
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "CodeLlamaTokenizer",
    "CodeLlamaTokenizerFast",
    "GemmaTokenizer",
    "GemmaTokenizerFast",
];

/// The contents of tokenizer_config.json.
pub(crate) struct TokenizerSettings {
    pub(crate) path: PathBuf,
    pub(crate) bos: Option<String>,
    pub(crate) eos: Option<String>,
    /// True if texts begin with BOS although tokenizer.json may have no such rule.
    pub(super) demands_bos: bool,
    /// Text of every named special token, for chat templates.
    pub(crate) special_tokens: Vec<(String, String)>,
    /// Names and texts of the chat templates.
    pub(crate) chat_templates: Vec<(String, String)>,
    /// True if texts begin with BOS and end with EOS, for files without their own rule.
    adds_bos: bool,
    adds_eos: bool,
    added_tokens: Vec<AddedToken>,
}

impl TokenizerSettings {
    /// Reads tokenizer_config.json; a directory without one has default settings.
    pub(crate) fn from_directory(directory: &Path) -> Result<TokenizerSettings, ModelError> {
        let path = directory.join(CONFIG_FILE);
        let value = read_json(&path)?.unwrap_or_else(|| serde_json::json!({}));
        let fields = Fields::new(&path, value)?;
        let mut special_tokens = Vec::new();
        for name in [
            "bos_token",
            "eos_token",
            "unk_token",
            "pad_token",
            "sep_token",
            "cls_token",
            "mask_token",
        ] {
            if let Some(text) = special_token(&fields, name)? {
                special_tokens.push((name.to_owned(), text));
            }
        }
        let named = |name: &str| {
            special_tokens
                .iter()
                .find(|(found, _)| found == name)
                .map(|(_, text)| text.clone())
        };
        let class = fields.text("tokenizer_class")?.unwrap_or_default();
        Ok(TokenizerSettings {
            bos: named("bos_token"),
            eos: named("eos_token"),
            demands_bos: fields.flag("add_bos_token", false)? && CLASSES_WITH_BOS_RULE.contains(&class),
            adds_bos: fields.flag("add_bos_token", true)?,
            adds_eos: fields.flag("add_eos_token", false)?,
            added_tokens: added_tokens(directory, &fields)?,
            chat_templates: chat_templates(&fields)?,
            special_tokens,
            path,
        })
    }
}

impl TokenizerSettings {
    /// The id of the token with this role, if it is an added token or in `texts`.
    pub(super) fn token_id(&self, texts: &[&str], role: &str) -> Option<u32> {
        let (_, text) = self.special_tokens.iter().find(|(name, _)| name == role)?;
        let added = self.added_tokens.iter().find(|token| token.text == *text);
        let own = || texts.iter().position(|own| own == text).map(|id| id as u32);
        added.map(|token| token.id).or_else(own)
    }

    /// BOS and EOS around a text.
    pub(super) fn surroundings(&self, bos: Option<u32>, eos: Option<u32>) -> Surroundings {
        let wanted = |flag: bool, id: Option<u32>| id.filter(|_| flag).into_iter().collect();
        Surroundings::new(wanted(self.adds_bos, bos), wanted(self.adds_eos, eos))
    }

    /// The file's own tokens and those that the settings add. Of two with the same id, the settings' token wins.
    pub(super) fn with_added_tokens(&self, mut own: Vec<AddedToken>) -> Vec<AddedToken> {
        let by_id: HashMap<u32, usize> = own.iter().enumerate().map(|(place, token)| (token.id, place)).collect();
        for added in self.added_tokens.iter().cloned() {
            match by_id.get(&added.id) {
                Some(place) => {
                    // The file decides in which text a symbol is matched.
                    let normalized = own[*place].normalized.take().filter(|text| *text == added.text);
                    own[*place] = AddedToken { normalized, ..added };
                }
                None => own.push(added),
            }
        }
        own
    }
}

/// The tokens of `added_tokens_decoder`, or of added_tokens.json in older models.
fn added_tokens(directory: &Path, fields: &Fields) -> Result<Vec<AddedToken>, ModelError> {
    let token = |id: u32, text: String, flag: &dyn Fn(&str) -> bool| AddedToken {
        single_word: flag("single_word"),
        strips_left: flag("lstrip"),
        strips_right: flag("rstrip"),
        ..AddedToken::new(id, text, flag("special"))
    };
    if let Some(listed) = fields.object(ADDED_TOKENS)? {
        let tokens = listed.values().into_iter().map(|(id, described)| {
            let flag = |name: &str| described[name].as_bool().unwrap_or(false);
            let text = described["content"].as_str().filter(|text| !text.is_empty());
            let found = id.parse().ok().zip(text);
            found
                .map(|(id, text)| token(id, text.to_owned(), &flag))
                .ok_or_else(|| fields.error(ADDED_TOKENS, "each token needs an id and a content"))
        });
        return tokens.collect();
    }
    let path = directory.join(ADDED_TOKENS_FILE);
    let Some(value) = read_json(&path)? else {
        return Ok(Vec::new());
    };
    let tokens = Fields::new(&path, value)?.values().into_iter().map(|(text, id)| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.filter(|_| !text.is_empty()).ok_or_else(|| ModelError::Json {
            path: path.clone(),
            problem: "each token needs an id".into(),
        })?;
        Ok(token(id, text.clone(), &|name| name == "special" && is_mark(&text)))
    });
    tokens.collect()
}

/// A token given as text or as an object with `content`.
fn special_token(fields: &Fields, name: &str) -> Result<Option<String>, ModelError> {
    match fields.get(name) {
        Some(serde_json::Value::Object(_)) => {
            let token = fields.object(name)?;
            Ok(token
                .as_ref()
                .map(|token| token.text("content"))
                .transpose()?
                .flatten()
                .map(str::to_owned))
        }
        _ => Ok(fields.text(name)?.map(str::to_owned)),
    }
}

/// A template as text, which is the default, or a list of named templates.
fn chat_templates(fields: &Fields) -> Result<Vec<(String, String)>, ModelError> {
    let Some(serde_json::Value::Array(templates)) = fields.get("chat_template") else {
        let text = fields.text("chat_template")?;
        return Ok(text
            .map(|text| (DEFAULT_NAME.to_owned(), text.to_owned()))
            .into_iter()
            .collect());
    };
    let named = templates.iter().map(|template| {
        let text = template["template"].as_str();
        text.zip(Some(template["name"].as_str().unwrap_or_default()))
    });
    let named = named.map(|template| {
        template
            .map(|(text, name)| (name.to_owned(), text.to_owned()))
            .ok_or_else(|| {
                fields.error(
                    "chat_template",
                    "each template of the list needs a name and a template text",
                )
            })
    });
    named.collect()
}
