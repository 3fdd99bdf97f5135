//! Models in llama.cpp's old cache, before it used the hub's: `owner_repository_file.gguf`, with a file
//! `manifest=owner=repository=tag.json` for each repository.

use std::collections::BTreeSet;
use std::path::Path;

use super::repository::{chosen, of_files};
use super::{Found, OtherModel, Program, files_below};
use crate::{HubError, ModelName};

/// The models in `folder`. Files without a manifest are skipped; they open by path.
pub(super) fn list(folder: &Path) -> Vec<OtherModel> {
    let files = files_below(folder);
    let names: BTreeSet<String> = files.iter().filter_map(|file| repository(&file.path)).collect();
    let models = names.into_iter().filter_map(|name| {
        let name: ModelName = name.parse().ok()?;
        let prefix = prefix(&name);
        let place = |path: &str| folder.join(format!("{prefix}{path}"));
        Some(of_files(
            Program::LlamaCpp,
            &name,
            &of_repository(&files, &name),
            &place,
        ))
    });
    models.flatten().collect()
}

/// The model of this name.
pub(super) fn find(folder: &Path, name: &ModelName) -> Result<Option<OtherModel>, HubError> {
    let prefix = prefix(name);
    let files = of_repository(&files_below(folder), name);
    chosen(Program::LlamaCpp, name, &files, &|path| {
        folder.join(format!("{prefix}{path}"))
    })
}

fn prefix(name: &ModelName) -> String {
    format!("{}_", name.repository().replace('/', "_"))
}

/// `owner/repository` of a manifest, by the manifest's name.
fn repository(file: &str) -> Option<String> {
    let mut parts = file.strip_prefix("manifest=")?.split('=');
    Some(format!("{}/{}", parts.next()?, parts.next()?))
}

/// The files of one repository, by their paths in it.
fn of_repository(files: &[Found], name: &ModelName) -> Vec<Found> {
    let prefix = prefix(name);
    let of = files.iter().filter_map(|file| {
        let path = file.path.strip_prefix(&prefix)?.to_owned();
        path.ends_with(".gguf").then(|| Found { path, ..file.clone() })
    });
    of.collect()
}
