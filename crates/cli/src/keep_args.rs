//! Options for the folder of kept pages, for every command that reads documents.

use std::path::PathBuf;

use clap::Args;
use riffle_engine::{DEFAULT_PREFIX_CACHE_BYTES, KeepOptions};

use crate::commands::check_folder;
use crate::failure::Failure;
use crate::numbers;

/// Options of every command that keeps pages of documents.
#[derive(Debug, Clone, Args)]
pub(crate) struct KeepArguments {
    /// Keep the pages of documents in this folder
    ///
    /// Later questions about the same documents are then answered at once [default: riffle/documents in the user's
    /// cache folder]
    #[arg(
        long,
        value_name = "DIR",
        help_heading = "Sessions and caches",
        hide_short_help = true
    )]
    pub(crate) keep: Option<PathBuf>,
    /// Keep no pages of documents on disk
    #[arg(long, conflicts_with_all = ["keep", "keep_budget"], help_heading = "Sessions and caches")]
    pub(crate) no_keep: bool,
    /// Maximum bytes of --keep; the least recently used go first [default: 8G]
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, help_heading = "Sessions and caches", hide_short_help = true)]
    pub(crate) keep_budget: Option<u64>,
}

impl KeepArguments {
    /// The given folder, or else the common folder of all commands.
    pub(crate) fn options(&self) -> Result<Option<KeepOptions>, Failure> {
        if self.no_keep {
            return Ok(None);
        }
        check_folder("--keep", self.keep.as_deref())?;
        let budget_bytes = self.keep_budget.unwrap_or(DEFAULT_PREFIX_CACHE_BYTES);
        Ok(match &self.keep {
            Some(folder) => Some(KeepOptions {
                folder: folder.clone(),
                budget_bytes,
                is_needed: true,
            }),
            None => KeepOptions::of_user().map(|keep| KeepOptions { budget_bytes, ..keep }),
        })
    }
}
