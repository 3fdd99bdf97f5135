//! Answers do not depend on other requests.

use std::sync::Mutex;

use serde_json::{Value, json};

use crate::testing::{boundary, options, start, text};

/// Requests of many kinds: texts, lengths, sampling, policies, forms.
fn requests(count: usize) -> Vec<Value> {
    let book = text(40_000);
    (0..count)
        .map(|number| {
            let from = boundary(&book, number * 577 % 20_000);
            let to = boundary(&book, from + 40 + number * 391 % 6000);
            let mut request = json!({
                "prompt": &book[from..to],
                "max_tokens": 1 + number * 7 % 24,
                "temperature": if number % 3 == 0 { 0.9 } else { 0.0 },
                "seed": number,
                "logprobs": 2,
            });
            match number % 5 {
                1 => request["riffle"] = json!({"prefill": "streaming:sinks=16,window=256"}),
                2 => request["riffle"] = json!({"decode": "quest:from=0,topk=4,block=16,dense_layers=0"}),
                3 => request["stop"] = json!([" the", "\n"]),
                4 => request["response_format"] = json!({"type": "regex", "pattern": "[a-z ]{3,30}\\."}),
                _ => {}
            }
            request
        })
        .collect()
}

/// The part of an answer that must not depend on other requests.
fn essence(answer: &Value) -> String {
    let choice = &answer["choices"][0];
    json!([choice["text"], choice["finish_reason"], choice["logprobs"]]).to_string()
}

fn same_under_load(count: usize) {
    let requests = requests(count);
    let alone = start(options());
    let expected: Vec<String> = requests
        .iter()
        .map(|request| essence(&alone.ask("/v1/completions", request)))
        .collect();
    drop(alone);
    let busy = start(options());
    let next = Mutex::new(0..count);
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                loop {
                    let taken = next.lock().unwrap().next();
                    let Some(number) = taken else {
                        return;
                    };
                    let answer = busy.ask("/v1/completions", &requests[number]);
                    assert_eq!(essence(&answer), expected[number], "request {number}");
                }
            });
        }
    });
}

#[test]
fn answers_under_load_are_those_alone_to_the_byte() {
    same_under_load(48);
}

#[test]
#[ignore = "takes minutes; run it with --ignored"]
fn a_thousand_answers_under_load_are_those_alone_to_the_byte() {
    same_under_load(1000);
}

#[test]
fn a_seed_decides_what_is_drawn_and_choices_differ() {
    let server = start(options());
    let ask = |seed: u64, n: usize| {
        let more = json!({"temperature": 1.0, "seed": seed, "n": n, "max_tokens": 12});
        let answer = server.complete("And it came to pass", more);
        let choices = answer["choices"].as_array().unwrap().iter();
        choices
            .map(|choice| choice["text"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let three = ask(5, 3);
    assert_eq!(three, ask(5, 3));
    assert_eq!(three[0], ask(5, 1)[0]);
    assert!(three[0] != three[1] && three[1] != three[2]);
    assert_ne!(three, ask(6, 3));
}

#[test]
fn usage_counts_the_prompt_once_and_every_answer() {
    let server = start(options());
    let prompt = text(3000);
    let first = server.complete(&prompt, json!({"max_tokens": 4, "ignore_eos": true}));
    let tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let again = server.complete(&prompt, json!({"max_tokens": 4, "n": 2, "ignore_eos": true}));
    assert_eq!(again["usage"]["prompt_tokens"], tokens);
    assert_eq!(again["usage"]["completion_tokens"], 8);
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    // The server reads the last token again, because its logits begin the answer.
    assert_eq!(cached, tokens - 1);
}
