//! The tokenizer and the chat template of a folder as GGUF metadata.

use std::path::Path;

use super::super::architecture::Architecture;
use super::super::header::Header;
use super::super::pre_tokenizers::known_names;
use super::super::tokenizer::Tokens;
use super::super::writer::{GgufEntry, gguf_header};
use crate::chat::DEFAULT_NAME;
use crate::load::Parts;
use crate::tokenizer::{StoredModel, StoredTokens, TokenizerSettings};
use crate::{ChatTemplate, ModelError, Tokenizer};

/// A text that pre-tokenizers split differently: contractions, numbers, white space, scripts, marks, emoji,
/// punctuation.
const PROBE: &str = "I'm  sure WE'LL see\n\n\n\t 3 33 333 3333 333333333 a\u{301}\u{20ac}9.75% {\"x\": [1, 22]} // it's\r\n  don'T \
    \u{4f60}\u{597d}\u{4e16}\u{754c}\u{3002}\u{d55c}\u{ad6d}\u{c5b4} \u{43f}\u{440}\u{438}\u{432}\u{435}\u{442} \u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947} \
    \u{1f600}\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} HTTPServer2 fooBar snake_case __init__ ..!?... -- --- =====      end   \u{b2}\u{bd}\u{2167} caf\u{e9} cafe\u{301}";

/// The tokenizer's entries; empty if the folder has no tokenizer.
pub(super) fn entries(
    path: &Path,
    architecture: Architecture,
    parts: &Parts,
    others: &[GgufEntry],
) -> Result<Vec<GgufEntry>, ModelError> {
    let settings = TokenizerSettings::from_directory(path)?;
    let Some(tokens) = StoredTokens::read(path, &settings, parts.config.vocab_size)? else {
        return Ok(Vec::new());
    };
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let mut entries = vec![
        GgufEntry::texts(key("tokens"), tokens.texts.iter().map(String::as_str)),
        GgufEntry::integers(key("token_type"), tokens.kinds.iter().map(|kind| i32::from(*kind))),
    ];
    let id_of = |text: &str| tokens.texts.iter().position(|known| known == text).map(|id| id as u32);
    let named = |role: &str| {
        settings
            .special_tokens
            .iter()
            .find(|(name, _)| name == role)
            .and_then(|(_, text)| id_of(text))
    };
    let eos = named("eos_token").or(parts.generation.eos.first().copied());
    for (name, id) in [
        ("bos_token_id", named("bos_token").or(parts.generation.bos)),
        ("eos_token_id", eos),
        ("unknown_token_id", named("unk_token")),
        ("padding_token_id", named("pad_token")),
    ] {
        entries.extend(id.map(|id| GgufEntry::count(key(name), id)));
    }
    if let Some(tokenizer) = &parts.tokenizer {
        let with = tokenizer.encode("a", true)?;
        let begins = tokenizer.bos().is_some() && with.first().copied() == tokenizer.bos();
        let ends = with.len() > 1 && tokenizer.eos().is_some() && with.last().copied() == tokenizer.eos();
        entries.push(GgufEntry::flag(key("add_bos_token"), begins));
        entries.push(GgufEntry::flag(key("add_eos_token"), ends));
    }
    for (name, text) in ChatTemplate::sources(path, settings)? {
        let key = match name.as_str() {
            DEFAULT_NAME => "tokenizer.chat_template".to_owned(),
            name => format!("tokenizer.chat_template.{name}"),
        };
        entries.push(GgufEntry::text(key, &text));
    }
    match &tokens.model {
        StoredModel::Pieces(scores) => {
            entries.push(GgufEntry::text(key("model"), "llama"));
            entries.push(GgufEntry::text(key("pre"), "default"));
            entries.push(GgufEntry::numbers(key("scores"), scores));
            let spaces = parts.tokenizer.as_ref().map(adds_space).transpose()?;
            entries.extend(spaces.map(|adds| GgufEntry::flag(key("add_space_prefix"), adds)));
        }
        StoredModel::Bytes(merges) => {
            entries.push(GgufEntry::text(key("model"), "gpt2"));
            entries.push(GgufEntry::texts(key("merges"), merges.iter().map(String::as_str)));
            let name = pre_tokenizer(path, architecture, parts, [others, &entries])?;
            entries.push(GgufEntry::text(key("pre"), name));
        }
    }
    Ok(entries)
}

/// True if the tokenizer inserts a space before a text.
fn adds_space(tokenizer: &Tokenizer) -> Result<bool, ModelError> {
    Ok(tokenizer.encode("a", false)? == tokenizer.encode(" a", false)? || {
        let first = tokenizer
            .encode("a", false)?
            .first()
            .and_then(|id| tokenizer.token_text(*id));
        first.is_some_and(|text| text.starts_with('\u{2581}'))
    })
}

/// The name of the pre-tokenizer that gives the same tokens as the folder's tokenizer.
fn pre_tokenizer(
    path: &Path,
    architecture: Architecture,
    parts: &Parts,
    entries: [&[GgufEntry]; 2],
) -> Result<&'static str, ModelError> {
    let Some(tokenizer) = &parts.tokenizer else {
        return Ok("default");
    };
    let wanted = tokenizer.encode(PROBE, false)?;
    let usual: &[&str] = match architecture {
        Architecture::Qwen2 | Architecture::Qwen3 => &["qwen2"],
        Architecture::SmolLm3 => &["smaug-bpe", "llama-bpe"],
        // Llama 3 has the larger vocabulary.
        _ if parts.config.vocab_size > 1 << 16 => &["llama-bpe"],
        _ => &["smollm"],
    };
    let others = known_names().filter(|name| !usual.contains(name));
    for name in usual.iter().copied().chain(others) {
        let pre = GgufEntry::text("tokenizer.ggml.pre", name);
        let all: Vec<GgufEntry> = entries.into_iter().flatten().cloned().chain([pre]).collect();
        let Some((bytes, _)) = gguf_header(&all, &[]) else {
            continue;
        };
        let header = Header::parse(path, &bytes)?;
        let tokens = Tokens::read(path, &header)?;
        // A pre-tokenizer that does not accept these tokens is no candidate.
        let Some(Ok(candidate)) = tokens.as_ref().map(Tokens::tokenizer) else {
            continue;
        };
        if candidate.encode(PROBE, false).is_ok_and(|ids| ids == wanted) {
            return Ok(name);
        }
    }
    Err(ModelError::UnsupportedTokenizer {
        path: parts.tokenizer_path.clone(),
        kind: "way of cutting texts into words".to_owned(),
        advice: "no name of GGUF stands for it; use a GGUF file of the model as the input",
    })
}
