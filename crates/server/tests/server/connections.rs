//! Connections that are idle, half-closed or too many.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use riffle_server::{Limits, ServerOptions};
use serde_json::json;

use crate::testing::{options, start, text};

#[test]
fn idle_connections_make_room_for_others_and_busy_ones_stay() {
    let server = start(ServerOptions {
        limits: Limits {
            connections: 6,
            ..Limits::default()
        },
        ..options()
    });
    let long = json!({"prompt": "In the beginning", "max_tokens": 2500, "stream": true, "ignore_eos": true});
    let mut answer = server.stream("/v1/completions", &long);
    answer.event().unwrap();
    // Some send nothing, and some never finish a request.
    let idle: Vec<TcpStream> = (0..12)
        .map(|number| {
            let mut stream = server.connect();
            if number % 2 == 0 {
                write!(stream, "GET /health HTTP/1.1\r\n").unwrap();
            }
            stream
        })
        .collect();
    let began = Instant::now();
    assert_eq!(server.get("/health").status, 200);
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    assert_eq!(answer.events().last(), Some(&json!("[DONE]")));
    drop(idle);
}

#[test]
fn a_client_that_has_ended_its_side_gets_its_answer() {
    let server = start(options());
    let body = json!({"prompt": "In the beginning", "max_tokens": 200, "ignore_eos": true}).to_string();
    let length = body.len();
    let mut stream = server.connect();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("text_completion"),
        "{answer}"
    );
}

#[test]
fn a_client_that_is_gone_before_a_byte_of_its_answer_is_noticed() {
    let server = start(options());
    let body = json!({"prompt": text(80_000), "max_tokens": 4000, "ignore_eos": true}).to_string();
    let length = body.len();
    let mut stream = server.connect();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    server.wait_for("vllm:num_requests_running", |running| running == 1.0);
    drop(stream);
    server.wait_for("vllm:num_requests_running", |running| running == 0.0);
    assert!(server.metric("vllm:generation_tokens_total") < 4000.0);
}
