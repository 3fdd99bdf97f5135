//! Tests of riffle without a command.

use std::fs;
use std::path::{MAIN_SEPARATOR_STR, Path};

use riffle_system::terminal::LINE_CONTINUES;

use crate::testing::{assert_refused, riffle, run, shipped_model, stdout};

/// The output in a fresh checkout.
fn screen() -> String {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = riffle().current_dir(checkout).output().expect("the binary runs");
    stdout(&output)
        .replace(env!("CARGO_BIN_EXE_riffle"), "target/release/riffle")
        .replace(MAIN_SEPARATOR_STR, "/")
}

/// The percentage at the start of the line with this label.
fn percent(screen: &str, label: &str) -> f64 {
    let lines: Vec<&str> = screen.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.starts_with(label))
        .expect("the label");
    let share = lines[at..].join(" ").split_once('%').expect("a share").0.to_owned();
    let number = share.rsplit(' ').next().expect("a number");
    number.parse().expect("a number")
}

#[test]
fn one_screen_says_what_happened_and_what_to_try_next() {
    let screen = screen();
    let book = fs::read_to_string(shipped_model().join("../text/prophets.txt")).expect("the book");
    let stated = book.lines().enumerate().find(|(_, line)| line.contains("pass key"));
    let (line, stated) = stated.expect("the book states a pass key");
    let stated = stated.trim_end_matches('.').rsplit(' ').next().expect("a word");
    for part in [
        "fixtures/text/prophets.txt: 984 lines",
        "What is the pass key for field house?",
        &*format!("answer    {stated}\n"),
        &*format!("check     right: line {} of the book says so", line + 1),
        "45,859 tokens",
        "xattention:stride=16",
        "by an audit of this run",
        "one of 20 heads",
        "s in all",
    ] {
        assert!(screen.contains(part), "no {part:?} in {screen}");
    }
    assert!(screen.lines().count() <= 24, "one screen: {screen}");
    for line in screen.lines() {
        assert!(line.chars().count() <= 100, "one screen: {line}");
    }
    let (read, kept) = (percent(&screen, "read"), percent(&screen, "kept"));
    assert!(read < 20.0, "the policy reads a part of the pairs: {read}");
    assert!(kept > 90.0 && kept < 100.0, "and keeps most of what they hold: {kept}");

    let (_, next) = screen.split_once("Try next:\n").expect("what to try next");
    let next = next.replace(&format!("{LINE_CONTINUES}\n"), "");
    let commands: Vec<&str> = next.lines().map(str::trim).collect();
    assert!((2..=4).contains(&commands.len()), "{next}");
    let model = shipped_model();
    let model = model.to_str().expect("a path");
    for command in commands {
        let command = command.split('#').next().expect("a command").trim();
        let mut words: Vec<&str> = command.split('"').enumerate().flat_map(quoted).collect();
        assert_eq!(words[0], "target/release/riffle", "{command}");
        // A path replaces the name of a model to pull.
        if let Some(at) = words.iter().position(|word| *word == "--model") {
            words[at + 1] = model;
        }
        assert_eq!(riffle_cli::refusal(words.iter().map(Into::into)), None, "{command}");
    }
}

/// The words of one part of a line that was split at its quotes.
fn quoted((at, part): (usize, &str)) -> Vec<&str> {
    match at % 2 {
        0 => part.split_whitespace().collect(),
        _ => vec![part],
    }
}

#[test]
fn the_comparison_belongs_to_the_main_job_alone() {
    assert_eq!(riffle_cli::refusal(["riffle".into(), "--dense".into()]), None);
    assert_refused(&run(&["--dense", "policies"]), 2, &["--dense", "policies"]);
    assert_refused(
        &run(&["policies", "--dense"]),
        2,
        &["--dense", "riffle policies --help"],
    );
}
