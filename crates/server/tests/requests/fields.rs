//! Fields of other types, out of range, or with values that do not exist.

use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, Case, MESSAGES, RESPONSES, with};

pub(super) fn cases() -> Vec<Case> {
    let tables = [
        (&[COMPLETIONS, CHAT, RESPONSES, MESSAGES][..], shared()),
        (&[COMPLETIONS][..], completions()),
        (&[CHAT][..], chat()),
        (&[CHAT][..], forms()),
        (&[RESPONSES][..], responses()),
        (&[MESSAGES][..], messages()),
        (&["/api/chat"][..], ollama_chat()),
        (&["/api/generate"][..], ollama_generate()),
        (&["/completion"][..], llama_cpp()),
        (
            &["/tokenize"][..],
            vec![
                ("content", json!(5)),
                ("content", json!(["a"])),
                ("with_pieces", json!(1)),
            ],
        ),
        (
            &["/detokenize"][..],
            vec![
                ("tokens", json!("a")),
                ("tokens", json!([-1])),
                ("tokens", json!([1e12])),
                ("tokens", json!([2048])),
            ],
        ),
        (
            &["/apply-template"][..],
            vec![("messages", json!({})), ("messages", json!([])), ("tools", json!({}))],
        ),
        (&["/v1/embeddings"][..], embeddings()),
        (&["/v1/rerank"][..], rerank()),
        (
            &["/v1/messages/count_tokens"][..],
            vec![("messages", json!([])), ("max_tokens", json!(1)), ("system", json!(5))],
        ),
    ];
    let mut cases = Vec::new();
    for (paths, table) in tables {
        for path in paths {
            for (field, value) in &table {
                let what = format!("{field} = {}", short(value));
                cases.push(Case::body(path, &what, with(path, field, value.clone()).to_string()));
            }
        }
    }
    cases
}

/// Fields of requests for vectors.
fn embeddings() -> Vec<(&'static str, Value)> {
    vec![
        ("input", json!(5)),
        ("input", json!([])),
        ("input", json!([[-1]])),
        ("encoding_format", json!("hex")),
        ("dimensions", json!(0)),
        ("prompt_name", json!("query")),
    ]
}

/// Fields of requests for scores.
fn rerank() -> Vec<(&'static str, Value)> {
    vec![("documents", json!([])), ("documents", json!([5])), ("top_n", json!(0))]
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}

/// Fields of all four APIs.
fn shared() -> Vec<(&'static str, Value)> {
    vec![
        ("model", json!(5)),
        ("temperature", json!("warm")),
        ("temperature", json!(-0.1)),
        ("temperature", json!(1e30)),
        ("top_p", json!(0)),
        ("top_p", json!(1.1)),
        ("top_p", json!([0.5])),
        ("stream", json!("yes")),
        ("stream", json!(1)),
        ("riffle", json!("audit")),
        ("riffle", json!({"speed": "fast"})),
        ("riffle", json!({"audit": "yes"})),
        ("riffle", json!({"decode": 5})),
        ("riffle", json!({"decode": "no-such-policy"})),
        ("riffle", json!({"decode": "quest:pages=-1"})),
        ("riffle", json!({"prefill": "streaming:sinks=many"})),
        ("riffle", json!({"prefill": "full;;;=:"})),
        ("riffle", json!({"priority": 1e9})),
    ]
}

fn completions() -> Vec<(&'static str, Value)> {
    vec![
        ("prompt", json!(5)),
        ("prompt", json!({})),
        ("prompt", json!([])),
        ("prompt", json!([[]])),
        ("prompt", json!([1.5])),
        ("prompt", json!([-1])),
        ("prompt", json!([2048])),
        ("prompt", json!([1, "a"])),
        ("prompt", json!(["a", null])),
        ("prompt", json!(vec!["a"; 65])),
        ("max_tokens", json!(-2)),
        ("max_tokens", json!(1.5)),
        ("max_tokens", json!("1")),
        ("n", json!(0)),
        ("n", json!(65)),
        ("n", json!(true)),
        ("best_of", json!(3)),
        ("suffix", json!("end")),
        ("echo", json!(1)),
        ("logprobs", json!(21)),
        ("logprobs", json!(true)),
        ("prompt_logprobs", json!(-1)),
        ("stop", json!(5)),
        ("stop", json!([5])),
        ("stop", json!("")),
        ("stop", json!(vec!["a"; 65])),
        ("stop", json!("a".repeat(1025))),
        ("stop_token_ids", json!(["a"])),
        ("stop_token_ids", json!([99999])),
        ("seed", json!("a")),
        ("seed", json!(0.5)),
        ("top_k", json!(-2)),
        ("min_p", json!(2)),
        ("min_tokens", json!(-1)),
        ("ignore_eos", json!("no")),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-3)),
        ("repetition_penalty", json!(0)),
        ("repeat_last_n", json!(-2)),
        ("logit_bias", json!([1])),
        ("logit_bias", json!({"word": 1})),
        ("logit_bias", json!({"2048": 1})),
        ("logit_bias", json!({"1": "much"})),
        ("logit_bias", json!({"1": 1e300})),
        (
            "stream_options",
            json!({"include_usage": true, "continuous_usage_stats": true}),
        ),
        ("guided_regex", json!("(")),
        ("guided_json", json!("{")),
        ("guided_choice", json!([])),
        ("guided_grammar", json!("start: nothing")),
        ("grammar", json!("root ::= \"a\"")),
    ]
}

#[allow(clippy::too_many_lines, reason = "a table of requests")]
fn chat() -> Vec<(&'static str, Value)> {
    let said = |role: &str, content: Value| json!([{"role": role, "content": content}]);
    let tool = |function: Value| json!([{"type": "function", "function": function}]);
    vec![
        ("messages", json!("a")),
        ("messages", json!([])),
        ("messages", json!(["a"])),
        ("messages", json!([{}])),
        ("messages", said("king", json!("a"))),
        ("messages", said("user", json!(null))),
        ("messages", said("user", json!(5))),
        ("messages", said("user", json!([{"type": "text"}]))),
        (
            "messages",
            said("user", json!([{"type": "image_url", "image_url": {"url": "data:,"}}])),
        ),
        (
            "messages",
            json!([{"role": "assistant", "tool_calls": [{"type": "function"}]}]),
        ),
        ("continue_final_message", json!(true)),
        ("add_generation_prompt", json!(false)),
        ("top_logprobs", json!(3)),
        ("tools", json!("a")),
        ("tools", tool(json!({}))),
        ("tools", tool(json!({"name": ""}))),
        ("tools", tool(json!({"name": "a"}))),
        ("tool_choice", json!("required")),
        ("tool_choice", json!("perhaps")),
        ("tool_choice", json!({"type": "function", "function": {"name": "a"}})),
        ("chat_template_kwargs", json!([])),
        ("functions", json!([{"name": "a"}])),
        ("modalities", json!(["audio"])),
        ("reasoning_effort", json!("extreme")),
        ("reasoning_effort", json!(5)),
        ("thinking", json!({"type": "perhaps"})),
        ("mirostat", json!(2)),
        ("xtc_probability", json!(0.5)),
        ("typical_p", json!(0.5)),
        ("best_of", json!(2)),
        ("function_call", json!({"name": "a"})),
        (
            "tool_choice",
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "sometimes"}}),
        ),
        (
            "messages",
            json!([{"role": "assistant", "tool_calls": [{"type": "function", "function": {"arguments": "{}"}}]}]),
        ),
        ("n", json!(1e18)),
        ("max_completion_tokens", json!("many")),
    ]
}

/// Forms of answers.
fn forms() -> Vec<(&'static str, Value)> {
    let form = |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    vec![
        ("response_format", json!("json")),
        ("response_format", json!({"type": "yaml"})),
        ("response_format", json!({"type": "json_schema"})),
        ("response_format", form(json!({"type": "hiccup"}))),
        ("response_format", form(json!({"type": 5}))),
        ("response_format", form(json!(false))),
        (
            "response_format",
            form(json!({"type": "integer", "minimum": 2, "maximum": 1})),
        ),
        ("response_format", form(json!({"$ref": "#/nowhere"}))),
        ("response_format", form(json!({"$ref": "http://localhost/a.json"}))),
        ("response_format", form(json!({"not": {"type": "string"}}))),
        ("response_format", form(json!({"type": "string", "pattern": "("}))),
        ("response_format", form(json!({"x-guidance": {"lenient": true}}))),
        ("response_format", form(json!({"enum": ["a".repeat(300_000)]}))),
        ("response_format", json!({"type": "regex", "pattern": "(?<=a)b"})),
    ]
}

fn responses() -> Vec<(&'static str, Value)> {
    vec![
        ("input", json!(5)),
        ("input", json!([])),
        ("input", json!([{"type": "music"}])),
        (
            "input",
            json!([{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]),
        ),
        ("input", json!([{"type": "function_call_output", "call_id": "1"}])),
        ("instructions", json!(["a"])),
        ("max_output_tokens", json!(-2)),
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("conv_1")),
        ("background", json!(true)),
        ("input", json!([{"type": "item_reference", "id": "msg_unknown"}])),
        ("tool_choice", json!("any")),
        ("tools", json!([{"type": "function"}])),
        ("text", json!({"format": {"type": "yaml"}})),
        ("text", json!({"format": {"type": "json_schema", "name": "a"}})),
        ("include", json!(["everything"])),
        ("prompt", json!({"id": "a"})),
        ("top_logprobs", json!(3)),
        ("reasoning", json!({"effort": "extreme"})),
        ("reasoning", json!("high")),
    ]
}

fn messages() -> Vec<(&'static str, Value)> {
    let said = |content: Value| json!([{"role": "user", "content": content}]);
    vec![
        ("max_tokens", json!(null)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!("1")),
        ("messages", json!([])),
        ("messages", json!({})),
        ("messages", json!([{"role": "tool", "content": "a"}])),
        ("messages", said(json!(5))),
        ("messages", said(json!([{"text": "a"}]))),
        (
            "messages",
            said(json!([{"type": "image", "source": {"type": "base64"}}])),
        ),
        (
            "messages",
            said(json!([{"type": "tool_use", "id": "1", "name": "a", "input": {}}])),
        ),
        ("messages", said(json!([{"type": "tool_result", "content": "a"}]))),
        (
            "messages",
            said(json!([{"type": "document", "source": {"type": "url", "url": "http://localhost"}}])),
        ),
        ("system", json!(5)),
        ("system", json!([{"type": "image"}])),
        ("stop_sequences", json!([5])),
        ("tools", json!([{"name": "a"}])),
        ("tools", json!([{"name": "a", "input_schema": {"type": "object"}}])),
        ("tool_choice", json!({"type": "any"})),
        ("tool_choice", json!("any")),
        ("thinking", json!({"type": "perhaps"})),
        ("thinking", json!({"type": "enabled", "budget_tokens": "all"})),
        ("output_config", json!({"format": {"type": "yaml"}})),
        ("output_config", json!({"effort": "all"})),
        ("mcp_servers", json!([{"type": "url", "url": "http://localhost"}])),
        ("container", json!("a")),
    ]
}

/// Fields of Ollama's chats.
fn ollama_chat() -> Vec<(&'static str, Value)> {
    vec![
        ("messages", json!("a")),
        ("messages", json!([{"role": "robot", "content": "a"}])),
        ("options", json!([])),
        ("options", json!({"temperature": -1})),
        ("format", json!("yaml")),
        ("tools", json!({})),
        ("stream", json!("yes")),
    ]
}

/// Fields of Ollama's answers to one prompt.
fn ollama_generate() -> Vec<(&'static str, Value)> {
    vec![
        ("prompt", json!(["a"])),
        ("suffix", json!("b")),
        ("raw", json!(1)),
        ("images", json!(["a"])),
        ("context", json!([1])),
    ]
}

/// Fields of llama.cpp's own completions.
fn llama_cpp() -> Vec<(&'static str, Value)> {
    vec![
        ("prompt", json!(["a", 1])),
        ("prompt", json!([])),
        ("json_schema", json!("{")),
        ("grammar", json!("root ::= a")),
    ]
}
