//! The terminal of this process.

/// Makes the terminals of standard output and standard error understand escape sequences, such as those of colours. False where one
/// cannot: consoles of Windows before version 10.
pub fn enable_escapes() -> bool {
    crate::platform::enable_escapes()
}
