//! Very deeply nested files: each command refuses its file in one line and does not overflow the stack.

use std::fs;
use std::path::Path;

use crate::testing::{riffle, run_with_input, shipped_model, stderr};

const LEVELS: usize = 200_000;

/// Deep JSON: in fields of an object, unclosed, as lists, and as objects.
fn deep_json() -> [String; 4] {
    let lists = format!("{}1{}", "[".repeat(LEVELS), "]".repeat(LEVELS));
    let maps = format!("{}1{}", "{\"a\":".repeat(LEVELS), "}".repeat(LEVELS));
    [
        format!("{{\"schema\":1,\"turns\":{lists},\"more\":{maps}}}"),
        "[".repeat(LEVELS),
        lists,
        maps,
    ]
}

/// Deep TOML in every form of nesting.
fn deep_toml() -> [String; 6] {
    let dots = "a.".repeat(LEVELS);
    let tables: String = (1..300)
        .map(|depth| format!("[{}]\n", vec!["a"; depth].join(".")))
        .collect();
    [
        format!("a = {}1{}", "[".repeat(LEVELS), "]".repeat(LEVELS)),
        format!("a = {}1{}", "{a = ".repeat(LEVELS), "}".repeat(LEVELS)),
        format!("{dots}a = 1"),
        format!("[{dots}a]\nb = 1"),
        format!("[[{dots}a]]\nb = 1"),
        tables,
    ]
}

#[track_caller]
fn refused(folder: &Path, words: &str, input: &str) {
    let mut command = riffle();
    command.current_dir(folder).args(words.split(' '));
    if !words.starts_with("eval report") {
        command.arg("--model").arg(shipped_model());
    }
    let output = run_with_input(&mut command, input.as_bytes());
    let said = stderr(&output);
    // A process that a signal ends has no status.
    assert_eq!(output.status.code(), Some(1), "{words}: {said:.500}");
    // A note about the model may come first.
    let line = said.lines().find(|line| line.contains("deep")).unwrap_or_default();
    assert!((1..600).contains(&line.len()), "{words}: {said:.500}");
}

#[test]
fn profiles_nested_without_end_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for text in deep_toml() {
        fs::write(folder.path().join("deep.toml"), text).expect("a file");
        refused(folder.path(), "run --prompt x --profile deep.toml", "");
    }
}

#[test]
fn records_questions_wordings_and_conversations_nested_without_end_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for text in deep_json() {
        for file in ["deep.json", "deep.journal", "results/deep.json"] {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, &text).expect("a file");
        }
        refused(folder.path(), "eval report results", "");
        refused(folder.path(), "eval ruler --questions deep.json --lengths 512", "");
        refused(folder.path(), "eval needle --wording deep.json --lengths 512", "");
        refused(folder.path(), "eval needle --resume deep.journal --lengths 512", "");
        refused(folder.path(), "chat --no-history", "/load deep.json");
    }
}
