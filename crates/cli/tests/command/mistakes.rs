//! Tests of a stranger's typing mistakes: the line names the fault and the remedy.

use std::fs;

use crate::testing::{assert_refused, riffle, shipped_model};

/// Words with `_` for a space and MODEL for the shipped model, also after `=`; the exit status; parts of the line.
const MISTAKES: [(&str, i32, &[&str]); 47] = [
    (
        "serve --model a=MODEL --model b=MODEL --alias c",
        1,
        &["--alias belongs to one model", "--model NAME=PATH"],
    ),
    (
        "serve --model a=MODEL --model a=MODEL --port 0",
        1,
        &["--model a: two models have this name", "NAME=PATH"],
    ),
    (
        "serve --model a=MODEL --model b=MODEL --port 0 --memory 17M",
        1,
        &["a: ", "needs"],
    ),
    (
        "serve --models-dir empty --port 0",
        1,
        &["no model there can be served"],
    ),
    (
        "launch codex --url http://127.0.0.1:9",
        1,
        &["no server answers at http://127.0.0.1:9", "riffle serve"],
    ),
    ("rm", 2, &["riffle: rm needs <NAME>", "see riffle rm --help"]),
    ("--prompt x", 2, &["'--prompt' needs a command before it", "riffle run"]),
    (
        "run model.gguf --prompt x",
        2,
        &["'model.gguf' stands behind no option", "--model"],
    ),
    (
        "run In_the_beginning",
        2,
        &["'In the beginning' stands behind no option", "--prompt", "--file"],
    ),
    (
        "bench model 512",
        2,
        &["'512' stands behind no option", "options begin with a dash"],
    ),
    (
        "inspect --model model.gguf",
        2,
        &[
            "riffle inspect takes MODEL without --model",
            "see riffle inspect --help",
        ],
    ),
    ("rm -m model", 2, &["riffle rm takes NAME without -m"]),
    (
        "rm --fast model",
        2,
        &["unexpected argument '--fast' found; see riffle rm --help"],
    ),
    ("aks notes.txt When?", 2, &["'aks' is no command", "riffle ask; see"]),
    ("eval neddle", 2, &["'neddle' is no command", "riffle eval needle; see"]),
    ("frobnicate", 2, &["riffle: unrecognized subcommand 'frobnicate'"]),
    (
        "inspect owner/name",
        1,
        &[
            "riffle: MODEL is owner/name, but there is no such file",
            "riffle pull owner/name",
        ],
    ),
    ("run --model MODEL --prompt a --file b", 2, &["leave one of them out"]),
    (
        "completions tcsh",
        2,
        &["SHELL is tcsh, but it must be one of bash, elvish, fish, powershell, zsh"],
    ),
    (
        "plan --model nomodel",
        1,
        &["nomodel: no such file or folder", "riffle list", "riffle pull"],
    ),
    ("plan --model MODEL --memory 12", 1, &["--memory is 12, but", "12G"]),
    (
        "run --model MODEL",
        1,
        &["the prompt is empty", "--prompt TEXT, --file FILE or through a pipe"],
    ),
    ("run --model MODEL --file empty", 1, &["empty: a folder", "riffle ask"]),
    (
        "run --model MODEL --prompt x --prefix-cache notes.txt",
        1,
        &["--prefix-cache is notes.txt", "give a folder"],
    ),
    (
        "run --model MODEL --prompt x --prefix-cache=",
        1,
        &["--prefix-cache is empty", "give a folder"],
    ),
    (
        "run --model MODEL --prompt x --prefix-cache ftp://host/folder",
        1,
        &["ftp:// is no store of blocks", "s3://BUCKET/PREFIX, valkey://HOST"],
    ),
    (
        "run --model MODEL --prompt x --prefix-cache s3://",
        1,
        &["a host or a bucket is missing"],
    ),
    (
        "run --model MODEL --prompt x --prefix-cache valkey://host:99999",
        1,
        &["valkey://host", "99999 is no port"],
    ),
    (
        "run --model MODEL --prompt x --prefix-cache valkey://host?expiry=soon",
        1,
        &["expiry=soon cannot be read", "expiry=7d"],
    ),
    (
        "run --model MODEL --prompt x --prefix-cache valkey://host?color=red",
        1,
        &["color= is not known here", "expiry, budget and machines"],
    ),
    (
        "run --model MODEL --prompt x --prefix-cache valkey://user:secret@host:x",
        1,
        &["valkey://host", "x is no port"],
    ),
    (
        "run --model MODEL --prompt x --prefix-cache valkey://a --prefix-cache s3://b",
        1,
        &["one folder and one store at most"],
    ),
    (
        "run --model MODEL --prompt x --prefix-cache valkey://a --prefix-cache-budget 1G",
        1,
        &["--prefix-cache-budget is that of a folder", "?budget=200G"],
    ),
    (
        "run --model MODEL --prompt x --prefix-cache blocks --prefix-cache-wait 5",
        1,
        &["--prefix-cache-wait needs a store", "valkey://HOST"],
    ),
    (
        "serve --model MODEL --port 0 --kv-events nonsense",
        1,
        &["--kv-events: nonsense", "tcp://HOST:PORT"],
    ),
    (
        "serve --model MODEL --port 0 --kv-events ipc:///x",
        1,
        &["--kv-events: ipc:///x", "tcp://HOST:PORT"],
    ),
    (
        "serve --model MODEL --port 0 --kv-events-replay tcp://127.0.0.1:0",
        2,
        &["riffle: serve needs --kv-events"],
    ),
    (
        "serve --model MODEL --port 0 --kv-events tcp://127.0.0.1:0 --kv-events-replay nonsense",
        1,
        &["nonsense", "tcp://HOST:PORT"],
    ),
    (
        "run --model MODEL --prompt x --profile notes.txt",
        1,
        &["notes.txt", "riffle calibrate --out writes a profile"],
    ),
    (
        "session compress --model MODEL --session none --keep 0.3",
        1,
        &["cannot read none: no such file", "riffle run --session"],
    ),
    (
        "ask --model MODEL nofile.txt",
        1,
        &["nofile.txt: no such file; check the path"],
    ),
    (
        "ask --model MODEL What_is_this?",
        1,
        &["no document: name a file or a folder before the question"],
    ),
    ("ask --model MODEL notes.txt", 1, &["no question", "--question"]),
    (
        "ask --model MODEL empty.txt When?",
        1,
        &["empty.txt: it holds no text; leave it out"],
    ),
    (
        "ask --model MODEL junk.pdf When?",
        1,
        &[
            "junk.pdf: this is no text and no document",
            "PDF, EPUB, DOCX or a folder",
        ],
    ),
    (
        "ask --model MODEL empty When?",
        1,
        &[
            "empty: no file in this folder can be read",
            "give a folder with documents",
        ],
    ),
    (
        "ask --model MODEL notes.txt When? --keep notes.txt",
        1,
        &["--keep is notes.txt, but that is a file: give a folder"],
    ),
];

#[test]
fn a_line_says_what_was_wrong_and_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("notes.txt"), "The meeting is on Monday.").expect("a file");
    fs::write(folder.path().join("empty.txt"), "").expect("a file");
    fs::write(folder.path().join("junk.pdf"), [0u8, 159, 146, 150, 1, 2, 3]).expect("a file");
    fs::create_dir(folder.path().join("empty")).expect("a folder");
    let model = shipped_model();
    for (words, status, parts) in MISTAKES {
        let mut command = riffle();
        command.current_dir(folder.path());
        for word in words.split(' ') {
            match word {
                "MODEL" => command.arg(&model),
                word => {
                    let named = format!("={}", model.display());
                    command.arg(word.replace('_', " ").replace("=MODEL", &named))
                }
            };
        }
        assert_refused(&command.output().expect("the binary runs"), status, parts);
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
