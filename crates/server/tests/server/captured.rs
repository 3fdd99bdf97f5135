//! Requests of real agents in `tests/captured`: the server accepts each under templates of several kinds.

use std::path::Path;

use serde_json::{Value, json};

use crate::clients::{TOOLS, templated};
use crate::testing::{options, start_on};

/// A template with one system message at the start, like Qwen3.5 to 3.8.
const SYSTEM_FIRST: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
{{ raise_exception('System message must be at the beginning.') }}{% endif %}\
<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}\n{% endfor %}\
{{ tools|tojson }}{{ reasoning_effort|default('') }}";

/// A template with strict turns, no system message, and ids of nine letters, like Mistral's.
const STRICT_TURNS: &str = "{% set ns = namespace(index=0) %}{% for m in messages %}\
{% if m.role == 'user' or (m.role == 'assistant' and m.tool_calls is not defined) %}\
{% if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% set ns.index = ns.index + 1 %}\
{% elif m.role == 'system' %}{{ raise_exception('only user and assistant roles are supported') }}{% endif %}\
{% for c in m.tool_calls or [] %}{% if c.id is not defined or c.id|length != 9 %}{{ raise_exception('Tool call IDs') }}{% endif %}{{ c.function|tojson }}{% endfor %}\
{% if m.role == 'tool' and m.tool_call_id|length != 9 %}{{ raise_exception('Tool call IDs') }}{% endif %}{{ m.content }}{% endfor %}{{ tools|tojson }}";

/// The captured requests with the names of their files.
fn captured() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captured");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|kind| kind == "json"));
    let read = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
    };
    let mut captured: Vec<_> = files.map(read).collect();
    // A folder lists its files in another order on another system.
    captured.sort_by(|(a, _), (b, _)| a.cmp(b));
    captured
}

/// The server counts the prompt of each request: it accepts fields, history and tools, and the template renders them.
#[test]
fn requests_of_real_agents_are_taken_under_every_kind_of_template() {
    let captured = captured();
    assert!(captured.len() >= 15);
    for template in [TOOLS, SYSTEM_FIRST, STRICT_TURNS] {
        let (_folder, engine) = templated(template);
        let server = start_on(&engine, options());
        for (name, request) in &captured {
            let path = request["path"].as_str().unwrap().split('?').next().unwrap();
            let mut body = request["body"].clone();
            let count = match path {
                "/v1/messages" => {
                    for field in ["max_tokens", "stream", "temperature"] {
                        body.as_object_mut().unwrap().remove(field);
                    }
                    "/v1/messages/count_tokens".to_owned()
                }
                path => format!("{path}/input_tokens"),
            };
            let response = server.post(&count, &body);
            assert_eq!(response.status, 200, "{name} under {template}: {}", response.body);
        }
    }
}

#[test]
fn requests_of_real_agents_are_answered() {
    let (_folder, engine) = templated(TOOLS);
    let server = start_on(&engine, options());
    for (name, request) in captured() {
        let path = request["path"].as_str().unwrap();
        let mut body = request["body"].clone();
        let length = if path.contains("responses") {
            "max_output_tokens"
        } else {
            "max_tokens"
        };
        body[length] = json!(2);
        let stream = server.stream(path, &body);
        assert_eq!(stream.status, 200, "{name}");
        let events = stream.events();
        assert!(events.len() > 2, "{name}: {events:?}");
        assert!(
            events.iter().all(|event| event["error"].is_null()),
            "{name}: {events:?}"
        );
    }
}
