//! `--memory` and `--weights-ram` with mixtures of experts: plans, answers and refusals.

use std::path::Path;
use std::process::Output;

use crate::testing::{assert_refused, riffle, shipped_model, stdout};
use riffle_testing::write_mixture;
use serde_json::Value;

fn run(command: &str, model: &Path, options: &[&str]) -> Output {
    let mut riffle = riffle();
    riffle
        .arg(command)
        .arg("--model")
        .arg(model)
        .args(["--ctx", "1024"])
        .args(options);
    riffle.output().expect("the binary runs")
}

const ASKED: [&str; 6] = ["--prompt", "In the beginning God", "-n", "12", "--temperature", "0"];

#[test]
fn an_answer_is_the_same_with_experts_in_the_file_and_the_plan_says_what_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    write_mixture(folder.path());
    let plan = |options: &[&str]| -> Value {
        let printed = run("plan", folder.path(), &[&["--json"], options].concat());
        serde_json::from_str(&stdout(&printed)).expect("JSON")
    };
    let whole = plan(&[]);
    assert!(whole["experts"].is_null(), "{whole}");
    let experts = &plan(&["--weights-ram", "2M"])["experts"];
    assert_eq!(experts["experts"], 24);
    let held = experts["held"].as_u64().expect("a number");
    assert!((1..12).contains(&held), "{experts}");
    assert_eq!(
        experts["token_read_bytes"].as_u64(),
        Some(experts["token_bytes"].as_u64().expect("bytes") * (24 - held) / 24)
    );
    let table = stdout(&run("plan", folder.path(), &["--weights-ram", "2M"]));
    for part in [
        "of 24 at a time",
        "a batch of 1,024 tokens of a prompt",
        "measured: at most",
        "plan       fits",
    ] {
        assert!(table.contains(part), "{part} is not in {table}");
    }
    // The weights do not fit in addition to everything else.
    let total = whole["total_bytes"].as_u64().expect("bytes");
    let memory = (total - (1 << 20)).to_string();
    let chosen = plan(&["--memory", &memory]);
    assert!(chosen["experts"]["held"].as_u64() > Some(1), "{chosen}");
    assert!(chosen["total_bytes"].as_u64() <= memory.parse().ok(), "{chosen}");
    let answer = stdout(&run("run", folder.path(), &ASKED));
    for option in [["--weights-ram", "2M"], ["--memory", &memory]] {
        let output = run("run", folder.path(), &[&ASKED[..], &option].concat());
        assert_eq!(stdout(&output), answer);
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(notes.contains("experts   ") && notes.contains("waited for"), "{notes}");
    }
}

#[test]
fn too_little_memory_for_weights_is_refused_in_a_line() {
    let folder = tempfile::tempdir().expect("a folder");
    write_mixture(folder.path());
    let parts = ["--weights-ram", "it must be at least"];
    assert_refused(&run("plan", folder.path(), &["--weights-ram", "1M"]), 1, &parts);
    let parts = ["--weights-ram", "no weights of this model can stay in its file"];
    assert_refused(&run("plan", &shipped_model(), &["--weights-ram", "1M"]), 1, &parts);
}
