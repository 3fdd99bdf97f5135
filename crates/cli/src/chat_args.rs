//! Arguments of `riffle chat`.

use std::path::PathBuf;

use clap::Args;
use riffle_ask::Given;

use crate::args::{EngineArguments, GenerateArguments, ModelArguments};
use crate::keep_args::KeepArguments;

#[derive(Debug, Args)]
pub(crate) struct ChatArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Documents and folders to read first
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Instructions for the model
    ///
    /// The model needs a chat template that supports them.
    #[arg(
        long,
        alias = "system-prompt",
        value_name = "TEXT",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    pub(crate) system: Option<String>,
    #[command(flatten)]
    pub(crate) generate: GenerateArguments,
    /// Do not save the typed messages
    ///
    /// Otherwise a file in the state folder contains them, readable only by you.
    #[arg(long, help_heading = "Sessions and caches", hide_short_help = true)]
    pub(crate) no_history: bool,
    #[command(flatten)]
    pub(crate) keep: KeepArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// The options that the user typed.
    #[arg(skip)]
    pub(crate) given: Given,
}
