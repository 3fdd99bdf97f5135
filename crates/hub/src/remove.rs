//! Removing models from a cache.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::cache::{Lock, Repository, entries};
use crate::choice::gguf_models;
use crate::shared_blobs;
use crate::stored::files_of;
use crate::{HubError, ModelName, ModelPart};

/// Result of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// Freed bytes of the disk.
    pub bytes: u64,
    /// Removed files.
    pub files: usize,
}

/// Removes a model from the cache: for `owner/name` the whole repository, for `owner/name:Q4_K_M` or
/// `owner/name/file.gguf` that model. Bytes of other snapshots stay.
///
/// # Errors
/// [`HubError::NotStored`], [`HubError::InUse`], [`HubError::File`].
pub fn remove(cache: &Path, name: &ModelName) -> Result<Removed, HubError> {
    let repository = Repository::new(cache, name);
    let not_stored = || HubError::NotStored { name: name.to_string() };
    if fs::symlink_metadata(repository.folder()).is_err() {
        return Err(not_stored());
    }
    let locks = locks(&repository, name)?;
    let links = links(&repository)?;
    let unwanted: Vec<&Link> = match &name.part {
        ModelPart::Preferred => links.iter().collect(),
        part => {
            let unwanted = links.iter().filter(|link| link.model_is(part)).collect::<Vec<_>>();
            if unwanted.is_empty() {
                return Err(not_stored());
            }
            unwanted
        }
    };
    if unwanted.len() == links.len() {
        return remove_all(cache, &repository, locks);
    }
    let kept = links.iter().filter(|link| !unwanted.contains(link));
    let kept: BTreeSet<&PathBuf> = kept.map(|link| &link.blob).collect();
    let blobs: BTreeSet<&PathBuf> = unwanted.iter().map(|link| &link.blob).collect();
    for link in unwanted.iter().filter(|link| link.path != link.blob) {
        fs::remove_file(&link.path).map_err(HubError::io(&link.path))?;
    }
    let mut removed = Removed { bytes: 0, files: 0 };
    for blob in blobs.into_iter().filter(|blob| !kept.contains(blob)) {
        remove_blob(cache, blob, &mut removed)?;
    }
    for link in &unwanted {
        remove_empty_folders(&link.path, &repository.snapshots());
    }
    Ok(removed)
}

/// A file of a snapshot: a link to a blob, or the bytes themselves on a file system without links.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    path: PathBuf,
    /// The link's target, or the path itself.
    blob: PathBuf,
    /// The path in the repository; for a GGUF model also the paths of its shards and its quantisation.
    file: String,
    shards: Vec<String>,
    quantisation: Option<String>,
}

impl Link {
    fn model_is(&self, part: &ModelPart) -> bool {
        match part {
            ModelPart::Preferred => true,
            ModelPart::Quantisation(wanted) => self.quantisation.as_ref() == Some(wanted),
            ModelPart::File(wanted) => self.file == *wanted || self.shards.contains(wanted),
        }
    }
}

fn links(repository: &Repository) -> Result<Vec<Link>, HubError> {
    let mut links = Vec::new();
    for commit in repository.commits()? {
        let snapshot = repository.snapshot(&commit);
        let files = files_of(&snapshot)?;
        let models = gguf_models(files.iter().map(|file| file.path.as_str()));
        for file in files {
            let path = snapshot.join(&file.path);
            let blob = match fs::read_link(&path) {
                // All blobs are in one folder.
                Ok(target) => target
                    .file_name()
                    .map_or(path.clone(), |sum| repository.blobs().join(sum)),
                Err(_) => path.clone(),
            };
            let model = models.iter().find(|model| model.files.contains(&file.path));
            links.push(Link {
                path,
                blob,
                shards: model.map(|model| model.files.clone()).unwrap_or_default(),
                quantisation: model.and_then(|model| model.quantisation.clone()),
                file: file.path,
            });
        }
    }
    Ok(links)
}

/// Takes every lock of the repository, so that no download writes at the same time.
fn locks(repository: &Repository, name: &ModelName) -> Result<Vec<Lock>, HubError> {
    let mut held = Vec::new();
    for entry in entries(&repository.locks())? {
        match Lock::take(&entry.path())? {
            Some(lock) => held.push(lock),
            None => {
                return Err(HubError::InUse {
                    repository: name.repository(),
                });
            }
        }
    }
    Ok(held)
}

fn remove_all(cache: &Path, repository: &Repository, held: Vec<Lock>) -> Result<Removed, HubError> {
    let mut removed = Removed { bytes: 0, files: 0 };
    for entry in entries(&repository.blobs())? {
        remove_blob(cache, &entry.path(), &mut removed)?;
    }
    // Snapshots without links contain the bytes themselves.
    for commit in repository.commits()? {
        let snapshot = repository.snapshot(&commit);
        for file in files_of(&snapshot)? {
            removed.bytes += file.bytes;
            removed.files += 1;
        }
    }
    let folder = repository.folder();
    fs::remove_dir_all(&folder).map_err(HubError::io(folder))?;
    let locks = repository.locks();
    match fs::remove_dir_all(&locks) {
        // Some file systems of Windows keep a removed file in its folder until it is closed. A new download's locks
        // stay.
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            drop(held);
            let _ = fs::remove_dir(&locks);
            Ok(removed)
        }
        Err(error) if error.kind() != ErrorKind::NotFound => Err(HubError::io(locks)(error)),
        _ => Ok(removed),
    }
}

fn remove_blob(cache: &Path, blob: &Path, removed: &mut Removed) -> Result<(), HubError> {
    let Ok(metadata) = fs::symlink_metadata(blob) else {
        return Ok(());
    };
    let target = fs::read_link(blob).ok();
    fs::remove_file(blob).map_err(HubError::io(blob))?;
    match target {
        None => removed.bytes += metadata.len(),
        Some(target) => removed.bytes += shared_blobs::release(cache, blob, &target)?,
    }
    removed.files += 1;
    Ok(())
}

/// Removes the empty folders above a file, up to `top`.
fn remove_empty_folders(file: &Path, top: &Path) {
    let above = file.ancestors().skip(1).take_while(|folder| *folder != top);
    for folder in above {
        // A folder that is not empty stays.
        if fs::remove_dir(folder).is_err() {
            return;
        }
    }
}
