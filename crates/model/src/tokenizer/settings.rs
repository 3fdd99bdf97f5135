//! tokenizer_config.json.

use std::path::{Path, PathBuf};

use crate::ModelError;
use crate::chat::DEFAULT_NAME;
use crate::fields::{Fields, read_json};

const CONFIG_FILE: &str = "tokenizer_config.json";

/// Tokenizer classes whose `add_bos_token: true` holds even where tokenizer.json adds no BOS by itself.
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
}

impl TokenizerSettings {
    /// Reads tokenizer_config.json; a directory without one has no settings.
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
            chat_templates: chat_templates(&fields)?,
            special_tokens,
            path,
        })
    }
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

/// A template given as text, which is the default, or a list of templates with names.
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
