//! Tokens of a GGUF file that end an answer, and corrections of wrong token types.
//!
//! Files name at most one end token and often give it the type of a word. llama.cpp therefore decides by the tokens'
//! texts (`llama-vocab.cpp`, from "auto-detect special tokens by text" on). This module has the same rule.

use crate::tokenizer::{CONTROL, NORMAL};

/// Texts of tokens that end an answer in some model, for any type.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    // Separates the files of a repository, or pads a batch of them.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Settings for a token that ends an answer.
const END_SETTINGS: [&str; 6] = [
    "eos_token_id",
    "eot_token_id",
    "eom_token_id",
    "fim_pad_token_id",
    "fim_rep_token_id",
    "fim_sep_token_id",
];

/// Ids of the tokens that end an answer, ascending; each gets the type control. `named` returns the token of a
/// setting.
pub(super) fn ends<E>(
    texts: &[&str],
    kinds: &mut [u8],
    named: impl Fn(&'static str) -> Result<Option<u32>, E>,
) -> Result<Vec<u32>, E> {
    let mut ends = Vec::new();
    for setting in END_SETTINGS {
        ends.extend(named(setting)?);
    }
    for (id, text) in texts.iter().enumerate() {
        if ENDS.contains(text) {
            kinds[id] = CONTROL;
            ends.push(id as u32);
        }
    }
    ends.sort_unstable();
    ends.dedup();
    let has = |wanted: &str| ends.iter().any(|id| texts[*id as usize] == wanted);
    // In the formats of gpt-oss and Solar Open this token ends a message, and the answer continues with the next one.
    let is_of_messages = if has("<|call|>") || has("<|calls|>") {
        has("<|return|>") || has("<|flush|>")
    } else {
        false
    };
    // In Gemma 4 and PLaMo this token is a word.
    let is_word = has("<|tool_response>") || has("<|plamo:eos|>");
    ends.retain(|id| match texts[*id as usize] {
        "<|end|>" => !is_of_messages,
        "</s>" if is_word => {
            kinds[*id as usize] = NORMAL;
            false
        }
        _ => true,
    });
    Ok(ends)
}
