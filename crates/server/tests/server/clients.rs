//! Requests of real clients: fields of other servers, kinds of tools, histories, lengths.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use riffle_engine::{Engine, EngineOptions};
use serde_json::{Value, json};

use crate::testing::{Running, options, start, start_on};

/// The shipped model with a chat template.
pub(crate) fn templated(template: &str) -> (tempfile::TempDir, Arc<Engine>) {
    let folder = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/model");
    for entry in std::fs::read_dir(model).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let options = EngineOptions::default()
        .with_context_tokens(Some(8192))
        .with_sequences(16)
        .with_keeps_beginnings(true);
    let engine = Engine::load(folder.path(), options).unwrap();
    (folder, engine)
}

pub(crate) const TOOLS: &str = "{%- if tools %}{{ '<|im_start|>system\nTools: ' }}{% for t in tools %}{{ t|tojson }}{% endfor %}\
{{ ' Answer with <tool_call>…</tool_call>.<|im_end|>\n' }}{% endif -%}\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}\
{%- for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function|tojson + '</tool_call>' }}{% endfor %}\
{{ '<|im_end|>\n' }}{% endfor -%}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}";

fn with_tools() -> Running {
    static ENGINE: OnceLock<(tempfile::TempDir, Arc<Engine>)> = OnceLock::new();
    let (_, engine) = ENGINE.get_or_init(|| templated(TOOLS));
    start_on(engine, options())
}

fn function(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}},
    }}})
}

/// A chat whose answer is `text`, with the tool `get_weather`.
fn chat_that_says(server: &Running, text: &str, more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "x"}], "max_tokens": 300,
        "tools": [function("get_weather")], "guided_choice": [text],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.ask("/v1/chat/completions", &body)["choices"][0].clone()
}

#[test]
fn a_length_beyond_the_context_is_cut_and_a_prompt_beyond_it_is_refused_with_the_numbers() {
    let (_folder, engine) = templated(TOOLS);
    let server = start_on(&engine, options());
    let prompt: Vec<u32> = std::iter::repeat_n(20, 8188).collect();
    for length in [json!(128_000), json!(u64::MAX), json!(1e20)] {
        let body = json!({"prompt": prompt, "max_tokens": length, "ignore_eos": true, "temperature": 0});
        let answer = server.ask("/v1/completions", &body);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 5);
        let warning = answer["riffle"]["warnings"][0].as_str().unwrap();
        assert!(warning.starts_with("max_tokens: cut to 5"), "{warning}");
    }
    let prompt: Vec<u32> = std::iter::repeat_n(20, 9000).collect();
    let refused = server.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1}));
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(refused.status, 400);
    assert!(message.contains("9000") && message.contains("8192"), "{message}");
}

#[test]
fn fields_that_change_nothing_are_taken_and_what_is_not_done_is_told() {
    let server = with_tools();
    let body = json!({
        "messages": [
            {"role": "developer", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}], "id": "1"},
            {"role": "assistant", "content": null, "reasoning": "c", "reasoning_details": [], "provider_specific_fields": {}},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{no json"}}]},
            {"role": "tool", "tool_call_id": "1", "content": null},
            {"role": "user", "content": [{"type": "thinking", "thinking": "d"}, {"type": "text", "text": "e"}], "extra_content": {}},
        ],
        "max_tokens": 1, "metadata": {"a": "b"}, "service_tier": "auto", "store": true, "reasoning_effort": "high",
        "best_of": 1, "typical_p": 1, "mirostat": 0, "skip_special_tokens": true, "keep_alive": "5m", "functions": [],
        "options": {"num_ctx": 2048, "temperature": 0}, "verbosity": "low", "enable_thinking": false, "id_slot": 0, "echo": false, "format": "", "extra_body": {}, "seed": u64::MAX,
        "tools": [{"type": "web_search"}, function("f")], "tool_choice": {"type": "auto"},
    });
    let answer = server.ask("/v1/chat/completions", &body);
    let warnings: Vec<&str> = answer["riffle"]["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap())
        .collect();
    for field in [
        "store",
        "verbosity",
        "tools[0].type",
        "messages[3].tool_calls[0].function.arguments",
        "reasoning",
    ] {
        let is_told = warnings.iter().any(|line| line.starts_with(&format!("{field}: ")));
        assert!(is_told, "{field}: {warnings:?}");
    }
    assert_eq!(warnings.len(), 5, "{warnings:?}");
}

#[test]
fn data_that_was_asked_for_is_told_as_data() {
    let server = with_tools();
    for text in [
        r#"[{"name": "Ada"}, {"name": "Bob"}]"#,
        "```json\n{\"name\": \"Ada\", \"age\": 36}\n```",
        r#"{"name": "no_such_tool", "arguments": {}}"#,
        "<tool_call>\n{\"name\": \"get_weather\", \"city\": \"Bern\"}\n</tool_call>",
    ] {
        let choice = chat_that_says(&server, text, json!({}));
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!(text), &json!("stop"))
        );
    }
    let schema = json!({"type": "object", "properties": {"name": {"enum": ["get_weather"]}, "arguments": {"const": {}}},
        "required": ["name", "arguments"], "additionalProperties": false});
    let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 300, "tools": [function("get_weather")],
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let choice = server.ask("/v1/chat/completions", &body)["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "stop");
    assert!(
        choice["message"]["tool_calls"].is_null() && choice["message"]["content"].is_string(),
        "{choice}"
    );
}

#[test]
fn a_call_without_marks_of_a_known_tool_is_a_call() {
    let server = with_tools();
    for text in [
        r#"{"name": "get_weather", "arguments": {"city": "Bern"}}"#,
        r#"{{"name": "get_weather", "arguments": {"city": "Bern"}}}"#,
        "```json\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bern\"}}\n```",
    ] {
        let choice = chat_that_says(&server, text, json!({}));
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        assert_eq!(
            choice["message"]["tool_calls"][0]["function"]["arguments"],
            r#"{"city":"Bern"}"#
        );
    }
}

#[test]
fn a_custom_tool_and_a_namespace_are_answered_as_the_client_knows_them() {
    let server = with_tools();
    let says = |text: &str| {
        let body = json!({
            "input": [{"role": "user", "content": "x"}], "max_output_tokens": 300, "client_metadata": {"a": "b"},
            "reasoning": {"effort": "high", "summary": "auto"}, "store": false, "include": ["reasoning.encrypted_content"],
            "tools": [
                {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.*/"}},
                {"type": "namespace", "name": "mcp__notes", "description": "d", "tools": [{"type": "function", "name": "read_notes", "parameters": {}}]},
                {"type": "web_search", "external_web_access": true},
                {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
            ],
            "text": {"verbosity": "low", "format": {"type": "grammar", "grammar": format!("start: {}", json!(text))}},
        });
        server.ask("/v1/responses", &body)["output"][0].clone()
    };
    let patch =
        says("<tool_call>\n{\"name\": \"apply_patch\", \"arguments\": {\"input\": \"*** Begin\"}}\n</tool_call>");
    assert_eq!(
        (&patch["type"], &patch["input"]),
        (&json!("custom_tool_call"), &json!("*** Begin"))
    );
    let notes = says("<tool_call>\n{\"name\": \"mcp__notes__read_notes\", \"arguments\": {}}\n</tool_call>");
    assert_eq!(
        (&notes["type"], &notes["name"]),
        (&json!("function_call"), &json!("read_notes"))
    );
    assert_eq!(notes["namespace"], "mcp__notes");
    let search = says("<tool_call>\n{\"name\": \"tool_search\", \"arguments\": {\"query\": \"notes\"}}\n</tool_call>");
    assert_eq!(
        (&search["type"], &search["arguments"]),
        (&json!("tool_search_call"), &json!({"query": "notes"}))
    );
}

#[test]
fn a_tool_that_a_search_has_found_is_answered_under_its_namespace() {
    let server = with_tools();
    let call = "<tool_call>\n{\"name\": \"mcp__notes__read_notes\", \"arguments\": {}}\n</tool_call>";
    let body = json!({
        "max_output_tokens": 300, "tools": [{"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}],
        "input": [
            {"role": "user", "content": "x"},
            {"type": "tool_search_call", "execution": "client", "arguments": {"query": "notes"}, "call_id": "c3"},
            {"type": "tool_search_output", "call_id": "c3", "execution": "client", "tools": [
                {"type": "namespace", "name": "mcp__notes", "tools": [{"type": "function", "name": "read_notes", "defer_loading": true}]},
            ]},
        ],
        "text": {"format": {"type": "grammar", "grammar": format!("start: {}", json!(call))}},
    });
    let item = server.ask("/v1/responses", &body)["output"][0].clone();
    assert_eq!(
        (&item["name"], &item["namespace"]),
        (&json!("read_notes"), &json!("mcp__notes"))
    );
}

#[test]
fn a_turn_behind_tools_of_every_kind_is_read() {
    let server = with_tools();
    let body = json!({"max_output_tokens": 1, "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}], "id": "1"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x", "id": "rs_1"},
        {"type": "function_call", "name": "read_notes", "namespace": "mcp__notes", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "d"}]},
        {"type": "custom_tool_call", "name": "apply_patch", "input": "e", "call_id": "c2"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "f"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "notes"}, "call_id": "c3"},
        {"type": "tool_search_output", "call_id": "c3", "tools": []},
        {"type": "item_reference", "id": "rs_gone"},
    ]});
    let first = server.ask("/v1/responses", &body);
    // A request can name an item of an answer instead of repeating it.
    let id = first["output"][0]["id"].clone();
    let mut next = body;
    let input = next["input"].as_array_mut().unwrap();
    input.push(json!({"type": "item_reference", "id": id}));
    input.push(json!({"role": "user", "content": "g"}));
    let named = server.ask("/v1/responses/input_tokens", &next)["input_tokens"].clone();
    let input = next["input"].as_array_mut().unwrap();
    let place = input.len() - 2;
    input[place] = first["output"][0].clone();
    assert_eq!(server.ask("/v1/responses/input_tokens", &next)["input_tokens"], named);
}

#[test]
fn a_response_goes_on_from_one_before_it_as_long_as_that_is_kept() {
    let server = with_tools();
    let said = |text: &str| json!({"role": "user", "content": text});
    let first = server.ask("/v1/responses", &json!({"input": "a", "max_output_tokens": 3}));
    let (id, output) = (first["id"].clone(), first["output"][0].clone());
    assert_eq!(first["store"], true);
    let streamed = json!({"input": [said("b")], "previous_response_id": id, "max_output_tokens": 3, "stream": true});
    let events = server.stream("/v1/responses", &streamed).events();
    let second = events.iter().rev().find_map(|event| event.get("response")).unwrap();
    assert_eq!(second["previous_response_id"], id);
    let more = json!({"input": "c", "previous_response_id": second["id"]});
    let whole = json!({"input": [said("a"), output, said("b"), second["output"][0], said("c")]});
    let tokens = |body: &Value| server.ask("/v1/responses/input_tokens", body)["input_tokens"].clone();
    assert_eq!(tokens(&more), tokens(&whole));
    let path = format!("/v1/responses/{}", id.as_str().unwrap());
    assert_eq!(server.get(&path).json()["id"], id);
    let deleted = server.send("DELETE", &path, "", "").whole();
    assert_eq!(deleted.json()["deleted"], true);
    let unkept = server.ask(
        "/v1/responses",
        &json!({"input": "a", "max_output_tokens": 1, "store": false}),
    );
    for id in [&id, &unkept["id"], &json!("resp_none")] {
        assert_eq!(
            server.get(&format!("/v1/responses/{}", id.as_str().unwrap())).status,
            404
        );
        let refused = server.post("/v1/responses", &json!({"input": "d", "previous_response_id": id}));
        assert_eq!(refused.status, 404, "{}", refused.body);
        assert_eq!(refused.json()["error"]["code"], "previous_response_not_found");
    }
}

#[test]
fn system_messages_anywhere_reach_a_template_that_takes_one_at_the_start() {
    const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
{{ raise_exception('System message must be at the beginning') }}{% endif %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
    let (_folder, engine) = templated(STRICT);
    let server = start_on(&engine, options());
    let body = json!({"messages": [
        {"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, {"role": "user", "content": "c"},
        {"role": "system", "content": "d"}, {"role": "assistant", "content": "e"},
    ]});
    let prompt = server.ask("/apply-template", &body)["prompt"].clone();
    assert_eq!(prompt, "<system>a\n\nb\n<user>c\n<user>d\n<assistant>e\n");
    let message = json!({"max_tokens": 5, "system": "a", "messages": [
        {"role": "user", "content": "b"},
        {"role": "system", "content": "# Environment", "output_config": {"effort": "medium"}},
    ], "thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "max"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "tools": []});
    assert_eq!(server.post("/v1/messages", &message).status, 200);
}

#[test]
fn a_begun_answer_keeps_its_calls_or_says_that_it_cannot() {
    let begun = |server: &Running, last: Value| {
        let body = json!({"messages": [{"role": "user", "content": "q"}, last],
            "continue_final_message": true, "add_generation_prompt": false, "max_tokens": 0});
        server.post("/v1/chat/completions", &body)
    };
    let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    let server = with_tools();
    let tokens = |last: &Value| {
        begun(&server, last.clone()).json()["usage"]["prompt_tokens"]
            .as_u64()
            .unwrap()
    };
    assert!(tokens(&call) > tokens(&json!({"role": "assistant", "content": ""})));
    let plain = start(options());
    for last in [
        call,
        json!({"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}}),
        json!({"role": "assistant", "content": "", "reasoning_content": "a long thought"}),
        json!({"role": "assistant", "content": "", "thinking": "a long thought"}),
    ] {
        let (_folder, engine) = templated("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}");
        let refused = begun(&start_on(&engine, options()), last);
        assert_eq!(refused.status, 400);
        assert!(refused.body.contains("the last message's"), "{}", refused.body);
    }
    drop(plain);
}

#[test]
fn an_answer_of_a_form_that_begins_inside_a_thought_is_told_behind_the_thought() {
    let thinks = format!("{TOOLS}{{{{ '<think>\n' }}}}");
    let (_folder, engine) = templated(&thinks);
    let server = start_on(&engine, options());
    let schema =
        json!({"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": false});
    let asked = |path: &str, more: Value| {
        let mut body =
            json!({"messages": [{"role": "user", "content": "q"}], "max_tokens": 300, "temperature": 1, "seed": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask(path, &body)
    };
    let chat = |more: Value| asked("/v1/chat/completions", more)["choices"][0]["message"].clone();
    let data = |text: &Value| serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap();
    let formed = chat(json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}));
    assert_eq!(data(&formed["content"]), json!({"a": 1}));
    assert!(
        formed["reasoning_content"]
            .as_str()
            .is_some_and(|thought| !thought.is_empty())
    );
    assert!(data(&chat(json!({"response_format": {"type": "json_object"}}))["content"]).is_object());
    let chosen = chat(json!({"guided_choice": ["yes", "no"]}));
    assert!(["yes", "no"].contains(&chosen["content"].as_str().unwrap()), "{chosen}");
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    let called = chat(json!({"tool_choice": "required", "tools": [tool]}));
    assert_eq!(data(&called["tool_calls"][0]["function"]["arguments"]), json!({"a": 1}));
    let message = asked(
        "/v1/messages",
        json!({"seed": null, "output_config": {"format": {"type": "json_schema", "schema": schema}}}),
    );
    let text = message["content"]
        .as_array()
        .unwrap()
        .iter()
        .find(|block| block["type"] == "text")
        .unwrap();
    assert_eq!(data(&text["text"]), json!({"a": 1}));
}

#[test]
fn strict_tools_beside_a_form_leave_both_open_and_required_calls_come_first() {
    let server = with_tools();
    let schema =
        json!({"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": schema}});
    let ask = |choice: &str| {
        let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 300, "tools": [tool], "tool_choice": choice,
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
        server.ask("/v1/chat/completions", &body)["choices"][0].clone()
    };
    assert_eq!(ask("required")["finish_reason"], "tool_calls");
    let free = ask("auto")["message"].clone();
    let text = if free["tool_calls"].is_null() {
        free["content"].clone()
    } else {
        free["tool_calls"][0]["function"]["arguments"].clone()
    };
    assert_eq!(
        serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap(),
        json!({"a": 1})
    );
}

#[test]
fn references_in_parameters_of_tools_name_their_own_parts() {
    let server = with_tools();
    let schema = json!({"$defs": {"Item": {"type": "object", "properties": {"sku": {"enum": ["a"]}}, "required": ["sku"], "additionalProperties": false}},
        "type": "object", "properties": {"item": {"$ref": "#/$defs/Item"}}, "required": ["item"], "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 100, "tools": [tool], "tool_choice": "required"});
    let choice = server.ask("/v1/chat/completions", &body)["choices"][0].clone();
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].clone();
    assert_eq!(
        serde_json::from_str::<Value>(arguments.as_str().unwrap()).unwrap(),
        json!({"item": {"sku": "a"}})
    );
}
