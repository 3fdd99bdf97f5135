//! Writes beyond the limit on file sizes, and caches that cannot be used: what was asked for stands, and one line says what is wrong.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::testing::{assert_refused, run_shipped, shipped_model, stderr, stdout};

/// Runs the command where no file may grow beyond some KiB.
fn run_limited(kib: u32, folder: &Path, arguments: &[&str]) -> Output {
    Command::new("bash")
        .args(["-c", &format!("ulimit -f {kib} && exec \"$0\" \"$@\"")])
        .arg(env!("CARGO_BIN_EXE_riffle"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("bash")
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries
        .map(|entry| entry.expect("an entry").file_name().display().to_string())
        .collect()
}

#[test]
fn a_session_beyond_the_limit_on_file_sizes_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = shipped_model().display().to_string();
    let prompt = "And it came to pass in those days, that ".repeat(20);
    let arguments = [
        "run",
        "--model",
        &model,
        "--prompt",
        &prompt,
        "-n",
        "2",
        "--session",
        "s",
    ];
    let output = run_limited(8, folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("cannot write s") && said.contains("ulimit -f"), "{said}");
    // The lock stays beside a session for as long as its folder does.
    let left: Vec<String> = files(folder.path())
        .into_iter()
        .filter(|name| name != ".s.lock")
        .collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn an_answer_stands_where_its_prefixes_cannot_be_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = shipped_model().display().to_string();
    let prompt = "And it came to pass in those days, that ".repeat(20);
    let arguments = [
        "run",
        "--model",
        &model,
        "--prompt",
        &prompt,
        "-n",
        "4",
        "--prefix-cache",
        "p",
    ];
    let whole = run_limited(1 << 20, folder.path(), &arguments);
    assert_eq!(whole.status.code(), Some(0), "{whole:?}");
    fs::remove_dir_all(folder.path().join("p")).expect("a folder");
    for kib in [8, 200, 1700] {
        let output = run_limited(kib, folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{kib}: {output:?}");
        assert_eq!(stdout(&output), stdout(&whole));
        let left = files(&folder.path().join("p"));
        assert!(!left.iter().any(|name| name.ends_with(".partial")), "{left:?}");
        if kib == 8 {
            assert!(stderr(&output).contains("kept: "), "{}", stderr(&output));
        }
    }
}

#[test]
fn a_damaged_prefix_index_is_said_and_answers_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().display().to_string();
    let prompt = "And it came to pass in those days, that ".repeat(60);
    let ask = || run_shipped(&["--prompt", &prompt, "-n", "4", "--prefix-cache", &cache]);
    let first = ask();
    assert!(
        !stderr(&first).contains(" 0 kept in"),
        "the prompt must fill a block: {}",
        stderr(&first)
    );
    let index = folder.path().join("index.redb");
    let whole = fs::read(&index).expect("an index");
    for number in 0..40 {
        let mut damaged = whole.clone();
        let at = number * whole.len() / 40;
        match number % 4 {
            0 => damaged.truncate(at),
            1 => damaged[at..].fill(0),
            2 => damaged[..=at].fill(0),
            _ => damaged[at.min(4096)] ^= 0xff,
        }
        fs::write(&index, &damaged).expect("a file");
        let output = ask();
        assert_eq!(output.status.code(), Some(0), "{number}: {}", stderr(&output));
        assert_eq!(stdout(&output), stdout(&first), "{number}");
        assert!(!stderr(&output).contains("panicked"), "{number}: {}", stderr(&output));
    }
    fs::write(&index, vec![0; whole.len()]).expect("a file");
    assert!(stderr(&ask()).contains("begins anew"));
}

#[test]
fn a_plan_for_a_server_has_its_requests_and_their_bodies() {
    let model = shipped_model().display().to_string();
    let plan = |more: &[&str]| {
        let output = crate::testing::run(&[&["plan", "--model", &model, "--ctx", "1024", "--json"], more].concat());
        serde_json::from_str::<serde_json::Value>(&stdout(&output)).expect("JSON")
    };
    let (alone, served) = (plan(&[]), plan(&["--parallel", "4"]));
    assert!(alone.get("requests").is_none());
    assert_eq!(served["requests"]["parallel"], 4);
    assert_eq!(served["requests"]["pool_tokens"], 4096);
    assert_eq!(served["requests"]["bodies_bytes"], 256 << 20);
    assert!(served["kv_bytes"].as_u64() > alone["kv_bytes"].as_u64());
    let both = crate::testing::run(&["plan", "--model", &model, "--parallel", "4", "--question", "x"]);
    assert_refused(&both, 2, &["--parallel", "--question"]);
}
