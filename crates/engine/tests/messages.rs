//! Messages of the libraries name options by their fields, because flags mean nothing to other programs.

use std::fs;

use riffle_testing::source_files;

/// A file with names that look like flags. Saved files contain the names, so they cannot change.
const NAMES_IN_FILES: &str = "engine/src/origin.rs";

/// True if a line of code holds a text with a flag, such as `--ctx`, `-b` or `-ub`.
fn has_flag(line: &str) -> bool {
    let code = line.trim_start();
    if code.starts_with("//") {
        return false;
    }
    let short = ["-b", "-c", "-n", "-p", "-t", "-ub"];
    let words = code.split([' ', '"', '`', '(', ')', ',', ':', ';']);
    words.into_iter().any(|word| {
        let long = word.strip_prefix("--");
        long.is_some_and(|name| name.starts_with(|first: char| first.is_ascii_lowercase())) || short.contains(&word)
    })
}

#[test]
fn no_message_of_a_library_names_a_flag_of_the_command() {
    for line in [
        r#"format!("raise --ctx to {needed}")"#,
        r#"option("-ub", 0, "at least 1")"#,
        r#""use a smaller -b""#,
    ] {
        assert!(has_flag(line), "{line}");
    }
    for line in ["/// As --ctx says.", r#"format!("{a}--{b}")"#] {
        assert!(!has_flag(line), "{line}");
    }
    let mut files = 0;
    for name in ["ask", "attention", "chat", "engine", "kv", "model", "policy"] {
        for path in source_files(name) {
            files += 1;
            if path.ends_with(NAMES_IN_FILES) || path.extension().is_none_or(|kind| kind != "rs") {
                continue;
            }
            let source = fs::read_to_string(&path).expect("a source file");
            let code = source.split("#[cfg(test)]").next().unwrap_or_default();
            let flag = code.lines().find(|line| has_flag(line));
            assert_eq!(flag, None, "{}", path.display());
        }
    }
    assert!(files > 100, "{files}");
}
