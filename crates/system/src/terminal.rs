//! The terminal of this process.

/// Makes the terminals of standard output and standard error accept escape sequences, such as colours. False if one
/// cannot: Windows consoles before version 10.
pub fn enable_escapes() -> bool {
    crate::platform::enable_escapes()
}
