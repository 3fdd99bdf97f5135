//! Models of LM Studio: `models/publisher/repository/file.gguf`, and folders of safetensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::repository::{chosen, of_files};
use super::{Found, OtherModel, Program, files_below};
use crate::{HubError, ModelName};

/// Limit on the bytes of the settings, and of the file with the path of LM Studio's home.
const LARGEST_SETTINGS: u64 = 1 << 20;
const LARGEST_POINTER: u64 = 4096;

/// The model folders of an LM Studio user with this home.
pub(super) fn folders(home: &Path) -> Vec<PathBuf> {
    let pointed = riffle_files::read_text(home.join(".lmstudio-home-pointer"), LARGEST_POINTER).ok();
    let pointed = pointed
        .map(|text| PathBuf::from(text.trim()))
        .filter(|path| path.is_absolute());
    let homes = pointed
        .into_iter()
        .chain([home.join(".lmstudio"), home.join(".cache/lm-studio")]);
    let mut folders = Vec::new();
    for studio in homes {
        for folder in downloads_folder(&studio).into_iter().chain([studio.join("models")]) {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    folders
}

/// The download folder in the settings.
fn downloads_folder(studio: &Path) -> Option<PathBuf> {
    let text = riffle_files::read(studio.join("settings.json"), LARGEST_SETTINGS).ok()?;
    let settings: Value = serde_json::from_slice(&text).ok()?;
    let folder = PathBuf::from(settings.get("downloadsFolder")?.as_str()?);
    folder.is_absolute().then_some(folder)
}

/// The models below `folder`.
pub(super) fn list(folder: &Path) -> Vec<OtherModel> {
    let mut repositories: BTreeMap<String, Vec<Found>> = BTreeMap::new();
    for mut file in files_below(folder) {
        let mut parts = file.path.splitn(3, '/');
        let (Some(publisher), Some(repository), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let name = format!("{publisher}/{repository}");
        file.path = rest.to_owned();
        repositories.entry(name).or_default().push(file);
    }
    let models = repositories.into_iter().filter_map(|(name, files)| {
        let name: ModelName = name.parse().ok()?;
        Some(of_files(Program::LmStudio, &name, &files, &|path| {
            folder.join(name.repository()).join(path)
        }))
    });
    models.flatten().collect()
}

/// The model with this name.
pub(super) fn find(folder: &Path, name: &ModelName) -> Result<Option<OtherModel>, HubError> {
    let place = folder.join(name.repository());
    let files = files_below(&place);
    chosen(Program::LmStudio, name, &files, &|path| place.join(path))
}
