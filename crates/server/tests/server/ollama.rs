//! Ollama's API.

use riffle_server::ServerOptions;
use serde_json::{Value, json};

use crate::testing::{Running, options, start};

fn lines(server: &Running, path: &str, body: &Value) -> Vec<Value> {
    let response = server.post(path, body);
    assert_eq!(response.status, 200, "{}", response.body);
    assert!(response.head.contains("application/x-ndjson"), "{}", response.head);
    response
        .body
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn chat() -> Value {
    json!({
        "model": "fixture",
        "messages": [{"role": "system", "content": "In the beginning"}, {"role": "user", "content": "God created"}],
        "options": {"num_predict": 12, "temperature": 0},
    })
}

#[test]
fn a_chat_is_streamed_as_lines_unless_it_says_otherwise() {
    let server = start(options());
    let mut body = chat();
    let streamed = lines(&server, "/api/chat", &body);
    body["stream"] = json!(false);
    let whole = server.ask("/api/chat", &body);
    let text: String = streamed
        .iter()
        .filter_map(|line| line["message"]["content"].as_str())
        .collect();
    assert_eq!(whole["message"], json!({"role": "assistant", "content": text}));
    assert!(!text.is_empty());
    let (last, before) = streamed.split_last().unwrap();
    assert!(before.iter().all(|line| line["done"] == false));
    for end in [last, &whole] {
        assert_eq!((&end["done"], &end["done_reason"]), (&json!(true), &json!("length")));
        assert_eq!(end["eval_count"], 12);
        for time in [
            "total_duration",
            "prompt_eval_duration",
            "eval_duration",
            "prompt_eval_count",
        ] {
            assert!(end[time].as_u64().unwrap() > 0, "{time}: {end}");
        }
    }
    // The same question in OpenAI's shape.
    let mut other = chat();
    other.as_object_mut().unwrap().remove("options");
    other["max_tokens"] = json!(12);
    other["temperature"] = json!(0);
    let other = server.ask("/v1/chat/completions", &other);
    assert_eq!(other["choices"][0]["message"]["content"], text);
}

#[test]
fn a_prompt_is_answered_in_the_template_or_as_it_is() {
    let server = start(options());
    let settings = json!({"num_predict": 8, "temperature": 0});
    let ask = |more: Value| {
        let mut body = json!({"model": "fixture", "prompt": "In the beginning", "stream": false, "options": settings});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask("/api/generate", &body)
    };
    let raw = ask(json!({"raw": true}));
    let completed = server.complete("In the beginning", json!({"max_tokens": 8}));
    assert_eq!(raw["response"], completed["choices"][0]["text"]);
    let asked = ask(json!({"system": "God said"}));
    assert!(asked["prompt_eval_count"].as_u64() > raw["prompt_eval_count"].as_u64());
    let logs = ask(json!({"logprobs": true, "top_logprobs": 2}));
    assert_eq!(logs["logprobs"].as_array().unwrap().len(), 8);
    let streamed = lines(
        &server,
        "/api/generate",
        &json!({"model": "fixture", "prompt": "In the beginning", "raw": true, "options": settings}),
    );
    let text: String = streamed.iter().filter_map(|line| line["response"].as_str()).collect();
    assert_eq!(raw["response"], text);
}

#[test]
fn a_request_without_a_question_says_that_the_model_is_loaded() {
    let server = start(options());
    for (path, field) in [("/api/chat", "messages"), ("/api/generate", "prompt")] {
        for body in [
            json!({"model": "fixture"}),
            json!({"model": "fixture", field: null, "keep_alive": "5m"}),
        ] {
            let answer = server.ask(path, &body);
            assert_eq!(
                (&answer["done"], &answer["done_reason"]),
                (&json!(true), &json!("load"))
            );
        }
    }
}

#[test]
fn a_format_holds_the_answer() {
    let server = start(options());
    let schema = json!({
        "type": "object", "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["days"], "additionalProperties": false,
    });
    let mut body = chat();
    body["options"]["num_predict"] = json!(60);
    body["format"] = schema;
    body["stream"] = json!(false);
    let answer = server.ask("/api/chat", &body);
    let data: Value = serde_json::from_str(answer["message"]["content"].as_str().unwrap()).unwrap();
    assert!((1..=9).contains(&data["days"].as_i64().unwrap()));
    body["format"] = json!("xml");
    let refused = server.post("/api/chat", &body);
    assert_eq!(refused.status, 400);
    assert!(
        refused.json()["error"].as_str().unwrap().starts_with("format: "),
        "{}",
        refused.body
    );
}

#[test]
fn options_without_effect_are_named_and_those_that_would_change_the_answer_refused() {
    let server = start(options());
    let mut body = chat();
    body["stream"] = json!(false);
    body["options"] = json!({
        "num_predict": 2, "seed": -1, "repeat_last_n": -1, "repeat_penalty": 1.1, "num_gpu": 9, "num_ctx": 10_000_000,
        "colour": "red", "mirostat": 0, "stop": ["x"],
    });
    let answer = server.ask("/api/chat", &body);
    let warnings = answer["riffle"]["warnings"].to_string();
    for name in ["options.num_ctx", "options.colour"] {
        assert!(warnings.contains(name), "{warnings}");
    }
    for (field, value) in [
        ("options", json!({"mirostat": 2})),
        ("options", json!({"temperature": "hot"})),
        (
            "messages",
            json!([{"role": "user", "content": "a", "images": ["aGk="]}]),
        ),
        ("model", json!("")),
    ] {
        let mut body = chat();
        body[field] = value;
        let refused = server.post("/api/chat", &body);
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.json()["error"].is_string());
    }
    for (field, value) in [
        ("suffix", json!("b")),
        ("images", json!(["aGk="])),
        ("template", json!("{{ .Prompt }}")),
        ("context", json!([1, 2])),
    ] {
        let mut body = json!({"model": "fixture", "prompt": "a"});
        body[field] = value;
        let refused = server.post("/api/generate", &body);
        let message = refused.json()["error"].as_str().unwrap().to_owned();
        assert!(refused.status == 400 && message.starts_with(field), "{message}");
    }
    assert!(server.get("/api/none").json()["error"].is_string());
}

#[test]
fn models_are_listed_and_shown_under_their_names() {
    let server = start(ServerOptions {
        aliases: vec!["other".to_owned()],
        has_strict_names: true,
        ..options()
    });
    for path in ["/api/tags", "/api/ps"] {
        let list = server.get(path).json();
        let names: Vec<&str> = list["models"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| model["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["fixture", "other"]);
        assert_eq!(list["models"][0]["digest"].as_str().unwrap().len(), 64);
        assert!(list["models"][0]["size"].as_u64().unwrap() > 1 << 20);
    }
    for name in ["fixture", "other:latest"] {
        let shown = server.ask("/api/show", &json!({"model": name}));
        let family = shown["details"]["family"].as_str().unwrap();
        assert!(
            shown["model_info"][format!("{family}.context_length")]
                .as_u64()
                .unwrap()
                > 0
        );
        assert!(shown["capabilities"].as_array().unwrap().contains(&json!("completion")));
    }
    assert_eq!(server.post("/api/show", &json!({"model": "third"})).status, 404);
    assert!(server.get("/api/version").json()["version"].is_string());
    let line = server.send("GET", "/", "Accept: */*\r\n", "").whole();
    assert_eq!(line.body, "Ollama is running");
    assert_eq!(server.send("HEAD", "/", "", "").status, 200);
    assert!(
        server
            .send("GET", "/", "Accept: text/html,*/*\r\n", "")
            .whole()
            .body
            .starts_with("<!")
    );
}

#[test]
fn a_continuation_in_the_shape_of_llama_cpp_has_the_text_of_a_completion() {
    let server = start(options());
    let mut body = json!({"prompt": "In the beginning", "n_predict": 8, "temperature": 0});
    let whole = server.ask("/completion", &body);
    let completed = server.complete("In the beginning", json!({"max_tokens": 8}));
    assert_eq!(whole["content"], completed["choices"][0]["text"]);
    assert_eq!(
        (&whole["stop_type"], &whole["tokens_predicted"]),
        (&json!("limit"), &json!(8))
    );
    body["prompt"] = json!(["In the beginning", "And God said"]);
    let both = server.ask("/completion", &body);
    assert_eq!((&both[0]["content"], &both[1]["index"]), (&whole["content"], &json!(1)));
    body["prompt"] = json!("In the beginning");
    body["stream"] = json!(true);
    let events = server.stream("/completion", &body).events();
    let text: String = events.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(whole["content"], text);
    assert_eq!(events.last().unwrap()["stop"], true);
    assert_eq!(server.get("/props").json()["total_slots"], 8);
    assert_eq!(server.get("/slots").json().as_array().unwrap().len(), 8);
}
