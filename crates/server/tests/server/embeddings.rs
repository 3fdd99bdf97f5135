//! Vectors of texts, and scores of documents.

use std::sync::Arc;

use riffle_engine::{Engine, EngineOptions};
use riffle_testing::fixture;
use serde_json::{Value, json};

use crate::testing::{Running, options, start, start_on};

/// Largest difference from sentence-transformers.
const TOLERANCE: f64 = 1e-5;

/// A server with a random model, and the results of other programs for that model.
fn made(name: &str) -> (Running, Value) {
    let folder = fixture("vectors/embedding").join(name);
    let expected = std::fs::read(folder.join("expected.json")).unwrap();
    let engine: Arc<Engine> = Engine::load(
        folder,
        EngineOptions::default().with_context_tokens(Some(64)).with_sequences(8),
    )
    .unwrap();
    (start_on(&engine, options()), serde_json::from_slice(&expected).unwrap())
}

fn numbers(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap()
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let off = found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (found - expected).abs());
    assert!(off.fold(0.0, f64::max) < TOLERANCE, "{found:?} and not {expected:?}");
}

fn message(server: &Running, path: &str, body: &Value) -> String {
    let refused = server.post(path, body);
    assert_eq!(refused.status, 400, "{path} {body}: {}", refused.body);
    let error = &refused.json()["error"];
    error["message"].as_str().or(error.as_str()).unwrap().to_owned()
}

#[test]
fn vectors_come_in_every_shape() {
    let (server, expected) = made("qwen3");
    let (texts, tokens) = (&expected["texts"], &expected["tokens"]);
    let list = server.ask("/v1/embeddings", &json!({"model": "made", "input": texts, "user": "a"}));
    for (index, vector) in expected["vectors"].as_array().unwrap().iter().enumerate() {
        let entry = &list["data"][index];
        assert_eq!(
            (&entry["object"], &entry["index"]),
            (&json!("embedding"), &json!(index))
        );
        close(&numbers(&entry["embedding"]), &numbers(vector));
    }
    let count: usize = tokens
        .as_array()
        .unwrap()
        .iter()
        .map(|text| text.as_array().unwrap().len())
        .sum();
    assert_eq!(list["usage"], json!({"prompt_tokens": count, "total_tokens": count}));
    assert_eq!((&list["object"], &list["model"]), (&json!("list"), &json!("made")));
    // Token ids, one text, base64, the path without v1.
    let ids = server.ask("/embeddings", &json!({"input": tokens}));
    assert_eq!(ids["data"], list["data"]);
    let one = json!({"input": texts[1], "encoding_format": "base64"});
    let one = server.ask("/v1/embeddings", &one)["data"][0]["embedding"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(one.len(), (32 * 4usize).div_ceil(3) * 4);
    // Ollama's API gives the same vectors.
    for truncates in [true, false] {
        let body = json!({"model": "made", "input": texts, "truncate": truncates, "keep_alive": "5m", "options": {"num_ctx": 99}});
        let embedded = server.ask("/api/embed", &body);
        assert_eq!(embedded["embeddings"][2], list["data"][2]["embedding"]);
        assert_eq!(embedded["prompt_eval_count"], count);
    }
    let older = server.ask("/api/embeddings", &json!({"model": "made", "prompt": texts[2]}));
    assert_eq!(older["embedding"], list["data"][2]["embedding"]);
    assert_eq!(
        server.ask("/api/embed", &json!({"model": "made"}))["embeddings"],
        json!([])
    );
    let shown = server.ask("/api/show", &json!({"model": "made"}));
    assert_eq!(shown["capabilities"][0], "embedding");
}

#[test]
fn prompts_and_shorter_vectors_are_given_where_they_are_asked_for() {
    let (server, expected) = made("gemma");
    let ask = |more: Value| {
        let mut body = json!({"input": expected["texts"]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask("/v1/embeddings", &body)["data"].clone()
    };
    let prompted = ask(json!({"prompt_name": expected["prompt"]}));
    let whole = ask(json!({}));
    let short = ask(json!({"dimensions": 8}));
    for (index, vector) in expected["vectors"].as_array().unwrap().iter().enumerate() {
        close(
            &numbers(&prompted[index]["embedding"]),
            &numbers(&expected["prompted"][index]),
        );
        close(&numbers(&whole[index]["embedding"]), &numbers(vector));
        let vector = numbers(vector);
        let length = vector[..8].iter().map(|value| value * value).sum::<f64>().sqrt();
        let cut: Vec<f64> = vector[..8].iter().map(|value| value / length).collect();
        close(&numbers(&short[index]["embedding"]), &cut);
    }
    let unknown = message(
        &server,
        "/v1/embeddings",
        &json!({"input": "a", "prompt_name": "other"}),
    );
    assert!(unknown.contains("document, query"), "{unknown}");
    let wide = message(&server, "/v1/embeddings", &json!({"input": "a", "dimensions": 25}));
    assert!(wide.starts_with("dimensions: it must be from 1 to 24"), "{wide}");
}

#[test]
fn a_text_beyond_the_model_is_refused_or_cut_as_the_request_says() {
    let (server, _) = made("qwen3");
    let long = "a ".repeat(100);
    let refused = message(&server, "/v1/embeddings", &json!({"input": ["a", long]}));
    assert!(
        refused.contains("text 1 has 201 tokens and the model reads 128"),
        "{refused}"
    );
    let refused = message(
        &server,
        "/api/embed",
        &json!({"model": "made", "input": long, "truncate": false}),
    );
    assert!(refused.contains("reads 128"), "{refused}");
    let cut = server.ask("/api/embed", &json!({"model": "made", "input": long}));
    // Truncation keeps the end token of a text.
    let ends = server.ask("/api/embed", &json!({"model": "made", "input": "a ".repeat(64)[..127]}));
    assert_eq!(cut["embeddings"], ends["embeddings"]);
    assert_eq!(cut["prompt_eval_count"], 128);
}

#[test]
fn an_encoder_gives_vectors_and_writes_no_text() {
    for name in ["bert", "xlm-roberta"] {
        let (server, expected) = made(name);
        let texts = &expected["texts"];
        let list = server.ask("/v1/embeddings", &json!({"model": "made", "input": texts}));
        let embedded = server.ask("/api/embed", &json!({"model": "made", "input": texts}));
        for (index, vector) in expected["vectors"].as_array().unwrap().iter().enumerate() {
            close(&numbers(&list["data"][index]["embedding"]), &numbers(vector));
            assert_eq!(embedded["embeddings"][index], list["data"][index]["embedding"]);
        }
        let shown = server.ask("/api/show", &json!({"model": "made"}));
        assert_eq!(shown["capabilities"], json!(["embedding"]));
        let chat = json!({"messages": [{"role": "user", "content": "a"}]});
        assert!(message(&server, "/v1/chat/completions", &chat).starts_with("this model writes no text"));
        assert!(message(&server, "/v1/completions", &json!({"prompt": "a"})).starts_with("this model writes no text"));
        assert!(message(&server, "/v1/rerank", &json!({"query": "a", "documents": ["b"]})).contains("no scores"));
        // The table of positions limits the length of a text.
        let refused = message(&server, "/v1/embeddings", &json!({"input": expected["cut"]}));
        assert!(refused.contains("and the model reads 160"), "{name}: {refused}");
        let cut = server.ask("/api/embed", &json!({"model": "made", "input": expected["cut"]}));
        close(&numbers(&cut["embeddings"][0]), &numbers(&expected["cut_vectors"][0]));
    }
}

#[test]
fn documents_are_ordered_by_their_scores() {
    for name in ["reranker", "classifier", "bert-reranker"] {
        let (server, expected) = made(name);
        let scores = numbers(&expected["scores"]);
        let mut body = json!({"model": "made", "query": expected["query"], "documents": expected["documents"]});
        for path in ["/v1/rerank", "/rerank", "/v1/reranking"] {
            let ranked = server.ask(path, &body);
            let results = ranked["results"].as_array().unwrap();
            assert_eq!(results.len(), scores.len());
            assert!(ranked["usage"]["prompt_tokens"].as_u64().unwrap() > 100);
            let mut last = 1.0;
            for result in results {
                let score = result["relevance_score"].as_f64().unwrap();
                close(&[score], &[scores[result["index"].as_u64().unwrap() as usize]]);
                assert!(score <= last && result["document"].is_null());
                last = score;
            }
        }
        // Documents as objects, with a limited number of results and with texts.
        let documents = expected["documents"].as_array().unwrap().iter();
        body["documents"] = documents.map(|document| json!({"text": document})).collect();
        body["top_n"] = json!(2);
        body["return_documents"] = json!(true);
        let results = server.ask("/v1/rerank", &body)["results"].clone();
        assert_eq!(results.as_array().unwrap().len(), 2);
        let index = results[0]["index"].as_u64().unwrap() as usize;
        assert_eq!(results[0]["document"]["text"], expected["documents"][index]);
        body["instruction"] = json!("Find the opposite");
        if name == "bert-reranker" {
            let refused = message(&server, "/v1/rerank", &body);
            assert!(refused.contains("this model's prompt has no place for it"), "{refused}");
            continue;
        }
        // Another instruction changes the score.
        assert_ne!(server.ask("/v1/rerank", &body)["results"], results);
    }
}

#[test]
fn models_refuse_what_they_were_not_made_for() {
    let server = start(options());
    let body = json!({"query": "a", "documents": ["b"]});
    assert!(message(&server, "/v1/rerank", &body).starts_with("this model gives no scores of documents: "));
    let (server, _) = made("gemma");
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    assert!(message(&server, "/v1/chat/completions", &chat).starts_with("this model writes no text"));
    assert!(message(&server, "/v1/rerank", &body).contains("how a query and a document stand in its prompt"));
    let list = message(&server, "/v1/embeddings", &json!({"input": vec!["a"; 2049]}));
    assert!(list.contains("send several requests"), "{list}");
}

#[test]
fn vectors_are_made_beside_answers() {
    let server = start(options());
    let text = crate::testing::text(6000);
    let alone = server.ask("/v1/embeddings", &json!({"input": [text, "a"]}))["data"].clone();
    std::thread::scope(|scope| {
        let answers: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| server.complete("In the beginning", json!({"max_tokens": 60, "ignore_eos": true}))))
            .collect();
        for input in [json!([text, "a"]), json!(["a", text])] {
            let beside = server.ask("/v1/embeddings", &json!({"input": input}))["data"].clone();
            let same = usize::from(input[0] == "a");
            assert_eq!(beside[same]["embedding"], alone[0]["embedding"]);
            assert_eq!(beside[1 - same]["embedding"], alone[1]["embedding"]);
        }
        for answer in answers {
            assert_eq!(answer.join().unwrap()["usage"]["completion_tokens"], 60);
        }
    });
}
