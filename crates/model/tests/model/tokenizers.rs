//! Every step of a tokenizer.json against the crate `tokenizers`, and settings that would harm.

use crate::testing::{bytes_as_characters, character_map, refused, write_tokenizer};
use riffle_model::{ModelError, Tokenizer, load};
use serde_json::{Value, json};

/// A small vocabulary: bytes as characters, a few merges, `▁` and words.
fn texts_of_tokens() -> Vec<String> {
    let mut texts = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    texts.extend(bytes_as_characters().map(String::from));
    let more = [
        "▁", "ab", "abc", "▁a", "▁ab", "Ġa", "##b", "##c", "e\u{301}", "語", "b</w>", "12", "aa", "aaa", "▁▁",
        "<0x41>", "fi",
    ];
    texts.extend(more.map(str::to_owned));
    texts
}

fn vocabulary() -> Value {
    let texts = texts_of_tokens();
    Value::Object(
        texts
            .into_iter()
            .enumerate()
            .map(|(id, text)| (text, id.into()))
            .collect(),
    )
}

fn byte_pairs(settings: Value) -> Value {
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

/// A tokenizer.json of these parts; `null` for those it lacks.
fn described(normalizer: Value, pre_tokenizer: Value, decoder: Value, model: Value) -> Value {
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

fn read(description: &Value) -> Tokenizer {
    let directory = tempfile::tempdir().unwrap();
    write_tokenizer(directory.path(), &description.to_string(), "{}");
    load(directory.path())
        .unwrap_or_else(|error| panic!("{error}: {description}"))
        .tokenizer
        .unwrap()
}

/// Texts that steps treat differently, the same in every run.
fn texts() -> Vec<String> {
    let pieces = [
        "a",
        "b",
        "c",
        "ab",
        "abc",
        "aaaa",
        " ",
        "  ",
        "   ",
        "\n",
        "\r",
        "\t",
        "\0",
        "\u{7}",
        "▁",
        "▁▁",
        "é",
        "e\u{301}",
        "É",
        "İ",
        "ß",
        "語",
        "東京",
        "한",
        "🙂",
        "👩‍👧",
        "1",
        "12",
        "٣",
        "½",
        "ﬁ",
        "①",
        ".",
        ",",
        "!",
        "it's",
        "don't",
        "—",
        "_",
        "<s>",
        "</s>",
        "<unk>",
        "<0x41>",
        "\u{a0}",
        "\u{3000}",
        "\u{200b}",
        "\u{ad}",
        "\u{fffd}",
        "##b",
        "Ġ",
        "x",
    ];
    let mut state = 7u64;
    let mut next = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut texts: Vec<String> = pieces.iter().map(|piece| (*piece).to_owned()).collect();
    texts.push(String::new());
    texts.extend((0..150).map(|_| (0..next(9)).map(|_| pieces[next(pieces.len())]).collect::<String>()));
    texts
}

/// Compares ids and decoded texts.
#[track_caller]
fn same_as_the_reference(description: &Value) {
    let own = read(description);
    let reference = tokenizers::Tokenizer::from_bytes(description.to_string()).unwrap();
    let mut tokens = 0;
    for text in texts() {
        for special in [false, true] {
            let (own_ids, ids) = (
                own.encode(&text, special),
                reference.encode_fast(text.as_str(), special),
            );
            let ids = match (own_ids, ids) {
                (Ok(own), Ok(ids)) => {
                    assert_eq!(own, ids.get_ids(), "{text:?}: {description}");
                    own
                }
                (Err(_), Err(_)) => continue,
                (own, ids) => panic!("{text:?}: {own:?}, {ids:?}: {description}"),
            };
            tokens += ids.len();
            assert_eq!(
                own.decode(&ids).unwrap(),
                reference.decode(&ids, true).unwrap(),
                "{text:?}: {description}"
            );
            assert_eq!(
                own.decode_with_special(&ids).unwrap(),
                reference.decode(&ids, false).unwrap()
            );
        }
    }
    assert!(tokens > 100, "only {tokens} tokens were compared: {description}");
}

fn fused() -> Value {
    json!({"type": "Fuse"})
}

fn with_unknown() -> Value {
    byte_pairs(json!({"unk_token": "<unk>"}))
}

#[test]
fn normalizers_do_what_the_reference_does() {
    let steps = [
        json!({"type": "NFC"}),
        json!({"type": "NFD"}),
        json!({"type": "NFKC"}),
        json!({"type": "NFKD"}),
        json!({"type": "Lowercase"}),
        json!({"type": "Nmt"}),
        json!({"type": "ByteLevel"}),
        json!({"type": "Prepend", "prepend": "▁"}),
        json!({"type": "Strip", "strip_left": true, "strip_right": false}),
        json!({"type": "Strip", "strip_left": true, "strip_right": true}),
        json!({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]}),
        json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
        json!({"type": "Replace", "pattern": {"Regex": " {2,}|a+"}, "content": "b"}),
        json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "-"}),
        json!({"type": "Precompiled", "precompiled_charsmap": character_map("ﬁ", "fi")}),
        json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}),
        json!({"type": "BertNormalizer", "clean_text": false, "handle_chinese_chars": false, "strip_accents": true, "lowercase": false}),
    ];
    for step in steps {
        same_as_the_reference(&described(step, Value::Null, fused(), with_unknown()));
    }
}

#[test]
fn pre_tokenizers_cut_where_the_reference_does() {
    let mut steps = vec![
        json!({"type": "BertPreTokenizer"}),
        json!({"type": "Whitespace"}),
        json!({"type": "WhitespaceSplit"}),
        json!({"type": "CharDelimiterSplit", "delimiter": "b"}),
        json!({"type": "Digits", "individual_digits": true}),
        json!({"type": "Digits", "individual_digits": false}),
        json!({"type": "FixedLength", "length": 2}),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}),
        json!({"type": "Sequence", "pretokenizers": [{"type": "Punctuation"}, {"type": "Whitespace"}]}),
    ];
    for scheme in ["first", "always", "never"] {
        for split in [true, false] {
            steps.push(json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}));
        }
    }
    for behavior in [
        "Removed",
        "Isolated",
        "MergedWithPrevious",
        "MergedWithNext",
        "Contiguous",
    ] {
        steps.push(json!({"type": "Punctuation", "behavior": behavior}));
        for pattern in [
            json!({"String": "a"}),
            json!({"Regex": "[ab]|\\s+(?!\\S)"}),
            json!({"Regex": "b*"}),
        ] {
            for invert in [true, false] {
                steps.push(json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}));
            }
        }
    }
    for step in steps {
        // Whole words show where a text was cut.
        let model = json!({"type": "WordLevel", "vocab": vocabulary(), "unk_token": "<unk>"});
        same_as_the_reference(&described(Value::Null, step.clone(), Value::Null, model));
        same_as_the_reference(&described(Value::Null, step, fused(), with_unknown()));
    }
}

#[test]
fn models_give_the_ids_of_the_reference() {
    let spaces = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false});
    let words = json!({"type": "Whitespace"});
    let scores: Vec<Value> = texts_of_tokens()
        .into_iter()
        .enumerate()
        .map(|(id, text)| json!([text, -((id * 7 % 31) as f64) - 1.0]))
        .collect();
    let mut models = vec![
        byte_pairs(json!({"unk_token": "<unk>", "fuse_unk": true})),
        byte_pairs(json!({"unk_token": "<unk>", "byte_fallback": true})),
        byte_pairs(json!({"unk_token": "<missing>"})),
        byte_pairs(json!({"ignore_merges": true})),
        byte_pairs(json!({"unk_token": "<unk>", "end_of_word_suffix": "</w>"})),
        byte_pairs(json!({"unk_token": "<unk>", "continuing_subword_prefix": "##", "merges": []})),
        json!({"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##", "max_input_chars_per_word": 4, "vocab": vocabulary()}),
    ];
    // Files from before the kind was written.
    let mut untyped = with_unknown();
    untyped.as_object_mut().unwrap().remove("type");
    models.push(untyped);
    for byte_fallback in [true, false] {
        models.push(json!({"type": "Unigram", "unk_id": 0, "byte_fallback": byte_fallback, "vocab": scores}));
    }
    for model in models {
        same_as_the_reference(&described(Value::Null, spaces.clone(), fused(), model.clone()));
        same_as_the_reference(&described(Value::Null, words.clone(), fused(), model));
    }
}

#[test]
fn decoders_give_the_text_of_the_reference() {
    let steps = [
        Value::Null,
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        json!({"type": "CTC", "pad_token": "a", "word_delimiter_token": "b", "cleanup": true}),
        json!({"type": "Replace", "pattern": {"Regex": "a|▁"}, "content": " "}),
        json!({"type": "Strip", "content": "a", "start": 1, "stop": 0}),
        json!({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
    ];
    let model = byte_pairs(json!({"unk_token": "<unk>", "byte_fallback": true}));
    for step in steps {
        same_as_the_reference(&described(Value::Null, Value::Null, step, model.clone()));
    }
}

#[test]
fn added_tokens_are_found_as_by_the_reference() {
    let normalizer = json!({"type": "Lowercase"});
    let mut description = described(normalizer, Value::Null, fused(), with_unknown());
    let first = texts_of_tokens().len();
    let tokens = [
        ("it", json!({"single_word": true})),
        ("<x>", json!({"lstrip": true})),
        ("<y>", json!({"rstrip": true})),
        ("DON", json!({"normalized": true})),
        ("東京", json!({"normalized": true, "rstrip": true})),
        ("  ", json!({})),
        ("   ", json!({"special": true})),
    ];
    for (number, (content, settings)) in tokens.into_iter().enumerate() {
        let mut token = json!({"id": first + number, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false});
        for (name, value) in settings.as_object().unwrap() {
            token[name] = value.clone();
        }
        description["added_tokens"].as_array_mut().unwrap().push(token);
    }
    same_as_the_reference(&description);
    let tokenizer = read(&description);
    assert_eq!(tokenizer.vocab_size(), first + 7);
    assert_eq!(tokenizer.token_text(first as u32 + 3).as_deref(), Some("DON"));
}

#[test]
fn post_processors_put_the_tokens_of_the_reference_around_a_text() {
    let mut description = described(Value::Null, Value::Null, fused(), with_unknown());
    let template = description["post_processor"].clone();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true});
    for processor in [
        Value::Null,
        json!({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}),
        json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": true, "add_prefix_space": true}),
        json!({"type": "Sequence", "processors": [byte_level.clone(), template]}),
        byte_level,
    ] {
        description["post_processor"] = processor;
        same_as_the_reference(&description);
    }
}

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

#[test]
fn settings_on_which_the_reference_panics_are_refused() {
    let plain = || described(Value::Null, Value::Null, fused(), with_unknown());
    let with = |part: &str, value: Value, words: &[&str]| {
        let mut description = plain();
        description[part] = value;
        refused_tokenizer(&description, words);
    };
    let replace = |pattern: Value| json!({"type": "Replace", "pattern": pattern, "content": "x"});
    with("normalizer", replace(json!({"String": ""})), &["pattern is empty"]);
    with("normalizer", replace(json!({"Regex": ""})), &["pattern is empty"]);
    with("normalizer", replace(json!({"Regex": "(a"})), &["regular expression"]);
    with("decoder", replace(json!({"Regex": "[z-a]"})), &["regular expression"]);
    with(
        "normalizer",
        replace(json!({"Regex": "a|".repeat(3000)})),
        &["6000 bytes", "4096"],
    );
    with(
        "normalizer",
        replace(json!({"Regex": "\\w{1000}"})),
        &["regular expression"],
    );
    with("normalizer", json!({"prepend": "a"}), &["normalizer", "type"]);
    for charsmap in ["", "AAAA", "!!!!", "AAAAAA==", "/////w=="] {
        let step = json!({"type": "Precompiled", "precompiled_charsmap": charsmap});
        with("normalizer", step, &["precompiled_charsmap is damaged"]);
    }
    with(
        "pre_tokenizer",
        json!({"type": "FixedLength", "length": 0}),
        &["length", "at least 1"],
    );
    with(
        "pre_tokenizer",
        json!({"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": false}),
        &["pattern is empty"],
    );
    with("decoder", json!({"type": "Magic"}), &["decoder", "Magic"]);

    let mut description = plain();
    description["post_processor"]["special_tokens"] = json!({});
    refused_tokenizer(&description, &["special_tokens", "<s>"]);
    let mut description = plain();
    description["post_processor"]["single"][1]["Sequence"]["id"] = json!("B");
    refused_tokenizer(&description, &["post_processor", "second"]);
    let twice = plain()["post_processor"].clone();
    with(
        "post_processor",
        json!({"type": "Sequence", "processors": [twice, twice]}),
        &["only one"],
    );

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
fn spaces_before_words_are_cut_as_by_the_reference_in_every_known_pattern() {
    let digits = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let without_last = r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
    let looking_around = r"(?<=a)b| ?\p{L}+|\s+(?!\S)|\s+";
    let with_empty_matches = r"b*|\s+(?!\S)|\s+";
    for pattern in [digits, without_last, looking_around, with_empty_matches] {
        for behavior in ["Isolated", "Removed"] {
            let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": false});
            let model = json!({"type": "WordLevel", "vocab": vocabulary(), "unk_token": "<unk>"});
            same_as_the_reference(&described(Value::Null, split.clone(), Value::Null, model));
            same_as_the_reference(&described(Value::Null, split, fused(), with_unknown()));
        }
    }
}

#[test]
fn a_megabyte_without_spaces_is_tokenized() {
    let spaces = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false});
    let words = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    for (pre_tokenizer, letter) in [(spaces.clone(), "a"), (words.clone(), "a"), (words, " "), (spaces, " ")] {
        let tokenizer = read(&described(Value::Null, pre_tokenizer, fused(), with_unknown()));
        let ids = tokenizer.encode(&letter.repeat(1 << 20), false).unwrap();
        assert!(ids.len() > 1 << 18, "{letter:?}: {} tokens", ids.len());
    }
}
