//! The interface of a store outside this process: it keeps bytes under names.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// A store of named bytes that several processes or machines can reach, such as a bucket or a key-value server.
///
/// Names are lowercase hexadecimal digits, `.` and `-`. Every operation ends by `until` or shortly after it; threads
/// call operations concurrently. Returned bytes are checked before use.
pub trait BlockStore: Debug + Send + Sync {
    /// The store's address for messages, without passwords.
    fn address(&self) -> &str;

    /// Number of names that [`contains`](Self::contains) checks in about the time of one.
    fn names_per_question(&self) -> usize;

    /// For each of these names, true if the store has it.
    ///
    /// # Errors
    /// [`StoreError`].
    fn contains(&self, names: &[String], until: Instant) -> Result<Vec<bool>, StoreError>;

    /// The bytes of a name; `None` if the store does not have it. More than `most_bytes` are refused before
    /// allocation.
    ///
    /// # Errors
    /// [`StoreError`].
    fn get(&self, name: &str, most_bytes: usize, until: Instant) -> Result<Option<Vec<u8>>, StoreError>;

    /// Stores bytes under a name, replacing earlier ones.
    ///
    /// # Errors
    /// [`StoreError`].
    fn put(&self, name: &str, bytes: Vec<u8>, until: Instant) -> Result<(), StoreError>;

    /// Lists everything in the store, in any order.
    ///
    /// # Errors
    /// [`StoreError`].
    fn list(&self, until: Instant, each: &mut dyn FnMut(StoredItem)) -> Result<(), StoreError>;

    /// Removes these names; missing names are ignored.
    ///
    /// # Errors
    /// [`StoreError`].
    fn remove(&self, names: &[String], until: Instant) -> Result<(), StoreError>;
}

/// One entry of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredItem {
    /// Name of the entry.
    pub name: String,
    /// Bytes of the entry.
    pub bytes: u64,
    /// Time since the entry was written or, if the store knows, last read.
    pub age: Duration,
}

/// The reason a store operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The operation took too long.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The store cannot be reached, or the connection broke.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// The store refused: a wrong password, no room, no permission.
    #[error("it refused: {0}")]
    Refused(String),
    /// The store gave an unexpected answer.
    #[error("it gave a wrong answer: {0}")]
    Wrong(String),
}
