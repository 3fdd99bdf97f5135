//! The shapes of answers, whole and streamed.

use serde_json::{Value, json};

use riffle_server::ServerOptions;

use crate::testing::{options, start};

const MESSAGES: &str = r#"[{"role": "system", "content": "In the beginning"}, {"role": "user", "content": [{"type": "text", "text": "God created"}]}]"#;

fn messages() -> Value {
    serde_json::from_str(MESSAGES).unwrap()
}

#[test]
fn a_streamed_chat_says_what_a_whole_one_says() {
    let server = start(options());
    let mut body = json!({"model": "fixture", "messages": messages(), "max_tokens": 12, "temperature": 0, "n": 2});
    let whole = server.ask("/v1/chat/completions", &body);
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let mut events = server.stream("/v1/chat/completions", &body).events();
    assert_eq!(events.pop(), Some(json!("[DONE]")));
    let usage = events.pop().unwrap();
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    for index in 0..2 {
        let own = events.iter().filter(|event| event["choices"][0]["index"] == index);
        let texts: Vec<&str> = own
            .clone()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
            .collect();
        let reasons: Vec<&Value> = own
            .map(|event| &event["choices"][0]["finish_reason"])
            .filter(|reason| !reason.is_null())
            .collect();
        let choice = &whole["choices"][index];
        assert_eq!(choice["message"]["content"], texts.concat());
        assert_eq!(reasons, [&choice["finish_reason"]]);
    }
}

#[test]
fn a_stream_says_in_every_event_how_many_tokens_it_has_read_and_written_where_that_is_asked_for() {
    let server = start(options());
    for (path, mut body) in [
        ("/v1/chat/completions", json!({"messages": messages()})),
        ("/v1/completions", json!({"prompt": "In the beginning"})),
    ] {
        body["stream"] = json!(true);
        body["max_tokens"] = json!(6);
        body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        let mut events = server.stream(path, &body).events();
        assert_eq!(events.pop(), Some(json!("[DONE]")));
        let end = events.pop().unwrap()["usage"].clone();
        let told = events
            .iter()
            .filter(|event| !event["choices"][0]["finish_reason"].is_null() || event["choices"][0]["text"] != "");
        let counts: Vec<u64> = told
            .filter_map(|event| event["usage"]["completion_tokens"].as_u64())
            .collect();
        assert!(
            counts.is_sorted() && counts.last() == end["completion_tokens"].as_u64().as_ref(),
            "{path}: {counts:?}"
        );
        let prompts = events
            .iter()
            .filter_map(|event| event["usage"]["prompt_tokens"].as_u64());
        assert!(
            prompts.clone().count() > 2
                && prompts
                    .clone()
                    .all(|tokens| Some(tokens) == end["prompt_tokens"].as_u64())
        );
    }
}

#[test]
fn a_streamed_completion_says_what_a_whole_one_says() {
    let server = start(options());
    let mut body = json!({"prompt": "And God said", "max_tokens": 12, "temperature": 0, "logprobs": 2});
    let whole = server.ask("/v1/completions", &body);
    body["stream"] = json!(true);
    let events = server.stream("/v1/completions", &body).events();
    let part = |field: &str| -> Vec<Value> {
        let choices = events.iter().map(|event| &event["choices"][0]);
        choices
            .filter_map(|choice| choice["logprobs"][field].as_array())
            .flatten()
            .cloned()
            .collect()
    };
    let texts = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
    let choice = &whole["choices"][0];
    assert_eq!(choice["text"], texts.collect::<String>());
    assert_eq!(choice["logprobs"]["tokens"], json!(part("tokens")));
    assert_eq!(choice["logprobs"]["token_logprobs"], json!(part("token_logprobs")));
}

#[test]
fn an_echo_tells_how_likely_the_prompt_was() {
    let server = start(options());
    let answer = server.complete(
        "In the beginning God created",
        json!({"max_tokens": 1, "echo": true, "logprobs": 1}),
    );
    let choice = &answer["choices"][0];
    assert!(
        choice["text"]
            .as_str()
            .unwrap()
            .starts_with("In the beginning God created")
    );
    let logs = &choice["logprobs"];
    let tokens = logs["tokens"].as_array().unwrap().len();
    assert_eq!(tokens as u64, answer["usage"]["total_tokens"].as_u64().unwrap());
    let own = logs["token_logprobs"].as_array().unwrap();
    assert!(own[0].is_null() && own[1..].iter().all(|log| log.as_f64().unwrap() <= 0.0));
    assert_eq!(logs["text_offset"].as_array().unwrap().len(), tokens);
}

#[test]
fn a_streamed_message_is_put_together_from_its_events() {
    let server = start(options());
    let mut body = json!({
        "model": "fixture", "max_tokens": 12, "temperature": 0, "system": "In the beginning",
        "messages": [{"role": "user", "content": "God created"}],
    });
    let whole = server.ask("/v1/messages", &body);
    body["stream"] = json!(true);
    let events = server.stream("/v1/messages", &body).events();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds.first(), Some(&"message_start"));
    assert_eq!(
        kinds[kinds.len() - 3..],
        ["content_block_stop", "message_delta", "message_stop"]
    );
    let texts = events.iter().filter_map(|event| event["delta"]["text"].as_str());
    assert_eq!(whole["content"][0]["text"], texts.collect::<String>());
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], whole["stop_reason"]);
    assert_eq!(end["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    let counted = server.ask(
        "/v1/messages/count_tokens",
        &json!({"model": "fixture", "system": "In the beginning", "messages": body["messages"]}),
    );
    let usage = &whole["usage"];
    let read = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted["input_tokens"], read);
}

#[test]
fn a_streamed_response_ends_with_the_whole_response() {
    let server = start(options());
    let mut body = json!({"model": "fixture", "input": "God created", "max_output_tokens": 12, "temperature": 0});
    let whole = server.ask("/v1/responses", &body);
    body["stream"] = json!(true);
    let events = server.stream("/v1/responses", &body).events();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let last = &events[events.len() - 1]["response"];
    let text = |response: &Value| response["output"][0]["content"][0]["text"].clone();
    assert_eq!((text(last), &last["status"]), (text(&whole), &whole["status"]));
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta");
    let texts = deltas.map(|event| event["delta"].as_str().unwrap());
    assert_eq!(text(&whole), texts.collect::<String>());
}

#[test]
fn text_goes_to_tokens_and_back() {
    let server = start(options());
    let tokens = server.ask(
        "/tokenize",
        &json!({"content": "In the beginning", "with_pieces": true}),
    );
    let list = tokens["tokens"].as_array().unwrap();
    let pieces: String = list.iter().map(|token| token["piece"].as_str().unwrap()).collect();
    assert_eq!(pieces, "In the beginning");
    let ids: Vec<&Value> = list.iter().map(|token| &token["id"]).collect();
    let text = server.ask("/detokenize", &json!({"tokens": ids}));
    assert_eq!(text["content"], "In the beginning");
}

#[test]
fn a_text_beyond_the_context_is_counted_and_refused_as_a_prompt() {
    let server = start(options());
    let text = "the king and the prophet ".repeat(20_000);
    let tokens = server.ask("/tokenize", &json!({"content": text}));
    let count = tokens["count"].as_u64().unwrap();
    assert!(count > tokens["max_model_len"].as_u64().unwrap(), "{count}");
    assert_eq!(tokens["tokens"].as_array().unwrap().len() as u64, count);
    let messages = json!([{"role": "user", "content": text}]);
    for path in ["/v1/messages/count_tokens", "/v1/chat/completions/input_tokens"] {
        let counted = server.ask(path, &json!({"model": "fixture", "messages": messages}));
        assert!(counted["input_tokens"].as_u64() >= Some(count), "{path}: {counted}");
    }
    let counted = server.ask("/v1/responses/input_tokens", &json!({"input": text}));
    assert!(counted["input_tokens"].as_u64() >= Some(count), "{counted}");
    let refused = server.post("/v1/completions", &json!({"prompt": text}));
    assert_eq!(
        refused.json()["error"]["code"],
        "context_length_exceeded",
        "{}",
        refused.body
    );
    let refused = server.post("/tokenize", &json!({"prompt": text, "with_pieces": true}));
    assert_eq!(refused.json()["error"]["param"], "with_pieces", "{}", refused.body);
}

#[test]
fn the_model_serves_every_name_and_answers_with_its_own() {
    let aliases = vec!["org/name".to_owned()];
    let server = start(ServerOptions { aliases, ..options() });
    let listed = server.get("/v1/models").json();
    let names: Vec<&Value> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(names, ["fixture", "org/name"]);
    for name in ["fixture", "org/name", "org%2Fname"] {
        assert_eq!(server.get(&format!("/v1/models/{name}")).status, 200, "{name}");
    }
    assert_eq!(server.get("/v1/models/other").status, 404);
    let answer = server.ask(
        "/v1/completions",
        &json!({"model": "gpt-4o", "prompt": "a", "max_tokens": 1}),
    );
    assert_eq!(answer["model"], "fixture");
}

#[test]
fn a_strict_server_refuses_a_model_of_another_name() {
    let aliases = vec!["alias".to_owned()];
    let server = start(ServerOptions {
        aliases,
        has_strict_names: true,
        ..options()
    });
    let ask = |name: &str| {
        server.post(
            "/v1/completions",
            &json!({"model": name, "prompt": "a", "max_tokens": 1}),
        )
    };
    assert_eq!((ask("fixture").status, ask("alias").status), (200, 200));
    let other = ask("other");
    assert_eq!(
        (other.status, &other.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
}

#[test]
fn offsets_of_tokens_are_places_in_the_text_whole_and_streamed() {
    let server = start(options());
    let body = json!({"prompt": "In the beginning God created", "max_tokens": 6, "temperature": 0, "logprobs": 1});
    let fits = |text: &str, logs: &Value| {
        let (tokens, offsets) = (
            logs["tokens"].as_array().unwrap(),
            logs["text_offset"].as_array().unwrap(),
        );
        for (token, offset) in tokens.iter().zip(offsets) {
            let rest: String = text.chars().skip(offset.as_u64().unwrap() as usize).collect();
            assert!(
                rest.starts_with(token.as_str().unwrap()),
                "{token} at {offset} of {text:?}"
            );
        }
        offsets.clone()
    };
    let whole = server.ask("/v1/completions", &body)["choices"][0].clone();
    let offsets = fits(whole["text"].as_str().unwrap(), &whole["logprobs"]);
    assert!(offsets[1].as_u64() > Some(0), "{offsets:?}");
    let with = |field: &str| {
        let mut body = body.clone();
        body[field] = json!(true);
        body
    };
    let echoed = server.ask("/v1/completions", &with("echo"))["choices"][0].clone();
    fits(echoed["text"].as_str().unwrap(), &echoed["logprobs"]);
    let events = server.stream("/v1/completions", &with("stream")).events();
    let streamed = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["text_offset"].as_array());
    assert_eq!(streamed.flatten().cloned().collect::<Vec<_>>(), offsets);
}
