//! Text to token ids and back.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use crate::ModelError;
use crate::fields::{Fields, read_json, read_text_file};
use crate::stream::StreamDecoder;

pub(crate) const TOKENIZER_FILE: &str = "tokenizer.json";
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

/// The tokenizer of a model.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocab_size: usize,
    bos: Option<u32>,
    eos: Option<u32>,
    /// Whether BOS is put in front although tokenizer.json has no such rule.
    adds_bos: bool,
    /// Whether bytes outside the vocabulary are spelt as tokens `<0xXX>`.
    byte_fallback: bool,
}

impl Tokenizer {
    /// Reads tokenizer.json and tokenizer_config.json; `None` where the directory has no tokenizer.
    pub(crate) fn from_directory(directory: &Path) -> Result<Option<Tokenizer>, ModelError> {
        let path = directory.join(TOKENIZER_FILE);
        let Some(bytes) = read_text_file(&path)? else {
            return Ok(None);
        };
        let settings = TokenizerSettings::from_directory(directory)?;
        let mut tokenizer = Tokenizer::from_bytes(&path, &bytes)?;
        tokenizer.bos = tokenizer.resolve(&settings, "bos_token", settings.bos.as_deref())?;
        tokenizer.eos = tokenizer.resolve(&settings, "eos_token", settings.eos.as_deref())?;
        if let (true, Some(bos)) = (settings.demands_bos, tokenizer.bos) {
            tokenizer.adds_bos = tokenizer.encode("a", true)?.first() != Some(&bos);
        }
        Ok(Some(tokenizer))
    }

    /// A tokenizer from the text of a tokenizer.json and the ids of BOS and EOS.
    pub(crate) fn from_parts(
        path: &Path,
        description: &[u8],
        bos: Option<u32>,
        eos: Option<u32>,
    ) -> Result<Tokenizer, ModelError> {
        let tokenizer = Tokenizer::from_bytes(path, description)?;
        Ok(Tokenizer { bos, eos, ..tokenizer })
    }

    fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Tokenizer, ModelError> {
        let broken = |problem: String| ModelError::Tokenizer {
            path: path.to_owned(),
            problem,
        };
        // The parser of `tokenizers` panics on some damaged files: on bad syntax, which is found here first, and on a few
        // impossible settings.
        serde_json::from_slice::<serde_json::Value>(bytes).map_err(|error| broken(error.to_string()))?;
        let mut inner = std::panic::catch_unwind(|| tokenizers::Tokenizer::from_bytes(bytes))
            .map_err(|_| broken("it has settings that contradict each other".into()))?
            .map_err(|error| broken(error.to_string()))?;
        // Both would alter the text in silence.
        inner.with_truncation(None).map_err(|error| broken(error.to_string()))?;
        inner.with_padding(None);
        let vocab_size = inner
            .get_vocab(true)
            .into_values()
            .max()
            .map_or(0, |id| id as usize + 1);
        if vocab_size == 0 {
            return Err(broken("its vocabulary is empty".into()));
        }
        let decoder = inner
            .get_decoder()
            .and_then(|decoder| serde_json::to_value(decoder).ok());
        let byte_fallback = decoder.is_some_and(|decoder| decoder.to_string().contains("\"ByteFallback\""));
        Ok(Tokenizer {
            inner,
            vocab_size,
            bos: None,
            eos: None,
            adds_bos: false,
            byte_fallback,
        })
    }

    fn resolve(
        &self,
        settings: &TokenizerSettings,
        role: &'static str,
        token: Option<&str>,
    ) -> Result<Option<u32>, ModelError> {
        let Some(token) = token else { return Ok(None) };
        match self.token_id(token) {
            Some(id) => Ok(Some(id)),
            None => Err(ModelError::MissingToken {
                path: settings.path.clone(),
                role,
                token: token.to_owned(),
            }),
        }
    }

    /// Token ids of `text`. With `add_special` the tokens the model expects around a text, such as BOS, are added.
    /// Special tokens spelt out in the text are always recognised.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, ModelError> {
        let encoding = guarded(|| self.inner.encode_fast(text, add_special))?;
        let ids = encoding.get_ids();
        let bos = self.bos.filter(|_| add_special && self.adds_bos);
        Ok(bos.into_iter().chain(ids.iter().copied()).collect())
    }

    /// The text of `ids`, special tokens left out. Bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        guarded(|| self.inner.decode(ids, true))
    }

    /// The text of `ids` with special tokens spelt out.
    pub fn decode_with_special(&self, ids: &[u32]) -> Result<String, ModelError> {
        guarded(|| self.inner.decode(ids, false))
    }

    /// A decoder for tokens that come one by one.
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    /// The id of a token by its exact text.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The text of a token as the vocabulary spells it.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Whether `id` is a special token, which [`decode`](Self::decode) leaves out.
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.inner.get_added_vocabulary();
        added
            .simple_id_to_token(id)
            .is_some_and(|token| added.is_special_token(&token))
    }

    /// The algorithm, as tokenizer.json names it.
    pub(crate) fn kind(&self) -> &'static str {
        use tokenizers::ModelWrapper;
        match self.inner.get_model() {
            ModelWrapper::BPE(_) => "BPE",
            ModelWrapper::WordPiece(_) => "WordPiece",
            ModelWrapper::WordLevel(_) => "WordLevel",
            ModelWrapper::Unigram(_) => "Unigram",
        }
    }

    /// Highest token id + 1.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The token that begins a text, if there is one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text, if there is one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether runs of byte tokens are decoded as a whole.
    pub(crate) fn has_byte_runs(&self) -> bool {
        self.byte_fallback
    }

    /// Whether a following token can still change the text of this one.
    pub(crate) fn is_open(&self, id: u32, text: &str) -> bool {
        if self.byte_fallback {
            // A run of byte tokens is valid UTF-8 or not as a whole, which is known only once it ends.
            self.token_text(id)
                .is_some_and(|token| token.len() == 6 && token.starts_with("<0x") && token.ends_with('>'))
        } else {
            text.ends_with('\u{fffd}')
        }
    }
}

/// Calls the tokenizer, which panics where a damaged file's settings do not fit each other.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, ModelError> {
    std::panic::catch_unwind(AssertUnwindSafe(call))
        .map_err(|_| ModelError::Tokenize("the tokenizer's settings contradict each other".into()))?
        .map_err(|error| ModelError::Tokenize(error.to_string()))
}

/// What tokenizer_config.json says.
pub(crate) struct TokenizerSettings {
    pub(crate) path: PathBuf,
    pub(crate) bos: Option<String>,
    pub(crate) eos: Option<String>,
    demands_bos: bool,
    /// Text of every named special token, for chat templates.
    pub(crate) special_tokens: Vec<(String, String)>,
    /// The default chat template.
    pub(crate) chat_template: Option<String>,
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
            chat_template: chat_template(&fields)?,
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

/// A template given as text, or the one named `default` of a list.
fn chat_template(fields: &Fields) -> Result<Option<String>, ModelError> {
    let Some(serde_json::Value::Array(templates)) = fields.get("chat_template") else {
        return Ok(fields.text("chat_template")?.map(str::to_owned));
    };
    let default = templates.iter().find(|template| template["name"] == "default");
    match default.or(templates.first()).map(|template| &template["template"]) {
        None => Ok(None),
        Some(serde_json::Value::String(template)) => Ok(Some(template.clone())),
        Some(_) => Err(fields.error(
            "chat_template",
            "each template of the list needs a name and a template text",
        )),
    }
}
