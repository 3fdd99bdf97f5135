//! Paths of fixtures.

use std::path::{Path, PathBuf};

/// The folder of the workspace's fixtures.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// A file or folder of the fixtures, such as `model`.
pub fn fixture(name: &str) -> PathBuf {
    fixtures().join(name)
}

/// The text of the book among the fixtures.
pub fn book() -> String {
    std::fs::read_to_string(fixture("text/prophets.txt")).expect("the book")
}
