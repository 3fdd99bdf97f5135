//! Chains of schemas, patterns and grammars: each is prepared or refused, and no fault of the server.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use riffle_engine::{Engine, EngineOptions};
use riffle_server::{Server, ServerOptions};
use riffle_testing::chains;

/// A server of the shipped model whose answers are short.
static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let options = EngineOptions::default().with_context_tokens(Some(256));
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/model");
    let engine = Engine::load(model, options).expect("the shipped model can be loaded");
    let options = ServerOptions {
        address: ([127, 0, 0, 1], 0).into(),
        default_max_tokens: 2,
        logs_requests: false,
        ..ServerOptions::default()
    };
    Server::bind(&engine, options).expect("a free port can be listened on")
});

fuzz_target!(|input: &[u8]| {
    let mut bytes = input.chunks(2);
    let mut choose = |below: usize| {
        let pair = bytes.next().unwrap_or_default();
        pair.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)) % below
    };
    let mut body = chains::form(&mut choose);
    body["prompt"] = "x".into();
    let (status, answer) = SERVER.respond("/v1/completions", body.to_string().as_bytes());
    assert!(status < 500, "{status}: {}", String::from_utf8_lossy(&answer));
});
