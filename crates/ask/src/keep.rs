//! The folder for pages of documents, which all conversations of a user share.

pub use riffle_engine::{KeepOptions, document_cache_folder as default_cache_folder};
use riffle_kv::KvError;

use crate::AskError;

impl From<KvError> for AskError {
    fn from(error: KvError) -> Self {
        Self::Keep(error)
    }
}
