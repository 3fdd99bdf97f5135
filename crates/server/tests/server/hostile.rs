//! Hostile requests: the server answers or refuses each, serves other clients meanwhile, and gives the same answers
//! afterwards.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use riffle_server::{Limits, ServerOptions};
use riffle_testing::chains;
use serde_json::{Value, json};

use crate::testing::{Running, options, start};

/// Requests of each kind.
const EACH: u64 = 300;

/// Longest time of an answer on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A deterministic generator of numbers below a limit.
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    }
}

/// A kind of request: its path and body.
type RequestMaker = fn(&mut dyn FnMut(usize) -> usize) -> (&'static str, String);

const KINDS: [RequestMaker; 5] = [
    |choose| {
        let mut body = json!({"prompt": "x", "max_tokens": 2});
        body.as_object_mut()
            .unwrap()
            .extend(chains::form(choose).as_object().unwrap().clone());
        ("/v1/completions", body.to_string())
    },
    |choose| {
        let tool = |at: usize, choose: &mut dyn FnMut(usize) -> usize| json!({"type": "function", "function": {"name": format!("f{}", at % 3), "strict": choose(2) == 0, "parameters": chains::schema(choose)}});
        let tools: Vec<Value> = (0..choose(4)).map(|at| tool(at, choose)).collect();
        let choice = ["auto", "required", "none", "f0"][choose(4)];
        let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "tools": tools, "tool_choice": choice});
        ("/v1/chat/completions", body.to_string())
    },
    |choose| {
        let depth = [3, 120, 128, 129, 5000, 100_000][choose(6)];
        let (open, close) = [("[", "]"), ("{\"a\":", "}"), ("[{\"content\":", "}]")][choose(3)];
        let field = ["prompt", "messages", "tools", "metadata", "stop", "response_format"][choose(6)];
        let path = [
            "/v1/completions",
            "/v1/chat/completions",
            "/v1/messages",
            "/v1/responses",
        ][choose(4)];
        (
            path,
            format!("{{\"{field}\":{}1{}}}", open.repeat(depth), close.repeat(depth)),
        )
    },
    |choose| {
        let number = [
            "1e400",
            "-0",
            "18446744073709551616",
            "1e-400",
            "9007199254740993",
            "-1",
            "0.1",
            "1E5",
            "99999999999",
        ][choose(9)];
        let field = [
            "max_tokens",
            "seed",
            "temperature",
            "top_p",
            "top_k",
            "n",
            "logprobs",
            "min_p",
            "frequency_penalty",
        ][choose(9)];
        let path = ["/v1/completions", "/v1/chat/completions"][choose(2)];
        (
            path,
            format!("{{\"prompt\":\"x\",\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],\"{field}\":{number}}}"),
        )
    },
    |choose| {
        let piece = [
            " ",
            "\u{0}",
            "e\u{301}",
            "\u{202e}",
            "\u{1F469}\u{200d}",
            "<|im_start|>",
            "<think>",
            "]",
            "\u{fffd}",
        ][choose(9)];
        let text = piece.repeat([1, 50, 400_000][choose(3)]);
        let body = match choose(3) {
            0 => json!({"prompt": text, "max_tokens": 1}),
            1 => json!({"prompt": vec![text; 3], "max_tokens": 1}),
            _ => json!({"prompt": "x", "stop": [text], "max_tokens": 1}),
        };
        ("/v1/completions", body.to_string())
    },
];

#[test]
fn no_request_ends_the_server_or_holds_it_up() {
    let server = start(ServerOptions {
        default_max_tokens: 2,
        limits: Limits {
            arrival_time: Duration::from_millis(500),
            ..Limits::default()
        },
        ..options()
    });
    let before = server.complete("Once upon a time", json!({"max_tokens": 12}));
    let (is_done, longest) = (AtomicBool::new(false), AtomicUsize::new(0));
    let target = &server;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let asked = Instant::now();
                assert_eq!(server.get("/health").status, 200);
                longest.fetch_max(asked.elapsed().as_millis() as usize, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let attackers: Vec<_> = (0..KINDS.len())
            .map(|kind| scope.spawn(move || attack(target, kind)))
            .chain([scope.spawn(move || odd_wire(target))])
            .collect();
        let ended: Vec<_> = attackers.into_iter().map(|attacker| attacker.join()).collect();
        is_done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    let longest = Duration::from_millis(longest.into_inner() as u64);
    assert!(longest < PATIENCE, "/health took {longest:?}");
    let after = server.complete("Once upon a time", json!({"max_tokens": 12}));
    assert_eq!(before["choices"], after["choices"]);
}

fn attack(server: &Running, kind: usize) {
    for seed in 0..EACH {
        let mut choose = numbers(seed * 16 + kind as u64);
        let (path, body) = KINDS[kind](&mut choose);
        let response = server
            .send("POST", path, "Content-Type: application/json\r\n", &body)
            .whole();
        let shown = body.chars().take(300).collect::<String>();
        assert!(
            response.status < 500,
            "{path} {shown}\n{}: {}",
            response.status,
            response.body
        );
        assert!(
            response.status == 200 || response.body.contains("\"message\":\""),
            "{path} {shown}\n{}",
            response.body
        );
    }
}

/// Heads that are not HTTP, truncated bodies, and pipelined requests.
fn odd_wire(server: &Running) {
    for seed in 0..EACH {
        let mut choose = numbers(seed);
        let head = [
            "POST /v1/completions HTTP/1.1",
            "GET /health HTTP/9.9",
            "\u{0}\u{1}",
            "PRI * HTTP/2.0",
            "GET //../.. HTTP/1.1",
        ][choose(5)];
        let field = [
            "Content-Length: 5",
            "Content-Length: -1",
            "Content-Length: 99999999999999999999",
            "Transfer-Encoding: chunked",
            "Host: a\r\nHost: b",
            "Expect: 100-continue",
        ][choose(6)];
        let body = [
            "{}",
            "{\"prompt\":",
            "ffffffffffffffff\r\n",
            "5\r\n{}",
            "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ][choose(5)];
        let mut stream = server.connect();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // The server may have closed the connection at any point.
        let sent = write!(
            stream,
            "{head}\r\nHost: localhost\r\nConnection: close\r\n{field}\r\n\r\n{body}"
        );
        if sent.is_ok() && choose(2) == 0 {
            drop(stream.shutdown(std::net::Shutdown::Write));
            drop(stream.read_to_end(&mut Vec::new()));
        }
    }
}
