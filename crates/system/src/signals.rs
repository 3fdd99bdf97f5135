//! Signals that end a program unless it handles them.

use std::io;

/// Makes a write beyond the file size limit (`ulimit -f`) fail with an error; without a handler, its signal ends the
/// process. Windows has no such limit.
///
/// # Errors
/// Errors of the system.
pub fn outlive_file_size_limit() -> io::Result<()> {
    crate::platform::outlive_file_size_limit()
}
