//! Tests of keys, origins and limits.

use std::io::Write;
use std::time::Duration;

use riffle_server::{Limits, ServerOptions};
use serde_json::json;

use crate::testing::{options, start, text};

const JSON: &str = "Content-Type: application/json\r\n";

#[test]
fn a_key_is_asked_for_where_there_are_keys() {
    let server = start(ServerOptions {
        api_keys: vec!["secret".into(), "other".into()],
        ..options()
    });
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let status = |path: &str, headers: &str| {
        server
            .send("POST", path, &format!("{JSON}{headers}"), &body)
            .whole()
            .status
    };
    assert_eq!(status("/v1/completions", ""), 401);
    assert_eq!(status("/v1/completions", "Authorization: Bearer secre\r\n"), 401);
    assert_eq!(status("/v1/completions", "Authorization: Bearer secret\r\n"), 200);
    assert_eq!(status("/v1/completions", "x-api-key: other\r\n"), 200);
    assert_eq!(server.get("/metrics").status, 401);
    assert_eq!((server.get("/health").status, server.get("/").status), (200, 200));
    let refused = server.post("/v1/messages", &json!({}));
    assert_eq!(refused.json()["error"]["type"], "authentication_error");
}

#[test]
fn a_page_of_a_stranger_is_not_let_in() {
    let server = start(options());
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    // A form or a script can send text without a preflight request; JSON needs one.
    assert_eq!(
        server
            .send("POST", "/v1/completions", "Content-Type: text/plain\r\n", &body)
            .whole()
            .status,
        415
    );
    let asked = "Origin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n";
    let response = server.send("OPTIONS", "/v1/completions", asked, "").whole();
    assert!(
        !response
            .head
            .to_ascii_lowercase()
            .contains("access-control-allow-origin"),
        "{}",
        response.head
    );
    // Another name that resolves to this server is refused too.
    let mut stream = server.connect();
    write!(
        stream,
        "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

#[test]
fn an_origin_that_is_allowed_may_ask() {
    let server = start(ServerOptions {
        allowed_origins: vec!["https://good.example".to_owned()],
        ..options()
    });
    let asked = "Origin: https://good.example\r\nAccess-Control-Request-Method: POST\r\n";
    let response = server.send("OPTIONS", "/v1/completions", asked, "").whole();
    assert!(
        response
            .head
            .contains("access-control-allow-origin: https://good.example"),
        "{}",
        response.head
    );
}

#[test]
fn more_than_the_server_takes_on_is_refused_with_when_to_come_back() {
    let server = start(ServerOptions {
        limits: Limits {
            requests: 1,
            body_bytes: 100_000,
            answers_per_request: 3,
            ..Limits::default()
        },
        ..options()
    });
    let body = json!({"prompt": text(60_000), "max_tokens": 500, "stream": true, "ignore_eos": true});
    let mut first = server.stream("/v1/completions", &body);
    first.event().unwrap();
    let refused = server.post("/v1/completions", &json!({"prompt": "a"}));
    assert_eq!(refused.status, 429);
    assert!(
        refused.head.to_ascii_lowercase().contains("retry-after: "),
        "{}",
        refused.head
    );
    assert_eq!(server.get("/ready").status, 503);
    drop(first);
    // The server notices a closed connection when it writes to it.
    let is_free = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        server.get("/ready").status == 200
    });
    assert!(is_free);
    assert_eq!(
        server
            .post("/v1/completions", &json!({"prompt": "a ".repeat(60_000)}))
            .status,
        413
    );
    assert_eq!(
        server.post("/v1/completions", &json!({"prompt": "a", "n": 4})).status,
        400
    );
}

#[test]
fn a_prompt_that_never_fits_is_refused_before_it_is_read() {
    let server = start(options());
    for path in ["/v1/completions", "/v1/chat/completions"] {
        for is_streamed in [false, true] {
            let text = text(300_000);
            let body = json!({
                "prompt": text, "messages": [{"role": "user", "content": text}], "stream": is_streamed,
            });
            let mut body = body;
            let other = if path == "/v1/completions" {
                "messages"
            } else {
                "prompt"
            };
            body.as_object_mut().unwrap().remove(other);
            let response = server.post(path, &body);
            assert_eq!(
                (response.status, &response.json()["error"]["code"]),
                (400, &json!("context_length_exceeded"))
            );
        }
    }
}

#[test]
fn who_reads_slowly_holds_up_nobody() {
    let server = start(options());
    let body =
        json!({"prompt": "In the beginning", "max_tokens": 3000, "stream": true, "ignore_eos": true, "logprobs": 20});
    // The client never reads this answer.
    let slow = server.stream("/v1/completions", &body);
    for _ in 0..5 {
        server.complete("And God said", json!({"max_tokens": 8}));
    }
    drop(slow);
    server.wait_for("vllm:num_requests_running", |running| running == 0.0);
}

#[test]
fn bodies_together_keep_to_a_limit() {
    let server = start(ServerOptions {
        limits: Limits {
            body_bytes: 64 << 10,
            bodies_bytes: 64 << 10,
            ..Limits::default()
        },
        ..options()
    });
    // The head announces a body, which reserves memory for it.
    let mut first = server.connect();
    write!(
        first,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{{"
    )
    .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let mut second = server.connect();
    second.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let length = body.len();
    write!(
        second,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut byte = [0];
    assert!(std::io::Read::read(&mut second, &mut byte).is_err(), "it waits");
    drop(first);
    second.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(std::io::Read::read(&mut second, &mut byte).unwrap(), 1);
}

#[test]
fn a_request_that_takes_too_long_is_ended() {
    let server = start(ServerOptions {
        limits: Limits {
            request_time: Duration::from_millis(300),
            ..Limits::default()
        },
        ..options()
    });
    let response = server.post(
        "/v1/completions",
        &json!({"prompt": text(80_000), "max_tokens": 4000, "ignore_eos": true}),
    );
    assert_eq!(response.status, 503, "{}", response.body);
    assert!(
        response.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("longer than the server allows")
    );
}
