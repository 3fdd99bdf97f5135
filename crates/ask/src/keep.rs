//! The folder for pages of documents, shared by all conversations of a user.

pub use riffle_engine::{KeepOptions, document_cache_folder as default_cache_folder};
use riffle_kv::KvError;

use crate::AskError;

impl From<KvError> for AskError {
    fn from(error: KvError) -> Self {
        Self::Keep(error)
    }
}
