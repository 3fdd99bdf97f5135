//! Invalid requests: the server refuses each at once, with a 4xx in the shape of its API and one clear message. It
//! stays up.

mod requests;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use requests::{Case, Ending, KEY, Shape};
use riffle_engine::{Engine, EngineOptions};
use riffle_server::{Limits, Server, ServerOptions, Stopper};
use serde_json::{Value, json};

/// Time limit for a head to arrive, and for a pause within a body.
const ARRIVAL: Duration = Duration::from_millis(600);

/// Longest time of an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server on a port of its own, with the shipped model.
struct Running {
    address: SocketAddr,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start() -> Self {
        let options = EngineOptions::default()
            .with_context_tokens(Some(2048))
            .with_pool_tokens(Some(8192))
            .with_sequences(8)
            .with_keeps_beginnings(true);
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/model");
        let engine = Engine::load(model, options).unwrap();
        let server = Server::bind(
            &engine,
            ServerOptions {
                address: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
                threads: Some(1),
                parallel: 4,
                model_name: "model".to_owned(),
                api_keys: vec![KEY.into()],
                limits: Limits {
                    body_bytes: 1 << 20,
                    arrival_time: ARRIVAL,
                    ..Limits::default()
                },
                grace: Duration::ZERO,
                ..ServerOptions::default()
            },
        )
        .unwrap();
        let (address, stopper) = (server.address().tcp().unwrap(), server.stopper());
        let thread = std::thread::spawn(move || server.run().unwrap());
        Self {
            address,
            stopper,
            thread: Some(thread),
        }
    }

    /// Checks that a valid request is answered.
    fn check_answers(&self) {
        let body = json!({"model": "model", "prompt": "In the beginning", "max_tokens": 2}).to_string();
        let request = requests::post("/v1/completions", &body);
        let answer = self.ask(&request, Ending::Open).unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    /// The server's answer to these bytes.
    fn ask(&self, bytes: &[u8], ending: Ending) -> Result<Answer, String> {
        let mut stream = TcpStream::connect(self.address).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A server may answer and close before it has read every byte.
        let written = stream.write_all(bytes);
        if ending == Ending::Closed {
            drop(stream.shutdown(Shutdown::Write));
        }
        let mut text = Vec::new();
        let read = stream.read_to_end(&mut text);
        Answer::parse(&text).ok_or_else(|| {
            format!(
                "no answer: {:?} ({written:?}, {read:?})",
                String::from_utf8_lossy(&text)
            )
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        drop(self.thread.take().map(JoinHandle::join));
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    body: Value,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if is_chunked {
            body.lines().find(|line| line.starts_with('{')).unwrap_or("")
        } else {
            body
        };
        let body = serde_json::from_str(body).unwrap_or(Value::Null);
        Some(Self { status, body })
    }

    /// The fault of this answer as a refusal, or `None` if it is correct.
    fn fault(&self, case: &Case) -> Option<String> {
        if !(400..500).contains(&self.status) {
            return Some(format!("status {}, body {}", self.status, self.body));
        }
        if case.shape == Shape::Bare {
            return None;
        }
        let error = &self.body["error"];
        let message = error.as_str().or(error["message"].as_str()).unwrap_or("");
        let is_clear = message.len() >= 10 && message.len() <= 600 && !message.contains(['\n', '\r']);
        let fits = match case.shape {
            Shape::OpenAi => {
                error["type"].is_string()
                    && error.get("param").is_some()
                    && error.get("code").is_some()
                    && self.body.get("type").is_none()
            }
            Shape::Anthropic => self.body["type"] == "error" && error["type"].is_string(),
            Shape::Ollama => error.is_string(),
            Shape::Bare => true,
        };
        (!is_clear || !fits).then(|| format!("status {}, body {}", self.status, self.body))
    }
}

#[test]
fn every_malformed_request_is_refused_in_the_shape_of_its_api_and_the_server_goes_on() {
    let server = Running::start();
    server.check_answers();
    let cases = requests::all();
    assert!(cases.len() >= 300, "{} requests", cases.len());
    let (next, faults) = (Mutex::new(cases.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some(case) = next.lock().unwrap().next() else {
                        return;
                    };
                    let begun = Instant::now();
                    let fault = match server.ask(&case.bytes, case.ending) {
                        Ok(answer) => answer.fault(case),
                        Err(problem) => Some(problem),
                    };
                    let fault = fault.or_else(|| (begun.elapsed() >= PATIENCE).then(|| "it took too long".to_owned()));
                    if let Some(fault) = fault {
                        faults.lock().unwrap().push(format!("{}: {fault}", case.name));
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(
        faults.is_empty(),
        "{} of {}:\n{}",
        faults.len(),
        cases.len(),
        faults.join("\n")
    );
    server.check_answers();
}

#[test]
fn who_sends_slowly_or_not_at_all_is_let_go() {
    let server = Running::start();
    let body = json!({"model": "model", "prompt": "a", "max_tokens": 1}).to_string();
    let whole = requests::post("/v1/completions", &body);
    let head = whole.windows(4).position(|part| part == b"\r\n\r\n").unwrap() + 4;
    // The client sends nothing, a part of the head, the whole head, or a part of the body.
    for sent in [0, 1, head / 2, head, head + 5] {
        let begun = Instant::now();
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&whole[..sent]).unwrap();
        let mut text = Vec::new();
        drop(stream.read_to_end(&mut text));
        assert!(begun.elapsed() < PATIENCE / 2, "{sent} bytes were waited for");
        if let Some(answer) = Answer::parse(&text) {
            assert!((400..500).contains(&answer.status), "{sent}: {answer:?}");
        }
    }
    // HTTP/2 has no such limits, so the server does not accept it.
    let begun = Instant::now();
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    let mut text = Vec::new();
    drop(stream.read_to_end(&mut text));
    assert!(text.is_empty() || text.starts_with(b"HTTP/1.1 4"), "{text:?}");
    assert!(begun.elapsed() < PATIENCE / 2, "HTTP/2 was waited for");
    // The client sends single letters of a head without an end.
    let begun = Instant::now();
    let mut stream = TcpStream::connect(server.address).unwrap();
    for letter in whole[..head - 2].iter().cycle() {
        if stream.write_all(&[*letter]).is_err() || begun.elapsed() > PATIENCE {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(begun.elapsed() < PATIENCE, "a head that never ends was waited for");
    server.check_answers();
}
