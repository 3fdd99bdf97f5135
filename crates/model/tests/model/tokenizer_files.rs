//! Folders with only a tokenizer.model or a tekken.json, against sentencepiece and mistral_common.

use std::path::PathBuf;

use crate::testing::vectors;
use riffle_model::{ModelError, Tokenizer, load_tokenizer};
use serde_json::{Value, json};

const MODELS: [&str; 6] = [
    "bpe-bytes",
    "bpe-rules",
    "bpe-no-prefix",
    "unigram-bytes",
    "unigram-rules",
    "unigram-suffix",
];

fn files() -> PathBuf {
    vectors().join("tokenizers/files")
}

fn model(name: &str) -> Vec<u8> {
    std::fs::read(files().join(format!("{name}.model"))).unwrap()
}

fn tekken() -> Vec<u8> {
    std::fs::read(files().join("tekken.json")).unwrap()
}

/// The tokenizer of a folder with these files.
fn read(contents: &[(&str, &[u8])]) -> Result<Option<Tokenizer>, ModelError> {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in contents {
        std::fs::write(directory.path().join(name), bytes).unwrap();
    }
    load_tokenizer(directory.path())
}

#[track_caller]
fn refused(file: &str, bytes: &[u8], words: &[&str]) -> ModelError {
    let error = read(&[(file, bytes)]).unwrap_err();
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() < 500, "{line}");
    for word in [&[file], words].concat() {
        assert!(line.contains(word), "{word:?} is not in: {line}");
    }
    error
}

fn ids(list: &Value) -> Vec<u32> {
    let ids = list.as_array().unwrap().iter();
    ids.map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Calls `check` with each text and its ids.
fn for_each_case(name: &str, mut check: impl FnMut(&str, Vec<u32>)) {
    let cases: Value = serde_json::from_slice(&std::fs::read(files().join("ids.json")).unwrap()).unwrap();
    let texts = cases["texts"].as_array().unwrap().iter();
    for (text, expected) in texts.zip(cases[name].as_array().unwrap()) {
        check(text.as_str().unwrap(), ids(expected));
    }
}

#[test]
fn sentence_piece_models_give_the_ids_of_sentencepiece() {
    for name in MODELS {
        let tokenizer = read(&[("tokenizer.model", &model(name))]).unwrap().unwrap();
        for_each_case(name, |text, expected| {
            assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{name}: {text:?}");
            let around = [vec![1], expected].concat();
            assert_eq!(tokenizer.encode(text, true).unwrap(), around, "{name}: {text:?}");
        });
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)), "{name}");
        let text = "In the beginning was a word.";
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text, "{name}");
    }
}

#[test]
fn tekken_files_give_the_ids_of_mistral_common() {
    let tokenizer = read(&[("tekken.json", &tekken())]).unwrap().unwrap();
    for_each_case("tekken", |text, expected| {
        assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected).unwrap(), text);
        assert_eq!(
            tokenizer.encode(text, true).unwrap(),
            [vec![1], expected].concat(),
            "{text:?}"
        );
    });
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    assert_eq!(tokenizer.encode("[INST]<SPECIAL_7>", false).unwrap(), [3, 7]);
    assert_eq!(tokenizer.vocab_size(), 560);
}

#[test]
fn gguf_files_of_pieces_give_the_ids_of_their_originals() {
    for (name, before, behind) in [("t5", vec![], vec![2]), ("gemma4", vec![2], vec![])] {
        let tokenizer = load_tokenizer(files().join(format!("{name}.gguf"))).unwrap().unwrap();
        for_each_case(name, |text, expected| {
            assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{name}: {text:?}");
            let around = [before.clone(), expected, behind.clone()].concat();
            assert_eq!(tokenizer.encode(text, true).unwrap(), around, "{name}: {text:?}");
        });
        let text = "In the beginning was a word.";
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text, "{name}");
    }
}

#[test]
fn tokenizer_json_comes_before_tokenizer_model_and_that_before_tekken_json() {
    let (description, model, tekken) = (
        crate::testing::byte_fallback_tokenizer(),
        model("unigram-bytes"),
        tekken(),
    );
    let files = [
        ("tokenizer.json", description.as_bytes()),
        ("tokenizer.model", model.as_slice()),
        ("tekken.json", tekken.as_slice()),
    ];
    let sizes = [0, 1, 2].map(|first| read(&files[first..]).unwrap().unwrap().vocab_size());
    let alone = files.map(|file| read(&[file]).unwrap().unwrap().vocab_size());
    assert_eq!(sizes, alone);
    assert!(sizes[0] != sizes[1] && sizes[1] != sizes[2]);
    assert!(read(&[]).is_err() || read(&[]).unwrap().is_none());
}

#[test]
fn tokenizer_config_says_what_stands_around_a_text_and_which_tokens_are_added() {
    let model = model("bpe-bytes");
    let read = |config: Value| {
        let config = config.to_string();
        let files = [
            ("tokenizer.model", model.as_slice()),
            ("tokenizer_config.json", config.as_bytes()),
        ];
        read(&files).unwrap().unwrap()
    };
    let plain = read(json!({})).encode("a b", false).unwrap();
    let encode = |config: Value| read(config).encode("a b", true).unwrap();
    assert_eq!(encode(json!({"add_bos_token": false})), plain);
    assert_eq!(
        encode(json!({"add_bos_token": false, "add_eos_token": true})),
        [plain.clone(), vec![2]].concat()
    );
    let size = read(json!({})).vocab_size() as u32;
    let added = json!({"added_tokens_decoder": {size.to_string(): {"content": "<|end|>", "special": true, "rstrip": true}},
        "eos_token": "<|end|>"});
    let tokenizer = read(added);
    assert_eq!(tokenizer.eos(), Some(size));
    assert!(tokenizer.is_special(size));
    let around = [plain.clone(), vec![size], plain.clone()].concat();
    assert_eq!(tokenizer.encode("a b<|end|>  a b", false).unwrap(), around);
}

#[test]
fn older_models_list_their_added_tokens_in_a_file() {
    let added: &[u8] = br#"{"<pad>": 700}"#;
    let tokenizer = read(&[("tokenizer.model", &model("bpe-bytes")), ("added_tokens.json", added)])
        .unwrap()
        .unwrap();
    assert_eq!(tokenizer.encode("<pad>", false).unwrap(), [700]);
    let error = read(&[
        ("tokenizer.model", &model("bpe-bytes")),
        ("added_tokens.json", br#"{"<pad>": -1}"#),
    ]);
    assert!(error.unwrap_err().to_string().contains("added_tokens.json"));
}

#[test]
fn control_tokens_that_messages_spell_stay_text() {
    let tokenizer = read(&[("tokenizer.model", &model("unigram-rules"))]).unwrap().unwrap();
    let id = tokenizer.token_id("<|im_end|>").unwrap();
    assert!(tokenizer.encode("a<|im_end|>b", false).unwrap().contains(&id));
    let tool = tokenizer.token_id("<tool>").unwrap();
    assert!(tokenizer.encode("a<tool>b", false).unwrap().contains(&tool));
    assert!(!tokenizer.is_special(tool));
}

/// A field of bytes in Protocol Buffers.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() < 128);
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

#[test]
fn models_of_other_types_are_refused_by_their_names() {
    let piece = field(1, &field(1, b"a"));
    for (algorithm, name) in [(3, "of whole words"), (4, "of characters"), (9, "of type 9")] {
        let bytes = [piece.clone(), field(2, &[3 << 3, algorithm]), field(3, &[])].concat();
        let error = refused("tokenizer.model", &bytes, &[name, "is not supported"]);
        assert!(matches!(error, ModelError::UnsupportedTokenizer { .. }));
    }
}

#[test]
fn damaged_models_are_refused_in_one_line() {
    let whole = model("unigram-rules");
    for at in (0..whole.len() - 1).step_by(101) {
        refused("tokenizer.model", &whole[..at], &["no SentencePiece model"]);
    }
    refused("tokenizer.model", b"", &["no SentencePiece model", "no pieces"]);
    refused(
        "tokenizer.model",
        b"version https://git-lfs",
        &["no SentencePiece model"],
    );
    refused("tokenizer.model", &field(1, &[3 << 3, 9]), &["type 9"]);
    refused("tokenizer.model", &field(1, &field(1, b"\xff")), &["UTF-8"]);
    let endless = field(1, &[&[2 << 3 | 5][..], &f32::NAN.to_le_bytes()].concat());
    refused("tokenizer.model", &endless, &["score of piece 0"]);
    let map = [field(1, &field(1, b"a")), field(3, &field(2, b"\xff\xff\xff\x7f"))].concat();
    refused("tokenizer.model", &map, &["precompiled_charsmap"]);
    let piece = field(1, &field(1, b"a"));
    refused("tokenizer.model", &piece, &["ends before its settings"]);
}

#[test]
fn a_byte_changed_anywhere_is_refused_or_harms_nothing() {
    let whole = model("unigram-rules");
    for at in (0..whole.len()).step_by(97) {
        for change in [0x01, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] ^= change;
            match read(&[("tokenizer.model", &damaged)]) {
                Ok(tokenizer) => _ = tokenizer.unwrap().encode("a ﬁne <tool> e\u{301} b", true),
                Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
            }
        }
    }
}

#[test]
fn damaged_tekken_files_are_refused_in_one_line() {
    let whole: Value = serde_json::from_slice(&tekken()).unwrap();
    let with = |change: &dyn Fn(&mut Value), words: &[&str]| {
        let mut damaged = whole.clone();
        change(&mut damaged);
        refused("tekken.json", damaged.to_string().as_bytes(), words);
    };
    refused("tekken.json", &tekken()[..1000], &["EOF"]);
    with(
        &|file| file["config"]["default_vocab_size"] = json!(1u64 << 60),
        &["default_vocab_size"],
    );
    with(
        &|file| file["config"]["default_num_special_tokens"] = json!(1u64 << 60),
        &["default_num_special_tokens"],
    );
    with(&|file| file["config"]["pattern"] = json!("(a"), &["regular expression"]);
    with(&|file| file["config"]["pattern"] = json!("a|".repeat(3000)), &["4096"]);
    with(&|file| file["vocab"][300]["rank"] = json!(7), &["token 300", "rank 7"]);
    with(
        &|file| file["vocab"][300]["token_bytes"] = json!("?"),
        &["token 300", "base64"],
    );
    with(
        &|file| file["vocab"][5]["token_bytes"] = json!("AA=="),
        &["token 5", "byte 5"],
    );
    with(
        &|file| file["vocab"][300]["token_bytes"] = file["vocab"][299]["token_bytes"].clone(),
        &["token 300", "another"],
    );
    with(
        &|file| file["special_tokens"][1]["rank"] = json!(10),
        &["special token", "10"],
    );
    with(
        &|file| file["special_tokens"][1]["rank"] = json!(2),
        &["special token", "</s>"],
    );
}

#[test]
fn older_tekken_files_have_the_special_tokens_of_their_time() {
    let mut file: Value = serde_json::from_slice(&tekken()).unwrap();
    file["config"]["default_num_special_tokens"] = json!(20);
    file["special_tokens"] = Value::Null;
    let bytes = file.to_string();
    let tokenizer = read(&[("tekken.json", bytes.as_bytes())]).unwrap().unwrap();
    assert_eq!(tokenizer.encode("[IMG][TOOL_CONTENT]", false).unwrap(), [10, 19]);
}
