//! Named sessions.

use std::path::Path;

use riffle_server::ServerOptions;
use serde_json::{Value, json};

use crate::testing::{Running, options, start, text};

#[test]
fn a_named_session_is_saved_restored_copied_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let with_sessions = || ServerOptions {
        session_folder: Some(folder.path().to_owned()),
        ..options()
    };
    let book = text(30_000);
    let first = start(with_sessions());
    let saved = first.ask("/sessions/book", &json!({"prompt": book}));
    let tokens = saved["tokens"].as_u64().unwrap();
    assert!(saved["bytes"].as_u64().unwrap() > tokens);
    let expected = first.complete(&format!("{book} And"), json!({"max_tokens": 4}));
    first.stop();

    let second = start(with_sessions());
    assert_eq!(second.get("/sessions").json()["data"][0]["name"], "book");
    assert_eq!(second.ask("/sessions/book/restore", &json!({}))["tokens"], tokens);
    let answer = second.complete(&format!("{book} And"), json!({"max_tokens": 4}));
    assert_eq!(answer["choices"], expected["choices"]);
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    assert!(cached + 64 >= tokens - 64, "{cached} of {tokens}");
    assert_eq!(
        second.ask("/sessions/book/fork", &json!({"to": "copy.2"}))["name"],
        "copy.2"
    );
    assert_eq!(second.post("/sessions/book/fork", &json!({"to": "copy.2"})).status, 409);
    assert_eq!(second.send("DELETE", "/sessions/book", "", "").whole().status, 200);
    let names = second.get("/sessions").json();
    assert_eq!(
        (names["data"].as_array().unwrap().len(), &names["data"][0]["name"]),
        (1, &json!("copy.2"))
    );
}

#[test]
fn no_path_is_taken_from_a_client() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("sessions");
    std::fs::write(folder.path().join("secret.riffle"), "x").unwrap();
    let server = start(ServerOptions {
        session_folder: Some(inner),
        ..options()
    });
    for name in [
        "..%2Fsecret",
        "%2e%2e%2fsecret",
        ".hidden",
        "a%00b",
        "a%20b",
        &"a".repeat(65),
    ] {
        let response = server.post(&format!("/sessions/{name}"), &json!({"prompt": "a"}));
        assert_eq!(response.status, 400, "{name}: {}", response.body);
        let response = server.send("DELETE", &format!("/sessions/{name}"), "", "").whole();
        assert_eq!(response.status, 400, "{name}: {}", response.body);
    }
    assert_eq!(server.post("/sessions/none/restore", &json!({})).status, 404);
    assert!(folder.path().join("secret.riffle").exists());
}

#[test]
fn a_damaged_session_is_refused_and_nothing_of_it_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(ServerOptions {
        session_folder: Some(folder.path().to_owned()),
        ..options()
    });
    let book = text(10_000);
    server.ask("/sessions/book", &json!({"prompt": book}));
    let path = folder.path().join("book.riffle");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let response = server.post("/sessions/book/restore", &json!({}));
    assert_eq!(response.status, 409, "{}", response.body);
    assert!(
        !response.body.contains(&folder.path().display().to_string()),
        "{}",
        response.body
    );
}

fn with_sessions(folder: &Path) -> Running {
    start(ServerOptions {
        session_folder: Some(folder.to_owned()),
        ..options()
    })
}

/// The answer to a question about a session.
fn asked(server: &Running, prompt: &str, session: Option<&str>) -> Value {
    let riffle = session.map_or(json!({}), |name| json!({"session": name}));
    let answer = server.complete(prompt, json!({"max_tokens": 8, "riffle": riffle}));
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    json!({"text": answer["choices"][0]["text"], "cached_tokens": cached})
}

#[test]
fn a_session_is_compressed_beside_answers_and_requests_that_name_it_go_on_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_sessions(folder.path());
    let book = text(12_000);
    let question = format!("{book} And");
    let saved = server.ask("/sessions/book", &json!({"prompt": book}));
    let tokens = saved["tokens"].as_u64().unwrap();
    let whole = asked(&server, &question, Some("book"));
    assert_eq!(whole["cached_tokens"], tokens, "{whole}");
    assert_eq!(whole["text"], asked(&server, &question, None)["text"]);

    // An answer in progress continues and does not change.
    let other = json!({"prompt": "In the beginning", "max_tokens": 200, "temperature": 0, "ignore_eos": true});
    let alone = server.ask("/v1/completions", &other);
    let compressed = std::thread::scope(|scope| {
        let beside = scope.spawn(|| server.ask("/v1/completions", &other));
        let body = json!({"keep": 0.3, "stream": true});
        let events = server.stream("/sessions/book/compress", &body).events();
        assert_eq!(beside.join().unwrap()["choices"], alone["choices"]);
        events
    });
    let progress = compressed
        .iter()
        .filter(|event| event["riffle"]["progress"]["tokens"].is_u64());
    assert!(progress.count() > 0, "{compressed:?}");
    let end = compressed.iter().rfind(|event| event.is_object()).unwrap();
    let number = |name: &str| end[name].as_f64().unwrap_or_else(|| panic!("no {name}: {end}"));
    assert_eq!(end["compress"], "echo:0.3");
    assert!((number("pairs") / number("pairs_before") - 0.3).abs() < 0.02, "{end}");
    assert!(number("bytes") < 0.5 * saved["bytes"].as_f64().unwrap(), "{end}");

    let after = asked(&server, &question, Some("book"));
    assert_eq!(after["cached_tokens"], tokens);
    // Only requests that name a compressed session use it.
    assert_eq!(asked(&server, &question, None)["text"], whole["text"]);
    server.stop();
    let server = with_sessions(folder.path());
    assert_eq!(asked(&server, &question, Some("book")), after, "from the file");
    let again = server.ask("/sessions/book/compress", &json!({"keep": 0.5, "method": "expected"}));
    assert_eq!(again["tokens"], tokens);
}

#[test]
fn a_request_that_cannot_go_on_from_the_session_it_names_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_sessions(folder.path());
    let book = text(12_000);
    server.ask("/sessions/book", &json!({"prompt": book}));
    server.ask("/sessions/book/compress", &json!({"keep": 0.3, "method": "expected"}));
    let refused = |path: &str, body: Value, status: u16, word: &str| {
        let response = server.post(path, &body);
        assert_eq!(response.status, status, "{body}: {}", response.body);
        assert!(response.body.contains(word), "{body}: {}", response.body);
        assert!(!response.body.contains(&folder.path().display().to_string()));
    };
    let with =
        |session: Value, prompt: &str| json!({"prompt": prompt, "max_tokens": 1, "riffle": {"session": session}});
    refused("/v1/completions", with(json!("none"), &book), 404, "no session");
    refused("/v1/completions", with(json!("../book"), &book), 400, "name");
    refused("/v1/completions", with(json!(7), &book), 400, "riffle.session");
    refused(
        "/v1/completions",
        with(json!("book"), &text(6_000)),
        400,
        "does not go on from the session",
    );
    let mut learns = with(json!("book"), &format!("{book} And"));
    learns["riffle"]["decode"] = json!("h2o:budget=256");
    refused("/v1/completions", learns, 400, "riffle.decode is h2o:budget=256");
    for (body, word) in [
        (json!({}), "keep"),
        (json!({"keep": 0}), "keep"),
        (json!({"keep": 1.5}), "keep"),
        (json!({"keep": 0.3, "method": "zip"}), "echo, kvzip or expected"),
        (json!({"keep": 0.3, "how": 1}), "how"),
    ] {
        refused("/sessions/book/compress", body, 400, word);
    }
    refused("/sessions/none/compress", json!({"keep": 0.3}), 404, "no session");
    // kvzip repeats the text, which needs the evicted tokens.
    refused("/sessions/book/compress", json!({"keep": 0.3}), 409, "expected");
}

#[test]
fn a_server_without_a_folder_keeps_no_sessions() {
    let server = start(options());
    let named = json!({"prompt": "a", "riffle": {"session": "a"}});
    assert_eq!(server.post("/v1/completions", &named).status, 404);
    assert_eq!(server.get("/sessions").status, 404);
    assert_eq!(server.post("/sessions/a", &json!({"prompt": "a"})).status, 404);
}
