//! Operation of `riffle serve`: a file of options, changing keys, the log, the end.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::testing::{riffle, shipped_model};

/// A server that ends with the test.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    log: BufReader<ChildStderr>,
}

impl Server {
    pub(crate) fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = riffle()
            .args(["serve", "--port", "0", "--ctx", "2048", "--parallel", "1"])
            .args(arguments)
            .env("RIFFLE_MODEL", shipped_model())
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut server = Self {
            log: BufReader::new(child.stderr.take().expect("a pipe")),
            child,
            address: String::new(),
        };
        let line = server.line_with("http://");
        let place = line
            .split("http://")
            .nth(1)
            .and_then(|rest| rest.split([' ', '/']).next());
        server.address = place.expect("an address").to_owned();
        server
    }

    /// The next line of the log with this text.
    fn line_with(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(
                self.log.read_line(&mut line).expect("a line") > 0,
                "the log ended before {text:?}"
            );
            if line.contains(text) {
                return line;
            }
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().expect("kill").success());
    }

    /// Status and body of an answer to a request with this key.
    fn ask(&self, path: &str, key: &str, body: &Value) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        let body = body.to_string();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), answer)
    }

    fn complete(&self, key: &str) -> u16 {
        self.ask("/house/v1/completions", key, &json!({"prompt": "a", "max_tokens": 2}))
            .0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("a file");
}

#[test]
#[cfg_attr(not(unix), ignore = "only Unix has the signal that reads keys again")]
fn a_day_from_a_file_of_options_to_the_end_of_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let (keys, options) = (folder.path().join("keys"), folder.path().join("riffle.toml"));
    write(&keys, "# of the house\nsk-a # anna's laptop\n");
    let text = format!("api-key-file = {keys:?}\nbase-path = \"/other\"\nlog-format = \"json\"\ntokens = 8\n");
    write(&options, &text);
    let mut server = Server::start(
        &["--config", options.to_str().expect("a text")],
        &[("RIFFLE_BASE_PATH", "/house"), ("RIFFLE_ALIAS", "house,other")],
    );
    assert_eq!((server.complete("sk-a"), server.complete("sk-b")), (200, 401));
    let answered: Value = serde_json::from_str(&server.line_with("\"answer\"")).expect("JSON");
    assert_eq!(
        (&answered["key"], &answered["model"]),
        (&json!("anna's laptop"), &json!("house"))
    );
    assert!(answered["time"].is_string() && answered["client"].is_string() && answered["total_s"].is_number());
    let refused: Value = serde_json::from_str(&server.line_with("\"refused\"")).expect("JSON");
    assert_eq!(
        (&refused["status"], &refused["reason"]),
        (&json!(401), &json!("invalid_api_key"))
    );

    // One key is added and one removed. Then the file is damaged.
    write(&keys, "sk-b # build server\n");
    server.signal("-HUP");
    server.line_with("were read again: 1");
    assert_eq!((server.complete("sk-a"), server.complete("sk-b")), (401, 200));
    write(&keys, "# nobody\n");
    server.signal("-HUP");
    server.line_with("the keys stay as they were");
    assert_eq!((server.complete(""), server.complete("sk-b")), (401, 200));

    let (status, body) = server.ask(
        "/house/api/generate",
        "sk-b",
        &json!({"model": "house", "prompt": "a", "stream": false}),
    );
    assert!(status == 200 && body.contains("\"eval_count\""), "{body}");
    server.signal("-TERM");
    assert!(server.child.wait().expect("an end").success());
}

#[test]
#[cfg_attr(not(unix), ignore = "only Unix has the signal that reads keys again")]
fn a_hang_up_ends_nothing_and_an_open_address_without_keys_is_announced() {
    let mut server = Server::start(&["--host", "0.0.0.0", "--base-path", "/house"], &[]);
    server.line_with("warning: every machine that reaches this address");
    server.signal("-HUP");
    server.line_with("no file of keys");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(server.complete(""), 200);
}

#[test]
fn certificates_that_cannot_be_used_end_the_start_in_one_line() {
    let tls = shipped_model().with_file_name("tls");
    let file = |name: &str| tls.join(name).to_str().expect("a text").to_owned();
    let (certificate, key) = (file("server.pem"), file("server.key"));
    let cases = [
        (vec!["--tls-cert", &certificate], "--tls-cert needs --tls-key"),
        (vec!["--tls-key", &key], "--tls-key needs --tls-cert"),
        (
            vec!["--tls-cert", "none.pem", "--tls-key", &key],
            "none.pem: no such file",
        ),
        (
            vec!["--tls-cert", &key, "--tls-key", &key],
            "server.key: it has a private key and no certificate",
        ),
        (
            vec!["--tls-cert", &certificate, "--tls-key", &certificate],
            "server.pem: it has a certificate and no private key",
        ),
    ];
    let run = |arguments: &[&str]| {
        let mut command = riffle();
        command
            .args(["serve", "--port", "0", "--ctx", "2048"])
            .args(arguments)
            .env("RIFFLE_MODEL", shipped_model());
        let output = command.output().expect("it runs");
        (
            output.status.success(),
            String::from_utf8(output.stderr).expect("a text"),
        )
    };
    for (arguments, wanted) in cases {
        let (is_ok, text) = run(&arguments);
        assert!(
            !is_ok && text.contains(wanted) && text.lines().count() == 1,
            "{wanted}: {text}"
        );
    }
    for (other, wanted) in [
        ("second.key", "not the key of the certificate"),
        ("locked.key", "password"),
    ] {
        let (is_ok, text) = run(&["--tls-cert", &certificate, "--tls-key", &file(other)]);
        assert!(
            !is_ok && text.contains(wanted) && text.lines().count() == 1,
            "{wanted}: {text}"
        );
    }
}

#[test]
#[cfg_attr(not(unix), ignore = "the server is ended by a signal of Unix")]
fn models_by_name_and_from_a_folder_are_served_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let (models, hybrid) = (folder.path().join("models"), folder.path().join("models/hybrid"));
    fs::create_dir_all(&hybrid).expect("a folder");
    for entry in fs::read_dir(shipped_model().with_file_name("model-hybrid")).expect("a model") {
        let path = entry.expect("a file").path();
        fs::copy(&path, hybrid.join(path.file_name().expect("a name"))).expect("copied");
    }
    write(&models.join("broken.gguf"), "no model");
    let first = format!("first={}", shipped_model().display());
    let mut server = Server::start(
        &["--model", &first, "--models-dir", models.to_str().expect("a text")],
        &[],
    );
    server.line_with("Ctrl-C ends it");
    let complete = |name: &str| {
        let body = json!({"model": name, "prompt": "a", "max_tokens": 2});
        server.ask("/v1/completions", "", &body)
    };
    for name in ["first", "hybrid", "first"] {
        let (status, body) = complete(name);
        assert!(
            status == 200 && body.contains(&format!("\"model\":\"{name}\"")),
            "{body}"
        );
    }
    let (status, body) = complete("broken");
    assert!(
        status == 404 && body.contains(r#"ask for \"first\" or \"hybrid\""#),
        "{body}"
    );
    server.signal("-TERM");
    assert!(server.child.wait().expect("an end").success());
}

#[test]
fn an_agent_is_told_the_address_and_the_model_of_a_running_server() {
    let server = Server::start(&["--alias", "house"], &[]);
    let url = format!("http://{}", server.address);
    for agent in ["claude", "codex", "opencode", "aider"] {
        let printed = riffle()
            .args(["launch", agent, "--url", &url, "--print"])
            .output()
            .expect("it runs");
        let text = String::from_utf8(printed.stdout).expect("a text");
        assert!(text.contains(&url) && text.contains("house"), "{agent}: {text}");
        assert!(agent == "aider" || text.contains("2048"), "{agent}: {text}");
    }
    let unknown = riffle()
        .args(["launch", "codex", "--url", &url, "--model", "x", "--print"])
        .output();
    let line = String::from_utf8(unknown.expect("it runs").stderr).expect("a text");
    assert!(
        line.contains("--model x: the server at") && line.contains("has house"),
        "{line}"
    );
}
