//! Invalid heads, keys, methods, paths and encodings.

use riffle_server::JSON_PATHS;

use super::{CHAT, COMPLETIONS, Case, Ending, KEY, MESSAGES, RESPONSES, Shape, shape_of, valid};

pub(super) fn cases() -> Vec<Case> {
    [keys(), places(), heads(), no_http(), ended()].concat()
}

/// A request with this method and these lines of the head.
fn request(method: &str, path: &str, lines: &[&str], body: &str) -> Vec<u8> {
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    let length = if lines.to_ascii_lowercase().contains("content-length") || lines.contains("Transfer-Encoding") {
        String::new()
    } else {
        format!("Content-Length: {}\r\n", body.len())
    };
    format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{lines}{length}\r\n{body}").into_bytes()
}

const HOST: &str = "Host: localhost";
const JSON: &str = "Content-Type: application/json";

fn right_key() -> String {
    format!("Authorization: Bearer {KEY}")
}

fn keys() -> Vec<Case> {
    let wrong = [
        String::new(),
        "Authorization: Bearer sk-wrong".to_owned(),
        "Authorization: Bearer".to_owned(),
        "Authorization: Bearer ".to_owned(),
        format!("Authorization: {KEY}"),
        format!("Authorization: Basic {KEY}"),
        format!("Authorization: Bearer {KEY}x"),
        format!("Authorization: Bearer {}", &KEY[..4]),
        format!("Authorization: Bearer {}", KEY.to_uppercase()),
        "x-api-key: sk-wrong".to_owned(),
        "x-api-key: \u{e9}".to_owned(),
    ];
    let mut cases = Vec::new();
    for (number, key) in wrong.iter().enumerate() {
        for path in [CHAT, MESSAGES] {
            let lines: Vec<&str> = [HOST, JSON, key].into_iter().filter(|line| !line.is_empty()).collect();
            let bytes = request("POST", path, &lines, &valid(path).to_string());
            cases.push(Case::raw(&format!("{path}: wrong key {number}"), bytes, shape_of(path)));
        }
    }
    for path in ["/v1/models", "/metrics", "/status"] {
        let bytes = request("GET", path, &[HOST], "");
        cases.push(Case::raw(&format!("{path}: no key"), bytes, Shape::OpenAi));
    }
    cases
}

/// Wrong methods and paths.
fn places() -> Vec<Case> {
    let key = right_key();
    let mut cases = Vec::new();
    let mut push = |method: &str, path: &str| {
        let bytes = request(method, path, &[HOST, JSON, &key], "{}");
        cases.push(Case::raw(&format!("{method} {path}"), bytes, shape_of(path)));
    };
    for path in JSON_PATHS {
        for method in ["GET", "PUT", "DELETE", "PATCH"] {
            push(method, path);
        }
    }
    for path in ["/v1/models", "/health", "/ready", "/metrics", "/status", "/"] {
        push("POST", path);
    }
    for path in [
        "/v1",
        "/v2/chat/completions",
        "/v1/chat/completions/",
        "/v1/embeddings",
        "/v1/messages/batches",
        "/v1/models/none",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/v1/models/%ff",
        "/../../etc/passwd",
        "/web/../Cargo.toml",
        "/web/..%2f..%2fCargo.toml",
        "/web/none.js",
        "/%00",
        "//",
    ] {
        push("GET", path);
    }
    push("JUMP", CHAT);
    push("post", CHAT);
    cases
}

/// Heads that HTTP allows and the server refuses.
fn heads() -> Vec<Case> {
    let key = right_key();
    let mut cases = Vec::new();
    for path in [CHAT, MESSAGES] {
        let body = valid(path).to_string();
        let longer = format!("Content-Length: {}", 1 << 30);
        let table: [(&str, Vec<&str>); 10] = [
            ("no content type", vec![HOST, &key]),
            ("text", vec![HOST, &key, "Content-Type: text/plain"]),
            (
                "a form",
                vec![HOST, &key, "Content-Type: application/x-www-form-urlencoded"],
            ),
            (
                "a form of files",
                vec![HOST, &key, "Content-Type: multipart/form-data; boundary=a"],
            ),
            ("XML", vec![HOST, &key, "Content-Type: application/xml"]),
            ("a content type of nonsense", vec![HOST, &key, "Content-Type: ;;;"]),
            ("another host", vec!["Host: example.org", &key, JSON]),
            ("a host like localhost", vec!["Host: localhost.example.org", &key, JSON]),
            ("a length beyond the limit", vec![HOST, &key, JSON, &longer]),
            (
                "a compressed body that is none",
                vec![HOST, &key, JSON, "Content-Encoding: gzip"],
            ),
        ];
        for (what, lines) in table {
            let bytes = request("POST", path, &lines, &body);
            cases.push(Case::raw(&format!("{path}: {what}"), bytes, shape_of(path)));
        }
        let chunks = [
            ("a chunk of no number", "xyz\r\n{}\r\n0\r\n\r\n"),
            ("a chunk beyond all bounds", "fffffffffffffffff\r\n{}\r\n0\r\n\r\n"),
            ("a negative chunk", "-1\r\n{}\r\n0\r\n\r\n"),
            ("a chunk longer than it says", "1\r\n{}{}{}{}\r\n0\r\n\r\n"),
        ];
        for (what, body) in chunks {
            let bytes = request("POST", path, &[HOST, &key, JSON, "Transfer-Encoding: chunked"], body);
            cases.push(Case::raw(&format!("{path}: {what}"), bytes, shape_of(path)));
        }
    }
    cases
}

/// Bytes that are not a complete HTTP request.
const NO_HTTP: [(&str, &str); 15] = [
    ("nonsense", "nonsense\r\n\r\n"),
    ("line breaks and nonsense", "\r\n\r\n\0\r\n\r\n"),
    ("another version", "GET /health HTTP/9.9\r\n\r\n"),
    ("TLS", "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}\r\n\r\n"),
    ("a path with a space", "GET /hea lth HTTP/1.1\r\n\r\n"),
    ("a path with a control letter", "GET /\u{1} HTTP/1.1\r\n\r\n"),
    ("a line without a name", "GET /health HTTP/1.1\r\n: a\r\n\r\n"),
    ("a line without a colon", "GET /health HTTP/1.1\r\nhost\r\n\r\n"),
    ("a name with a space", "GET /health HTTP/1.1\r\nho st: a\r\n\r\n"),
    ("a zero byte in the head", "GET /health HTTP/1.1\r\nx: a\0b\r\n\r\n"),
    ("a negative length", "POST /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
    ("a length of words", "POST /a HTTP/1.1\r\nContent-Length: ten\r\n\r\n"),
    (
        "a huge length",
        "POST /a HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    ),
    (
        "two lengths",
        "POST /a HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    ),
    (
        "an unknown encoding",
        "POST /a HTTP/1.1\r\nTransfer-Encoding: rot13\r\n\r\n{}",
    ),
];

fn no_http() -> Vec<Case> {
    let get = |path: &str, lines: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
    let many: String = (0..1000).map(|number| format!("x-{number}: a\r\n")).collect();
    let long = [
        ("a path without end", get(&format!("/{}", "a".repeat(70_000)), "")),
        (
            "a head without end",
            get("/health", &format!("x: {}\r\n", "a".repeat(600_000))),
        ),
        ("a thousand lines of head", get("/health", &many)),
    ];
    let short = NO_HTTP.iter().map(|(name, text)| (*name, (*text).to_owned()));
    short
        .chain(long)
        .map(|(name, text)| Case::raw(name, text.into_bytes(), Shape::Bare))
        .collect()
}

/// Bodies whose client closes the connection early.
fn ended() -> Vec<Case> {
    let key = right_key();
    let mut cases = Vec::new();
    for path in [COMPLETIONS, CHAT, RESPONSES, MESSAGES] {
        let body = valid(path).to_string();
        let length = format!("Content-Length: {}", body.len() + 10);
        let table = [
            (
                "a body that ends early",
                request("POST", path, &[HOST, &key, JSON, &length], &body),
            ),
            (
                "chunks that end early",
                request(
                    "POST",
                    path,
                    &[HOST, &key, JSON, "Transfer-Encoding: chunked"],
                    "5\r\n{\"a\":",
                ),
            ),
        ];
        for (what, bytes) in table {
            let case = Case::raw(&format!("{path}: {what}"), bytes, shape_of(path));
            cases.push(Case {
                ending: Ending::Closed,
                ..case
            });
        }
    }
    cases
}
