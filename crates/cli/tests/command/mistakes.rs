//! What a stranger types wrongly: the line says what was wrong and what to do.

use std::fs;

use crate::testing::{assert_refused, riffle, shipped_model};

#[test]
fn a_line_says_what_was_wrong_and_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("notes.txt"), "The meeting is on Monday.").expect("a file");
    fs::write(folder.path().join("empty.txt"), "").expect("a file");
    fs::write(folder.path().join("junk.pdf"), [0u8, 159, 146, 150, 1, 2, 3]).expect("a file");
    fs::create_dir(folder.path().join("empty")).expect("a folder");
    let model = shipped_model();
    let model = model.to_str().expect("a path");
    let ask = |words: &[&str]| -> Vec<String> {
        let of_model = ["ask", "--model", model].into_iter();
        of_model.chain(words.iter().copied()).map(str::to_owned).collect()
    };
    let typed = |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
    for (words, status, parts) in [
        (
            typed(&["ask", "notes.txt", "When?"]),
            2,
            &["riffle ask needs --model <PATH>", "riffle list", "riffle pull"][..],
        ),
        (
            typed(&["pull"]),
            2,
            &["riffle pull needs <NAME>", "see riffle pull --help"],
        ),
        (
            typed(&["--prompt", "x"]),
            2,
            &["'--prompt' needs a command before it", "riffle run"],
        ),
        (
            typed(&["run", "model.gguf", "--prompt", "x"]),
            2,
            &["'model.gguf' stands behind no option", "quotes"],
        ),
        (
            typed(&["run", "--model", "m", "--prompt", "a", "--file", "b"]),
            2,
            &["leave one of them out"],
        ),
        (
            typed(&["completions", "tcsh"]),
            2,
            &["<SHELL> is tcsh, but it must be one of bash, elvish, fish, powershell, zsh"],
        ),
        (
            typed(&["plan", "--model", "nomodel"]),
            1,
            &["nomodel: no such file or folder", "riffle list", "riffle pull"],
        ),
        (
            typed(&["plan", "--model", model, "--memory", "12"]),
            1,
            &["--memory is 12, but", "12G"],
        ),
        (
            typed(&["run", "--model", model]),
            1,
            &["the prompt is empty", "--prompt TEXT, --file FILE or through a pipe"],
        ),
        (
            typed(&["run", "--model", model, "--file", "empty"]),
            1,
            &["empty: a folder", "riffle ask"],
        ),
        (
            typed(&["run", "--model", model, "--prompt", "x", "--prefix-cache", "notes.txt"]),
            1,
            &["--prefix-cache is notes.txt, but that is a file: give a folder"],
        ),
        (
            typed(&["run", "--model", model, "--prompt", "x", "--profile", "notes.txt"]),
            1,
            &["notes.txt", "riffle calibrate --out writes a profile"],
        ),
        (
            typed(&[
                "session",
                "compress",
                "--model",
                model,
                "--session",
                "none",
                "--keep",
                "0.3",
            ]),
            1,
            &["cannot read none: no such file", "riffle run --session FILE"],
        ),
        (ask(&["nofile.txt"]), 1, &["nofile.txt: no such file; check the path"]),
        (
            ask(&["What is this?"]),
            1,
            &["no document: name a file or a folder before the question"],
        ),
        (ask(&["notes.txt"]), 1, &["no question", "--question"]),
        (
            ask(&["empty.txt", "When?"]),
            1,
            &["empty.txt: it holds no text; leave it out"],
        ),
        (
            ask(&["junk.pdf", "When?"]),
            1,
            &[
                "junk.pdf: this is no text and no document",
                "PDF, EPUB, DOCX or a folder",
            ],
        ),
        (
            ask(&["empty", "When?"]),
            1,
            &[
                "empty: no file in this folder can be read",
                "give a folder with documents",
            ],
        ),
        (
            ask(&["notes.txt", "When?", "--keep", "notes.txt"]),
            1,
            &["--keep is notes.txt, but that is a file: give a folder"],
        ),
    ] {
        let output = riffle().args(&words).current_dir(folder.path()).output();
        assert_refused(&output.expect("the binary runs"), status, parts);
    }
}

#[test]
fn a_model_that_was_never_pulled_is_not_offered_for_removal() {
    let cache = tempfile::tempdir().expect("a folder");
    let output = riffle()
        .args(["rm", "owner/name"])
        .env("HF_HUB_CACHE", cache.path())
        .output();
    assert_refused(
        &output.expect("the binary runs"),
        1,
        &[
            "owner/name is not in the cache of models",
            "nothing to remove",
            "riffle list",
        ],
    );
}
