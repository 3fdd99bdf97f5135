//! The arguments of `riffle serve`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::model::NamedModel;
use crate::numbers;
use crate::serving_args::ServingArguments;

/// How a KV event is written.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum EventEncoding {
    Map,
    Array,
}

/// An adapter (LoRA) and the name that requests ask for it by.
#[derive(Debug, Clone)]
pub(crate) struct NamedAdapter {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

fn named_adapter(text: &str) -> Result<NamedAdapter, String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok(NamedAdapter {
            name: name.to_owned(),
            path: path.into(),
        }),
        _ => Err("it must be NAME=PATH".to_owned()),
    }
}

/// The place that a server listens at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    Address(IpAddr),
    /// The file of a UNIX socket.
    Socket(PathBuf),
}

fn host(text: &str) -> Result<Host, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return match path {
            "" => Err("unix: needs the path of a file behind it".to_owned()),
            path => Ok(Host::Socket(path.into())),
        };
    }
    if text == "localhost" {
        return Ok(Host::Address(Ipv4Addr::LOCALHOST.into()));
    }
    let address = text.parse().map(Host::Address);
    address.map_err(|_| "it must be localhost, an IP address such as 0.0.0.0, or unix:PATH".to_owned())
}

/// How lines of the log are written.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogForm {
    Text,
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    pub(crate) serving: ServingArguments,
    /// All models that are given; [`ServingArguments`] has the first.
    #[arg(skip)]
    pub(crate) models: Vec<NamedModel>,
    /// Serve the models in this folder, loaded when asked for
    ///
    /// Its GGUF files, and its folders with config.json. Of several models the one used longest ago leaves memory when another needs its room.
    #[arg(long, value_name = "DIR")]
    pub(crate) models_dir: Option<PathBuf>,
    /// Seconds that a model of several stays loaded after its last use [default: until its room is needed]
    ///
    /// A request of Ollama's clients may say otherwise (keep_alive).
    #[arg(long, value_name = "SECONDS", help_heading = "What is kept", hide_short_help = true)]
    pub(crate) unload_after: Option<u64>,
    /// Seconds that a request waits for a model at most while others use its room; then it gets a 503
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "120",
        help_heading = "Limits",
        hide_short_help = true
    )]
    pub(crate) room_wait: u64,
    /// Address to listen on, 0.0.0.0 for other machines too, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = host, display_order = 1)]
    pub(crate) host: Host,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value = "8080", display_order = 2)]
    pub(crate) port: u16,
    /// File of options in TOML, such as port = 8080; the command line and RIFFLE_PORT count before it
    ///
    /// Every option of this command may stand in it under its long name, and in a variable of the environment: --max-requests is
    /// RIFFLE_MAX_REQUESTS. Options that may be given several times are lists there, and separated by commas in variables.
    #[arg(long, value_name = "F", hide_short_help = true)]
    pub(crate) config: Option<PathBuf>,
    /// Path under which the server answers, such as /riffle behind a proxy that serves others too
    #[arg(
        long,
        value_name = "PATH",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub(crate) base_path: String,
    /// How lines of the log are written
    #[arg(long, value_enum, default_value = "text", hide_short_help = true)]
    pub(crate) log_format: LogForm,
    /// File of keys, one a line as KEY # NAME; every request then has to bring one
    ///
    /// Lines that begin with # are comments. The log has the name of a request's key. SIGHUP reads the file again.
    #[arg(long, value_name = "F", help_heading = "Who is let in")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Certificate of a server that speaks HTTPS, as PEM, with those that vouch for it behind it; needs --tls-key
    ///
    /// SIGHUP reads the file again.
    #[arg(long, value_name = "F", help_heading = "Who is let in", hide_short_help = true)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, as PEM without a password
    #[arg(long, value_name = "F", help_heading = "Who is let in", hide_short_help = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Origin of a web page of others that may use the server; may be given several times
    ///
    /// Such as https://example.org.
    #[arg(long, value_name = "ORIGIN", help_heading = "Who is let in")]
    pub(crate) allow_origin: Vec<String>,
    /// Name that a server on 127.0.0.1 answers to beside localhost; may be given several times
    ///
    /// Such as that of a proxy before it.
    #[arg(long, value_name = "NAME", help_heading = "Who is let in")]
    pub(crate) allow_host: Vec<String>,
    /// Adapter that requests choose by its name as their model, as vLLM spells it; several may be given
    ///
    /// Without such a request it changes nothing. An adapter of --lora has the name of its file or folder.
    #[arg(long, value_name = "NAME=PATH", num_args = 1.., value_parser = named_adapter, help_heading = "Machine and memory", hide_short_help = true)]
    pub(crate) lora_modules: Vec<NamedAdapter>,
    /// Folder of named sessions, which clients may save, restore, copy and delete
    #[arg(long, value_name = "DIR", help_heading = "What is kept")]
    pub(crate) sessions: Option<PathBuf>,
    /// Publish KV events for routers, as vLLM does: listen here, such as tcp://127.0.0.1:5557
    ///
    /// They tell which blocks of text the server holds. Events hold the tokens of prompts, and every client that
    /// connects can read them. A block is a page (--page-tokens).
    #[arg(long, value_name = "ADDRESS", help_heading = "Routers", hide_short_help = true)]
    pub(crate) kv_events: Option<String>,
    /// Listen here for routers that missed events, such as tcp://127.0.0.1:5558
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "kv_events",
        help_heading = "Routers",
        hide_short_help = true
    )]
    pub(crate) kv_events_replay: Option<String>,
    /// Topic of KV events
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        requires = "kv_events",
        help_heading = "Routers",
        hide_short_help = true
    )]
    pub(crate) kv_events_topic: String,
    /// How a KV event is written: as a map of names, or as an array for routers that know vLLM before 0.20
    #[arg(
        long,
        value_enum,
        default_value = "map",
        requires = "kv_events",
        help_heading = "Routers",
        hide_short_help = true
    )]
    pub(crate) kv_events_encoding: EventEncoding,
    /// Open connections at most
    #[arg(long, value_name = "N", value_parser = numbers::samples, default_value = "1024", help_heading = "Limits", hide_short_help = true)]
    pub(crate) max_connections: usize,
    /// Bytes of a request at most
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, default_value = "32M", help_heading = "Limits", hide_short_help = true)]
    pub(crate) max_body: u64,
}
