//! Operation of the server: keys, refusals, paths, sockets and shutdown.

use std::time::Duration;

use riffle_server::{ApiKey, ServerOptions};
use serde_json::json;

use crate::testing::{options, start};

fn body() -> String {
    json!({"prompt": "a", "max_tokens": 1}).to_string()
}

#[test]
fn a_key_that_is_taken_away_lets_nobody_in_and_answers_under_way_go_on() {
    let server = start(ServerOptions {
        api_keys: ApiKey::parse_lines("# of the house\nfirst # anna\n"),
        ..options()
    });
    let headers = |key: &str| format!("Content-Type: application/json\r\nAuthorization: Bearer {key}\r\n");
    let status = |key: &str| {
        server
            .send("POST", "/v1/completions", &headers(key), &body())
            .whole()
            .status
    };
    assert_eq!((status("first"), status("second"), status("#")), (200, 401, 401));
    let long = json!({"prompt": "In the beginning", "max_tokens": 300, "stream": true, "ignore_eos": true});
    let mut answer = server.send("POST", "/v1/completions", &headers("first"), &long.to_string());
    answer.event().unwrap();
    server.keys.replace(ApiKey::parse_lines("second # bert\n")).unwrap();
    assert_eq!((status("first"), status("second")), (401, 200));
    assert_eq!(answer.events().last(), Some(&json!("[DONE]")));
    assert!(server.keys.replace(Vec::new()).is_err());
}

#[test]
fn refused_requests_are_counted_by_status_and_reason() {
    let server = start(options());
    server.post("/v1/completions", &json!({"prompt": "a", "colour": 1}));
    server.post("/v1/completions", &json!({"prompt": "a", "colour": 2}));
    server.post("/api/chat", &json!({"messages": []}));
    server.get("/nothing");
    let count = |labels: &str| server.metric(&format!("riffle:requests_refused_total{{{labels}}}"));
    assert_eq!(count("status=\"400\",reason=\"unknown_parameter\""), 2.0);
    assert_eq!(count("status=\"400\",reason=\"invalid_request\""), 1.0);
    assert_eq!(count("status=\"404\",reason=\"not_found\""), 1.0);
}

#[test]
fn a_request_has_an_id_that_its_client_may_choose() {
    let server = start(options());
    let answer = server.send("GET", "/v1/models", "X-Request-Id: mine-1\r\n", "").whole();
    assert!(answer.head.contains("x-request-id: mine-1"), "{}", answer.head);
    assert!(server.get("/v1/models").head.contains("x-request-id: req_"));
}

#[test]
fn a_server_under_a_path_answers_there_alone() {
    let server = start(ServerOptions {
        base_path: "/riffle".to_owned(),
        ..options()
    });
    assert_eq!(server.get("/riffle/health").status, 200);
    assert_eq!(server.get("/riffle/v1/models?limit=1").status, 200);
    assert_eq!(
        server.ask("/riffle/v1/completions", &json!({"prompt": "a", "max_tokens": 1}))["object"],
        "text_completion"
    );
    let moved = server.get("/riffle");
    assert!(
        moved.status == 308 && moved.head.contains("location: /riffle/"),
        "{}",
        moved.head
    );
    let page = server.get("/riffle/").body;
    assert!(page.starts_with("<!") && page.contains("src=\"web/app.js\""));
    assert_eq!(server.get("/riffle/web/app.js").status, 200);
    for path in ["/health", "/v1/models", "/riffled/health"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    let refused = server.post("/riffle/api/chat", &json!({}));
    assert!(refused.json()["error"].is_string(), "{}", refused.body);
}

#[test]
fn a_server_that_ends_says_so_while_answers_go_on() {
    let server = start(ServerOptions {
        grace: Duration::from_secs(60),
        ..options()
    });
    let long = json!({"prompt": "In the beginning", "max_tokens": 1500, "stream": true, "ignore_eos": true});
    let mut answer = server.stream("/v1/completions", &long);
    answer.event().unwrap();
    assert_eq!(server.get("/ready").status, 200);
    server.tell_to_stop();
    let is_refusing = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        server.get("/ready").status == 503
    });
    assert!(is_refusing);
    let refused = server.post("/v1/completions", &json!({"prompt": "a"}));
    assert!(
        refused.status == 503 && refused.head.to_ascii_lowercase().contains("retry-after"),
        "{}",
        refused.head
    );
    assert_eq!(answer.events().last(), Some(&json!("[DONE]")));
}

#[cfg(unix)]
#[test]
fn a_unix_socket_is_listened_on_and_removed_at_the_end() {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    use riffle_server::{ListenAddress, Server};

    use crate::testing::engine;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("riffle.sock");
    let with_socket = || ServerOptions {
        address: ListenAddress::Unix(path.clone()),
        ..options()
    };
    // The socket file of a killed server.
    drop(UnixListener::bind(&path).unwrap());
    let server = Server::bind(&engine(), with_socket()).unwrap();
    assert_eq!(server.address().to_string(), format!("unix:{}", path.display()));
    assert!(Server::bind(&engine(), with_socket()).is_err(), "it is listened on");
    let stopper = server.stopper();
    let thread = std::thread::spawn(move || server.run().unwrap());
    let mut stream = UnixStream::connect(&path).unwrap();
    write!(stream, "GET /health HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    stopper.stop();
    thread.join().unwrap();
    assert!(!path.exists());
}
