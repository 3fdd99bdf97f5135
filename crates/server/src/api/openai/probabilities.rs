//! Probabilities of tokens, in OpenAI's two shapes.

use riffle_engine::TokenProbabilities;
use riffle_model::Tokenizer;
use serde_json::{Map, Value, json};

/// The text of a token in the middle of a text; incomplete characters are replaced.
pub(super) fn text_of(tokenizer: &Tokenizer, token: u32) -> String {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One token of `choices[].logprobs.content` of a chat completion.
pub(crate) fn chat(tokenizer: &Tokenizer, probabilities: &TokenProbabilities) -> Value {
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

/// Counts the characters of a text token by token. A token may end within a character.
#[derive(Debug, Clone, Default)]
pub(super) struct Offsets {
    characters: usize,
    /// Bytes of an incomplete character.
    open: Vec<u8>,
    /// True if the text lacks its first token's leading space, which some tokenizers remove.
    lacks_space: bool,
}

impl Offsets {
    /// Offsets in a text that begins with `text`.
    pub(super) fn in_text(text: &str) -> Self {
        Self {
            lacks_space: !text.starts_with(' '),
            ..Self::default()
        }
    }

    /// The bytes that a token adds to the text.
    fn bytes_of(&mut self, tokenizer: &Tokenizer, token: u32) -> Vec<u8> {
        if tokenizer.is_special(token) {
            return Vec::new();
        }
        let mut bytes = tokenizer.token_bytes(token).unwrap_or_default();
        if !bytes.is_empty() && std::mem::take(&mut self.lacks_space) && bytes[0] == b' ' {
            bytes.remove(0);
        }
        bytes
    }

    /// The position of the character in which a token begins. `bytes` are the token's bytes in the text.
    fn push(&mut self, bytes: &[u8]) -> usize {
        let at = self.characters;
        self.open.extend_from_slice(bytes);
        let mut complete = 0;
        let mut open = 0;
        for chunk in self.open.utf8_chunks() {
            complete += chunk.valid().chars().count();
            // Invalid bytes become one character, unless later bytes may complete them.
            let is_last = std::ptr::eq(chunk.invalid().as_ptr_range().end, self.open.as_ptr_range().end);
            if is_last && begins_character(chunk.invalid()) {
                open = chunk.invalid().len()
            } else {
                complete += usize::from(!chunk.invalid().is_empty())
            }
        }
        self.open.drain(..self.open.len() - open);
        self.characters += complete;
        at
    }
}

/// True if further bytes may complete a UTF-8 character.
fn begins_character(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

/// `logprobs` of a completion, with texts that begin at `offsets`. `first` is the first token of a prompt and has no
/// probability. Special tokens are not part of the text, so their own text is empty.
pub(super) fn completion(
    tokenizer: &Tokenizer,
    first: Option<u32>,
    tokens: &[TokenProbabilities],
    has_likeliest: bool,
    offsets: &mut Offsets,
) -> Value {
    let (mut texts, mut logs, mut likeliest, mut places) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut push = |token: u32| {
        let bytes = offsets.bytes_of(tokenizer, token);
        places.push(json!(offsets.push(&bytes)));
        texts.push(Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    };
    if let Some(first) = first {
        push(first);
        logs.push(Value::Null);
        likeliest.push(Value::Null);
    }
    for token in tokens {
        push(token.token);
        logs.push(finite(token.log_probability));
        likeliest.push(named(tokenizer, token));
    }
    json!({
        "tokens": texts,
        "token_logprobs": logs,
        "top_logprobs": if has_likeliest { Value::Array(likeliest) } else { Value::Null },
        "text_offset": places,
    })
}

/// The likeliest tokens by their texts, and the token itself.
fn named(tokenizer: &Tokenizer, token: &TokenProbabilities) -> Value {
    let mut entries = Map::new();
    for (other, log) in &token.likeliest {
        // The first entry stays: tokens are sorted, so the likeliest of equal texts wins.
        entries.entry(text_of(tokenizer, *other)).or_insert(finite(*log));
    }
    entries
        .entry(text_of(tokenizer, token.token))
        .or_insert(finite(token.log_probability));
    Value::Object(entries)
}

/// `prompt_logprobs` in vLLM's shape: for each prompt token its own probability and the likeliest, by id.
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

/// JSON has no infinity, so an impossible token gets the lowest value that programs can read.
fn finite(log_probability: f32) -> Value {
    json!(log_probability.max(-9999.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_within_a_character_share_its_place() {
        let places = |tokens: &[&[u8]]| {
            let mut offsets = Offsets::default();
            tokens.iter().map(|bytes| offsets.push(bytes)).collect::<Vec<_>>()
        };
        assert_eq!(
            places(&[b"a", b"\xf0", b"\x9f", b"\x98", b"\x80", b"b"]),
            [0, 1, 1, 1, 1, 2]
        );
        assert_eq!(places(&[b"", "é!".as_bytes(), b"x"]), [0, 0, 2]);
        // An invalid byte becomes one replacement character.
        assert_eq!(places(&[b"\xff", b"a", b"\xc3", b"z"]), [0, 1, 2, 2]);
        assert_eq!(places(&[b"\xf0\x9f", b"q", b"r"]), [0, 0, 2]);
    }
}
