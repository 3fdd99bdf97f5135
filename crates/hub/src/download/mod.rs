//! Pulling models from the hub.

mod address;
mod client;
mod exchange;
mod listing;
mod look;
mod pace;
mod sum;
mod transfer;
mod watch;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::cache::Repository;
use crate::choice::{self, Chosen};
use crate::progress::Progress;
use crate::stored::{find, shards_of_index};
use crate::{HubError, ModelName, Settings};

use client::Client;
use listing::Listing;
pub use look::Beginning;
use look::Look;
use transfer::Transfer;
use watch::Watch;

/// A model that was pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// Path to open: a GGUF file or a folder.
    pub path: PathBuf,
    /// Its quantisation as its name tells it; `None` for a folder of safetensors.
    pub quantisation: Option<String>,
    /// Other quantisations of the repository.
    pub others: Vec<String>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Bytes that came over the network.
    pub bytes_downloaded: u64,
}

/// Is told how far a pull has come, at least every tenth of a second; a `Break` interrupts it.
pub(crate) type OnProgress<'a> = dyn FnMut(&Progress) -> ControlFlow<()> + 'a;

/// Downloads a model into the cache. Files that are there stay as they are, and files that are there in part are continued.
/// Every file's sum is compared with the one that the hub states before it gets its name.
///
/// # Errors
/// Every variant of [`HubError`] but [`HubError::NotStored`], [`HubError::Incomplete`] and [`HubError::InUse`].
pub fn pull(
    settings: &Settings,
    name: &ModelName,
    on_progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Pulled, HubError> {
    pull_after_look(settings, name, &mut |_| Ok(()), on_progress)
}

/// As [`pull`]; shows the model's [`Beginning`] to `on_beginning` before its bulk comes. A GGUF file that is small or there already is
/// not shown.
///
/// # Errors
/// As [`pull`]; [`HubError::NotWanted`] with the reason that `on_beginning` gives. The bytes that came by then are kept.
pub fn pull_after_look(
    settings: &Settings,
    name: &ModelName,
    on_beginning: &mut dyn FnMut(&Beginning<'_>) -> Result<(), String>,
    on_progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Pulled, HubError> {
    if settings.offline {
        return Err(HubError::Offline { name: name.to_string() });
    }
    let client = Client::new(settings, name)?;
    let look = Look::new(name.repository(), settings.head_bytes, on_beginning);
    pull_with(&client, settings, name, look, on_progress).map_err(|error| client.told(error))
}

fn pull_with(
    client: &Client,
    settings: &Settings,
    name: &ModelName,
    look: Look<'_>,
    on_progress: &mut OnProgress<'_>,
) -> Result<Pulled, HubError> {
    let mut progress = Progress::new();
    let listing = Listing::ask(client, name, &mut progress, on_progress)?;
    let chosen = choice::choose(name, &listing.paths())?;
    let repository = Repository::new(&settings.cache, name);
    repository.create()?;
    let mut transfer = Transfer::new(
        client,
        &repository,
        &listing.commit,
        look,
        Watch::new(progress, on_progress),
    );
    let files = match &chosen {
        Chosen::Gguf(model) => {
            if model.missing > 0 {
                return Err(HubError::NoModel {
                    repository: name.repository(),
                    problem: format!("{} of the files of {} are missing there", model.missing, model.first()),
                });
            }
            listing.files(name, &model.files)?
        }
        Chosen::Folder { files, index } => {
            let settings = listing.files(name, &[choice::CONFIG.to_owned()])?;
            transfer.fetch_all(&settings)?;
            transfer.show_settings(choice::CONFIG)?;
            let mut wanted: Vec<String> = files.clone();
            if let Some(index) = index {
                let index = listing.files(name, std::slice::from_ref(index))?;
                transfer.fetch_all(&index)?;
                wanted.extend(shards(
                    name,
                    &repository.snapshot(&listing.commit).join(&index[0].path),
                )?);
            }
            listing.files(name, &wanted)?
        }
    };
    transfer.fetch_all(&files)?;
    let bytes_downloaded = transfer.bytes_downloaded();
    repository.set_main(&listing.commit)?;
    let quantisation = match &chosen {
        Chosen::Gguf(model) => model.quantisation.clone(),
        Chosen::Folder { .. } => None,
    };
    Ok(Pulled {
        path: find(&settings.cache, name)?,
        others: others(&listing, quantisation.as_deref()),
        quantisation,
        bytes: files.iter().map(|file| file.bytes).sum(),
        bytes_downloaded,
    })
}

/// Bytes of an index of safetensors at most.
const LARGEST_INDEX: u64 = 16 << 20;

/// The files that the index at `path` names.
fn shards(name: &ModelName, path: &Path) -> Result<BTreeSet<String>, HubError> {
    let text = riffle_files::read(path, LARGEST_INDEX).map_err(HubError::file(path))?;
    shards_of_index(&text).ok_or_else(|| HubError::NoModel {
        repository: name.repository(),
        problem: format!("{} does not list safetensors files beside it", choice::INDEX),
    })
}

fn others(listing: &Listing, taken: Option<&str>) -> Vec<String> {
    let models = choice::gguf_models(listing.paths());
    let named: BTreeSet<String> = models.into_iter().filter_map(|model| model.quantisation).collect();
    named
        .into_iter()
        .filter(|other| Some(other.as_str()) != taken)
        .collect()
}
