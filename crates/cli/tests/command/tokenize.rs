//! Text to token ids and back.

use std::fs;

use crate::testing::{ModelCopy, assert_refused, riffle, run, run_with_input, shipped_model, stdout};
use serde_json::Value;

const TEXT: &str = "In the beginning God created the heaven and the earth.";

fn tokenize(arguments: &[&str]) -> std::process::Output {
    let model = shipped_model();
    let model = model.to_str().expect("a path");
    run(&[&["tokenize", "--model", model], arguments].concat())
}

#[test]
fn ids_of_a_text_turn_back_into_it() {
    let ids = stdout(&tokenize(&["--prompt", TEXT]));
    assert_eq!(ids.lines().count(), 1);
    let words: Vec<&str> = ids.split_whitespace().collect();
    assert!(
        words.len() > 5 && words.iter().all(|word| word.parse::<u32>().is_ok()),
        "{ids}"
    );
    let back = stdout(&tokenize(&[&["--no-special", "--decode"], &words[..]].concat()));
    assert_eq!(back.trim(), TEXT);
    let listed = stdout(&tokenize(&["--no-special", "--decode", &words.join(",")]));
    assert_eq!(listed, back);
}

#[test]
fn a_text_is_read_from_an_argument_a_file_and_standard_input_alike() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("text");
    fs::write(&path, TEXT).expect("a file");
    let expected = stdout(&tokenize(&["--prompt", TEXT]));
    assert_eq!(stdout(&tokenize(&["--file", path.to_str().expect("a path")])), expected);
    let output = run_with_input(
        riffle().args(["tokenize", "--model"]).arg(shipped_model()),
        TEXT.as_bytes(),
    );
    assert_eq!(stdout(&output), expected);
}

#[test]
fn pieces_and_json_say_the_same_as_the_line_of_ids() {
    let ids = stdout(&tokenize(&["--prompt", TEXT, "--no-special"]));
    let ids: Vec<&str> = ids.split_whitespace().collect();
    let pieces = stdout(&tokenize(&["--prompt", TEXT, "--no-special", "--pieces"]));
    let first: Vec<&str> = pieces
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(first, ids);
    assert!(pieces.contains('"'), "{pieces}");
    let json = stdout(&tokenize(&["--prompt", TEXT, "--no-special", "--pieces", "--json"]));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let listed: Vec<String> = json["ids"]
        .as_array()
        .expect("a list")
        .iter()
        .map(Value::to_string)
        .collect();
    assert_eq!(listed, ids);
    assert_eq!(json["pieces"].as_array().map(Vec::len), Some(ids.len()));
    assert_eq!(json["count"].as_u64(), Some(ids.len() as u64));
}

#[test]
fn a_tokenizer_alone_is_enough() {
    let copy = ModelCopy::new();
    fs::remove_file(copy.path().join("model.safetensors")).expect("removed");
    let ids = riffle()
        .args(["tokenize", "--prompt", TEXT, "--model"])
        .arg(copy.path())
        .output();
    assert_eq!(stdout(&ids.expect("it runs")), stdout(&tokenize(&["--prompt", TEXT])));
}

#[test]
fn what_is_no_token_is_named() {
    assert_refused(
        &tokenize(&["--decode", "1", "cat"]),
        1,
        &["--decode", "\"cat\" is not a token id"],
    );
    assert_refused(&tokenize(&["--decode", "99999"]), 1, &["99999", "2048 tokens"]);
    assert_refused(&tokenize(&["--decode", "-1"]), 1, &["\"-1\" is not a token id"]);
    let missing = run(&["tokenize", "--model", "/nowhere", "--prompt", "x"]);
    assert_refused(&missing, 1, &["/nowhere"]);
    let copy = ModelCopy::new();
    fs::remove_file(copy.path().join("tokenizer.json")).expect("removed");
    let none = riffle()
        .args(["tokenize", "--prompt", "x", "--model"])
        .arg(copy.path())
        .output();
    assert_refused(&none.expect("it runs"), 1, &["tokenizer.json"]);
}
