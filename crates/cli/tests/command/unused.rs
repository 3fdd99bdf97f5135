//! Tests of options without effect: a command acts on an option or refuses it and names a command that acts.

use std::fs;

use crate::testing::{assert_refused, riffle, run_shipped, run_with_input, shipped_model, stderr, stdout};

/// Words with MODEL for the shipped model and parts of the line that refuses them.
const UNUSED: [(&str, &[&str]); 28] = [
    (
        "calibrate --prefill xattention",
        &["--prefill", "--candidate", "riffle run"],
    ),
    ("calibrate --h2o-local 64", &["--h2o-local", "--candidate"]),
    ("calibrate --h2o-heavy 64", &["--h2o-heavy", "--candidate"]),
    ("calibrate --profile notes.txt", &["--profile", "riffle run --profile"]),
    ("calibrate --auto 0.5", &["--auto", "--target", "riffle run --auto"]),
    ("calibrate --audit", &["--audit", "riffle eval audit"]),
    ("ask notes.txt When? --audit", &["--audit", "riffle ask", "riffle run"]),
    ("eval logits --audit", &["--audit", "riffle eval audit"]),
    ("eval logits --decode quest", &["--decode", "as a prompt", "riffle run"]),
    (
        "eval needle --audit",
        &["--audit", "riffle eval needle", "riffle eval audit"],
    ),
    ("eval ruler --audit", &["--audit", "riffle eval audit"]),
    ("eval perplexity --audit", &["--audit", "riffle eval audit"]),
    ("eval compare --audit", &["--audit", "riffle eval audit"]),
    (
        "eval compare --tasks vt --depths 5",
        &["--depths", "no task of --tasks is a needle task"],
    ),
    (
        "eval compare --tasks file:own.jsonl --lengths 512",
        &["--lengths", "every line of a file is asked"],
    ),
    (
        "eval compare --tasks file:own.jsonl --samples 2",
        &["--samples", "every line of a file is asked"],
    ),
    ("eval compare --questions notes.txt", &["--questions", "qa_1"]),
    ("eval ruler --tasks vt --questions notes.txt", &["--questions", "qa_1"]),
    (
        "eval compare --h2o-local 64",
        &["--h2o-local", "--policy h2o-chunk:local=N"],
    ),
    (
        "eval compare --h2o-heavy 64",
        &["--h2o-heavy", "--policy h2o-chunk:local=N"],
    ),
    (
        "eval perplexity --h2o-heavy 64",
        &["--h2o-heavy", "--policy h2o-chunk:local=N"],
    ),
    (
        "run --prompt x --kv-device-budget 1G --device cpu",
        &["--kv-device-budget is 1.0 GiB", "--kv-ram-budget"],
    ),
    (
        "ask notes.txt When? --kv-device-budget 1G --device cpu",
        &["--kv-device-budget", "--kv-ram-budget"],
    ),
    (
        "chat --kv-device-budget 1G --device cpu",
        &["--kv-device-budget", "--kv-ram-budget"],
    ),
    (
        "serve --port 0 --kv-device-budget 1G --device cpu",
        &["--kv-device-budget", "--kv-ram-budget"],
    ),
    (
        "plan --kv-device-budget 1G --device cpu",
        &["--kv-device-budget", "--kv-ram-budget"],
    ),
    (
        "run --prompt x --cache-type-k x",
        &["--cache-type-k is \"x\", but it must be one of f32, f16, bf16, q8_0, q4_0"],
    ),
    (
        "run --prompt x --cache-type-k f16 --cache-type-v f16:f16",
        &["--cache-type-v is \"f16:f16\""],
    ),
];

#[test]
fn an_option_that_a_command_does_not_act_on_is_refused_by_who_does() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("notes.txt"), "The meeting is on Monday.").expect("a file");
    fs::write(folder.path().join("ids.json"), "[1, 2, 3]").expect("a file");
    let own = r#"{"context": "Ann sails.", "question": "Who sails?", "answers": ["Ann"]}"#;
    fs::write(folder.path().join("own.jsonl"), own).expect("a file");
    for (words, parts) in UNUSED {
        let mut command = riffle();
        command.current_dir(folder.path()).args(words.split(' '));
        command.arg("--model").arg(shipped_model());
        match words.split(' ').next() {
            Some("calibrate") => command.args(["--file", "notes.txt", "--out", "profile.toml"]),
            _ if words.starts_with("eval logits") => command.args(["--tokens", "ids.json", "--out", "logits"]),
            _ => &mut command,
        };
        assert_refused(&command.output().expect("the binary runs"), 1, parts);
    }
    let left: Vec<_> = fs::read_dir(folder.path()).expect("a folder").collect();
    assert_eq!(left.len(), 3, "nothing is written: {left:?}");
}

#[test]
fn the_default_of_an_option_is_no_use_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let ids = folder.path().join("ids.json");
    fs::write(&ids, "[1, 2, 3]").expect("a file");
    let out = folder.path().join("logits");
    let output = riffle()
        .args(["eval", "logits", "--decode", "FULL", "--prefill", "full", "--model"])
        .arg(shipped_model())
        .arg("--tokens")
        .arg(&ids)
        .arg("--out")
        .arg(&out)
        .output()
        .expect("the binary runs");
    stdout(&output);
    stdout(&run_shipped(&["--prompt", "x", "-n", "1", "--cache-type-k", "q8_0"]));
    let both = ["--kv-device-budget", "8M", "--kv-ram-budget", "8M", "--ctx", "1024"];
    stdout(&run_shipped(
        &[&["--prompt", "x", "-n", "1", "--device", "cpu"], &both[..]].concat(),
    ));
}

#[test]
fn a_conversation_ends_with_what_its_audit_found() {
    let text = "And it came to pass in those days. ".repeat(40);
    let chat = |more: &[&str]| {
        let mut command = riffle();
        command.args(["chat", "-n", "2", "--no-history", "--model"]);
        command.arg(shipped_model()).args(more);
        let output = run_with_input(&mut command, text.as_bytes());
        stdout(&output);
        stderr(&output)
    };
    assert!(chat(&["--audit"]).contains("true mass kept"));
    assert!(!chat(&[]).contains("true mass kept"));
}
