//! Bodies that are not JSON, or are JSON of another shape.

use riffle_server::JSON_PATHS;

use super::{CHAT, COMPLETIONS, Case, MESSAGES, RESPONSES, valid};

/// Bodies that are not JSON, or not an object.
const NO_OBJECTS: [(&str, &[u8]); 14] = [
    ("nothing", b""),
    ("spaces", b" \n\t "),
    ("null", b"null"),
    ("a number", b"5"),
    ("a text", b"\"model\""),
    ("a list", b"[{}]"),
    ("no JSON", b"model=model&prompt=a"),
    ("single quotes", b"{'model': 'model'}"),
    ("a comma too many", b"{\"model\": \"model\",}"),
    ("a comment", b"{/* model */}"),
    ("zero bytes", b"\0\0\0\0"),
    ("UTF-16", b"\xff\xfe{\0}\0"),
    ("a mark of byte order", b"\xef\xbb\xbf{}"),
    ("a compressed body", b"\x1f\x8b\x08\x00\x00\x00\x00\x00"),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for path in JSON_PATHS {
        for (what, body) in NO_OBJECTS {
            // Half of the paths are enough for each kind of body.
            if (path.len() + what.len()).is_multiple_of(2) {
                cases.push(Case::body(path, what, body));
            }
        }
        cases.push(Case::body(path, "an empty object", b"{}"));
        let body = valid(path).to_string();
        for cut in [1, body.len() / 3, body.len() / 2, body.len() - 1] {
            cases.push(Case::body(
                path,
                &format!("cut after {cut} bytes"),
                &body.as_bytes()[..cut],
            ));
        }
        cases.push(Case::body(path, "more behind the end", format!("{body}{body}")));
        cases.push(Case::body(
            path,
            "an unknown field",
            body.replacen('{', "{\"colour\": 1, ", 1),
        ));
        cases.push(Case::body(path, "a field twice", twice(&body)));
    }
    for path in [COMPLETIONS, CHAT, RESPONSES, MESSAGES] {
        cases.extend(texts(path));
    }
    cases
}

/// The body with its first field twice.
fn twice(body: &str) -> String {
    let (field, rest) = body[1..].split_once(':').unwrap();
    format!("{{{field}: \"model\", {field}:{rest}")
}

/// Texts and numbers that are not valid JSON.
fn texts(path: &str) -> Vec<Case> {
    let body = valid(path).to_string();
    let with_text = |text: &[u8]| {
        let (before, after) = body.split_once("\"a\"").unwrap();
        [before.as_bytes(), b"\"", text, b"\"", after.as_bytes()].concat()
    };
    let with_field = |field: &str| body.replacen('{', &format!("{{{field}, "), 1);
    let deep = |open: &str, close: &str| format!("\"x\": {}{}", open.repeat(50_000), close.repeat(50_000));
    vec![
        Case::body(path, "bytes that are no UTF-8", with_text(b"\xff\xfe")),
        Case::body(path, "a cut UTF-8 letter", with_text(b"\xe2\x82")),
        Case::body(path, "an overlong UTF-8 letter", with_text(b"\xc0\xaf")),
        Case::body(path, "half a surrogate pair", with_text(b"\\ud800")),
        Case::body(path, "an unknown escape", with_text(b"\\q")),
        Case::body(path, "a line break in a text", with_text(b"\n")),
        Case::body(path, "NaN", with_field("\"temperature\": NaN")),
        Case::body(path, "an infinite number", with_field("\"temperature\": Infinity")),
        Case::body(path, "a number beyond all bounds", with_field("\"temperature\": 1e999")),
        Case::body(path, "a number with a leading zero", with_field("\"temperature\": 01")),
        Case::body(path, "nested lists", with_field(&deep("[", "]"))),
        Case::body(path, "nested objects", with_field(&deep("{\"a\":", "}"))),
        Case::body(path, "a field of no name", with_field("\"\": 1")),
        Case::body(
            path,
            "a nested field twice",
            with_field("\"riffle\": {\"audit\": true, \"audit\": false}"),
        ),
        Case::body(path, "a body beyond the limit", vec![b' '; (1 << 20) + 1]),
        Case::body(
            path,
            "a prompt beyond the context",
            with_text("word ".repeat(40_000).as_bytes()),
        ),
    ]
}
