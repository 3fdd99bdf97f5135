//! Adapters (LoRA) chosen by requests, and the default scales.

use std::path::Path;

use riffle_engine::{Engine, EngineOptions};
use riffle_model::AdapterSpec;
use riffle_server::{PublisherOptions, Server, ServerOptions};
use riffle_testing::write_shipped_adapter;
use serde_json::{Value, json};

use crate::testing::{Running, options, start, start_on};

const PROMPT: &str = "In the beginning God created the heaven and the earth.";

fn text(server: &Running, lora: Value) -> String {
    let answer = server.complete(PROMPT, json!({"max_tokens": 16, "ignore_eos": true, "lora": lora}));
    answer["choices"][0]["text"].as_str().expect("a text").to_owned()
}

/// Two adapters of the shipped model.
fn adapters(folder: &Path, scales: [f32; 2]) -> Vec<AdapterSpec> {
    let adapters = scales.iter().zip(0u64..).map(|(scale, number)| {
        let path = folder.join(number.to_string());
        write_shipped_adapter(&path, number + 7);
        AdapterSpec { path, scale: *scale }
    });
    adapters.collect()
}

#[test]
fn a_request_chooses_its_adapters_and_their_scales() {
    let folder = tempfile::tempdir().unwrap();
    let engine_options = EngineOptions::default()
        .with_context_tokens(Some(1024))
        .with_sequences(16)
        .with_pool_tokens(Some(8192))
        .with_adapters(adapters(folder.path(), [0.0, 1.0]));
    let engine = Engine::load(riffle_testing::fixture("model"), engine_options).unwrap();
    let server = start_on(&engine, options());
    let listed = server.get("/lora-adapters").json();
    assert_eq!((&listed[0]["id"], &listed[0]["scale"]), (&json!(0), &json!(0.0)));
    assert_eq!((&listed[1]["id"], &listed[1]["scale"]), (&json!(1), &json!(1.0)));
    assert!(listed[1]["path"].as_str().unwrap().ends_with('1'));

    let none = text(&server, json!([]));
    let first = text(&server, json!([{"id": 0, "scale": 1.0}]));
    let second = text(&server, json!([{"id": 1}]));
    let by_default = text(&server, Value::Null);
    assert_ne!(none, first);
    assert_ne!(first, second);
    assert_eq!(by_default, second, "the scales that the server was started with");
    assert_eq!(text(&server, json!([{"id": 0, "scale": 1.0}])), first, "again");

    let set = server.post("/lora-adapters", &json!([{"id": 0, "scale": 1.0}]));
    assert_eq!(set.status, 200, "{}", set.body);
    assert_eq!(set.json()[1]["scale"], json!(0.0), "those that are left out are off");
    assert_eq!(text(&server, Value::Null), first);

    for (lora, part) in [
        (json!([{"id": 2}]), "there is no adapter 2"),
        (json!([{"scale": 1}]), "required"),
        (json!([{"id": 0, "scale": 1e9}]), "scale"),
        (json!({"id": 0}), "it must be a list"),
        (json!([{"id": 0, "strength": 1}]), "strength"),
    ] {
        let refused = server.post(
            "/v1/completions",
            &json!({"prompt": PROMPT, "max_tokens": 1, "lora": lora}),
        );
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.body.contains(part), "{part}: {}", refused.body);
        assert_eq!(server.post("/lora-adapters", &lora).status, 400);
    }
}

#[test]
fn a_request_names_an_adapter_as_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let engine_options = EngineOptions::default()
        .with_context_tokens(Some(1024))
        .with_sequences(16)
        .with_pool_tokens(Some(8192))
        .with_adapters(adapters(folder.path(), [0.0, 0.0]));
    let engine = Engine::load(riffle_testing::fixture("model"), engine_options).unwrap();
    let named = ServerOptions {
        adapter_names: vec!["style".to_owned(), "facts".to_owned(), "not loaded".to_owned()],
        has_strict_names: true,
        session_folder: Some(folder.path().join("sessions")),
        ..options()
    };
    let server = start_on(&engine, named);
    let listed = server.get("/v1/models").json();
    let names: Vec<&str> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|model| model["id"].as_str())
        .collect();
    assert_eq!(names, ["fixture", "style", "facts"]);
    assert_eq!(listed["data"][1]["parent"], "fixture");
    assert!(listed["data"][2]["root"].as_str().unwrap().ends_with('1'));
    assert_eq!(server.get("/v1/models/facts").json(), listed["data"][2]);

    let said = |model: &str| {
        let wishes = json!({"max_tokens": 16, "ignore_eos": true, "model": model});
        let answer = server.complete(PROMPT, wishes);
        assert_eq!(answer["model"], model);
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let by_number = |id: usize| text(&server, json!([{"id": id}]));
    assert_eq!(said("fixture"), text(&server, Value::Null));
    assert_eq!(said("style"), by_number(0));
    assert_eq!(said("facts"), by_number(1));
    assert!(said("style") != said("facts") && said("style") != said("fixture"));

    let body = json!({"model": "style", "prompt": PROMPT, "max_tokens": 1, "lora": [{"id": 1}]});
    let refused = server.post("/v1/completions", &body);
    assert!(
        refused.status == 400 && refused.body.contains("an adapter already"),
        "{}",
        refused.body
    );
    let session = server.post("/sessions/book", &json!({"model": "style", "prompt": PROMPT}));
    assert!(
        session.status == 400 && session.body.contains("without an adapter"),
        "{}",
        session.body
    );
    for (path, body) in [
        ("/v1/completions", json!({"model": "not loaded", "prompt": PROMPT})),
        (
            "/v1/messages/count_tokens",
            json!({"model": "none", "messages": [{"role": "user", "content": "x"}]}),
        ),
    ] {
        assert_eq!(server.post(path, &body).status, 404, "{path}");
    }
}

#[test]
fn events_are_refused_beside_adapters_since_they_cannot_tell_their_pages_apart() {
    let folder = tempfile::tempdir().unwrap();
    write_shipped_adapter(folder.path(), 7);
    let path = folder.path().to_owned();
    let engine_options = EngineOptions::default().with_adapters(vec![AdapterSpec { path, scale: 1.0 }]);
    let engine = Engine::load(riffle_testing::fixture("model"), engine_options).unwrap();
    let events = PublisherOptions {
        address: "tcp://127.0.0.1:0".to_owned(),
        ..PublisherOptions::default()
    };
    let options = ServerOptions {
        kv_events: Some(events),
        ..options()
    };
    let refused = Server::bind(&engine, options).map(|_| ()).unwrap_err().to_string();
    assert!(
        refused.contains("kv_events") && refused.contains("adapters"),
        "{refused}"
    );
}

#[test]
fn a_server_without_adapters_says_so() {
    let server = start(options());
    assert_eq!(server.get("/lora-adapters").json(), json!([]));
    let refused = server.post(
        "/v1/completions",
        &json!({"prompt": PROMPT, "max_tokens": 1, "lora": [{"id": 0}]}),
    );
    assert!(
        refused.status == 400 && refused.body.contains("--lora"),
        "{}",
        refused.body
    );
    assert_eq!(text(&server, json!([])), text(&server, Value::Null));
}
