//! Damaged or unknown models get one clear line.

use std::fs;

use crate::testing::{ModelCopy, assert_refused};
use serde_json::json;

#[test]
fn a_truncated_weight_file_is_refused() {
    let copy = ModelCopy::new();
    copy.edit_bytes("model.safetensors", |bytes| bytes.truncate(bytes.len() / 2));
    assert_refused(&copy.run(), 1, &["model.safetensors"]);
}

#[test]
fn a_corrupt_weight_file_header_is_refused() {
    let copy = ModelCopy::new();
    copy.edit_bytes("model.safetensors", |bytes| bytes[..8].fill(0xff));
    assert_refused(&copy.run(), 1, &["model.safetensors"]);
}

#[test]
fn weights_of_another_shape_name_the_tensor_and_both_shapes() {
    let copy = ModelCopy::new();
    copy.edit_json("config.json", |config| config["intermediate_size"] = json!(512));
    assert_refused(&copy.run(), 1, &["mlp", "[512, 128]", "[384, 128]"]);
}

#[test]
fn weights_of_an_unusable_type_name_the_tensor_and_the_type() {
    let copy = ModelCopy::new();
    copy.edit_bytes("model.safetensors", |bytes| {
        let at = bytes
            .windows(6)
            .position(|window| window == b"\"BF16\"")
            .expect("a dtype");
        bytes[at..at + 6].copy_from_slice(b"\"U16\" ");
    });
    assert_refused(&copy.run(), 1, &["U16"]);
}

#[test]
fn an_unknown_architecture_lists_the_known_ones() {
    let copy = ModelCopy::new();
    copy.edit_json("config.json", |config| {
        config["architectures"] = json!(["AbacusForCausalLM"]);
        config["model_type"] = json!("abacus");
    });
    assert_refused(&copy.run(), 1, &["AbacusForCausalLM", "Llama, Mistral"]);
}

#[test]
fn a_tokenizer_that_is_not_one_is_named() {
    let copy = ModelCopy::new();
    copy.edit_bytes("tokenizer.json", |bytes| bytes.truncate(1000));
    assert_refused(&copy.run(), 1, &["tokenizer.json"]);
}

#[test]
fn a_tokenizer_without_the_tokens_the_model_needs_is_refused() {
    let copy = ModelCopy::new();
    copy.edit_json("tokenizer_config.json", |config| {
        config["bos_token"] = json!("<|missing|>")
    });
    assert_refused(&copy.run(), 1, &["<|missing|>"]);
}

#[test]
fn a_model_without_a_tokenizer_says_what_it_can_still_do() {
    let copy = ModelCopy::new();
    fs::remove_file(copy.path().join("tokenizer.json")).expect("removed");
    assert_refused(&copy.run(), 1, &["tokenizer.json"]);
}
