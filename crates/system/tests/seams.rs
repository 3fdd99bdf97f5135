//! Library code calls the operating system only through this crate.

use std::fs;
use std::path::{Path, PathBuf};

/// Markers of code for a single system.
const OF_SYSTEMS: [&str; 9] = [
    "cfg(unix",
    "cfg(windows",
    "cfg!(unix",
    "cfg!(windows",
    "target_os",
    "libc::",
    "rustix::",
    "std::os::",
    "windows_sys::",
];

/// The exceptions: UNIX sockets are types of tokio, and the server reads its keys again at a hang-up signal.
const EXCEPTIONS: [&str; 2] = ["server/src/listening.rs", "cli/src/commands/serve/signals.rs"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_other_library_code_names_a_system() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for entry in fs::read_dir(&crates).unwrap().flatten() {
        if entry.file_name() != "system" {
            sources(&entry.path().join("src"), &mut files);
        }
    }
    assert!(files.len() > 100, "{} sources", files.len());
    let mut named = Vec::new();
    let is_exception = |path: &PathBuf| EXCEPTIONS.iter().any(|name| path.ends_with(name));
    for path in files.iter().filter(|path| !is_exception(path)) {
        let text = fs::read_to_string(path).unwrap();
        let library = text.split("\nmod tests {").next().unwrap_or_default();
        for (number, line) in library.lines().enumerate() {
            let is_of_test = line.contains("cfg(all(test");
            if !is_of_test && OF_SYSTEMS.iter().any(|name| line.contains(name)) {
                named.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(
        named.is_empty(),
        "ask the system in crates/system:\n{}",
        named.join("\n")
    );
}
