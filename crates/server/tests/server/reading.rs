//! Prompts: the server reuses pages, and stops reading when the client disconnects.

use std::io::Write;
use std::time::{Duration, Instant};

use riffle_engine::{Engine, EngineOptions, PrefixCacheOptions};
use serde_json::{Value, json};

use crate::testing::{BATCH, options, start, start_on, text};

fn cached(answer: &Value) -> usize {
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    usize::try_from(cached.as_u64().unwrap()).unwrap()
}

/// Disconnects after this share of a prompt was read. Returns the tokens read until then.
fn leave_after(server: &crate::testing::Running, prompt: &str, share: f64) -> usize {
    let body = json!({"prompt": prompt, "max_tokens": 4, "stream": true, "riffle": {"progress": true}});
    let mut stream = server.stream("/v1/completions", &body);
    assert_eq!(stream.status, 200);
    loop {
        let event: Value = serde_json::from_str(&stream.event().unwrap()).unwrap();
        let progress = &event["riffle"]["progress"];
        let (read, tokens) = (
            progress["tokens_read"].as_f64().unwrap(),
            progress["tokens"].as_f64().unwrap(),
        );
        if read >= share * tokens {
            return read as usize;
        }
    }
}

#[test]
fn who_goes_and_comes_back_reads_only_what_was_not_read() {
    let server = start(options());
    let prompt = text(30_000);
    let read = leave_after(&server, &prompt, 0.6);
    server.wait_for("vllm:num_requests_running", |running| running == 0.0);
    let answer = server.complete(&prompt, json!({"max_tokens": 2}));
    let found = cached(&answer);
    assert!(
        found + BATCH >= read && found > 0,
        "{found} of {read} tokens were found again"
    );
    let expected = start(options()).complete(&prompt, json!({"max_tokens": 2}));
    assert_eq!(answer["choices"], expected["choices"]);
}

#[test]
fn who_goes_is_not_read_for_any_longer() {
    let server = start(options());
    let read = leave_after(&server, &text(80_000), 0.2);
    server.wait_for("vllm:num_requests_running", |running| running == 0.0);
    // Reading has stopped: the number of pages stays constant.
    let pages = server.metric("riffle:kv_pages");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(server.metric("riffle:kv_pages"), pages);
    assert!(read < 12_000, "{read}");
}

#[test]
fn who_goes_without_having_asked_for_a_stream_is_noticed_too() {
    let server = start(options());
    let body = json!({"prompt": text(80_000), "max_tokens": 4000, "ignore_eos": true}).to_string();
    let mut stream = server.connect();
    let length = body.len();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    server.wait_for("vllm:num_requests_running", |running| running == 1.0);
    drop(stream);
    let began = Instant::now();
    server.wait_for("vllm:num_requests_running", |running| running == 0.0);
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn models_with_recurrent_layers_go_on_from_a_state_they_know() {
    let load = || {
        let options = EngineOptions::default()
            .with_context_tokens(Some(16384))
            .with_batch_tokens(BATCH)
            .with_page_tokens(64)
            .with_sequences(8)
            .with_keeps_beginnings(true);
        Engine::load(riffle_testing::fixture("model-hybrid"), options).unwrap()
    };
    let few = || riffle_server::ServerOptions {
        parallel: 4,
        ..options()
    };
    let server = start_on(&load(), few());
    let book = text(20_000);
    let ask = |server: &crate::testing::Running, question: &str| {
        server.complete(&format!("{book}{question}"), json!({"max_tokens": 4}))
    };
    ask(&server, "\nWho?");
    let answer = ask(&server, "\nWhen was it?");
    let tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert!(2 * cached(&answer) > tokens, "{} of {tokens}", cached(&answer));
    let alone = ask(&start_on(&load(), few()), "\nWhen was it?");
    assert_eq!(answer["choices"], alone["choices"]);
}

#[test]
fn one_prompt_asked_by_many_at_once_is_read_once() {
    let server = start(options());
    let prompt = text(20_000);
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let ask = || server.complete(&prompt, json!({"max_tokens": 3}));
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let tokens = answers[0]["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    let read: usize = answers.iter().map(|answer| tokens - cached(answer)).sum();
    assert!(read < tokens + 4 * 300, "{read} of {tokens} tokens were read");
    assert!(answers.iter().all(|answer| answer["choices"] == answers[0]["choices"]));
}

#[test]
fn what_was_read_outlives_the_server_with_a_prefix_cache() {
    let folder = tempfile::tempdir().unwrap();
    let kept = || riffle_server::ServerOptions {
        prefix_cache: Some(PrefixCacheOptions {
            folder: folder.path().to_owned(),
            budget_bytes: 1 << 30,
        }),
        ..options()
    };
    let prompt = text(30_000);
    let first = start(kept());
    let read = leave_after(&first, &prompt, 0.5);
    first.stop();
    let second = start(kept());
    let answer = second.complete(&prompt, json!({"max_tokens": 2}));
    assert!(cached(&answer) + BATCH >= read, "{} of {read}", cached(&answer));
    let expected = start(options()).complete(&prompt, json!({"max_tokens": 2}));
    assert_eq!(answer["choices"], expected["choices"]);
    second.stop();
    // A fully cached prompt needs only its last token.
    let third = start(kept());
    let again = third.complete(&prompt, json!({"max_tokens": 2}));
    let tokens = again["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!((cached(&again), &again["choices"]), (tokens - 1, &expected["choices"]));
}

#[test]
fn what_nobody_asks_for_is_forgotten_after_its_time() {
    let server = start(riffle_server::ServerOptions {
        keep_alive: Some(Duration::from_millis(300)),
        ..options()
    });
    server.complete(&text(5000), json!({"max_tokens": 2}));
    server.wait_for("riffle:kv_pages", |pages| pages == 0.0);
    assert_eq!(server.metric("riffle:idle_sequences"), 0.0);
}

#[test]
fn an_audit_says_what_a_policy_kept_and_read() {
    let server = start(options());
    let asked = json!({"max_tokens": 2, "riffle": {"prefill": "streaming:sinks=16,window=256", "audit": true}});
    let answer = server.complete(&text(20_000), asked);
    let riffle = &answer["riffle"];
    assert!(riffle["prefill"].as_str().unwrap().starts_with("streaming"));
    let (share, mass) = (
        riffle["share_read"].as_f64().unwrap(),
        riffle["kept_mass"]["mean"].as_f64().unwrap(),
    );
    assert!(share < 0.3 && mass > 0.1 && mass < 1.0, "{share} {mass}");
}
