//! How likely tokens were, in OpenAI's two shapes.

use riffle_engine::TokenProbabilities;
use riffle_model::Tokenizer;
use serde_json::{Map, Value, json};

/// The text that a token stands for in the middle of a text; bytes that are no text of their own are replaced.
pub(super) fn text_of(tokenizer: &Tokenizer, token: u32) -> String {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One token of `choices[].logprobs.content` of a chat completion.
pub(super) fn chat(tokenizer: &Tokenizer, probabilities: &TokenProbabilities) -> Value {
    let entry = |token: u32, log_probability: f32| {
        json!({
            "token": text_of(tokenizer, token),
            "logprob": finite(log_probability),
            "bytes": tokenizer.token_bytes(token).unwrap_or_default(),
        })
    };
    let mut own = entry(probabilities.token, probabilities.log_probability);
    let likeliest = probabilities.likeliest.iter().map(|(token, log)| entry(*token, *log));
    own["top_logprobs"] = likeliest.collect();
    own
}

/// `logprobs` of a completion; the first token of a prompt has none.
pub(super) fn completion(
    tokenizer: &Tokenizer,
    first: Option<u32>,
    tokens: &[TokenProbabilities],
    has_likeliest: bool,
    offset: usize,
) -> Value {
    let (mut texts, mut logs, mut likeliest, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut at = offset;
    let mut push = |text: String| {
        offsets.push(json!(at));
        at += text.chars().count();
        texts.push(Value::String(text));
    };
    if let Some(first) = first {
        push(text_of(tokenizer, first));
        logs.push(Value::Null);
        likeliest.push(Value::Null);
    }
    for token in tokens {
        push(text_of(tokenizer, token.token));
        logs.push(finite(token.log_probability));
        likeliest.push(named(tokenizer, token));
    }
    json!({
        "tokens": texts,
        "token_logprobs": logs,
        "top_logprobs": if has_likeliest { Value::Array(likeliest) } else { Value::Null },
        "text_offset": offsets,
    })
}

/// The likeliest tokens by their texts, with the token itself.
fn named(tokenizer: &Tokenizer, token: &TokenProbabilities) -> Value {
    let mut entries = Map::new();
    for (other, log) in &token.likeliest {
        // Of tokens with one text the likeliest stands.
        entries.entry(text_of(tokenizer, *other)).or_insert(finite(*log));
    }
    entries
        .entry(text_of(tokenizer, token.token))
        .or_insert(finite(token.log_probability));
    Value::Object(entries)
}

/// `prompt_logprobs` as vLLM has it: for each token of the prompt its own probability and the likeliest, by their ids.
pub(super) fn of_prompt(tokenizer: &Tokenizer, probabilities: &[TokenProbabilities]) -> Value {
    let entry = |token: u32, log: f32, rank: Option<usize>| {
        let value = json!({
            "logprob": finite(log),
            "rank": rank,
            "decoded_token": text_of(tokenizer, token),
        });
        (token.to_string(), value)
    };
    let entries = probabilities.iter().map(|own| {
        let ranked = own.likeliest.iter().enumerate();
        let mut entries: Map<String, Value> = ranked
            .map(|(rank, (token, log))| entry(*token, *log, Some(rank + 1)))
            .collect();
        let (id, value) = entry(own.token, own.log_probability, None);
        entries.entry(id).or_insert(value);
        Value::Object(entries)
    });
    Value::Array(std::iter::once(Value::Null).chain(entries).collect())
}

/// JSON has no infinity: a token that cannot be is given the least that programs compute with.
fn finite(log_probability: f32) -> Value {
    json!(log_probability.max(-9999.0))
}
