//! Keeps pages of documents on disk.

use std::env;
use std::path::{Path, PathBuf};

use riffle_kv::PrefixCache;

use crate::AskError;

/// A folder in which pages of documents are kept, found by content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepOptions {
    /// The folder; it is made if it is not there.
    pub folder: PathBuf,
    /// Bytes that its pages take at most; those used longest ago go first.
    pub budget_bytes: u64,
    /// True if a folder that cannot be used is an error; otherwise nothing is kept.
    pub is_needed: bool,
}

impl KeepOptions {
    /// Opens the folder; the second value says why nothing is kept, where that is so.
    pub(crate) fn open(&self) -> Result<(Option<PrefixCache>, Option<String>), AskError> {
        make_private(&self.folder);
        match PrefixCache::open(&self.folder, self.budget_bytes) {
            Ok(cache) => Ok((Some(cache), None)),
            Err(error) if self.is_needed => Err(AskError::Keep(error)),
            Err(error) => Ok((None, Some(error.to_string()))),
        }
    }
}

/// Makes the folder, if it is not there, for this user alone: its pages tell what the documents say. A failure here
/// shows when the cache opens the folder.
fn make_private(folder: &Path) {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let _ = builder.create(folder);
}

/// Folder of this user's cache for documents: `riffle/documents` in `$XDG_CACHE_HOME` or where the platform keeps
/// caches. `None` if there is no such place.
pub fn default_cache_folder() -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let platform = || {
        if cfg!(target_os = "windows") {
            absolute("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            absolute("HOME").map(|home| home.join("Library/Caches"))
        } else {
            absolute("HOME").map(|home| home.join(".cache"))
        }
    };
    let caches = absolute("XDG_CACHE_HOME").or_else(platform)?;
    Some(caches.join(Path::new("riffle").join("documents")))
}
