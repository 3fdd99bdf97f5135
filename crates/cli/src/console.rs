//! Printing: results on standard output, everything else on standard error.
//!
//! All output passes through [`shown`](crate::shown), so a model's text never sends control sequences to a terminal.
//! No function here panics. A result that cannot be written is a failure; a note that cannot be written is dropped,
//! because no other channel exists.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use terminal_size::{Height, Width, terminal_size_of};

use crate::failure::Failure;
use crate::shown;
use crate::wrap::{self, ReplyLines};

/// Minimum width of a terminal for breaking lines between words.
const LEAST_COLUMNS: usize = 20;

/// The unfinished lines of the current answer on a terminal.
static REPLY: Mutex<ReplyLines> = Mutex::new(ReplyLines::new());

/// True if the last text on standard output did not end its line.
static LINE_IS_OPEN: AtomicBool = AtomicBool::new(false);

/// Writes the program's own text to standard output, with escaped control characters.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    write(&shown::shown(text))
}

/// Writes a piece of an answer to standard output: unchanged to a file or a pipe, without control characters to a
/// terminal.
pub(crate) fn print_answer(text: &str) -> Result<(), Failure> {
    write(&shown::answer(text, io::stdout().is_terminal()))
}

/// Writes a piece of a conversation's answer to standard output. A terminal gets lines broken between words; other
/// outputs are written by [`print_answer`]. The last word follows with the next output.
pub(crate) fn print_reply(text: &str) -> Result<(), Failure> {
    let Some(width) = output_columns() else {
        return print_answer(text);
    };
    let shown = reply().push(&shown::answer(text, true), width);
    write_now(&shown)
}

/// Prints like [`print`], with lines broken between words on a terminal.
pub(crate) fn print_wrapped(text: &str) -> Result<(), Failure> {
    match output_columns() {
        Some(width) => print(&wrap::wrapped(text, width)),
        None => print(text),
    }
}

fn reply() -> MutexGuard<'static, ReplyLines> {
    REPLY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Columns of a terminal of a usable width.
fn columns(size: Option<(Width, Height)>) -> Option<usize> {
    let (Width(width), _) = size?;
    Some(usize::from(width)).filter(|width| *width >= LEAST_COLUMNS)
}

/// Columns of standard output, if it is a terminal.
fn output_columns() -> Option<usize> {
    columns(terminal_size_of(io::stdout()))
}

/// Writes text after the withheld word of an answer.
fn write(text: &str) -> Result<(), Failure> {
    let width = output_columns().unwrap_or(usize::MAX);
    let held = reply().finish(width);
    write_now(&(held + text))
}

fn write_now(text: &str) -> Result<(), Failure> {
    if let Some(last) = text.chars().next_back() {
        LINE_IS_OPEN.store(last != '\n', Ordering::Relaxed);
    }
    let mut output = io::stdout().lock();
    output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
        .map_err(|error| Failure::output(&error))
}

/// Prints one JSON object to standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::new)?;
    write(&(shown::json(&text) + "\n"))
}

/// Writes one or more lines to standard error, always on a new line.
pub(crate) fn note(text: impl Display) {
    // The function that prints the answer reports its write errors.
    let _ = end_line();
    let _ = writeln!(io::stderr().lock(), "{}", fitted(&text.to_string()));
}

/// A note to an answer, on standard error: dim on a terminal with colours.
pub(crate) fn aside(text: impl Display) {
    // See `note`.
    let _ = end_line();
    let shown = fitted(&text.to_string());
    let _ = if has_colours(&io::stderr()) {
        writeln!(io::stderr().lock(), "\u{1b}[2m{shown}\u{1b}[0m")
    } else {
        writeln!(io::stderr().lock(), "{shown}")
    };
}

/// A text for standard error: without control characters, and with lines broken between words on a terminal.
fn fitted(text: &str) -> String {
    let shown = shown::shown(text);
    match columns(terminal_size_of(io::stderr())) {
        Some(width) => wrap::wrapped(&shown, width).into_owned(),
        None => shown.into_owned(),
    }
}

/// True if the output has colours: on a terminal, unless NO_COLOR is set (no-color.org).
pub(crate) fn has_colours(stream: &impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stream.is_terminal()
        && !is_set("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        && riffle_system::terminal::enable_escapes()
}

/// Ends an open line of standard output.
pub(crate) fn end_line() -> Result<(), Failure> {
    let holds_word = reply().holds_word();
    if holds_word || LINE_IS_OPEN.load(Ordering::Relaxed) {
        print("\n")
    } else {
        Ok(())
    }
}
