//! Runs the command on a damaged file and judges the result.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use wait4::Wait4;

use super::mutation::Harm;
use super::subject::{Answer, Mutant, Subject};
use super::testing::riffle;

/// Longest time of a command.
const TIME: Duration = Duration::from_secs(10);
/// `--memory` of every command with this option, and the allowed memory beyond it.
const PLANNED_BYTES: u64 = 48 << 20;
const SLACK_BYTES: u64 = 64 << 20;
/// Longest line of error: messages are cut at 1,000 characters, followed by their length.
const LINE_CHARACTERS: usize = 1100;

/// Reaction of a command to a damaged file.
pub(crate) enum Outcome {
    /// The answer for the intact file.
    SameAnswer,
    /// A refusal in one line, or a note that the file is skipped.
    Refused,
    /// The correct answer for the other legal file that the damage made.
    OtherFile,
    /// A broken promise.
    Broken(String),
}

/// The outcome of one mutant.
pub(crate) struct Verdict {
    pub(crate) number: usize,
    pub(crate) outcome: Outcome,
}

/// The end of a command.
pub(crate) struct Run {
    /// The exit status; `None` if a signal ended the command.
    pub(crate) status: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) timed_out: bool,
    pub(crate) answer: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) peak_bytes: u64,
}

/// Runs the subject's command in `folder`.
pub(crate) fn run(subject: &Subject, folder: &Path) -> Run {
    let mut command: Command = riffle();
    command.args(subject.arguments()).current_dir(folder);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let process = child.id();
    let stdout = read_all(child.stdout.take().expect("a pipe"));
    let stderr = read_all(child.stderr.take().expect("a pipe"));
    let (ended, watched) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        let late = watched.recv_timeout(TIME) == Err(mpsc::RecvTimeoutError::Timeout);
        if late {
            _ = Command::new("kill").args(["-9", &process.to_string()]).status();
        }
        late
    });
    let used = child.wait4().expect("the child is ours");
    drop(ended);
    let timed_out = watchdog.join().expect("the watchdog does not panic");
    let stdout = stdout.join().expect("the reader does not panic");
    let answer = match subject.answer() {
        Answer::Stdout => stdout,
        Answer::File(name) => fs::read(folder.join(name)).unwrap_or_default(),
    };
    Run {
        status: used.status.code(),
        signal: used.status.signal(),
        timed_out,
        answer,
        stderr: String::from_utf8_lossy(&stderr.join().expect("the reader does not panic")).into_owned(),
        peak_bytes: used.rusage.maxrss,
    }
}

/// Runs the command on `mutant` and judges it.
pub(crate) fn judge(subject: &Subject, number: usize, mutant: &Mutant) -> Verdict {
    let run = run(subject, &mutant.folder);
    if std::env::var_os("RIFFLE_MUTANT").is_some() {
        println!("{}: status {:?}, {}", mutant.what, run.status, run.stderr);
    }
    let outcome = match broken_promise(&run) {
        Some(what) => Outcome::Broken(format!("{}: {what}", mutant.what)),
        None if run.status != Some(0) => Outcome::Refused,
        None if run.answer == subject.expected() => Outcome::SameAnswer,
        None if subject.goes_on_without() && run.stderr.contains(&mutant.file) => Outcome::Refused,
        None if mutant.harm == Harm::Content => Outcome::OtherFile,
        None => Outcome::Broken(format!("{}: another answer without an error", mutant.what)),
    };
    Verdict { number, outcome }
}

/// The promise that a run broke, independent of its answer.
fn broken_promise(run: &Run) -> Option<String> {
    let stderr: String = run.stderr.chars().take(2 * LINE_CHARACTERS).collect();
    if run.timed_out {
        return Some(format!("took longer than {} s", TIME.as_secs()));
    }
    if let Some(signal) = run.signal {
        return Some(format!("ended by signal {signal}: {stderr}"));
    }
    if run.stderr.contains("panicked") {
        return Some(format!("panicked: {stderr}"));
    }
    let hidden = |letter: char| letter.is_control() && !['\n', '\t', '\r'].contains(&letter);
    if run.stderr.chars().any(hidden) {
        return Some(format!("control characters in {stderr:?}"));
    }
    if run.peak_bytes > PLANNED_BYTES + SLACK_BYTES {
        return Some(format!("took {} MiB of memory", run.peak_bytes >> 20));
    }
    let one_line = run.stderr.starts_with("riffle: ") && run.stderr.lines().count() == 1;
    match run.status {
        Some(0) => None,
        Some(1 | 2) if one_line && run.stderr.chars().count() <= LINE_CHARACTERS => None,
        Some(1 | 2) => Some(format!("more than one short line of error: {stderr}")),
        status => Some(format!("exit status {status:?}: {stderr}")),
    }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("the pipe can be read");
        bytes
    })
}
