//! Files that are there whole or not at all.

use std::fs;
use std::path::Path;

use crate::EvalError;

/// Writes a file beside its name and then renames it; folders above it are made.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), EvalError> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(|error| EvalError::file(folder, &error))?;
    }
    let partial = path.with_added_extension("partial");
    fs::write(&partial, bytes)
        .and_then(|()| fs::rename(&partial, path))
        .map_err(|error| {
            // The partial file is of no use; that it may not be there is no second error.
            let _ = fs::remove_file(&partial);
            EvalError::file(path, &error)
        })
}
