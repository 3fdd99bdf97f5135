//! The program that `cargo run` builds first. It shows the demonstration, and hands all other arguments to the command
//! `riffle`, which cargo builds for them.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use riffle_demo::{Advice, DemoError, Host, demonstrate};
use riffle_engine::{Engine, EngineError, PrefillProgress, RunEvent, RunReport, RunRequest};

/// Time between two lines of progress.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Time between two states of the line of progress on a terminal.
const STATE_EVERY: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let is_dense = arguments.len() == 1 && arguments[0] == "--dense";
    if !arguments.is_empty() && !is_dense {
        return whole_command(&arguments);
    }
    match demonstrate(is_dense, &advice(), &mut Terminal) {
        Ok(()) => ExitCode::SUCCESS,
        Err(DemoError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => failed(&error.to_string()),
    }
}

fn failed(message: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "riffle-demo: {message}");
    ExitCode::FAILURE
}

/// Commands for a user of the checkout, who has no `riffle` yet.
fn advice() -> Advice {
    let program = env::args_os().next().unwrap_or_default();
    let riffle = Path::new(&program).with_file_name(format!("riffle{}", env::consts::EXE_SUFFIX));
    Advice {
        program: riffle.display().to_string(),
        compare: "cargo run --release -- --dense".to_owned(),
        first: "  cargo build --release               # the whole command: some more minutes\n".to_owned(),
    }
}

/// Builds the command `riffle` by the cargo that runs this program, and runs it with these arguments.
fn whole_command(arguments: &[OsString]) -> ExitCode {
    let Some(cargo) = env::var_os("CARGO") else {
        return failed("this program shows the demonstration alone; cargo build --release makes the command riffle");
    };
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let mut command = Command::new(cargo);
    command.arg("run");
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    command
        .arg("--manifest-path")
        .arg(workspace)
        .args(["--bin", "riffle", "--"])
        .args(arguments);
    match command.status() {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        Err(error) => failed(&format!("cannot start cargo: {error}")),
    }
}

/// Prints results on standard output, and progress on standard error.
struct Terminal;

impl Host for Terminal {
    type Error = DemoError;

    fn print(&mut self, text: &str) -> Result<(), DemoError> {
        let mut output = io::stdout().lock();
        output.write_all(text.as_bytes())?;
        Ok(output.flush()?)
    }

    fn note(&mut self, text: &str) {
        // A note that cannot be written is dropped: no other channel exists.
        let _ = writeln!(io::stderr(), "{text}");
    }

    fn run(&mut self, engine: &Arc<Engine>, request: &RunRequest) -> Result<RunReport, EngineError> {
        let mut progress = Progress::new();
        let report = riffle_engine::run(engine, request, &mut |event| {
            if let RunEvent::Prefill(state) = event {
                progress.show(state);
            }
            ControlFlow::Continue(())
        });
        progress.end();
        report
    }
}

/// Progress of the reading: one line that changes on a terminal, otherwise a line now and then.
struct Progress {
    last: Instant,
    every: Duration,
    is_terminal: bool,
}

impl Progress {
    fn new() -> Self {
        let is_terminal = io::stderr().is_terminal();
        Self {
            last: Instant::now(),
            every: if is_terminal { STATE_EVERY } else { LINE_EVERY },
            is_terminal,
        }
    }

    fn show(&mut self, state: PrefillProgress) {
        if self.last.elapsed() < self.every {
            return;
        }
        self.last = Instant::now();
        let (begin, end) = if self.is_terminal { ("\r", "") } else { ("", "\n") };
        let _ = write!(
            io::stderr(),
            "{begin}reading {:.0}/{} tokens{end}",
            state.tokens_done,
            state.tokens
        );
    }

    /// Removes the line from a terminal.
    fn end(&self) {
        if self.is_terminal {
            let _ = write!(io::stderr(), "\r{:40}\r", "");
        }
    }
}
