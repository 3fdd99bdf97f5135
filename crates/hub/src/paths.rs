//! Checks of the untrusted paths of a repository's files.

/// Maximum number of bytes of a path.
const LONGEST: usize = 1000;
/// Maximum number of folders of a path.
const DEEPEST: usize = 16;

/// True if a joined path stays inside its folder on any system and is printable: parts of visible characters between
/// slashes, none of them `.`, `..` or empty.
pub(crate) fn is_plain_path(path: &str) -> bool {
    let mut parts = path.split('/');
    path.len() <= LONGEST
        && path.split('/').count() <= DEEPEST
        && !path.chars().any(|c| c.is_control() || c == '\\' || c == ':')
        && parts.all(|part| !part.is_empty() && part != "." && part != "..")
}

/// A file's name without its folders.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_the_folder_are_plain() {
        for path in ["a", "a/b.gguf", "..a/b..", "a b", "é.gguf", ".gitattributes"] {
            assert!(is_plain_path(path), "{path:?}");
        }
        for path in [
            "", "/a", "a/", "a//b", "..", "../a", "a/../b", "./a", "a/.", "a\\..\\b", "c:/a", "a\n", "a\0",
        ] {
            assert!(!is_plain_path(path), "{path:?}");
        }
        assert!(!is_plain_path(&"a/".repeat(600)));
        assert!(!is_plain_path(&"a".repeat(2000)));
    }
}
