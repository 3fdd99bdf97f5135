//! Sessions under a name.

use riffle_server::ServerOptions;
use serde_json::json;

use crate::testing::{options, start, text};

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

#[test]
fn a_server_without_a_folder_keeps_no_sessions() {
    let server = start(options());
    assert_eq!(server.get("/sessions").status, 404);
    assert_eq!(server.post("/sessions/a", &json!({"prompt": "a"})).status, 404);
}
