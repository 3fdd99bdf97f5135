//! Lists the files of a folder according to its ignore rules.

use std::path::{Path, PathBuf};

use ignore::WalkBuilder;

use crate::{DocumentError, Limits};

/// Lists the regular files of a folder by name, and separately the folders that are too deep. Hidden files are
/// skipped, and files that `.gitignore`, `.ignore` or git's own excludes name. Links are not followed.
pub(crate) fn files(name: &str, folder: &Path, limits: &Limits) -> Result<(Vec<PathBuf>, Vec<String>), DocumentError> {
    let walk = WalkBuilder::new(folder)
        .follow_links(false)
        .require_git(false)
        .max_depth(Some(limits.depth))
        .sort_by_file_name(|a, b| a.cmp(b))
        .build();
    let (mut files, mut too_deep) = (Vec::new(), Vec::new());
    for entry in walk {
        let entry = match entry {
            Ok(entry) => entry,
            // An unreadable subfolder does not affect the others.
            Err(_) if !files.is_empty() => continue,
            Err(error) => {
                return Err(DocumentError::Unreadable {
                    name: name.to_owned(),
                    reason: error.to_string(),
                });
            }
        };
        let kind = entry.file_type();
        if entry.depth() == limits.depth && kind.is_some_and(|kind| kind.is_dir()) && too_deep.len() < limits.files {
            let (path, depth) = (entry.path().display(), limits.depth);
            too_deep.push(format!(
                "{path}: more than {depth} folders within one another; name it to read its files"
            ));
        }
        if !kind.is_some_and(|kind| kind.is_file()) {
            continue;
        }
        if files.len() == limits.files {
            return Err(DocumentError::TooManyFiles {
                name: name.to_owned(),
                limit: limits.files,
            });
        }
        files.push(entry.into_path());
    }
    Ok((files, too_deep))
}
