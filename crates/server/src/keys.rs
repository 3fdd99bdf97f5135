//! API keys.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use subtle::ConstantTimeEq;

use crate::ServerError;

/// An API key, and its name in the log.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// The secret in requests.
    pub key: String,
    /// Name of the key's owner or use, for the log.
    pub name: String,
}

/// The keys of a server, which may be replaced while it runs. Clones share one list.
#[derive(Debug, Clone)]
pub struct Keys(Arc<RwLock<Vec<ApiKey>>>);

impl ApiKey {
    /// Parses a file of keys, one per line as `KEY # NAME`. Lines that begin with `#` are comments. A key without a
    /// name is called by its line, such as `line 3`.
    pub fn parse_lines(text: &str) -> Vec<Self> {
        let lines = text.lines().enumerate();
        lines.filter_map(|(at, line)| Self::parse_line(line, at + 1)).collect()
    }

    fn parse_line(line: &str, number: usize) -> Option<Self> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        // A # belongs to the key, unless a space precedes it.
        let comment = line
            .match_indices('#')
            .find(|(at, _)| line[..*at].ends_with(char::is_whitespace));
        let (key, name) = comment.map_or((line, ""), |(at, _)| (line[..at].trim_end(), line[at + 1..].trim()));
        Some(Self {
            key: key.to_owned(),
            name: match name {
                "" => format!("line {number}"),
                name => name.to_owned(),
            },
        })
    }
}

impl From<&str> for ApiKey {
    fn from(key: &str) -> Self {
        Self {
            key: key.to_owned(),
            name: "unnamed".to_owned(),
        }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({:?})", self.name)
    }
}

impl Keys {
    /// # Errors
    /// [`ServerError::Option`] for an empty key.
    pub(crate) fn new(keys: Vec<ApiKey>) -> Result<Self, ServerError> {
        check(&keys)?;
        Ok(Self(Arc::new(RwLock::new(keys))))
    }

    /// Replaces the keys for new requests. Current answers continue.
    ///
    /// # Errors
    /// [`ServerError::Option`] for an empty key, and for an empty list after a list with keys, which would admit
    /// everybody.
    pub fn replace(&self, keys: Vec<ApiKey>) -> Result<(), ServerError> {
        check(&keys)?;
        let mut own = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if keys.is_empty() && !own.is_empty() {
            return Err(refusal(
                "none",
                "without a key everybody would be let in: keep one, or start anew",
            ));
        }
        *own = keys;
        Ok(())
    }

    /// True if requests need no key.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The name of a given key; `None` if there is no such key.
    pub(crate) fn name_of(&self, given: &[u8]) -> Option<String> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        // Every key is compared, so that the time reveals nothing.
        for key in keys.iter() {
            if bool::from(key.key.as_bytes().ct_eq(given)) {
                found = Some(&key.name);
            }
        }
        found.cloned()
    }
}

fn check(keys: &[ApiKey]) -> Result<(), ServerError> {
    match keys.iter().find(|key| key.key.trim().is_empty()) {
        Some(key) => Err(refusal(&format!("{:?}", key.key), "a key must not be empty")),
        None => Ok(()),
    }
}

fn refusal(value: &str, problem: &str) -> ServerError {
    ServerError::Option {
        option: "api_keys",
        value: value.to_owned(),
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_names_behind_them_and_comments_are_no_keys() {
        let text = "# of the house\n\nsk-a # anna's laptop\n  sk-b\nsk#c  #   \n   # sk-d\n";
        let keys = ApiKey::parse_lines(text);
        let found: Vec<(&str, &str)> = keys.iter().map(|key| (key.key.as_str(), key.name.as_str())).collect();
        assert_eq!(
            found,
            [("sk-a", "anna's laptop"), ("sk-b", "line 4"), ("sk#c", "line 5")]
        );
        assert!(!format!("{keys:?}").contains("sk-"));
    }

    #[test]
    fn a_key_fits_as_a_whole_or_not() {
        let keys = Keys::new(ApiKey::parse_lines("first # one\nsecond # two")).unwrap();
        assert_eq!(keys.name_of(b"second").as_deref(), Some("two"));
        for given in ["secon", "secondd", "", "one"] {
            assert_eq!(keys.name_of(given.as_bytes()), None, "{given}");
        }
    }

    #[test]
    fn keys_are_replaced_and_never_by_none() {
        let keys = Keys::new(vec!["first".into()]).unwrap();
        let same = keys.clone();
        keys.replace(vec!["second".into()]).unwrap();
        assert!(same.name_of(b"first").is_none() && same.name_of(b"second").is_some());
        assert!(keys.replace(Vec::new()).is_err() && keys.replace(vec![" ".into()]).is_err());
        assert!(same.name_of(b"second").is_some());
    }
}
