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

/// Decisions of a caller while a model is pulled.
pub struct PullSteps<'a> {
    /// Chooses among the GGUF models of a repository, by index, where the name chooses none. It is not asked where there is only one, or
    /// where two have the same quantisation. `None` leaves the choice to [`PREFERENCE`](crate::PREFERENCE).
    pub choose: &'a mut dyn FnMut(&[Offer]) -> Option<usize>,
    /// Is shown the model's [`Beginning`] before its bulk comes. An error is the reason not to download the rest. A GGUF file that is
    /// there already is not shown.
    pub look: &'a mut dyn FnMut(&Beginning<'_>) -> Result<(), String>,
    /// Is told how far the pull has come, at least every tenth of a second; a `Break` interrupts it.
    pub progress: &'a mut dyn FnMut(&Progress) -> ControlFlow<()>,
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
    let steps = PullSteps {
        choose: &mut |_| None,
        look: &mut |_| Ok(()),
        progress: on_progress,
    };
    pull_with(settings, name, steps)
}

/// As [`pull`], with decisions of the caller.
///
/// # Errors
/// As [`pull`]; [`HubError::NotWanted`] with the reason that `look` gives. The bytes that came by then are kept.
pub fn pull_with(settings: &Settings, name: &ModelName, steps: PullSteps<'_>) -> Result<Pulled, HubError> {
    if settings.offline {
        return Err(HubError::Offline { name: name.to_string() });
    }
    let client = Client::new(settings, name)?;
    pull_by(&client, settings, name, steps).map_err(|error| client.told(error))
}

/// The files that `name` means; `choose` decides where the name leaves it open.
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
