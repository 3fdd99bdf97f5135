//! Harmful settings of a tokenizer.json: refused, or bounded at run time.

use crate::testing::tokenizers::{byte_pairs, described, fused, read, with_unknown};
use crate::testing::{character_map, refused, write_tokenizer};
use riffle_model::{ModelError, load};
use serde_json::{Value, json};

#[track_caller]
fn refused_tokenizer(description: &Value, words: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    write_tokenizer(directory.path(), &description.to_string(), "{}");
    let words = [&["tokenizer.json"], words].concat();
    assert!(matches!(
        refused(directory.path(), &words),
        ModelError::Tokenizer { .. }
    ));
}

#[test]
fn settings_that_would_make_a_text_explode_are_refused() {
    let doubling = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let chain = |step: &Value, count: usize| vec![step.clone(); count];
    let normalizer = |steps: Vec<Value>| {
        described(
            json!({"type": "Sequence", "normalizers": steps}),
            Value::Null,
            fused(),
            with_unknown(),
        )
    };
    refused_tokenizer(
        &normalizer(chain(&doubling, 40)),
        &["normalizer", "1024 times is the limit"],
    );
    let one = json!({"type": "NFC"});
    refused_tokenizer(&normalizer(chain(&one, 65)), &["normalizer", "65 steps", "64"]);
    let long = json!({"type": "Prepend", "prepend": "a".repeat(1 << 20)});
    refused_tokenizer(&normalizer(vec![long]), &["normalizer", "limit"]);
    let decoders = json!({"type": "Sequence", "decoders": chain(&doubling, 40)});
    refused_tokenizer(
        &described(Value::Null, Value::Null, decoders, with_unknown()),
        &["decoder", "limit"],
    );
}

#[test]
fn a_text_that_grows_beyond_its_share_is_refused_before_it_takes_memory() {
    let times_1000 = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(1000)});
    let tokenizer = read(&described(times_1000.clone(), Value::Null, fused(), with_unknown()));
    assert!(!tokenizer.encode("a a", false).unwrap().is_empty());
    let error = tokenizer.encode(&"a".repeat(1 << 20), false).unwrap_err().to_string();
    assert!(error.contains("64 times"), "{error}");
    let tokenizer = read(&described(Value::Null, Value::Null, times_1000, with_unknown()));
    let id = tokenizer.token_id("a").unwrap();
    assert_eq!(tokenizer.decode(&[id]).unwrap().len(), 1000);
}

/// A tokenizer.json of simple parts.
fn plain() -> Value {
    described(Value::Null, Value::Null, fused(), with_unknown())
}

/// It is refused with another value of one part.
#[track_caller]
fn refused_part(part: &str, value: Value, words: &[&str]) {
    let mut description = plain();
    description[part] = value;
    refused_tokenizer(&description, words);
}

#[test]
fn steps_on_which_the_reference_panics_are_refused() {
    let replace = |pattern: Value| json!({"type": "Replace", "pattern": pattern, "content": "x"});
    refused_part("normalizer", replace(json!({"String": ""})), &["pattern is empty"]);
    refused_part("normalizer", replace(json!({"Regex": ""})), &["pattern is empty"]);
    refused_part("normalizer", replace(json!({"Regex": "(a"})), &["regular expression"]);
    refused_part("decoder", replace(json!({"Regex": "[z-a]"})), &["regular expression"]);
    refused_part(
        "normalizer",
        replace(json!({"Regex": "a|".repeat(3000)})),
        &["6000 bytes", "4096"],
    );
    refused_part(
        "normalizer",
        replace(json!({"Regex": "\\w{1000}"})),
        &["regular expression"],
    );
    refused_part("normalizer", json!({"prepend": "a"}), &["normalizer", "type"]);
    for charsmap in ["", "AAAA", "!!!!", "AAAAAA==", "/////w=="] {
        let step = json!({"type": "Precompiled", "precompiled_charsmap": charsmap});
        refused_part("normalizer", step, &["precompiled_charsmap is damaged"]);
    }
    refused_part(
        "pre_tokenizer",
        json!({"type": "FixedLength", "length": 0}),
        &["length", "at least 1"],
    );
    refused_part(
        "pre_tokenizer",
        json!({"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": false}),
        &["pattern is empty"],
    );
    refused_part("decoder", json!({"type": "Magic"}), &["decoder", "Magic"]);
}

#[test]
fn post_processors_that_contradict_themselves_are_refused() {
    let mut description = plain();
    description["post_processor"]["special_tokens"] = json!({});
    refused_tokenizer(&description, &["special_tokens", "<s>"]);
    let mut description = plain();
    description["post_processor"]["single"][1]["Sequence"]["id"] = json!("B");
    refused_tokenizer(&description, &["post_processor", "second"]);
    let twice = plain()["post_processor"].clone();
    refused_part(
        "post_processor",
        json!({"type": "Sequence", "processors": [twice, twice]}),
        &["only one"],
    );
}

#[test]
fn models_on_which_the_reference_panics_are_refused() {
    let with = |settings: Value, words: &[&str]| {
        let mut description = described(Value::Null, Value::Null, fused(), byte_pairs(settings));
        description["added_tokens"] = json!([]);
        refused_tokenizer(&description, words);
    };
    with(json!({"dropout": 0.5}), &["dropout"]);
    with(json!({"merges": [["a", "no such"]]}), &["merge 0", "no such"]);
    with(json!({"merges": ["a b c"]}), &["a b c"]);
    with(json!({"continuing_subword_prefix": "#####"}), &["prefix"]);
    with(json!({"vocab": {"a": 4_000_000_000u32}, "merges": []}), &["4000000000"]);
    with(json!({"vocab": {"a": 0, "b": 0}, "merges": []}), &["same id 0"]);
    with(json!({"vocab": [["a", 0.5]], "merges": []}), &["vocab"]);
    with(json!({"type": "Unigram"}), &["vocab"]);
    with(
        json!({"type": "WordPiece", "max_input_chars_per_word": 1u64 << 40}),
        &["max_input_chars_per_word"],
    );
}

#[test]
fn added_tokens_whose_ids_contradict_the_vocabulary_are_refused() {
    let mut description = described(Value::Null, Value::Null, fused(), with_unknown());
    description["added_tokens"][1]["id"] = json!(7);
    refused_tokenizer(&description, &["<s>", "7", "1"]);
    let mut description = described(Value::Null, Value::Null, fused(), with_unknown());
    description["added_tokens"][1]["content"] = json!("<new>");
    refused_tokenizer(&description, &["<new>", "<s>"]);
}

#[test]
fn a_pattern_that_takes_too_many_steps_is_an_error_not_another_cut() {
    let bomb =
        json!({"type": "Split", "pattern": {"Regex": "(?:(x+)+)\\1y|x"}, "behavior": "Isolated", "invert": false});
    let tokenizer = read(&described(Value::Null, bomb, fused(), with_unknown()));
    assert!(!tokenizer.encode("xxy", false).unwrap().is_empty());
    let error = tokenizer.encode(&"x".repeat(200), false).unwrap_err().to_string();
    assert!(
        error.contains("text cannot be tokenized") && error.contains("pattern"),
        "{error}"
    );
}

#[test]
fn a_damaged_character_map_harms_nothing() {
    let valid = character_map("ﬁ", "fi");
    for at in (0..valid.len() - 4).step_by(31) {
        let mut damaged = valid.clone().into_bytes();
        damaged[at] = if damaged[at] == b'/' { b'A' } else { b'/' };
        let step = json!({"type": "Precompiled", "precompiled_charsmap": String::from_utf8(damaged).unwrap()});
        let description = described(step, Value::Null, fused(), with_unknown());
        let directory = tempfile::tempdir().unwrap();
        write_tokenizer(directory.path(), &description.to_string(), "{}");
        if let Ok(loaded) = load(directory.path()) {
            loaded.tokenizer.unwrap().encode("a ﬁne ﬁ", false).unwrap();
        }
    }
}

#[test]
fn steps_nested_as_deep_as_json_allows_are_read_without_overflow() {
    let nested = |kind: &str, list: &str, innermost: Value, levels: usize| {
        (0..levels).fold(innermost, |inner, _| json!({"type": kind, list: [inner]}))
    };
    let parts = [
        ("normalizer", "normalizers", json!({"type": "NFC"})),
        ("pre_tokenizer", "pretokenizers", json!({"type": "Whitespace"})),
        ("decoder", "decoders", json!({"type": "Fuse"})),
        (
            "post_processor",
            "processors",
            json!({"type": "ByteLevel", "trim_offsets": true, "add_prefix_space": true}),
        ),
    ];
    for (part, list, innermost) in parts {
        // Each level is a map and a list; serde_json reads 127 levels.
        let mut description = plain();
        description[part] = nested("Sequence", list, innermost.clone(), 61);
        let tokenizer = read(&description);
        assert!(!tokenizer.encode("ab", false).unwrap().is_empty(), "{part}");
        description[part] = nested("Sequence", list, innermost, 64);
        refused_tokenizer(&description, &["recursion limit"]);
    }
}

#[test]
fn expressions_nested_as_deep_as_their_length_allows_do_not_overflow() {
    for (open, close) in [("(", ")"), ("(?:", ")*"), ("(?=", ")"), ("[", "]"), ("(?:a|", ")")] {
        let levels = 4000 / (open.len() + close.len());
        let pattern = format!("{}a{}", open.repeat(levels), close.repeat(levels));
        let mut description = plain();
        description["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": "x"});
        let directory = tempfile::tempdir().unwrap();
        write_tokenizer(directory.path(), &description.to_string(), "{}");
        match load(directory.path()) {
            Ok(loaded) => _ = loaded.tokenizer.unwrap().encode(&"a(".repeat(1000), false),
            Err(error) => assert!(matches!(error, ModelError::Tokenizer { .. }), "{error}"),
        }
    }
}
