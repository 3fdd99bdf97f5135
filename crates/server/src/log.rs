//! Lines on standard error.

use std::io::Write;

/// Writes a line. What cannot be written is lost: nobody is left without an answer because of it.
pub(crate) fn note(line: &str) {
    let clean: String = line
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    drop(writeln!(std::io::stderr().lock(), "{clean}"));
}
