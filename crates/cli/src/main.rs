//! The `riffle` command.
fn main() {}
