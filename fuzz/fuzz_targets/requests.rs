//! Bodies of requests to the server: each is answered or refused, and no fault of the server.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use riffle_engine::{Engine, EngineOptions};
use riffle_server::{JSON_PATHS, Server, ServerOptions};

/// A server of the shipped model whose answers are short.
static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let options = EngineOptions::default()
        .with_context_tokens(Some(256))
        .with_sequences(4)
        .with_keeps_beginnings(true);
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/model");
    let engine = Engine::load(model, options).expect("the shipped model can be loaded");
    let options = ServerOptions {
        address: ([127, 0, 0, 1], 0).into(),
        default_max_tokens: 4,
        logs_requests: false,
        ..ServerOptions::default()
    };
    Server::bind(&engine, options).expect("a free port can be listened on")
});

fuzz_target!(|input: &[u8]| {
    let Some((first, body)) = input.split_first() else {
        return;
    };
    let path = JSON_PATHS[usize::from(*first) % JSON_PATHS.len()];
    let (status, answer) = SERVER.respond(path, body);
    assert!(status < 500, "{status}: {}", String::from_utf8_lossy(&answer));
    let text = String::from_utf8(answer).expect("answers are text");
    assert!(status == 200 || text.contains("\"message\""), "{status}: {text}");
});
