//! The memory plan: a run stays within it, and the advice of a refusal is accepted.
#![cfg(target_os = "linux")]

mod testing;

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use testing::{riffle, shipped_model, stderr, stdout};

/// Memory beyond the plan: mappings of the system that no plan covers.
const SLACK_BYTES: u64 = 16 << 20;

/// Runs a command to its end. Returns its output and its peak memory in bytes.
fn run_and_peak(arguments: &[&str]) -> (Output, u64) {
    let mut command = riffle();
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().expect("a child").is_none() {
        // The system records the peak, so polling is enough.
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        peak = kilobytes.map_or(peak, |kilobytes: u64| kilobytes << 10);
        thread::sleep(Duration::from_millis(2));
    }
    (child.wait_with_output().expect("its output"), peak)
}

fn plan(json: &Value) -> u64 {
    let report = json.as_array().map_or(json, |reports| &reports[0]);
    report["plan"]["total_bytes"].as_u64().expect("the plan's bytes")
}

fn text_file(folder: &Path, bytes: usize) -> String {
    let book = fs::read_to_string(shipped_model().join("../text/prophets.txt")).expect("the book");
    let path = folder.join(format!("text-{bytes}.txt"));
    fs::write(&path, &book[..bytes]).expect("a file");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn no_run_holds_more_memory_than_its_plan() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (disk, session, prefixes) = (path(""), path("session"), path("prefixes"));
    let (short, long) = (text_file(folder.path(), 9_000), text_file(folder.path(), 30_000));
    let cases: [&[&str]; 9] = [
        &["--file", &short, "--ctx", "4096"],
        &["--file", &long, "--ctx", "16384"],
        &["--file", &short, "--ctx", "131072"],
        &["--file", &long, "--ctx", "16384", "--kv-type", "q8_0"],
        &["--file", &long, "--ctx", "16384", "--kv-type", "q4_0", "-b", "1024"],
        &[
            "--file",
            &long,
            "--ctx",
            "16384",
            "--kv-disk",
            &disk,
            "--kv-ram-budget",
            "4M",
            "--kv-slots",
            "4",
        ],
        &[
            "--file",
            &long,
            "--ctx",
            "16384",
            "--question",
            "Who?",
            "--question",
            "Where was it?",
        ],
        &["--file", &long, "--ctx", "16384", "--session", &session],
        &["--file", &long, "--ctx", "16384", "--prefix-cache", &prefixes],
    ];
    let model = shipped_model();
    for case in cases {
        let mut arguments = vec!["run", "--model", model.to_str().expect("UTF-8"), "-n", "4", "--json"];
        arguments.extend(case);
        let (output, peak) = run_and_peak(&arguments);
        let planned = plan(&serde_json::from_str(&stdout(&output)).expect("JSON"));
        assert!(
            peak <= planned + SLACK_BYTES,
            "{case:?}: {} MiB of {} MiB planned",
            peak >> 20,
            planned >> 20
        );
    }
}

#[test]
fn a_text_that_can_never_fit_is_refused_before_it_is_encoded() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("long.txt");
    fs::write(&path, "and he said ".repeat(300_000)).expect("a file");
    let model = shipped_model();
    let (model, path) = (model.to_str().expect("UTF-8"), path.to_str().expect("UTF-8"));
    let (output, peak) = run_and_peak(&[
        "run", "--model", model, "--file", path, "--ctx", "4096", "--memory", "150M",
    ]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("longer than memory allows") || message.contains("context holds 4096"),
        "{message}"
    );
    assert!(peak < 150 << 20, "{} MiB", peak >> 20);
    // With this memory only the context does not fit.
    let (output, peak) = run_and_peak(&[
        "run", "--model", model, "--file", path, "--ctx", "4096", "--memory", "4G",
    ]);
    let message = stderr(&output);
    assert!(message.contains("context holds 4096"), "{message}");
    assert!(peak < 100 << 20, "{} MiB", peak >> 20);
}

/// The arguments with the advice applied: given options get the advised value, others are added.
fn with_advice(arguments: &[String], advice: &str, disk: &str) -> Vec<String> {
    let advice = advice.replace("--ctx to at least ", "--ctx ").replace("DIR", disk);
    let start = advice
        .find("--")
        .into_iter()
        .chain(advice.find("-b "))
        .min()
        .expect("an option");
    let words: Vec<&str> = advice[start..].split_whitespace().collect();
    let mut changed = arguments.to_vec();
    for pair in words.chunks(2).take_while(|pair| pair[0].starts_with('-')) {
        match changed.iter().position(|argument| argument == pair[0]) {
            Some(place) => changed[place + 1] = pair[1].to_owned(),
            None => changed.extend(pair.iter().map(|word| (*word).to_owned())),
        }
    }
    changed
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of command lines")]
fn whoever_follows_the_advice_of_a_refusal_is_not_refused_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().to_str().expect("UTF-8").to_owned();
    let model = shipped_model().to_str().expect("UTF-8").to_owned();
    let text = text_file(folder.path(), 30_000);
    let cases: [&[&str]; 12] = [
        &["plan", "--ctx", "131072", "--memory", "100M"],
        &["plan", "--ctx", "65536", "--memory", "150M", "--kv-type", "f32"],
        &["plan", "--ctx", "4096", "--kv-ram-budget", "1700K"],
        &["plan", "--ctx", "131072", "--memory", "60M", "--kv-disk", &disk],
        &[
            "plan",
            "--ctx",
            "65536",
            "--kv-ram-budget",
            "6M",
            "--kv-disk",
            &disk,
            "--kv-disk-budget",
            "1M",
        ],
        &[
            "plan",
            "--ctx",
            "65536",
            "--prefill",
            "xattention",
            "--kv-ram-budget",
            "4M",
            "--kv-disk",
            &disk,
        ],
        &["plan", "--ctx", "8192", "--question", "Who?", "--kv-ram-budget", "10M"],
        &[
            "plan",
            "--ctx",
            "8192",
            "--question",
            "Who?",
            "--kv-ram-budget",
            "1M",
            "--kv-disk",
            &disk,
        ],
        &["plan", "--ctx", "300000"],
        &["plan", "--memory", "20M"],
        &[
            "run",
            "--file",
            &text,
            "--prefill",
            "xattention",
            "--kv-ram-budget",
            "4M",
            "--kv-disk",
            &disk,
        ],
        &["run", "--file", &text, "--ctx", "2048"],
    ];
    for case in cases {
        let mut arguments: Vec<String> = case.iter().map(|argument| (*argument).to_owned()).collect();
        arguments.extend(["--model".to_owned(), model.clone()]);
        let refused = riffle().args(&arguments).output().expect("the binary runs");
        let message = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{case:?} is refused: {message}");
        let advice = message.rsplit(": ").next().expect("a message");
        let ways: Vec<&str> = advice
            .split(", or ")
            .filter(|way| way.contains("--") || way.contains("-b "))
            .collect();
        assert!(!ways.is_empty(), "no option in {message}");
        arguments[0] = "plan".to_owned();
        for way in ways {
            let followed = with_advice(&arguments, way, &disk);
            let output = riffle().args(&followed).output().expect("the binary runs");
            assert!(output.status.success(), "{message}{way}: {}", stderr(&output));
        }
    }
}
