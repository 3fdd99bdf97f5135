//! Checksums of files: stated by the hub, and computed from the bytes.

use std::fmt::{self, Display};

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The hub's checksum of a file. Its digits are the name of the blob in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sum {
    /// SHA-256 of the bytes, for files in Git LFS or Xet.
    Sha256(String),
    /// SHA-1 of Git's header and the bytes, for files in Git.
    Git(String),
}

/// An unfinished checksum.
pub(crate) enum Summing {
    Sha256(Sha256),
    Git(Sha1),
}

impl Sum {
    /// A SHA-256, if `digits` are valid.
    pub(crate) fn sha256(digits: &str) -> Option<Self> {
        is_hexadecimal(digits, 64).then(|| Self::Sha256(digits.to_owned()))
    }

    /// The id of a Git object, if `digits` are valid.
    pub(crate) fn git(digits: &str) -> Option<Self> {
        is_hexadecimal(digits, 40).then(|| Self::Git(digits.to_owned()))
    }

    pub(crate) fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }

    /// Begins the checksum of a file of this many bytes.
    pub(crate) fn begin(&self, bytes: u64) -> Summing {
        match self {
            Self::Sha256(_) => Summing::Sha256(Sha256::new()),
            Self::Git(_) => {
                let mut sum = Sha1::new();
                sum.update(format!("blob {bytes}\0"));
                Summing::Git(sum)
            }
        }
    }
}

impl Summing {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(sum) => sum.update(bytes),
            Self::Git(sum) => sum.update(bytes),
        }
    }

    pub(crate) fn end(self) -> Sum {
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Sha256(sum) => Sum::Sha256(digits(&sum.finalize())),
            Self::Git(sum) => Sum::Git(digits(&sum.finalize())),
        }
    }
}

impl Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(digits) => write!(f, "sha256 {digits}"),
            Self::Git(digits) => write!(f, "git {digits}"),
        }
    }
}

fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_git_and_sha256sum() {
        // The values are from `printf hello | git hash-object --stdin` and `printf hello | sha256sum`.
        let git = Sum::git("b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0").expect("digits");
        let sha = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        let sha = Sum::sha256(sha).expect("digits");
        for stated in [git, sha] {
            let mut sum = stated.begin(5);
            sum.add(b"he");
            sum.add(b"llo");
            assert_eq!(sum.end(), stated);
        }
    }

    #[test]
    fn only_digits_are_taken_for_a_sum() {
        for text in [
            "",
            "../../etc/passwd",
            &"g".repeat(64),
            &"A".repeat(64),
            &"0".repeat(63),
            &"0".repeat(65),
        ] {
            assert_eq!(Sum::sha256(text), None, "{text}");
            assert_eq!(Sum::git(text), None, "{text}");
        }
    }
}
