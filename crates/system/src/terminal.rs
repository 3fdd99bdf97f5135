//! The terminal of this process.

/// The end of a line that the system's usual shell joins with the next: PowerShell's on Windows.
pub const LINE_CONTINUES: &str = crate::platform::LINE_CONTINUES;

/// Makes the terminals of standard output and standard error accept escape sequences, such as colours. False if one
/// cannot: Windows consoles before version 10.
pub fn enable_escapes() -> bool {
    crate::platform::enable_escapes()
}
