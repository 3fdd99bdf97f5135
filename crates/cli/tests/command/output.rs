//! Standard output and standard error that fail.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::process::{Command, Stdio};

use crate::testing::{assert_refused, program, riffle, run, shipped_model, stderr, stdout};

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").expect("a full device")
}

/// A quick run of each command that prints.
fn commands() -> Vec<Vec<String>> {
    let model = shipped_model().display().to_string();
    let model = model.as_str();
    [
        &["run", "--model", model, "--prompt", "In the beginning", "-n", "4"][..],
        &[
            "run",
            "--model",
            model,
            "--prompt",
            "In the beginning",
            "-n",
            "4",
            "--json",
        ],
        &["plan", "--model", model],
        &["inspect", model],
        &["tokenize", "--model", model, "--prompt", "In the beginning"],
        &["policies"],
        &[
            "bench",
            "model",
            "--model",
            model,
            "-p",
            "16",
            "-n",
            "2",
            "--depth",
            "0",
            "--repeats",
            "1",
        ],
        &["eval", "audit", "--length", "256", "--csv"],
        &["--help"],
        &["--version"],
    ]
    .iter()
    .map(|words| words.iter().map(|word| (*word).to_owned()).collect())
    .collect()
}

#[test]
#[cfg_attr(
    not(target_os = "linux"),
    ignore = "a device that is always full is there on Linux alone"
)]
fn a_lost_answer_is_a_failure_of_one_line() {
    for command in commands() {
        let output = riffle().args(&command).stdout(full()).output().expect("it runs");
        assert_refused(&output, 1, &["cannot write to standard output", "No space left"]);
    }
}

#[test]
#[cfg_attr(
    not(target_os = "linux"),
    ignore = "a device that is always full is there on Linux alone"
)]
fn notes_that_cannot_be_written_change_neither_answer_nor_status() {
    for command in commands() {
        let output = riffle().args(&command).stderr(full()).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        assert!(!output.stdout.is_empty(), "{command:?}");
    }
    let refused = riffle().args(["run", "--model", "/nowhere"]).stderr(full()).output();
    assert_eq!(refused.expect("it runs").status.code(), Some(1));
    let unknown = riffle().args(["rum"]).stderr(full()).output();
    assert_eq!(unknown.expect("it runs").status.code(), Some(2));
}

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    for command in commands() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = riffle().args(&command).stdout(writer).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{command:?}: {}", stderr(&output));
        assert!(
            !stderr(&output).contains("riffle: "),
            "{command:?}: {}",
            stderr(&output)
        );
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = riffle().args(&command).stderr(writer).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{command:?}");
    }
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let model = shipped_model();
    let plan = riffle()
        .args(["plan", "--memory", "24M", "--ctx", "100000", "--model"])
        .arg(model)
        .stdout(writer)
        .output();
    assert_eq!(
        plan.expect("it runs").status.code(),
        Some(1),
        "a plan that does not fit fails all the same"
    );
}

#[test]
#[cfg_attr(not(unix), ignore = "a shell that closes streams is there on Unix alone")]
fn closed_standard_streams_are_no_panic() {
    for command in commands() {
        let output = program("sh")
            .args(["-c", "exec \"$0\" \"$@\" <&- >&- 2>&-", env!("CARGO_BIN_EXE_riffle")])
            .args(&command)
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{command:?}");
    }
}

#[test]
#[cfg_attr(not(unix), ignore = "Windows removes no folder whose files are open")]
fn an_error_behind_text_of_an_answer_stands_on_a_line_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("sessions");
    fs::create_dir(&place).expect("a folder");
    let mut child = riffle()
        .args([
            "run",
            "--prompt",
            "In the beginning",
            "-n",
            "-1",
            "--temperature",
            "1",
            "--model",
        ])
        .arg(shipped_model())
        .arg("--session")
        .arg(place.join("session"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut answer = child.stdout.take().expect("a pipe");
    let mut text = vec![0; 8];
    answer.read_exact(&mut text).expect("text is streamed");
    // The test removes the folder in which the session would be saved.
    fs::remove_dir_all(&place).expect("removed");
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    answer.read_to_end(&mut text).expect("the stream ends");
    let output = child.wait_with_output().expect("it ends");
    let message = stderr(&output);
    assert!(
        message.starts_with("riffle: ") && message.contains("session"),
        "{message}"
    );
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(text.ends_with(b"\n"), "{:?}", String::from_utf8_lossy(&text));
}

#[test]
fn answers_to_several_questions_stand_on_lines_of_their_own() {
    let model = shipped_model();
    let model = model.to_str().expect("a path");
    let one = [
        "run",
        "--model",
        model,
        "--prompt",
        "In the beginning",
        "-n",
        "2",
        "--question",
        "Who?",
    ];
    let two = [&one[..], &["--question", "What?"]].concat();
    assert!(stdout(&run(&one)).ends_with('\n'));
    let both = stdout(&run(&two));
    assert!(
        both.starts_with(&stdout(&run(&one))) && both.ends_with('\n'),
        "{both:?}"
    );
}
