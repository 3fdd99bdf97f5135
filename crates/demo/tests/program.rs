//! Tests of the program that `cargo run` builds.

use std::path::Path;
use std::process::{Command, Output};

/// The program in the checkout, started by this cargo or by hand.
fn run(arguments: &[&str], cargo: Option<&str>) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_riffle-demo"));
    program
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .env_remove("CARGO")
        .args(arguments);
    if let Some(cargo) = cargo {
        program.env("CARGO", cargo);
    }
    program.output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn it_answers_and_says_how_to_get_the_whole_command() {
    let output = run(&[], None);
    let screen = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let riffle =
        Path::new(env!("CARGO_BIN_EXE_riffle-demo")).with_file_name(format!("riffle{}", std::env::consts::EXE_SUFFIX));
    for part in [
        "check     right: line",
        "45,859 tokens",
        "by an audit of this run",
        "  cargo run --release -- --dense ",
        "  cargo build --release ",
        &format!("  {} ask --model", riffle.display()),
    ] {
        assert!(screen.contains(part), "no {part:?} in {screen}");
    }
    assert!(screen.lines().count() <= 24, "one screen: {screen}");
}

#[cfg(unix)]
#[test]
fn other_arguments_go_to_the_whole_command_which_cargo_builds() {
    // `echo` in the place of cargo prints its arguments.
    let output = run(&["ask", "--model", "a folder", "a question"], Some("echo"));
    let line = text(&output.stdout);
    let words = line.trim_end();
    assert!(words.starts_with("run "), "{line}");
    assert!(
        words.ends_with("Cargo.toml --bin riffle -- ask --model a folder a question"),
        "{line}"
    );
    assert_eq!(words.contains(" --release "), !cfg!(debug_assertions), "{line}");
}

#[test]
fn other_arguments_without_cargo_are_refused_in_one_line() {
    let output = run(&["ask"], None);
    assert_eq!(output.status.code(), Some(1));
    let line = text(&output.stderr);
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.contains("cargo build --release"), "{line}");
}

#[cfg(unix)]
#[test]
fn the_exit_status_of_the_whole_command_is_kept() {
    assert_eq!(run(&["ask"], Some("false")).status.code(), Some(1));
    assert_eq!(run(&["ask"], Some("no such program")).status.code(), Some(1));
}
