//! Lines on standard error.

use std::io::Write;

/// Writes a line to stderr. Errors are ignored: a full disk or a closed pipe must not end an answer.
pub(crate) fn note(line: &str) {
    let clean: String = line
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    drop(writeln!(std::io::stderr().lock(), "{clean}"));
}
