//! Contents of a cache: finds models by name, and lists all.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use riffle_system::files::set_read_time;
use serde_json::Value;

use crate::cache::{Repository, entries};
use crate::choice::{self, CONFIG, Chosen, Gguf, INDEX, SINGLE};
use crate::paths::is_plain_path;
use crate::{HubError, ModelName, ModelPart};

/// A model in the cache.
#[derive(Debug, Clone)]
pub struct StoredModel {
    /// The model's full name.
    pub name: ModelName,
    /// Quantisation in the model's name, or `safetensors` for a folder; `None` if unknown.
    pub format: Option<String>,
    /// Bytes of the model's existing files.
    pub bytes: u64,
    /// Names of the missing files; `None` for a complete model.
    pub missing: Option<String>,
    /// Time of the last read of one of its files, if the file system reports it.
    pub used: Option<SystemTime>,
    /// Path to open: a GGUF file or a folder.
    pub path: PathBuf,
}

/// A file of a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct StoredFile {
    /// Path in the repository.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) used: Option<SystemTime>,
}

/// Limits on the depth of a snapshot's folders, and on its files.
const DEEPEST: usize = 16;
const MOST_FILES: usize = 100_000;
/// Limit on the bytes of an index of safetensors.
const LARGEST_INDEX: u64 = 16 << 20;

/// The path of a model in the cache: a GGUF file, or a folder of safetensors.
///
/// # Errors
/// [`HubError::NotStored`], [`HubError::Incomplete`]; [`HubError::Several`] for a name of more than one file;
/// [`HubError::File`].
pub fn find(cache: &Path, name: &ModelName) -> Result<PathBuf, HubError> {
    let repository = Repository::new(cache, name);
    let mut incomplete = None;
    for commit in repository.commits()? {
        let snapshot = repository.snapshot(&commit);
        let files = files_of(&snapshot)?;
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let whole: Vec<&str> = without_incomplete(&paths);
        match choice::choose(name, &whole).or_else(|error| match error {
            HubError::Several { .. } => Err(error),
            _ => choice::choose(name, &paths),
        }) {
            Ok(chosen) => match missing(&snapshot, &chosen) {
                None => return Ok(to_open(&snapshot, &chosen)),
                Some(missing) => incomplete = incomplete.or(Some(missing)),
            },
            Err(error @ HubError::Several { .. }) => return Err(error),
            // Another commit may have the model.
            Err(_) => {}
        }
    }
    let was_interrupted = || Ok::<_, HubError>(partial_bytes(&repository)? > 0);
    if incomplete.is_none() && was_interrupted()? {
        incomplete = Some("its download was interrupted".to_owned());
    }
    Err(match incomplete {
        Some(missing) => HubError::Incomplete {
            name: name.to_string(),
            missing,
        },
        None => HubError::NotStored { name: name.to_string() },
    })
}

/// Every model in the cache, by name, without repositories that have no model for Riffle. A missing cache is empty.
///
/// # Errors
/// [`HubError::File`] for an unreadable folder.
pub fn list(cache: &Path) -> Result<Vec<StoredModel>, HubError> {
    let mut found = Vec::new();
    for entry in entries(cache)? {
        if let Some(name) = entry.file_name().to_str().and_then(ModelName::of_folder) {
            found.extend(of_repository(cache, &name)?);
        }
    }
    found.sort_by_key(|model| model.name.to_string());
    Ok(found)
}

/// Sets the read time of the model at `path`, because not every file system does. Errors are ignored.
pub fn mark_used(path: &Path) {
    // A cache without write permission stays unchanged.
    let touch = |path: &Path| _ = set_read_time(path, SystemTime::now());
    if !path.is_dir() {
        touch(path)
    } else {
        [CONFIG, SINGLE, INDEX].iter().for_each(|file| touch(&path.join(file)))
    }
}

fn of_repository(cache: &Path, name: &ModelName) -> Result<Vec<StoredModel>, HubError> {
    let repository = Repository::new(cache, name);
    let mut found: Vec<StoredModel> = Vec::new();
    for commit in repository.commits()? {
        let snapshot = repository.snapshot(&commit);
        let files = files_of(&snapshot)?;
        for model in of_snapshot(name, &snapshot, &files) {
            // An older commit's model appears only if the newer one is incomplete.
            let known = found.iter().position(|known| known.name == model.name);
            match known {
                None => found.push(model),
                Some(at) if found[at].missing.is_some() && model.missing.is_none() => found[at] = model,
                Some(_) => {}
            }
        }
    }
    let partial = partial_bytes(&repository)?;
    if partial > 0 {
        match found.iter_mut().find(|model| model.missing.is_some()) {
            Some(model) => model.bytes += partial,
            None => found.push(StoredModel {
                name: name.clone(),
                format: None,
                bytes: partial,
                missing: Some("its download was interrupted".to_owned()),
                used: None,
                path: repository.folder(),
            }),
        }
    }
    Ok(found)
}

/// The models of a snapshot: each GGUF file, and the folder.
fn of_snapshot(name: &ModelName, snapshot: &Path, files: &[StoredFile]) -> Vec<StoredModel> {
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let models = choice::gguf_models(paths.iter().copied());
    let is_alone = |model: &Gguf| {
        let same = models.iter().filter(|other| other.quantisation == model.quantisation);
        same.count() == 1
    };
    let ggufs = models.iter().map(|model| {
        let part = match &model.quantisation {
            Some(quantisation) if is_alone(model) => ModelPart::Quantisation(quantisation.clone()),
            _ => ModelPart::File(model.first().to_owned()),
        };
        (
            name.with_part(part),
            model.quantisation.clone(),
            Chosen::Gguf(model.clone()),
        )
    });
    let folder_files = paths.iter().copied().filter(|path| !path.ends_with(".gguf"));
    let folder = choice::choose(name, &folder_files.collect::<Vec<_>>());
    let folder = folder.map(|chosen| (name.clone(), Some("safetensors".to_owned()), chosen));
    let described = |(name, format, chosen): (ModelName, Option<String>, Chosen)| {
        let wanted = wanted_files(snapshot, &chosen);
        let there = files.iter().filter(|file| wanted.contains(&file.path));
        StoredModel {
            name,
            format,
            bytes: there.clone().map(|file| file.bytes).sum(),
            missing: missing(snapshot, &chosen),
            used: there.filter_map(|file| file.used).max(),
            path: to_open(snapshot, &chosen),
        }
    };
    ggufs.chain(folder.ok()).map(described).collect()
}

/// The existing files of a snapshot.
pub(crate) fn files_of(snapshot: &Path) -> Result<Vec<StoredFile>, HubError> {
    let mut found = Vec::new();
    let mut folders = vec![(snapshot.to_owned(), String::new(), 0)];
    while let Some((folder, prefix, depth)) = folders.pop() {
        for entry in entries(&folder)? {
            let path = entry.path();
            let Some(below) = entry.file_name().to_str().map(|name| format!("{prefix}{name}")) else {
                continue;
            };
            let kind = entry.file_type().map_err(HubError::io(&path))?;
            if kind.is_dir() {
                if depth < DEEPEST {
                    folders.push((path, format!("{below}/"), depth + 1));
                }
                continue;
            }
            // A link to a missing blob does not count.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if metadata.is_file() && is_plain_path(&below) && found.len() < MOST_FILES {
                found.push(StoredFile {
                    path: below,
                    bytes: metadata.len(),
                    used: metadata.accessed().ok(),
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The paths without GGUF models that lack shards.
fn without_incomplete<'a>(paths: &[&'a str]) -> Vec<&'a str> {
    let models = choice::gguf_models(paths.iter().copied());
    let left_out: BTreeSet<String> = models
        .into_iter()
        .filter(|model| model.missing > 0)
        .flat_map(|model| model.files)
        .collect();
    paths.iter().copied().filter(|path| !left_out.contains(*path)).collect()
}

fn to_open(snapshot: &Path, chosen: &Chosen) -> PathBuf {
    match chosen {
        Chosen::Gguf(model) => snapshot.join(model.first()),
        Chosen::Folder { .. } => snapshot.to_owned(),
    }
}

/// The paths of a model's files, including the shards in its index.
fn wanted_files(snapshot: &Path, chosen: &Chosen) -> BTreeSet<String> {
    match chosen {
        Chosen::Gguf(model) => model.files.iter().cloned().collect(),
        Chosen::Folder { files, index } => {
            let shards = index.as_ref().and_then(|index| {
                let text = riffle_files::read(snapshot.join(index), LARGEST_INDEX).ok()?;
                shards_of_index(&text)
            });
            files.iter().cloned().chain(shards.unwrap_or_default()).collect()
        }
    }
}

fn missing(snapshot: &Path, chosen: &Chosen) -> Option<String> {
    let of = |missing: usize, all: usize| (missing > 0).then(|| format!("{missing} of its {all} files are missing"));
    match chosen {
        Chosen::Gguf(model) => of(model.missing as usize, model.files.len() + model.missing as usize),
        Chosen::Folder { .. } => {
            let wanted = wanted_files(snapshot, chosen);
            let absent = wanted.iter().filter(|file| !snapshot.join(file).is_file());
            of(absent.count(), wanted.len())
        }
    }
}

/// The files in an index of safetensors; `None` for an invalid index, or one with files in other folders.
pub(crate) fn shards_of_index(text: &[u8]) -> Option<BTreeSet<String>> {
    let index: Value = serde_json::from_slice(text).ok()?;
    let named = index.get("weight_map")?.as_object()?.values();
    named
        .map(|file| {
            let file = file.as_str()?;
            let is_plain = is_plain_path(file) && !file.contains('/') && file.ends_with(".safetensors");
            is_plain.then(|| file.to_owned())
        })
        .collect()
}

/// Bytes of unfinished downloads.
fn partial_bytes(repository: &Repository) -> Result<u64, HubError> {
    let mut bytes = 0;
    for entry in entries(&repository.blobs())? {
        if entry.file_name().to_string_lossy().ends_with(".incomplete") {
            bytes += entry.metadata().map_or(0, |metadata| metadata.len());
        }
    }
    Ok(bytes)
}
