//! Pre-tokenizers that GGUF files name, against the pre-tokenizers of the original tokenizers.

use crate::testing::{gguf_list, gguf_string, tiny_gguf, vectors};
use riffle_model::{ModelError, Tokenizer, load_tokenizer};
use serde_json::Value;

/// Tokens and merges of bytes, with the pre-tokenizer of a name.
fn tokenizer(vectors: &Value, kind: &str, name: &str) -> Result<Tokenizer, ModelError> {
    const TEXT: u32 = 8;
    const LIST: u32 = 9;
    let pair = |key: &str, kind: u32, value: Vec<u8>| (format!("tokenizer.ggml.{key}"), kind, value);
    let texts = |name: &str| {
        let texts = vectors[name].as_array().unwrap().iter();
        gguf_list(
            TEXT,
            &texts
                .map(|text| gguf_string(text.as_str().unwrap()))
                .collect::<Vec<_>>(),
        )
    };
    let metadata = [
        pair("model", TEXT, gguf_string(kind)),
        pair("pre", TEXT, gguf_string(name)),
        pair("tokens", LIST, texts("tokens")),
        pair("merges", LIST, texts("merges")),
    ];
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, tiny_gguf(&metadata)).unwrap();
    Ok(load_tokenizer(&path)?.unwrap())
}

fn ids(list: &Value) -> Vec<u32> {
    let ids = list.as_array().unwrap().iter();
    ids.map(|id| id.as_u64().unwrap() as u32).collect()
}

fn read() -> Value {
    let path = vectors().join("tokenizers/pre_tokenizers.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn texts_are_cut_as_by_the_original_of_every_name() {
    let vectors = read();
    let mut names = 0;
    for (kind, expected) in vectors["ids"].as_object().unwrap() {
        for name in kind.split(' ') {
            let tokenizer = tokenizer(&vectors, "gpt2", name).unwrap();
            let texts = vectors["texts"].as_array().unwrap().iter();
            for (text, expected) in texts.zip(expected.as_array().unwrap()) {
                let text = text.as_str().unwrap();
                assert_eq!(
                    tokenizer.encode(text, false).unwrap(),
                    ids(expected),
                    "{name}: {text:?}"
                );
            }
            names += 1;
        }
    }
    assert_eq!(names, 86);
}

#[test]
fn long_numbers_are_cut_by_every_name() {
    let vectors = read();
    let digits = "7".repeat(1 << 16);
    for (kind, _) in vectors["ids"].as_object().unwrap() {
        let name = kind.split(' ').next().unwrap();
        let tokenizer = tokenizer(&vectors, "gpt2", name).unwrap();
        let ids = tokenizer.encode(&digits, false).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), digits, "{name}");
    }
}

#[test]
fn tokenizers_that_are_not_read_are_refused_by_their_names() {
    let vectors = read();
    for kind in ["rwkv", "plamo2", "hybriddna", "newer"] {
        let error = tokenizer(&vectors, kind, "default").unwrap_err();
        assert!(matches!(error, ModelError::UnsupportedTokenizer { .. }), "{error}");
        let line = error.to_string();
        assert!(
            line.contains(&format!("tokenizer \"{kind}\" is not supported; ")),
            "{line}"
        );
        assert!(!line.contains("again"), "{line}");
    }
    let error = tokenizer(&vectors, "gpt2", "newer").unwrap_err();
    assert!(
        error.to_string().contains("pre-tokenizer \"newer\" is not supported; "),
        "{error}"
    );
}
