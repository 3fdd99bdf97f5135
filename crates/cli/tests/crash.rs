//! A process killed at any moment: no wrong answer, no lost session, no lock left behind.
//!
//! `scripts/test/crash-test` runs it with more kills.
#![cfg(unix)]

mod testing;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testing::{assert_refused, riffle, shipped_model, stdout};

/// Default number of kills; RIFFLE_CRASH_KILLS changes it.
const KILLS: usize = 10;

/// The session and the prefix cache of a run, in one folder.
struct SessionFiles {
    session: PathBuf,
    prefixes: PathBuf,
}

impl SessionFiles {
    fn new(folder: &Path) -> Self {
        Self {
            session: folder.join("session"),
            prefixes: folder.join("prefixes"),
        }
    }

    fn ask(&self, prompt: &Path) -> Command {
        let mut command = riffle();
        command
            .arg("run")
            .arg("--model")
            .arg(shipped_model())
            .arg("--file")
            .arg(prompt);
        command.args(["-n", "12", "--page-tokens", "64", "--ctx", "8192", "--threads", "2"]);
        command.arg("--session").arg(&self.session);
        // Three of the four prompts fit, so every run removes blocks.
        command
            .arg("--prefix-cache")
            .arg(&self.prefixes)
            .args(["--prefix-cache-budget", "4M"]);
        command
    }

    fn copy_to(&self, folder: &Path) -> Self {
        let copy = Self::new(folder);
        fs::create_dir_all(&copy.prefixes).expect("a folder");
        if self.session.exists() {
            fs::copy(&self.session, &copy.session).expect("a copy");
        }
        for entry in fs::read_dir(&self.prefixes).into_iter().flatten() {
            let entry = entry.expect("a file");
            fs::copy(entry.path(), copy.prefixes.join(entry.file_name())).expect("a copy");
        }
        copy
    }

    /// Bytes of the prefix cache's blocks.
    fn block_bytes(&self) -> u64 {
        let files = fs::read_dir(&self.prefixes).expect("a folder");
        let files = files.map(|entry| entry.expect("a file"));
        let blocks = files.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "block"));
        blocks.map(|entry| entry.metadata().expect("a file").len()).sum()
    }
}

/// Prompts of growing length with a common beginning.
fn prompts(folder: &Path) -> Vec<PathBuf> {
    let book = fs::read_to_string(shipped_model().join("../text/zechariah.txt")).expect("the book");
    let write = |number: usize| {
        let path = folder.join(format!("prompt-{number}"));
        let text: String = book.chars().take(6000 + 400 * number).collect();
        fs::write(&path, format!("{text} And the {number} of them said, ")).expect("a file");
        path
    };
    (0..4).map(write).collect()
}

#[test]
fn a_process_killed_at_any_moment_leaves_nothing_wrong_and_loses_no_session() {
    let kills = std::env::var("RIFFLE_CRASH_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number"));
    let folder = tempfile::tempdir().expect("a folder");
    let prompts = prompts(folder.path());
    let start = Instant::now();
    let answers: Vec<String> = prompts
        .iter()
        .enumerate()
        .map(|(number, prompt)| {
            let fresh = folder.path().join(format!("fresh-{number}"));
            fs::create_dir(&fresh).expect("a folder");
            stdout(&SessionFiles::new(&fresh).ask(prompt).output().expect("the binary runs"))
        })
        .collect();
    // Duration of the latest finished run.
    let mut usual = start.elapsed() / 4;

    let place = SessionFiles::new(folder.path());
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let (mut kill, mut runs, mut with_session) = (0, 0, 0);
    while kill < kills {
        runs += 1;
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let share = (random >> 40) as f64 / (1u64 << 24) as f64;
        let number = (random >> 20) as usize % prompts.len();
        // Every fifth run finishes, so that there is state to lose.
        let patience = if runs % 5 == 0 {
            Duration::from_secs(600)
        } else {
            usual.mul_f64(1.1 * share)
        };
        let had_session = place.session.exists();
        match killed_after(&mut place.ask(&prompts[number]), patience) {
            None => kill += 1,
            Some(took) => usual = took,
        }

        assert!(place.session.exists() || !had_session, "kill {kill} lost the session");
        with_session += usize::from(place.session.exists());
        let check = folder.path().join("check");
        let copy = place.copy_to(&check);
        let asked = (number + 1) % prompts.len();
        for asked in [asked, number] {
            let output = copy.ask(&prompts[asked]).output().expect("the binary runs");
            assert_eq!(stdout(&output), answers[asked], "kill {kill}, prompt {asked}");
        }
        let bytes = copy.block_bytes();
        assert!(bytes <= 4 << 20, "{bytes} bytes after kill {kill}");
        fs::remove_dir_all(&check).expect("a folder");
    }
    eprintln!("{kill} of {runs} runs killed, {with_session} of them beside a saved session");
}

/// Runs a command and kills it after `patience`. Returns the duration if it finished earlier.
fn killed_after(command: &mut Command, patience: Duration) -> Option<Duration> {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the binary runs");
    let start = Instant::now();
    while start.elapsed() < patience && child.try_wait().expect("a child").is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    let has_ended = child.try_wait().expect("a child").is_some();
    let took = start.elapsed();
    if !has_ended {
        child.kill().expect("a child");
    }
    child.wait().expect("a child");
    has_ended.then_some(took)
}

#[test]
fn a_full_disk_is_told_and_the_earlier_session_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let session = folder.path().join("session");
    let run = |prompt: &str, blocks: &str| {
        let mut command = testing::program("sh");
        // A limit on file sizes simulates a full disk: a write fails in the middle.
        command
            .args(["-c", "trap '' XFSZ; ulimit -f \"$0\"; exec \"$@\""])
            .arg(blocks);
        command
            .arg(env!("CARGO_BIN_EXE_riffle"))
            .arg("run")
            .arg("--model")
            .arg(shipped_model());
        command.args(["--prompt", prompt, "-n", "4", "--session"]).arg(&session);
        command.stdin(Stdio::null()).output().expect("sh runs")
    };
    let prompt = "In the beginning God created the heaven and the earth. ".repeat(3);
    stdout(&run(&prompt, "unlimited"));
    let saved = fs::read(&session).expect("a session");
    let output = run(&prompt.repeat(20), "100");
    assert_eq!(output.status.code(), Some(1));
    let message = testing::stderr(&output);
    assert!(
        message.contains("cannot write") && message.contains("session"),
        "{message}"
    );
    assert_eq!(fs::read(&session).expect("a session"), saved);
    let left: Vec<_> = fs::read_dir(folder.path()).expect("a folder").collect();
    assert_eq!(left.len(), 2, "{left:?}");
    let cache = folder.path().join("file");
    fs::write(&cache, "no folder").expect("a file");
    let output = riffle()
        .args(["run", "--model"])
        .arg(shipped_model())
        .args(["--prompt", "x", "--prefix-cache"])
        .arg(&cache)
        .output();
    assert_refused(&output.expect("the binary runs"), 1, &["is a file", "give a folder"]);
}
