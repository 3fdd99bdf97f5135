//! Runs the real binary on the shipped model, or on a damaged copy of it.
// Each test binary uses its own part of this module.
#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// The shipped model's layers, query heads and KV heads.
pub const LAYERS: usize = 5;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
/// Bytes of keys and values per token: two halves for each of 64 channels.
pub const TOKEN_BYTES: usize = LAYERS * KV_HEADS * 64 * 2 * 2;

/// The shipped model's folder.
pub fn shipped_model() -> PathBuf {
    riffle_testing::fixture("model")
}

/// The command, ready for arguments; standard input is empty.
pub fn riffle() -> Command {
    program(env!("CARGO_BIN_EXE_riffle"))
}

/// The command, or a program that starts it. It writes nothing to the folders of the real user.
pub fn program(path: &str) -> Command {
    let mut command = Command::new(path);
    let folders = Path::new(env!("CARGO_TARGET_TMPDIR")).join("user");
    command
        .stdin(Stdio::null())
        .env("XDG_CACHE_HOME", folders.join("cache"))
        .env("XDG_STATE_HOME", folders.join("state"))
        .env_remove("RIFFLE_MODEL");
    command
}

/// A path that nobody can create on any system: a file is where it needs a folder.
pub const BELOW_A_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml/x");

/// The path below a file, with the drive if paths have one.
pub fn absolute_below_a_file() -> PathBuf {
    std::path::absolute(BELOW_A_FILE).expect("a path")
}

/// Gives a command the home folder `home`, under the names of every system.
pub fn at_home<'c>(command: &'c mut Command, home: &Path) -> &'c mut Command {
    command
        .env("HOME", home)
        .env("USERPROFILE", home)
        .env("LOCALAPPDATA", home.join("AppData/Local"))
}

/// The folder below a home folder where programs keep what they need between runs.
pub fn state_below(home: &Path) -> PathBuf {
    home.join(if cfg!(windows) { "AppData/Local" } else { ".local/state" })
}

/// Runs the command to its end.
pub fn run(arguments: &[&str]) -> Output {
    riffle().args(arguments).output().expect("the binary runs")
}

/// Runs a command to the end with `input` on standard input.
pub fn run_with_input(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(input)
        .expect("it is read");
    child.wait_with_output().expect("it ends")
}

/// Runs `riffle run` on the shipped model.
pub fn run_shipped(arguments: &[&str]) -> Output {
    let model = shipped_model();
    riffle()
        .arg("run")
        .arg("--model")
        .arg(model)
        .args(arguments)
        .output()
        .expect("the binary runs")
}

/// Standard output of a run that must succeed.
pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).expect("UTF-8 output")
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8 errors")
}

/// A failed run prints one line with all of `parts`, exits with `status` and writes no answer.
#[track_caller]
pub fn assert_refused(output: &Output, status: i32, parts: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{message}");
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 1, "one line expected: {message}");
    assert!(lines[0].starts_with("riffle: "), "{message}");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert!(
        output.stdout.is_empty(),
        "{:?}",
        String::from_utf8_lossy(&output.stdout)
    );
}

/// A copy of the shipped model that a test may damage.
pub struct ModelCopy {
    folder: TempDir,
}

impl ModelCopy {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for entry in fs::read_dir(shipped_model()).expect("the shipped model") {
            let entry = entry.expect("a file");
            fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("a copy");
        }
        Self { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Rewrites one JSON file.
    pub fn edit_json(&self, file: &str, edit: impl FnOnce(&mut serde_json::Value)) -> &Self {
        let path = self.path().join(file);
        let mut value = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON");
        edit(&mut value);
        fs::write(path, value.to_string()).expect("a file");
        self
    }

    /// Rewrites one file's bytes.
    pub fn edit_bytes(&self, file: &str, edit: impl FnOnce(&mut Vec<u8>)) -> &Self {
        let path = self.path().join(file);
        let mut bytes = fs::read(&path).expect("a file");
        edit(&mut bytes);
        fs::write(path, bytes).expect("a file");
        self
    }

    /// Runs a short prompt on this copy.
    pub fn run(&self) -> Output {
        riffle()
            .arg("run")
            .arg("--model")
            .arg(self.path())
            .args(["--prompt", "In the beginning", "-n", "4"])
            .output()
            .expect("the binary runs")
    }
}
