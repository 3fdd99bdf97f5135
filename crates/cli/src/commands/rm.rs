//! `riffle rm`: removes a model from the hub's cache.

use riffle_engine::human_bytes;
use riffle_hub::{HubError, ModelName, OtherPrograms, Settings};

use super::print;
use crate::failure::Failure;
use crate::hub_args::RmArguments;

pub(crate) fn rm(arguments: &RmArguments) -> Result<(), Failure> {
    let settings = Settings::from_environment()?;
    let name = match (arguments.name.parse::<ModelName>(), riffle_hub::tried(&arguments.name)) {
        (Ok(name), _) => name,
        (Err(_), Some(model)) if is_stored(&settings, model.repository) => model.repository.parse()?,
        (Err(error), _) => return Err(of_another(&arguments.name).unwrap_or_else(|| error.into())),
    };
    let removed = riffle_hub::remove(&settings.cache, &name).map_err(|error| match error {
        HubError::NotStored { name } => of_another(&name).unwrap_or_else(|| {
            Failure::new(format!(
                "{name} is not in the cache of models: there is nothing to remove; riffle list shows what is there"
            ))
        }),
        error => error.into(),
    })?;
    let files = if removed.files == 1 { "file" } else { "files" };
    print(&format!(
        "removed {name}: {} {files}, {} are free again\n",
        removed.files,
        human_bytes(removed.bytes)
    ))
}

/// True if the cache has any file of the repository.
fn is_stored(settings: &Settings, repository: &str) -> bool {
    let name = repository.parse::<ModelName>();
    name.is_ok_and(|name| settings.cache.join(name.folder_name()).exists())
}

/// The refusal for a model of another program.
fn of_another(name: &str) -> Option<Failure> {
    let model = OtherPrograms::from_environment().find(name).ok()??;
    Some(Failure::new(format!(
        "{} is a model of {}, and riffle removes only what lies in the hub's cache: remove it there",
        model.name, model.program
    )))
}
