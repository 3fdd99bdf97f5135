//! Signals that end a program unless it handles them.

use std::io;

/// Makes a write beyond the limit on file sizes (`ulimit -f`) fail as any other write may: without a handler the signal ends the
/// process. Windows has no such limit.
///
/// # Errors
/// The system's.
pub fn outlive_file_size_limit() -> io::Result<()> {
    crate::platform::outlive_file_size_limit()
}
