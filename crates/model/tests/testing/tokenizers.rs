//! Generated tokenizers.

use std::path::Path;

use riffle_model::{Tokenizer, load};
use serde_json::{Value, json};

use super::TinyModel;

/// A tokenizer like Llama 2's: `▁` for spaces, tokens `<0x00>` to `<0xFF>` for bytes outside the vocabulary.
pub(crate) fn byte_fallback_tokenizer() -> String {
    let mut vocabulary = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    vocabulary.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    vocabulary.extend(["▁", "a", "b", "é", "▁a", "▁b", "ab", "▁ab", ".", "\u{fffd}", "▁▁"].map(str::to_owned));
    let vocabulary: serde_json::Map<String, Value> = vocabulary
        .into_iter()
        .enumerate()
        .map(|(id, token)| (token, id.into()))
        .collect();
    let special = |id: u32, token: &str| {
        json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocabulary, "merges": []}
    })
    .to_string()
}

/// A small model with this tokenizer.
pub(crate) fn write_tokenizer(directory: &Path, tokenizer: &str, tokenizer_config: &str) {
    TinyModel::default().write(directory);
    std::fs::write(directory.join("tokenizer.json"), tokenizer).unwrap();
    std::fs::write(directory.join("tokenizer_config.json"), tokenizer_config).unwrap();
}

/// The 256 characters that stand for bytes in GPT-2's vocabulary, printable ones first.
pub(crate) fn bytes_as_characters() -> impl Iterator<Item = char> {
    let printable = ('!'..='~').chain('\u{a1}'..='\u{ac}').chain('\u{ae}'..='\u{ff}');
    printable.chain('\u{100}'..='\u{143}')
}

/// SentencePiece's table of replacements with one entry, in base64: a double-array trie with nodes 256 units apart.
pub(crate) fn character_map(from: &str, to: &str) -> String {
    let mut units = vec![0u32; 256 * (from.len() + 2)];
    let mut node = 0;
    let mut base = 256;
    units[0] = (base as u32) << 10;
    for (at, byte) in from.bytes().enumerate() {
        node = base ^ usize::from(byte);
        base += 256;
        let leaf = u32::from(at + 1 == from.len());
        units[node] = ((node ^ base) as u32) << 10 | leaf << 8 | u32::from(byte);
    }
    assert_ne!(node, base);
    // The value: the start of the replacement.
    units[base] = 1 << 31;
    let mut bytes = (4 * units.len() as u32).to_le_bytes().to_vec();
    bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    bytes.extend(to.bytes().chain([0]));
    base64(&bytes)
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let value = (0..3).fold(0u32, |value, at| {
            value << 8 | u32::from(group.get(at).copied().unwrap_or(0))
        });
        for digit in 0..4 {
            let character = char::from(DIGITS[(value >> (18 - 6 * digit)) as usize & 63]);
            text.push(if digit <= group.len() { character } else { '=' });
        }
    }
    text
}

/// A small vocabulary: bytes as characters, a few merges, `▁` and words.
pub(crate) fn texts_of_tokens() -> Vec<String> {
    let mut texts = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    texts.extend(bytes_as_characters().map(String::from));
    let more = [
        "▁", "ab", "abc", "▁a", "▁ab", "Ġa", "##b", "##c", "e\u{301}", "語", "b</w>", "12", "aa", "aaa", "▁▁",
        "<0x41>", "fi",
    ];
    texts.extend(more.map(str::to_owned));
    texts
}

pub(crate) fn vocabulary() -> Value {
    let texts = texts_of_tokens();
    Value::Object(
        texts
            .into_iter()
            .enumerate()
            .map(|(id, text)| (text, id.into()))
            .collect(),
    )
}

pub(crate) fn byte_pairs(settings: Value) -> Value {
    let merges = [
        ["a", "b"],
        ["ab", "c"],
        ["▁", "a"],
        ["▁a", "b"],
        ["Ġ", "a"],
        ["1", "2"],
        ["a", "a"],
        ["aa", "a"],
        ["▁", "▁"],
    ];
    let mut model = json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary(), "merges": merges});
    for (name, value) in settings.as_object().unwrap() {
        model[name] = value.clone();
    }
    model
}

/// A tokenizer.json of these parts; missing parts are `null`.
pub(crate) fn described(normalizer: Value, pre_tokenizer: Value, decoder: Value, model: Value) -> Value {
    let added = |id: u32, content: &str, special: bool, normalized: bool| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": normalized, "special": special})
    };
    json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<unk>", true, false), added(1, "<s>", true, false), added(2, "</s>", true, false)],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder, "model": model,
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}})
}

pub(crate) fn read(description: &Value) -> Tokenizer {
    let directory = tempfile::tempdir().unwrap();
    write_tokenizer(directory.path(), &description.to_string(), "{}");
    load(directory.path())
        .unwrap_or_else(|error| panic!("{error}: {description}"))
        .tokenizer
        .unwrap()
}

pub(crate) fn fused() -> Value {
    json!({"type": "Fuse"})
}

pub(crate) fn with_unknown() -> Value {
    byte_pairs(json!({"unk_token": "<unk>"}))
}
