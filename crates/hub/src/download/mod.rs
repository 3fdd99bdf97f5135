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
use crate::choice::{self, Chosen, Gguf};
use crate::offer::Offer;
use crate::progress::Progress;
use crate::stored::{find, shards_of_index};
use crate::{HubError, ModelName, ModelPart, Settings};

use client::Client;
use listing::Listing;
pub use look::Beginning;
use look::Look;
use transfer::Transfer;
use watch::Watch;

/// A pulled model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// Path to open: a GGUF file or a folder.
    pub path: PathBuf,
    /// Quantisation in the model's name; `None` for a folder of safetensors.
    pub quantisation: Option<String>,
    /// Other quantisations of the repository.
    pub others: Vec<String>,
    /// Bytes of the model's files.
    pub bytes: u64,
    /// Bytes received over the network.
    pub bytes_downloaded: u64,
}

/// Decisions of a caller while a model is pulled.
pub struct PullSteps<'a> {
    /// Chooses among the GGUF models of a repository, by index, if the name does not. It is not called for a single
    /// model, or if two have the same quantisation. `None` chooses by [`PREFERENCE`](crate::PREFERENCE).
    pub choose: &'a mut dyn FnMut(&[Offer]) -> Option<usize>,
    /// Receives the model's [`Beginning`] before its weights. An error is the reason not to download the rest. A GGUF
    /// file that is already complete is not shown.
    pub look: &'a mut dyn FnMut(&Beginning<'_>) -> Result<(), String>,
    /// Receives the progress at least every tenth of a second; a `Break` interrupts the pull.
    pub progress: &'a mut dyn FnMut(&Progress) -> ControlFlow<()>,
}

/// Receives the progress at least every tenth of a second; a `Break` interrupts the pull.
pub(crate) type OnProgress<'a> = dyn FnMut(&Progress) -> ControlFlow<()> + 'a;

/// Downloads a model into the cache. It keeps complete files and continues partial ones. A file gets its name only
/// after its checksum equals the hub's.
///
/// # Errors
/// Every variant of [`HubError`] except [`HubError::NotStored`], [`HubError::Incomplete`] and [`HubError::InUse`].
pub fn pull(
    settings: &Settings,
    name: &ModelName,
    on_progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Pulled, HubError> {
    let steps = PullSteps {
        choose: &mut |_| None,
        look: &mut |_| Ok(()),
        progress: on_progress,
    };
    pull_with(settings, name, steps)
}

/// Pulls like [`pull`], with the caller's decisions.
///
/// # Errors
/// The errors of [`pull`]; [`HubError::NotWanted`] with the reason from `look`. The downloaded bytes stay.
pub fn pull_with(settings: &Settings, name: &ModelName, steps: PullSteps<'_>) -> Result<Pulled, HubError> {
    if settings.offline {
        return Err(HubError::Offline { name: name.to_string() });
    }
    let client = Client::new(settings, name)?;
    pull_by(&client, settings, name, steps).map_err(|error| client.without_secret(error))
}

/// The files for `name`; `choose` decides if the name is ambiguous.
fn chosen_of(
    name: &ModelName,
    listing: &Listing,
    choose: &mut dyn FnMut(&[Offer]) -> Option<usize>,
) -> Result<Chosen, HubError> {
    if name.part == ModelPart::Preferred {
        let models: Vec<Gguf> = choice::gguf_models(listing.paths())
            .into_iter()
            .filter(|model| model.missing == 0)
            .collect();
        let quantisations: BTreeSet<&Option<String>> = models.iter().map(|model| &model.quantisation).collect();
        if models.len() > 1 && quantisations.len() == models.len() {
            let offers: Vec<Offer> = models.iter().map(|model| offer(model, listing)).collect();
            if let Some(model) = choose(&offers).and_then(|at| models.get(at)) {
                return Ok(Chosen::Gguf(model.clone()));
            }
        }
    }
    choice::choose(name, &listing.paths())
}

fn offer(model: &Gguf, listing: &Listing) -> Offer {
    let bytes = listing.bytes_of(|path| model.files.iter().any(|file| file == path));
    Offer::new(
        model.quantisation.clone(),
        model.first().to_owned(),
        model.files.len(),
        bytes,
    )
}

fn pull_by(client: &Client, settings: &Settings, name: &ModelName, steps: PullSteps<'_>) -> Result<Pulled, HubError> {
    let on_progress = steps.progress;
    let look = Look::new(name.repository(), settings.head_bytes, steps.look);
    let mut progress = Progress::new();
    let listing = Listing::ask(client, name, &mut progress, on_progress)?;
    let chosen = chosen_of(name, &listing, steps.choose)?;
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
            let weights = listing.bytes_of(|path| path.ends_with(".safetensors") && !path.contains('/'));
            transfer.show_settings(choice::CONFIG, weights)?;
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
    let taken = match (&name.part, &chosen) {
        (ModelPart::Preferred, Chosen::Gguf(model)) => name.with_part(ModelPart::File(model.first().to_owned())),
        _ => name.clone(),
    };
    Ok(Pulled {
        path: find(&settings.cache, &taken)?,
        others: others(&listing, quantisation.as_deref()),
        quantisation,
        bytes: files.iter().map(|file| file.bytes).sum(),
        bytes_downloaded,
    })
}

/// Maximum number of bytes of a safetensors index.
const LARGEST_INDEX: u64 = 16 << 20;

/// The files in the index at `path`.
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
