//! Shutdown of a server.

use std::time::{Duration, Instant};

use riffle_engine::{Engine, EngineOptions};
use riffle_server::ServerOptions;
use serde_json::{Value, json};

use crate::testing::{options, start, start_on, text};

#[test]
fn answers_under_way_are_finished_and_new_requests_refused() {
    let server = start(options());
    let body = json!({"prompt": "In the beginning", "max_tokens": 200, "stream": true, "ignore_eos": true});
    let mut stream = server.stream("/v1/completions", &body);
    stream.event().unwrap();
    let stopped = std::thread::spawn(move || server.stop());
    let events = stream.events();
    assert_eq!(events.last(), Some(&json!("[DONE]")));
    let reasons = events
        .iter()
        .filter(|event| event["choices"][0]["finish_reason"] == "length");
    assert_eq!(reasons.count(), 1);
    stopped.join().unwrap();
}

#[test]
fn answers_that_take_longer_than_the_grace_end_with_an_error() {
    let server = start(ServerOptions {
        grace: Duration::from_millis(100),
        ..options()
    });
    let body = json!({"prompt": text(80_000), "max_tokens": 4000, "stream": true, "ignore_eos": true});
    let mut stream = server.stream("/v1/completions", &body);
    stream.event().unwrap();
    let began = Instant::now();
    let stopped = std::thread::spawn(move || server.stop());
    let events = stream.events();
    let last: &Value = events.last().unwrap();
    assert!(
        last["error"]["message"].as_str().unwrap().contains("shutting down"),
        "{last}"
    );
    stopped.join().unwrap();
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn an_answer_that_waits_for_room_goes_on_within_the_grace() {
    let engine = EngineOptions::default()
        .with_context_tokens(Some(1024))
        .with_page_tokens(32)
        .with_sequences(2);
    let engine = Engine::load(riffle_testing::fixture("model"), engine).unwrap();
    let server = start_on(
        &engine,
        ServerOptions {
            parallel: 2,
            grace: Duration::from_secs(60),
            ..options()
        },
    );
    let ask = |prompt: &str, tokens: usize| {
        let body = json!({"prompt": prompt, "max_tokens": tokens, "stream": true, "ignore_eos": true});
        let mut stream = server.stream("/v1/completions", &body);
        stream.event().unwrap();
        stream
    };
    let (mut older, younger) = (ask("In the beginning", 900), ask("And it came to pass", 900));
    // The pool holds 1,024 tokens of both requests.
    for _ in 0..600 {
        older.event().unwrap();
    }
    let stopped = std::thread::spawn(move || server.stop());
    for stream in [older, younger] {
        let events = stream.events();
        let is_whole = |event: &Value| event["choices"][0]["finish_reason"] == "length";
        assert!(events.iter().any(is_whole), "{:?}", events.last());
    }
    stopped.join().unwrap();
}
