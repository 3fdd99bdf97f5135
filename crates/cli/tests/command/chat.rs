//! Conversations: over a pipe, and in a pseudo-terminal if Python can make one.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::testing::{ModelCopy, assert_refused, riffle, run_with_input, shipped_model, stderr, stdout};

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}";

const FIRST: &str = "And it came to pass in those days, that the king went up to the city.";

/// The shipped model with a chat template.
fn talking_model() -> ModelCopy {
    let copy = ModelCopy::new();
    fs::write(copy.path().join("chat_template.jinja"), TEMPLATE).expect("a file");
    copy
}

/// `riffle chat` with these lines on standard input.
fn chat(model: &Path, arguments: &[&str], lines: &[&str]) -> Output {
    let mut command = riffle();
    command
        .args(["chat", "--ctx", "4096", "--no-keep", "--model"])
        .arg(model)
        .args(arguments);
    run_with_input(&mut command, lines.join("\n").as_bytes())
}

/// The number before `what` in the output of the `count`th `/stats`.
fn stated(notes: &str, count: usize, what: &str) -> usize {
    let lines: Vec<&str> = notes.lines().filter(|line| line.starts_with("last turn")).collect();
    let line = lines[count];
    let before = line.split(what).next().expect("a part");
    let number = before
        .split([' ', '('])
        .rfind(|word| !word.is_empty())
        .expect("a number");
    number.replace(',', "").parse().unwrap_or_else(|_| panic!("{line}"))
}

#[test]
fn lines_are_turns_and_each_reads_only_what_is_new() {
    let model = talking_model();
    let output = chat(
        model.path(),
        &["-n", "8"],
        &[FIRST, "/stats", "And then?", "/stats", "/undo", "And then?", "/stats"],
    );
    let (answers, notes) = (stdout(&output), stderr(&output));
    let first = stdout(&chat(model.path(), &["-n", "8"], &[FIRST]));
    let rest = answers.strip_prefix(&first).expect("the same first answer");
    let (second, again) = rest.split_at(rest.len() / 2);
    assert_eq!(again, second, "{answers}");
    let read: Vec<usize> = (0..3).map(|count| stated(&notes, count, " tokens read")).collect();
    let kept: Vec<usize> = (0..3).map(|count| stated(&notes, count, " kept from before")).collect();
    assert_eq!(kept[0], 0, "{notes}");
    assert_eq!(kept[1], read[0] + 7, "{notes}");
    assert!(read[1] < read[0], "{notes}");
    assert_eq!((read[2], kept[2]), (read[1], kept[1]), "{notes}");
    assert!(!notes.contains("second time") && !notes.contains("riffle:"), "{notes}");
}

#[test]
fn a_file_is_asked_about_and_a_message_may_have_several_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let book = folder.path().join("the book.txt");
    let text = fs::read_to_string(shipped_model().join("../text/prophets.txt")).expect("the book");
    let lines: Vec<&str> = text.lines().take(60).collect();
    fs::write(
        &book,
        format!("{}\nThe pass key for river stone is 40718.\n", lines.join("\n")),
    )
    .expect("a file");
    let file = format!("/file {}", book.display());
    let output = chat(
        &shipped_model(),
        &["-n", "8", "--stop", "."],
        &[
            &file,
            "\"\"\"What is the pass key for river stone?",
            "The pass key for river stone is\"\"\"",
            "/quit",
            "never read",
        ],
    );
    assert!(stdout(&output).trim_start().starts_with("40718"), "{}", stdout(&output));
    assert!(stderr(&output).contains("the book.txt: ") && stderr(&output).contains(" tokens read"));
    // The same with an argument; a line that ends with \ continues.
    let question = "What is the pass key for river stone? \\\nThe pass key for river stone is";
    let output = chat(
        &shipped_model(),
        &["-n", "8", "--stop", ".", book.to_str().expect("UTF-8")],
        &[question],
    );
    assert!(stdout(&output).trim_start().starts_with("40718"), "{}", stdout(&output));
}

#[test]
fn a_conversation_is_saved_loaded_copied_and_changed() {
    let (model, folder) = (talking_model(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("talk");
    let save = format!("/save {}", path.display());
    let first = chat(model.path(), &["-n", "8"], &[FIRST, &save, "And then?"]);
    let load = format!("/load {}", path.display());
    let second = chat(
        model.path(),
        &["-n", "8"],
        &[
            &load,
            "And then?",
            "/stats",
            "/fork",
            "/switch",
            "/policy decode=quest",
            "/policy",
            "/set top-k 5",
            "/set",
            "/system Be brief.",
            "/system",
            "/switch 1",
            "/drop 2",
            "/retry",
            "/clear",
            "/help",
        ],
    );
    let alone = stdout(&chat(model.path(), &["-n", "8"], &[FIRST]));
    let then = stdout(&first);
    let then = then.strip_prefix(&alone).expect("the same first answer");
    assert!(stdout(&second).starts_with(then), "{then:?}");
    let notes = stderr(&second);
    for part in [
        "one turn; nothing has to be read again",
        "you are in \"2\" now",
        "decode=quest",
        "top-k              5",
        "Be brief.",
        "\"2\" is gone",
        "the answer will be the same",
        "is forgotten",
        "/file PATH",
    ] {
        assert!(notes.contains(part), "no {part:?} in {notes}");
    }
    assert!(stated(&notes, 0, " tokens read") < 20, "{notes}");
}

#[test]
fn a_line_that_fails_says_why_and_the_next_one_is_answered() {
    let model = talking_model();
    let lines = [
        "/file /nowhere/book",
        "/undo",
        "/dance",
        "/set temperature hot",
        "/policy decode=no",
        FIRST,
    ];
    let output = chat(model.path(), &["-n", "4"], &lines);
    assert_eq!(output.status.code(), Some(1));
    assert!(!output.stdout.is_empty());
    let notes = stderr(&output);
    for part in [
        "no such file",
        "nothing to take back",
        "/help",
        "it must be 0",
        "there is no policy",
        "5 of the lines failed",
    ] {
        assert!(notes.contains(part), "no {part:?} in {notes}");
    }
    let long = format!("\"\"\"{}\"\"\"", FIRST.repeat(400));
    let output = chat(model.path(), &["-n", "4"], &[FIRST, &long, "/stats"]);
    let notes = stderr(&output);
    for part in ["4096", "was not read", "/undo", "one turn, one copy"] {
        assert!(notes.contains(part), "no {part:?} in {notes}");
    }

    let output = chat(&shipped_model(), &["--system", "Be brief."], &[]);
    assert_refused(&output, 1, &["chat template"]);
    let output = chat(model.path(), &["--select-tokens", "0.1"], &[]);
    assert_refused(&output, 1, &["--select-tokens", "leave it out"]);
    let output = chat(model.path(), &["/nowhere/book"], &[]);
    assert_refused(&output, 1, &["/nowhere/book", "no such file"]);
}

#[test]
fn nothing_is_coloured_where_nobody_looks() {
    let output = chat(talking_model().path(), &["-n", "4"], &[FIRST, "/help"]);
    assert!(!stdout(&output).contains('\u{1b}') && !stderr(&output).contains('\u{1b}'));
    assert!(!stdout(&output).contains("> "), "no prompt: {}", stdout(&output));
}

/// Types into a pseudo-terminal (see the script). Returns the screen's text, or `None` without Python.
#[cfg(unix)]
fn typed(state: &Path, colours: bool, arguments: &[&str], steps: &[(&str, &str)]) -> Option<String> {
    use std::process::{Command, Stdio};

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testing/terminal.py");
    if !Command::new("python3")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        println!("skipped: python3, which makes the terminal, is not here");
        return None;
    }
    let steps = serde_json::to_string(steps).expect("JSON");
    let mut command = Command::new("python3");
    command
        .arg(script)
        .arg(steps)
        .arg(env!("CARGO_BIN_EXE_riffle"))
        .arg("chat")
        .args(arguments);
    command
        .env("XDG_STATE_HOME", state)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR");
    if !colours {
        command.env("NO_COLOR", "1");
    }
    let output = command.stdin(Stdio::null()).output().expect("Python runs");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}{}", stderr(&output));
    Some(shown)
}

#[cfg(unix)]
#[test]
fn at_a_terminal_control_c_stops_the_answer_and_control_d_leaves() {
    use std::os::unix::fs::PermissionsExt;
    let (model, state) = (talking_model(), tempfile::tempdir().expect("a folder"));
    let model = model.path().to_str().expect("UTF-8");
    let arguments = ["--ctx", "60000", "-n", "-1", "--allow-loops", "--model", model];
    // Each step waits for the first text, then types the second.
    let steps = [
        ("> ", "And it came to pass\r"),
        ("", "\u{3}"),
        ("what was said is kept", ""),
        ("> ", "\u{3}"),
        ("Ctrl-D or /quit leaves", "/set tokens 4\r"),
        ("> ", "one \\\r"),
        ("", "two\r"),
        ("cut after 4 tokens", ""),
        ("> ", "/stats\r"),
        ("2 turns", ""),
        // The terminal handles Ctrl-D itself until the line editor runs.
        ("> ", "\u{4}"),
    ];
    let Some(shown) = typed(state.path(), true, &arguments, &steps) else {
        return;
    };
    assert!(shown.contains("\u{1b}[1;36m> "), "{shown:?}");
    let history = state.path().join("riffle/chat_history");
    assert_eq!(
        fs::metadata(&history).expect("a history").permissions().mode() & 0o777,
        0o600
    );
    assert!(fs::read_to_string(&history).expect("text").contains("/set tokens 4"));

    // The arrow key shows the history; NO_COLOR removes colours.
    let steps = [("> ", "\u{1b}[A"), ("/stats", "\r"), ("0 turns", ""), ("> ", "\u{4}")];
    let shown = typed(state.path(), false, &arguments, &steps).expect("Python");
    assert!(
        !shown.contains("\u{1b}[1;36m") && !shown.contains("\u{1b}[2m"),
        "{shown:?}"
    );

    let other = tempfile::tempdir().expect("a folder");
    typed(
        other.path(),
        true,
        &[&arguments[..], &["--no-history"]].concat(),
        &[("> ", "/stats\r"), ("0 turns", ""), ("> ", "\u{4}")],
    );
    assert!(!other.path().join("riffle/chat_history").exists());
}
