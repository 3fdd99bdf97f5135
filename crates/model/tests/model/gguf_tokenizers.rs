//! Tokenizers of GGUF files: what a file says is used or refused.

use crate::testing::{gguf_string, tiny_gguf};
use riffle_model::{LoadedModel, ModelError, Tokenizer, load};

/// Metadata as GGUF stores it: key, type number, bytes.
type Pair = (String, u32, Vec<u8>);

const TEXT: u32 = 8;
const FLAG: u32 = 7;
const NUMBER: u32 = 4;
const SIGNED: u32 = 5;
const FLOAT: u32 = 6;

fn pair(name: &str, kind: u32, value: Vec<u8>) -> Pair {
    (format!("tokenizer.{name}"), kind, value)
}

fn text(name: &str, value: &str) -> Pair {
    pair(name, TEXT, gguf_string(value))
}

fn number(name: &str, value: u32) -> Pair {
    pair(name, NUMBER, value.to_le_bytes().to_vec())
}

fn list(name: &str, kind: u32, items: &[Vec<u8>]) -> Pair {
    let head = [&kind.to_le_bytes()[..], &(items.len() as u64).to_le_bytes()].concat();
    pair(name, 9, [head, items.concat()].concat())
}

fn texts(name: &str, items: &[&str]) -> Pair {
    list(
        name,
        TEXT,
        &items.iter().map(|item| gguf_string(item)).collect::<Vec<_>>(),
    )
}

fn floats(name: &str, items: &[f32]) -> Pair {
    list(
        name,
        FLOAT,
        &items.iter().map(|item| item.to_le_bytes().to_vec()).collect::<Vec<_>>(),
    )
}

fn kinds(items: &[i32]) -> Pair {
    list(
        "ggml.token_type",
        SIGNED,
        &items.iter().map(|item| item.to_le_bytes().to_vec()).collect::<Vec<_>>(),
    )
}

/// A tokenizer of scored pieces.
fn scored() -> Vec<Pair> {
    vec![
        text("ggml.model", "llama"),
        texts(
            "ggml.tokens",
            &["<unk>", "<s>", "</s>", "▁", "a", "aa", "▁a", "b", "aaa"],
        ),
        floats("ggml.scores", &[0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0]),
        kinds(&[2, 3, 3, 1, 1, 1, 1, 1, 1]),
        number("ggml.bos_token_id", 1),
        number("ggml.eos_token_id", 2),
    ]
}

/// A tokenizer of byte pairs.
fn paired() -> Vec<Pair> {
    vec![
        text("ggml.model", "gpt2"),
        text("ggml.pre", "gpt-2"),
        texts("ggml.tokens", &["a", "b", "ab", "<s>", "</s>"]),
        texts("ggml.merges", &["a b"]),
        kinds(&[1, 1, 1, 3, 3]),
        number("ggml.bos_token_id", 3),
        number("ggml.eos_token_id", 4),
    ]
}

/// The metadata with `changed` in place of what has its key.
fn with(mut metadata: Vec<Pair>, changed: Pair) -> Vec<Pair> {
    metadata.retain(|(key, ..)| *key != changed.0);
    metadata.push(changed);
    metadata
}

fn loaded(metadata: &[Pair]) -> Result<LoadedModel, ModelError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, tiny_gguf(metadata)).unwrap();
    load(&path)
}

fn tokenizer(metadata: &[Pair]) -> Tokenizer {
    loaded(metadata).unwrap().tokenizer.unwrap()
}

#[track_caller]
fn refused(metadata: Vec<Pair>, words: &[&str]) {
    let error = loaded(&metadata).err().expect("the file must be refused");
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() < 500, "{line}");
    for word in [&["model.gguf"], words].concat() {
        assert!(line.contains(word), "{word:?} is not in: {line}");
    }
}

#[test]
fn merges_follow_the_scores() {
    let tokenizer = tokenizer(&scored());
    let encode = |text: &str| tokenizer.encode(text, false).unwrap();
    // `aa` scores more than `▁a`.
    assert_eq!(encode("aa"), [3, 5]);
    assert_eq!(encode("a"), [6]);
    assert_eq!(encode("ba"), [3, 7, 4]);
    // What a merge makes merges on.
    assert_eq!(encode("aaa"), [3, 8]);
    assert_eq!(encode("aaaaa"), [3, 5, 8]);
    // Unknown characters become one unknown token.
    assert_eq!(encode("a??"), [6, 0]);
    assert_eq!(tokenizer.encode("a", true).unwrap(), [1, 6]);
}

#[test]
fn flags_decide_what_stands_around_a_text() {
    let flag = |name: &str, value: u8| pair(name, FLAG, vec![value]);
    let ids = |metadata: Vec<Pair>| tokenizer(&metadata).encode("ab", true).unwrap();
    assert_eq!(ids(paired()), [2]);
    assert_eq!(ids(with(paired(), flag("ggml.add_bos_token", 1))), [3, 2]);
    assert_eq!(ids(with(paired(), flag("ggml.add_eos_token", 1))), [2, 4]);
    let without_prefix = with(scored(), flag("ggml.add_space_prefix", 0));
    assert_eq!(tokenizer(&without_prefix).encode("a", false).unwrap(), [4]);
}

#[test]
fn settings_of_the_wrong_type_are_refused_not_ignored() {
    for (name, words) in [
        ("ggml.pre", "a text"),
        ("ggml.model", "a text"),
        ("chat_template", "a text"),
        ("ggml.add_bos_token", "true or false"),
        ("ggml.add_eos_token", "true or false"),
        ("ggml.merges", "list of texts"),
        ("ggml.tokens", "list of texts"),
        ("ggml.token_type", "list"),
    ] {
        refused(with(paired(), number(name, 1)), &[name, words]);
    }
    refused(with(scored(), number("ggml.scores", 1)), &["ggml.scores", "list"]);
    refused(
        with(scored(), number("ggml.add_space_prefix", 1)),
        &["ggml.add_space_prefix", "true or false"],
    );
    for name in ["bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id"] {
        let setting = format!("ggml.{name}");
        refused(with(paired(), text(&setting, "<s>")), &[&setting, "id of a token"]);
        refused(with(paired(), number(&setting, 5)), &[name, "5"]);
    }
}

#[test]
fn lists_with_impossible_values_are_refused() {
    refused(
        with(scored(), floats("ggml.scores", &[0.0; 8])),
        &["ggml.scores", "8 values for 9 tokens"],
    );
    refused(
        with(scored(), texts("ggml.scores", &["0"; 9])),
        &["ggml.scores", "token 0"],
    );
    let mut scores = [0.0; 9];
    scores[4] = f32::NAN;
    refused(
        with(scored(), floats("ggml.scores", &scores)),
        &["ggml.scores", "token 4"],
    );
    refused(
        with(scored(), kinds(&[1; 8])),
        &["ggml.token_type", "8 values for 9 tokens"],
    );
    refused(
        with(scored(), kinds(&[2, 3, 3, 1, 1, 9, 1, 1, 1])),
        &["ggml.token_type", "token 5"],
    );
    refused(with(paired(), texts("ggml.merges", &["ab"])), &["merge 0", "\"ab\""]);
    refused(
        with(paired(), texts("ggml.merges", &["a b", "a c"])),
        &["merge 1", "\"c\""],
    );
    refused(with(paired(), text("ggml.pre", "no-such")), &["no-such", "supported"]);
}
