//! Every step of a tokenizer.json against the crate `tokenizers`.

use std::ops::ControlFlow;

use crate::testing::character_map;
use crate::testing::tokenizers::{byte_pairs, described, fused, read, texts_of_tokens, vocabulary, with_unknown};
use riffle_model::{ConversationText, ModelError};
use serde_json::{Value, json};

/// The pieces of the test texts.
const PIECES: [&str; 51] = [
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

/// Texts that the steps treat differently, the same in every run.
fn texts() -> Vec<String> {
    let mut state = 7u64;
    let mut next = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut texts: Vec<String> = PIECES.iter().map(|piece| (*piece).to_owned()).collect();
    texts.push(String::new());
    texts.extend((0..150).map(|_| (0..next(9)).map(|_| PIECES[next(PIECES.len())]).collect::<String>()));
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
        // Whole words show the cuts of a text.
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
    // Old files do not name the kind.
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

#[test]
fn a_caller_may_stop_a_text_within_a_word_and_is_told_no_more_tokens_than_there_are() {
    let spaces = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false});
    let words = json!({"type": "Whitespace"});
    let scores: Vec<Value> = texts_of_tokens().into_iter().map(|text| json!([text, -1.0])).collect();
    let unigram = json!({"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": scores});
    let word_pieces = json!({"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##", "max_input_chars_per_word": 4, "vocab": vocabulary()});
    for (pre_tokenizer, model, letters) in [
        (&spaces, with_unknown(), "a"),
        (&spaces, with_unknown(), "ax"),
        (&spaces, unigram, "a"),
        (&words, word_pieces, "ab x "),
    ] {
        let tokenizer = read(&described(Value::Null, pre_tokenizer.clone(), fused(), model));
        let text: ConversationText = letters.repeat((1 << 20) / letters.len()).into();
        let mut told = Vec::new();
        let ids = tokenizer.encode_conversation_until(&text, false, &mut |tokens| {
            told.push(tokens);
            ControlFlow::Continue(())
        });
        let ids = ids.unwrap();
        assert_eq!(ids, tokenizer.encode(text.text(), false).unwrap());
        assert!(told.len() >= 16, "{letters:?}: asked {} times", told.len());
        assert!(told.is_sorted() && told.last() <= Some(&ids.len()), "{letters:?}");
        let mut asked = 0;
        let stopped = tokenizer.encode_conversation_until(&text, false, &mut |_| {
            asked += 1;
            match asked {
                3 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        assert!(matches!(stopped, Err(ModelError::TokenizeInterrupted)), "{letters:?}");
        assert_eq!(asked, 3);
    }
}

#[test]
fn the_fewest_tokens_of_a_length_are_known_where_every_character_is_spelt() {
    let spaces = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false});
    let bytes = (0..=255).map(|byte: u8| format!("<0x{byte:02X}>"));
    let pieces = ["<unk>", "<s>", "</s>", "▁", "a", "abc", "▁ab", "語"].map(str::to_owned);
    let scores: Vec<Value> = pieces
        .into_iter()
        .chain(bytes)
        .map(|text| json!([text, -1.0]))
        .collect();
    let unigram = |scores: &[Value]| {
        let model = json!({"type": "Unigram", "unk_id": 0, "byte_fallback": true, "vocab": scores});
        read(&described(Value::Null, spaces.clone(), fused(), model))
    };
    let tokenizer = unigram(&scores);
    let long = ["abc", "▁", "🙂", "a\0"].map(|text| text.repeat(1000));
    for text in texts().into_iter().chain(long) {
        let (least, tokens) = (
            tokenizer.fewest_tokens(text.len()),
            tokenizer.encode(&text, false).unwrap().len(),
        );
        assert!(
            least <= tokens && (least > 0 || text.is_empty()),
            "{text:?}: {least} of {tokens}"
        );
    }
    assert_eq!(unigram(&scores[..scores.len() - 1]).fewest_tokens(1 << 20), 0);
}
