//! Tokenizer, streamed text and chat templates against `tokenizers` and `transformers`.

use crate::testing::{byte_fallback_tokenizer, fixtures, vectors, write_tokenizer};
use proptest::prelude::*;
use riffle_model::{ChatMessage, ChatTemplate, LoadedModel, StreamDecoder, Tokenizer, load};
use serde_json::Value;

fn shipped() -> Tokenizer {
    let LoadedModel { tokenizer, .. } = load(fixtures().join("model")).unwrap();
    tokenizer.unwrap()
}

fn json(path: &str) -> Value {
    let path = fixtures().join("vectors").join(path);
    serde_json::from_slice(&std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}

#[test]
fn token_ids_and_decoded_text_equal_the_reference() {
    let tokenizer = shipped();
    let cases = json("tokenization.json");
    for case in cases["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, false).unwrap(), ids(&case["ids"]), "{text:?}");
        assert_eq!(
            tokenizer.encode(text, true).unwrap(),
            ids(&case["ids_with_special"]),
            "{text:?}"
        );
        assert_eq!(
            tokenizer.decode_with_special(&ids(&case["ids"])).unwrap(),
            case["decoded"].as_str().unwrap(),
            "{text:?}"
        );
    }
}

#[test]
fn whole_documents_are_tokenized_like_the_reference() {
    let tokenizer = shipped();
    for document in json("tokenization.json")["documents"].as_array().unwrap() {
        let text = std::fs::read_to_string(fixtures().join(document["file"].as_str().unwrap())).unwrap();
        let ids = tokenizer.encode(&text, false).unwrap();
        let hash = ids
            .iter()
            .flat_map(|id| id.to_le_bytes())
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            });
        assert_eq!(ids.len() as u64, document["tokens"].as_u64().unwrap());
        assert_eq!(
            format!("{hash:016x}"),
            document["fnv1a_of_u32_le_ids"].as_str().unwrap()
        );
    }
}

#[test]
fn special_tokens_are_known_by_text_and_left_out_of_decoded_text() {
    let tokenizer = shipped();
    let bos = tokenizer.bos().unwrap();
    assert_eq!(tokenizer.token_id("<|bos|>"), Some(bos));
    assert_eq!(tokenizer.token_text(bos).as_deref(), Some("<|bos|>"));
    assert!(tokenizer.is_special(bos));
    assert!(!tokenizer.is_special(tokenizer.token_id("a").unwrap()));
    let ids = tokenizer.encode("a word", true).unwrap();
    assert_eq!(ids[0], bos);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "a word");
    assert_eq!(tokenizer.decode_with_special(&ids).unwrap(), "<|bos|>a word");
}

#[test]
fn tokenizers_of_gguf_files_give_the_ids_of_the_original() {
    let directory = vectors().join("tokenizers");
    for kind in [
        "llama",
        "gpt-2",
        "llama-bpe",
        "dbrx",
        "qwen2",
        "qwen35",
        "tekken",
        "gpt-4o",
        "smollm",
        "deepseek-v3",
        "deepseek-coder",
    ] {
        let loaded = load(directory.join(format!("{kind}.gguf"))).unwrap();
        let tokenizer = loaded.tokenizer.unwrap();
        let cases = std::fs::read(directory.join(format!("{kind}.json"))).unwrap();
        for case in serde_json::from_slice::<Vec<Value>>(&cases).unwrap() {
            let text = case["text"].as_str().unwrap();
            let expected = ids(&case["ids"]);
            assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{kind}: {text:?}");
            let mut special = tokenizer.encode(text, true).unwrap();
            if ["llama", "llama-bpe", "tekken"].contains(&kind) {
                assert_eq!(Some(special.remove(0)), tokenizer.bos(), "{kind}: {text:?}");
            }
            assert_eq!(special, expected, "{kind}: {text:?}");
            assert_eq!(
                streamed(&tokenizer, &expected).concat(),
                tokenizer.decode(&expected).unwrap()
            );
        }
    }
}

#[test]
fn gguf_files_bring_their_chat_template_and_stop_tokens() {
    let loaded = load(vectors().join("tokenizers/qwen2.gguf")).unwrap();
    let tokenizer = loaded.tokenizer.unwrap();
    let messages = [ChatMessage::new("user", "Who was Daniel?")];
    let text = loaded
        .chat_template
        .unwrap()
        .render(&messages, false)
        .unwrap()
        .into_text();
    assert_eq!(text, "<|begin|>user: Who was Daniel?<|end|>");
    assert_eq!(tokenizer.bos(), tokenizer.token_id("<|begin|>"));
    let stops = ["<|end|>", "<|im_end|>"].map(|token| tokenizer.token_id(token).unwrap());
    assert_eq!(loaded.generation.eos, stops);
    assert_eq!(loaded.info.tokenizer.unwrap().eos.as_deref(), Some("<|end|>"));
}

#[test]
fn tools_and_documents_choose_the_template_that_is_named_for_them() {
    let given = |name: &str, value: Value| serde_json::Map::from_iter([(name.to_owned(), value)]);
    let chosen = |template: &ChatTemplate, variables: &serde_json::Map<String, Value>| {
        let messages = json_value(r#"[{"role": "user", "content": "hi"}]"#);
        template.render_with(&messages, true, variables).unwrap().into_text()
    };
    let (tools, documents) = (given("tools", json_value("[1]")), given("documents", json_value("[2]")));
    let listed = r#"{"chat_template": [{"name": "tool_use", "template": "T{{ tools|tojson }}"},
        {"name": "default", "template": "D{{ messages[0].content }}"}, {"name": "rag", "template": "R{{ documents[0] }}"}]}"#;
    let unnamed = r#"{"chat_template": [{"name": "mine", "template": "M"}, {"name": "tool_use", "template": "T"}]}"#;
    let files = [
        ("chat_template.jinja", "D"),
        ("additional_chat_templates/tool_use.jinja", "T"),
    ];
    for (settings, files, expected) in [
        (listed, [].as_slice(), ["Dhi", "T[1]", "R2"]),
        (unnamed, &[], ["M", "T", "M"]),
        (listed, &files, ["D", "T", "D"]),
        (listed, &files[1..], ["Dhi", "T", "R2"]),
        (r#"{"chat_template": "S"}"#, &files[1..], ["S", "T", "S"]),
    ] {
        let directory = tempfile::tempdir().unwrap();
        write_tokenizer(directory.path(), &byte_fallback_tokenizer(), settings);
        std::fs::create_dir(directory.path().join("additional_chat_templates")).unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let template = load(directory.path()).unwrap().chat_template.unwrap();
        let found = [&Default::default(), &tools, &documents].map(|variables| chosen(&template, variables));
        assert_eq!(found, expected, "{settings} {files:?}");
        assert_eq!(chosen(&template, &given("tools", Value::Null)), expected[0]);
        assert_eq!(template.mentions("tojson"), found[1] == "T[1]", "{settings}");
    }
}

fn json_value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let mut stream = StreamDecoder::default();
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(tokenizer, id).unwrap()).collect();
    pieces.push(stream.finish(tokenizer).unwrap());
    pieces
}

#[test]
fn a_character_spread_over_tokens_appears_once_it_is_whole() {
    let tokenizer = shipped();
    let ids = tokenizer.encode("é🙂語", false).unwrap();
    assert!(ids.len() > 3, "the text must be split within characters");
    let pieces = streamed(&tokenizer, &ids);
    assert_eq!(pieces.concat(), "é🙂語");
    assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')));
    assert!(pieces.last().unwrap().is_empty(), "nothing whole may be held back");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn streamed_pieces_join_to_the_decoded_text_of_any_ids(ids in prop::collection::vec(0u32..2048, 0..60)) {
        let tokenizer = shipped_once();
        prop_assert_eq!(streamed(tokenizer, &ids).concat(), tokenizer.decode(&ids).unwrap());
    }

    #[test]
    fn streamed_pieces_join_to_any_text(text in "\\PC{0,40}") {
        let tokenizer = shipped_once();
        let ids = tokenizer.encode(&text, true).unwrap();
        prop_assert_eq!(streamed(tokenizer, &ids).concat(), tokenizer.decode(&ids).unwrap());
    }

    #[test]
    fn byte_fallback_pieces_join_to_the_decoded_text_of_any_ids(ids in prop::collection::vec(prop_oneof![0u32..300, 0xe0u32 + 3..0xf8, 0x80u32 + 3..0xc3], 0..40)) {
        let tokenizer = byte_fallback_once();
        let ids: Vec<u32> = ids.into_iter().filter(|&id| (id as usize) < tokenizer.vocab_size()).collect();
        prop_assert_eq!(streamed(tokenizer, &ids).concat(), tokenizer.decode(&ids).unwrap());
    }
}

fn shipped_once() -> &'static Tokenizer {
    static TOKENIZER: std::sync::OnceLock<Tokenizer> = std::sync::OnceLock::new();
    TOKENIZER.get_or_init(shipped)
}

fn byte_fallback_once() -> &'static Tokenizer {
    static TOKENIZER: std::sync::OnceLock<Tokenizer> = std::sync::OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        write_tokenizer(directory.path(), &byte_fallback_tokenizer(), "{}");
        load(directory.path()).unwrap().tokenizer.unwrap()
    })
}

#[test]
fn chat_templates_render_like_the_reference() {
    let mut cases = 0;
    for entry in std::fs::read_dir(fixtures().join("vectors/chat")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let style = json(&format!("chat/{}", path.file_name().unwrap().to_str().unwrap()));
        let special_tokens = ["bos_token", "eos_token"]
            .map(|name| (name.to_owned(), style[name].as_str().unwrap().to_owned()))
            .to_vec();
        let source = style["chat_template"].as_str().unwrap();
        let template = ChatTemplate::new(source, special_tokens).unwrap();
        for case in style["cases"].as_array().unwrap() {
            let name = format!("{}: {}", path.display(), case["name"]);
            let prompt = case["add_generation_prompt"].as_bool().unwrap();
            let rendered = template.render_with(&case["messages"], prompt, case["extra"].as_object().unwrap());
            match (case["text"].as_str(), case["error"].as_str()) {
                (Some(text), _) => assert_eq!(rendered.unwrap().text(), text, "{name}"),
                (None, Some(reason)) => {
                    let error = rendered.unwrap_err().to_string();
                    assert!(error.contains(reason), "{name}: {error}");
                }
                (None, None) => panic!("{name} expects nothing"),
            }
            cases += 1;
        }
    }
    assert!(cases > 50, "only {cases} cases");
}

#[test]
fn template_features_behave_as_in_python() {
    assert_templates_render("templates.json", 60);
}

#[test]
fn lists_and_maps_change_as_in_python() {
    assert_templates_render("changing_templates.json", 55);
}

#[track_caller]
fn assert_templates_render(name: &str, least_cases: usize) {
    let file = std::fs::read(vectors().join(name)).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    assert!(file["cases"].as_array().unwrap().len() >= least_cases);
    for case in file["cases"].as_array().unwrap() {
        let source = case["template"].as_str().unwrap();
        let template = ChatTemplate::new(source, vec![("bos_token".into(), "<s>".into())]).unwrap();
        let rendered = template.render_with(&file["messages"], true, file["variables"].as_object().unwrap());
        match case["text"].as_str() {
            Some(text) => assert_eq!(rendered.unwrap().text(), text, "{source}"),
            None => assert!(rendered.is_err(), "{source}"),
        }
    }
}
