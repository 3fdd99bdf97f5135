//! A server in this process on a free port, and a client for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use riffle_engine::{Engine, EngineOptions};
use riffle_server::{Keys, KvEventAddresses, Server, ServerOptions, Stopper};
use serde_json::{Value, json};

/// Batch size of these tests, in tokens.
pub(crate) const BATCH: usize = 1024;

/// The shipped model, loaded once for all tests.
pub(crate) fn engine() -> Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    let load = || {
        let options = EngineOptions::default()
            .with_context_tokens(Some(32768))
            .with_batch_tokens(BATCH)
            .with_chunk_tokens(256)
            .with_page_tokens(64)
            .with_sequences(16)
            .with_pool_tokens(Some(65536))
            .with_keeps_beginnings(true);
        Engine::load(riffle_testing::fixture("model"), options).unwrap()
    };
    Arc::clone(ENGINE.get_or_init(load))
}

/// A server that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) kv_events: Option<KvEventAddresses>,
    pub(crate) keys: Keys,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn options() -> ServerOptions {
    ServerOptions {
        address: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
        parallel: 8,
        model_name: "fixture".to_owned(),
        grace: Duration::from_secs(5),
        ..ServerOptions::default()
    }
}

pub(crate) fn start(options: ServerOptions) -> Running {
    start_on(&engine(), options)
}

pub(crate) fn start_on(engine: &Arc<Engine>, options: ServerOptions) -> Running {
    run(Server::bind(engine, options).unwrap())
}

/// Runs a server on its own thread.
pub(crate) fn run(server: Server) -> Running {
    Running {
        address: server.address().tcp().unwrap(),
        keys: server.keys(),
        kv_events: server.kv_events().cloned(),
        stopper: server.stopper(),
        thread: Some(std::thread::spawn(move || server.run().unwrap())),
    }
}

/// A response: its status, head and body.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// A response while it is read.
pub(crate) struct Stream {
    pub(crate) status: u16,
    head: String,
    lines: BufReader<TcpStream>,
}

impl Running {
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Stream {
        let mut stream = self.connect();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(
                lines.read_line(&mut head).unwrap() > 0,
                "the connection ended in the head: {head:?}"
            );
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Stream { status, head, lines }
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.send("GET", path, "", "").whole()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.stream(path, body).whole()
    }

    pub(crate) fn stream(&self, path: &str, body: &Value) -> Stream {
        self.send("POST", path, "Content-Type: application/json\r\n", &body.to_string())
    }

    /// The answer to a request that must succeed.
    pub(crate) fn ask(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    }

    pub(crate) fn complete(&self, prompt: &str, more: Value) -> Value {
        let mut body = json!({"prompt": prompt, "temperature": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.ask("/v1/completions", &body)
    }

    /// The value of a metric in `/metrics`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in\n{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a metric meets a condition.
    pub(crate) fn wait_for(&self, name: &str, wanted: impl Fn(f64) -> bool) {
        for _ in 0..600 {
            if wanted(self.metric(name)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{name} is {}", self.metric(name));
    }

    /// Requests the shutdown of the server.
    pub(crate) fn tell_to_stop(&self) {
        self.stopper.stop();
    }

    /// Stops the server and waits for its end.
    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let outcome = thread.join();
            assert!(std::thread::panicking() || outcome.is_ok());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

impl Stream {
    pub(crate) fn whole(mut self) -> Response {
        let mut body = Vec::new();
        self.lines.read_to_end(&mut body).unwrap();
        let body = if self.head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            unchunked(&body)
        } else {
            body
        };
        Response {
            status: self.status,
            head: self.head,
            body: String::from_utf8(body).unwrap(),
        }
    }

    /// The data of the next event; `None` at the end.
    pub(crate) fn event(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(data) = line.trim_end().strip_prefix("data: ") {
                return Some(data.to_owned());
            }
        }
    }

    /// All remaining events as JSON, or as a text if they are not JSON.
    pub(crate) fn events(mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.event())
            .map(|data| serde_json::from_str(&data).unwrap_or(Value::String(data)))
            .collect()
    }
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|pair| pair == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return whole;
        }
        whole.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 4 + size..];
    }
}

/// The first `bytes` of the shipped text.
pub(crate) fn text(bytes: usize) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/text/prophets.txt");
    let text = std::fs::read_to_string(path).unwrap();
    text[..boundary(&text, bytes)].to_owned()
}

/// The last character boundary at or before `bytes`.
pub(crate) fn boundary(text: &str, bytes: usize) -> usize {
    (0..=bytes.min(text.len()))
        .rfind(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}
