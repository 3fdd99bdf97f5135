//! Tokenizers of GGUF files: every setting is used or refused.

use crate::testing::{gguf_list, gguf_string, tiny_gguf};
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
    pair(name, 9, gguf_list(kind, items))
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

/// A byte-pair tokenizer.
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

/// The metadata with `changed` in place of the entries with the same keys.
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
    // The result of a merge can merge again.
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
    // Files of Gemma 4 wrongly say that texts begin without BOS.
    let gemma = with(paired(), text("ggml.model", "gemma4"));
    assert_eq!(ids(with(gemma, flag("ggml.add_bos_token", 0))), [3, 2]);
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

#[test]
fn tokens_that_end_an_answer_are_known_by_their_text_whatever_their_type() {
    let with_token = |text: &str, kind: i32| {
        let tokens = ["a", "b", "ab", "<s>", "<unused>", text];
        let metadata = with(paired(), texts("ggml.tokens", &tokens));
        let metadata = with(metadata, kinds(&[1, 1, 1, 3, 3, kind]));
        loaded(&metadata).unwrap()
    };
    for text in [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
    ] {
        for kind in [1, 3, 4] {
            let loaded = with_token(text, kind);
            let tokenizer = loaded.tokenizer.unwrap();
            assert_eq!(loaded.generation.eos, [4, 5], "{text} of type {kind}");
            assert_eq!(tokenizer.encode(&format!("a{text}"), false).unwrap(), [0, 5]);
            assert_eq!(tokenizer.decode(&[0, 5]).unwrap(), "a", "{text} of type {kind}");
        }
    }
    for text in ["<|start|>", "<eot>", "<|im_end|> ", "end"] {
        assert_eq!(with_token(text, 3).generation.eos, [4], "{text}");
    }
}

#[test]
fn formats_of_several_messages_end_where_their_answer_does() {
    let ends = |tokens: &[&str]| {
        let all = [&["a", "b", "ab", "<s>", "<unused>"], tokens].concat();
        let metadata = with(paired(), texts("ggml.tokens", &all));
        let types = [vec![1, 1, 1, 3, 3], vec![3; tokens.len()]].concat();
        let loaded = loaded(&with(metadata, kinds(&types))).unwrap();
        let ends = loaded.generation.eos.iter().filter(|id| **id > 4);
        ends.map(|id| all[*id as usize].to_owned()).collect::<Vec<String>>()
    };
    assert_eq!(ends(&["<|end|>", "<|return|>", "<|call|>"]), ["<|return|>", "<|call|>"]);
    assert_eq!(ends(&["<|end|>", "<|flush|>", "<|calls|>"]), ["<|flush|>", "<|calls|>"]);
    assert_eq!(ends(&["<|end|>", "<|return|>"]), ["<|end|>", "<|return|>"]);
    assert_eq!(
        ends(&["</s>", "<turn|>", "<|tool_response>"]),
        ["<turn|>", "<|tool_response>"]
    );
    let numbered = with(paired(), number("ggml.eot_token_id", 0));
    let numbered = with(numbered, number("ggml.eom_token_id", 1));
    assert_eq!(loaded(&numbered).unwrap().generation.eos, [0, 1, 4]);
}

#[test]
fn special_tokens_of_phi3_take_in_the_spaces_behind_them() {
    let scored = |tokens: &[&str], further: Vec<Pair>| {
        let mut metadata = scored();
        let all = [&["<unk>", "<s>", "</s>", "▁", "a", "aa", "▁a", "b", "▁aa"], tokens].concat();
        metadata = with(metadata, texts("ggml.tokens", &all));
        metadata = with(metadata, floats("ggml.scores", &vec![-1.0; all.len()]));
        metadata = with(
            metadata,
            kinds(&[vec![2, 3, 3, 1, 1, 1, 1, 1, 1], vec![3; tokens.len()]].concat()),
        );
        metadata.extend(further);
        tokenizer(&metadata)
    };
    let name = |name: &str| vec![("general.name".to_owned(), TEXT, gguf_string(name))];
    let marks = ["<|user|>", "<|endoftext|>"];
    let phi = scored(&marks, name("Phi-3-mini-4k-instruct"));
    let other = scored(&marks, name("Other"));
    let ids = |tokenizer: &Tokenizer, text: &str| tokenizer.encode(text, false).unwrap();
    assert_eq!(ids(&phi, "<|user|> \n a"), ids(&other, "<|user|>a"));
    assert_eq!(ids(&phi, "</s>  a"), ids(&other, "</s>a"));
    for kept in ["<|endoftext|> a", "<s> a"] {
        assert_eq!(ids(&phi, kept), ids(&other, kept), "{kept}");
    }
    assert_ne!(ids(&other, "<|user|> a"), ids(&other, "<|user|>a"));
}

#[test]
fn templates_for_tools_and_documents_have_keys_of_their_own() {
    let mut metadata = with(paired(), text("chat_template", "D"));
    metadata.push(text("chat_template.tool_use", "T"));
    metadata.push(text("chat_template.rag", "R"));
    let template = loaded(&metadata).unwrap().chat_template.unwrap();
    let rendered = |name: &str| {
        let variables = serde_json::Map::from_iter([(name.to_owned(), serde_json::json!([1]))]);
        template
            .render_with(&serde_json::json!([]), true, &variables)
            .unwrap()
            .into_text()
    };
    assert_eq!(["other", "tools", "documents"].map(rendered), ["D", "T", "R"]);
    refused(
        with(paired(), number("chat_template.tool_use", 1)),
        &["chat_template.tool_use", "a text"],
    );
}
