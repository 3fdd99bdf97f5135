//! The arguments of `riffle launch`.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

/// A coding agent that can be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Agent {
    Claude,
    Codex,
    Opencode,
    Aider,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  riffle launch claude\n  riffle launch codex --serve model.gguf\n  riffle launch opencode --url http://192.168.1.5:8080 --print\n  riffle launch aider -- --no-auto-commits notes.txt"
)]
pub(crate) struct LaunchArguments {
    /// Agent to start, if it is installed
    #[arg(value_name = "AGENT", value_enum)]
    pub(crate) agent: Agent,
    /// Address of a running riffle serve; RIFFLE_API_KEY gives its key
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,
    /// Start a server with this model, and stop it after the agent
    ///
    /// Further options of riffle serve come from RIFFLE_CONFIG and variables such as RIFFLE_CTX.
    #[arg(long, value_name = "MODEL", conflicts_with = "url")]
    pub(crate) serve: Option<OsString>,
    /// Model of the server, by its name there [default: the first]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Print the agent's settings and command, and start nothing
    #[arg(long, conflicts_with = "serve")]
    pub(crate) print: bool,
    /// Arguments of the agent
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) arguments: Vec<OsString>,
}
