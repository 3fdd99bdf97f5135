//! Infill: the model writes the middle of a text.

use std::path::Path;
use std::sync::Arc;

use riffle_engine::{Engine, EngineOptions};
use serde_json::{Value, json};

use crate::testing::{Running, options, start, start_on};

/// The tokens for infill and their ids.
const MARKS: [(&str, u64); 5] = [
    ("<|fim_prefix|>", 2040),
    ("<|fim_suffix|>", 2041),
    ("<|fim_middle|>", 2042),
    ("<|repo_name|>", 2043),
    ("<|file_sep|>", 2044),
];

/// The shipped model with five of its tokens replaced by Qwen's infill tokens.
fn model(folder: &Path) -> Arc<Engine> {
    for entry in std::fs::read_dir(riffle_testing::fixture("model")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let path = folder.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    // The merges of the replaced tokens are removed.
    let is_kept = |id: &Value| id.as_u64().unwrap() < MARKS[0].1;
    let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap().clone();
    let merges = tokenizer["model"]["merges"].as_array_mut().unwrap();
    merges.retain(|merge| {
        let parts = merge.as_array().map_or_else(
            || merge.as_str().unwrap().replace(' ', ""),
            |parts| parts.iter().map(|part| part.as_str().unwrap()).collect(),
        );
        is_kept(&vocabulary[&parts])
    });
    let mut renamed: serde_json::Map<String, Value> = vocabulary.into_iter().filter(|(_, id)| is_kept(id)).collect();
    for (text, id) in MARKS {
        renamed.insert(text.to_owned(), json!(id));
        let added = json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true});
        tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
    }
    tokenizer["model"]["vocab"] = renamed.into();
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    Engine::load(
        folder,
        EngineOptions::default()
            .with_context_tokens(Some(4096))
            .with_sequences(8),
    )
    .unwrap()
}

fn ids(server: &Running, text: &str) -> Vec<Value> {
    let tokens = server.ask("/tokenize", &json!({"content": text, "add_special": false}));
    tokens["tokens"].as_array().unwrap().clone()
}

fn id(text: &str) -> Value {
    json!(MARKS.iter().find(|(mark, _)| *mark == text).unwrap().1)
}

#[test]
fn every_api_fills_the_gap_that_the_tokens_spell() {
    let folder = tempfile::tempdir().unwrap();
    let server = start_on(&model(folder.path()), options());
    let (prefix, suffix) = ("In the beginning", " the heaven <|fim_suffix|>");
    let bos: Vec<Value> = server.ask("/tokenize", &json!({"content": "", "add_special": true}))["tokens"]
        .as_array()
        .unwrap()
        .clone();
    let mut prompt = bos.clone();
    prompt.push(id("<|fim_prefix|>"));
    prompt.extend(ids(&server, prefix));
    prompt.push(id("<|fim_suffix|>"));
    // A mark inside the text stays text.
    prompt.extend(ids(&server, " the heaven "));
    let before = prompt.len();
    let spelt = json!({"prompt": prefix, "suffix": " the heaven ", "max_tokens": 6, "temperature": 0});
    prompt.push(id("<|fim_middle|>"));
    let expected = server.ask(
        "/completion",
        &json!({"prompt": prompt, "n_predict": 6, "temperature": 0}),
    );
    let text = expected["content"].as_str().unwrap();
    assert_eq!(server.ask("/v1/completions", &spelt)["choices"][0]["text"], text);
    let body = json!({"model": "fixture", "prompt": prefix, "suffix": " the heaven ", "stream": false,
        "options": {"num_predict": 6, "temperature": 0}});
    assert_eq!(server.ask("/api/generate", &body)["response"], text);
    let mut body = json!({"input_prefix": "In the", "prompt": " beginning", "input_suffix": " the heaven ", "n_predict": 6,
        "temperature": 0, "t_max_predict_ms": 500, "samplers": ["top_k", "infill"],
        "response_fields": ["content", "tokens_evaluated", "timings/prompt_n", "timings/no_such"]});
    let filled = server.ask("/infill", &body);
    assert_eq!(filled["content"], text);
    assert_eq!(filled["tokens_evaluated"], before + 1);
    // Fields are under their paths, as llama.vim reads them.
    assert!(filled["timings/prompt_n"].is_u64());
    assert_eq!(filled.as_object().unwrap().len(), 3);
    body["stream"] = json!(true);
    let events = server.stream("/infill", &body).events();
    let streamed: String = events.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(streamed, text);
    // Other files precede the text.
    body["stream"] = json!(false);
    body["input_extra"] = json!([{"filename": "a.txt", "text": "God said", "time": 5}]);
    let mut prompt = bos;
    let file = |name: &str, text: &str| {
        let name = ids(&server, &format!("{name}\n"));
        [vec![id("<|file_sep|>")], name, ids(&server, text)].concat()
    };
    prompt.push(id("<|repo_name|>"));
    prompt.extend(ids(&server, "myproject\n"));
    prompt.extend(file("a.txt", "God said"));
    prompt.extend(file("filename", ""));
    let with_files = server.ask("/infill", &body);
    assert_eq!(with_files["tokens_evaluated"], prompt.len() + before);
    // Text that spells a mark stays text.
    let spelt = json!({"input_prefix": prefix, "input_suffix": suffix, "n_predict": 0});
    let count = server.ask("/infill", &spelt)["tokens_evaluated"].as_u64().unwrap() as usize;
    assert!(count > before + 2, "{count} tokens");
}

#[test]
fn a_model_without_such_tokens_is_refused_in_one_line() {
    let server = start(options());
    for (path, body) in [
        ("/infill", json!({"input_prefix": "a", "input_suffix": "b"})),
        ("/v1/completions", json!({"prompt": "a", "suffix": "b"})),
        (
            "/api/generate",
            json!({"model": "fixture", "prompt": "a", "suffix": "b"}),
        ),
    ] {
        let refused = server.post(path, &body);
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(
            refused.body.contains("was not trained to fill in the middle"),
            "{}",
            refused.body
        );
    }
    let whole = json!({"prompt": "In the beginning", "suffix": "", "max_tokens": 2});
    assert_eq!(server.post("/v1/completions", &whole).status, 200);
}
