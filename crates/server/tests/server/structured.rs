//! Answers of a given form.

use serde_json::{Value, json};

use crate::testing::{options, start};

fn answer_of(format: Value) -> String {
    let server = start(options());
    let answer = server.complete("Then said he: ", json!({"max_tokens": 900, "response_format": format}));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn an_answer_is_json_that_its_schema_describes() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 200},
            "kind": {"enum": ["king", "prophet"]},
        },
        "required": ["name", "age", "kind"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": true}});
    let answer: Value = serde_json::from_str(&answer_of(format)).unwrap();
    assert!(answer["name"].as_str().unwrap().chars().count() <= 12);
    assert!((0..=200).contains(&answer["age"].as_i64().unwrap()));
    assert!(["king", "prophet"].contains(&answer["kind"].as_str().unwrap()));
}

#[test]
fn an_answer_is_text_of_a_pattern_or_a_grammar() {
    let digits = answer_of(json!({"type": "regex", "pattern": "[0-9]{3}-[a-f]{2}"}));
    assert_eq!(digits.len(), 6);
    assert_eq!(&digits[3..4], "-");
    let word = answer_of(json!({"type": "grammar", "grammar": "start: \"yes, \" who\nwho: \"he\" | \"she\""}));
    assert!(["yes, he", "yes, she"].contains(&word.as_str()), "{word}");
}

#[test]
fn a_form_that_cannot_be_honoured_is_refused_by_name() {
    let server = start(options());
    let refused = |format: Value| {
        let body = json!({"prompt": "a", "response_format": format});
        let response = server.post("/v1/completions", &body);
        assert_eq!(response.status, 400, "{}", response.body);
        response.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let schema = |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    let message = refused(schema(json!({"type": "object", "unevaluatedProperties": false})));
    assert!(message.contains("unevaluatedProperties"), "{message}");
    let message = refused(schema(json!({"type": "thing"})));
    assert!(message.contains("thing"), "{message}");
    let message = refused(json!({"type": "regex", "pattern": "(["}));
    assert!(message.starts_with("response_format"), "{message}");
    let message = refused(json!({"type": "grammar", "grammar": "start: nowhere"}));
    assert!(message.contains("nowhere"), "{message}");
    let message = refused(json!({"type": "grammar", "grammar": "start: start"}));
    assert_eq!(message, "response_format: no text fits it");
    let message = refused(json!({"type": "yaml"}));
    assert!(message.contains("yaml"), "{message}");
}

#[test]
fn a_required_call_is_a_call() {
    let server = start(options());
    // The shipped model's template has no tools, and the refusal says so.
    let body = json!({
        "messages": [{"role": "user", "content": "Weather?"}],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
        "tool_choice": "required",
    });
    let response = server.post("/v1/chat/completions", &body);
    assert_eq!(response.status, 400);
    let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.starts_with("tools: ") && message.contains("template"),
        "{message}"
    );
}
