//! Files that the server reads for the page.

use riffle_server::{ApiKey, Limits, ServerOptions};

use crate::testing::{Response, Running, options, start};

fn read(server: &Running, query: &str, kind: &str, body: &str) -> Response {
    let headers = format!("Content-Type: {kind}\r\n");
    server
        .send("POST", &format!("/documents{query}"), &headers, body)
        .whole()
}

const BYTES: &str = "application/octet-stream";

#[test]
fn a_file_comes_back_as_its_text_with_places() {
    let server = start(options());
    let markdown = "# Ships\n\nThe *Pequod* sails.\n\n## Crew\n\nÉlan.\n";
    let found = read(&server, "?name=log%20book.md", BYTES, markdown).json();
    assert_eq!(
        (found["name"].as_str(), found["kind"].as_str()),
        (Some("log book.md"), Some("Markdown"))
    );
    assert_eq!(found["text"], markdown);
    let place = &found["places"][1];
    assert_eq!(place["heading"], "Crew");
    let units: Vec<u16> = markdown.encode_utf16().collect();
    let (start, end) = (
        place["start"].as_u64().unwrap() as usize,
        place["end"].as_u64().unwrap() as usize,
    );
    assert!(String::from_utf16(&units[start..end]).unwrap().starts_with("## Crew"));
    let page = "<!doctype html><title>t</title><p>One <b>two</b><script>alert(1)</script>";
    let found = read(&server, "?name=page.html", BYTES, page).json();
    assert_eq!(found["text"].as_str().map(str::trim), Some("One two"));
}

#[test]
fn files_that_are_no_documents_are_refused_in_one_line() {
    let server = start(ServerOptions {
        limits: Limits {
            body_bytes: 10_000,
            ..Limits::default()
        },
        ..options()
    });
    let refused = |query: &str, kind: &str, body: &str| {
        let response = read(&server, query, kind, body);
        let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(!message.contains('\n'), "{message}");
        (response.status, message)
    };
    assert_eq!(refused("?name=a.pdf", BYTES, "%PDF-1.4 nothing").0, 422);
    assert_eq!(refused("?name=a.bin", BYTES, "a\0b").0, 422);
    assert_eq!(refused("?name=a.txt", BYTES, " \n").0, 422);
    assert_eq!(refused("", BYTES, "a").0, 400);
    assert_eq!(refused("?name=", BYTES, "a").0, 400);
    assert_eq!(refused("?name=a.txt", BYTES, &"a".repeat(20_000)).0, 413);
    // A page of another site may send these kinds without a preflight request.
    for kind in ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"] {
        assert_eq!(refused("?name=a.txt", kind, "a").0, 415);
    }
}

#[test]
fn files_are_read_for_those_with_a_key_alone() {
    let server = start(ServerOptions {
        api_keys: ApiKey::parse_lines("first\n"),
        ..options()
    });
    assert_eq!(read(&server, "?name=a.txt", BYTES, "a").status, 401);
}
