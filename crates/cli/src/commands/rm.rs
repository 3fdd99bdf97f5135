//! `riffle rm`: a model leaves the hub's cache.

use riffle_engine::human_bytes;
use riffle_hub::{HubError, ModelName, Settings};

use super::print;
use crate::failure::Failure;
use crate::hub_args::RmArguments;

pub(crate) fn rm(arguments: &RmArguments) -> Result<(), Failure> {
    let name: ModelName = arguments.name.parse()?;
    let settings = Settings::from_environment()?;
    let removed = riffle_hub::remove(&settings.cache, &name).map_err(|error| match error {
        HubError::NotStored { name } => Failure::new(format!(
            "{name} is not in the cache of models: there is nothing to remove; riffle list shows what is there"
        )),
        error => error.into(),
    })?;
    let files = if removed.files == 1 { "file" } else { "files" };
    print(&format!(
        "removed {name}: {} {files}, {} are free again\n",
        removed.files,
        human_bytes(removed.bytes)
    ))
}
