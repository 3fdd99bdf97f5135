//! Source files of the workspace, for tests that read code.

use std::fs;
use std::path::{Path, PathBuf};

/// Every file under `src` of a crate, at any depth.
pub fn source_files(crate_name: &str) -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut folders, mut files) = (vec![crates.join(crate_name).join("src")], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path)
            } else {
                files.push(path)
            }
        }
    }
    files
}
