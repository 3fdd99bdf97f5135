//! The duty of a store beyond this process: to keep bytes under names.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// A store of bytes under names that several processes or machines reach, such as a bucket or a key-value server.
///
/// Names are lowercase hexadecimal digits, `.` and `-`. Every operation ends by `until`, at the latest a moment after it; threads call
/// operations at the same time. Nothing that a store returns is trusted: its bytes are checked before they are used.
pub trait BlockStore: Debug + Send + Sync {
    /// The store's address for messages, without passwords.
    fn address(&self) -> &str;

    /// Names that [`contains`](Self::contains) asks for in about the time of one.
    fn names_per_question(&self) -> usize;

    /// For each of these names, true if there are bytes under it.
    ///
    /// # Errors
    /// [`StoreError`].
    fn contains(&self, names: &[String], until: Instant) -> Result<Vec<bool>, StoreError>;

    /// The bytes under a name; `None` where there are none. Before memory is taken for them, more than `most_bytes` are refused.
    ///
    /// # Errors
    /// [`StoreError`].
    fn get(&self, name: &str, most_bytes: usize, until: Instant) -> Result<Option<Vec<u8>>, StoreError>;

    /// Keeps bytes under a name, in place of what was there.
    ///
    /// # Errors
    /// [`StoreError`].
    fn put(&self, name: &str, bytes: Vec<u8>, until: Instant) -> Result<(), StoreError>;

    /// Tells everything the store keeps, in any order.
    ///
    /// # Errors
    /// [`StoreError`].
    fn list(&self, until: Instant, each: &mut dyn FnMut(StoredItem)) -> Result<(), StoreError>;

    /// Removes what is kept under these names; names without bytes are fine.
    ///
    /// # Errors
    /// [`StoreError`].
    fn remove(&self, names: &[String], until: Instant) -> Result<(), StoreError>;
}

/// One entry of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredItem {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Time since it was written or, where the store knows, last read.
    pub age: Duration,
}

/// Why a store did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It took too long.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// It cannot be reached, or the connection broke.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It refused: a wrong password, no room, no permission.
    #[error("it refused: {0}")]
    Refused(String),
    /// It answered something that it should not.
    #[error("it gave a wrong answer: {0}")]
    Wrong(String),
}
