//! The arguments of `riffle serve`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::model::NamedModel;
use crate::numbers;
use crate::serving_args::ServingArguments;

/// Encoding of KV events.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum EventEncoding {
    Map,
    Array,
}

/// An adapter (LoRA) with the name that requests use.
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

/// Address that a server listens on.
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

/// Format of the log's lines.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogForm {
    Text,
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    pub(crate) serving: ServingArguments,
    /// All given models; [`ServingArguments`] has the first.
    #[arg(skip)]
    pub(crate) models: Vec<NamedModel>,
    /// Adapter that requests select by name as their model; may be repeated
    ///
    /// vLLM spells it the same. The adapter applies only to such requests. An adapter of --lora has the name of its
    /// file or folder.
    #[arg(long, value_name = "NAME=PATH", num_args = 1.., value_parser = named_adapter, display_order = 1, hide_short_help = true)]
    pub(crate) lora_modules: Vec<NamedAdapter>,
    /// Serve every model in this folder; the first request for a model loads it
    ///
    /// The models are its GGUF files and its folders with config.json. If memory is short, the least recently used
    /// model is unloaded first.
    #[arg(long, value_name = "DIR")]
    pub(crate) models_dir: Option<PathBuf>,
    /// Address to listen on: 127.0.0.1, 0.0.0.0 to accept other machines, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = host, display_order = 1)]
    pub(crate) host: Host,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value = "8080", display_order = 2)]
    pub(crate) port: u16,
    /// Path in front of every route, such as /riffle behind a shared proxy
    #[arg(
        long,
        value_name = "PATH",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true,
        display_order = 3
    )]
    pub(crate) base_path: String,
    /// TOML file of options, such as port = 8080; the command line and variables override it
    ///
    /// The file takes every option of this command by its long name. Environment variables take them too:
    /// --max-requests is RIFFLE_MAX_REQUESTS. Values of a repeated option are a list in the file, and are separated by
    /// commas in a variable.
    #[arg(long, value_name = "F", hide_short_help = true)]
    pub(crate) config: Option<PathBuf>,
    /// With several models, unload one after these seconds without use [default: if memory is short]
    ///
    /// The field keep_alive of Ollama's clients overrides it for a request.
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Sessions and caches",
        hide_short_help = true
    )]
    pub(crate) unload_after: Option<u64>,
    /// Folder of named sessions, which clients may save, restore, copy and delete
    #[arg(long, value_name = "DIR", help_heading = "Sessions and caches")]
    pub(crate) sessions: Option<PathBuf>,
    /// Maximum seconds to wait while other models use the memory; then the status is 503
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "120",
        help_heading = "Limits",
        hide_short_help = true
    )]
    pub(crate) room_wait: u64,
    /// Maximum number of open connections
    #[arg(long, value_name = "N", value_parser = numbers::samples, default_value = "1024", help_heading = "Limits", hide_short_help = true)]
    pub(crate) max_connections: usize,
    /// Maximum bytes of a request
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, default_value = "32M", help_heading = "Limits", hide_short_help = true)]
    pub(crate) max_body: u64,
    /// Format of the log's lines
    #[arg(
        long,
        value_enum,
        default_value = "text",
        help_heading = "Log",
        hide_short_help = true
    )]
    pub(crate) log_format: LogForm,
    /// File of API keys, one per line as KEY # NAME; every request must carry one of them
    ///
    /// Lines that begin with # are comments. The log shows the name of a request's key. SIGHUP reads the file again.
    #[arg(long, value_name = "F", help_heading = "Access")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Serve HTTPS with this PEM certificate and its intermediates; needs --tls-key
    ///
    /// SIGHUP reads the file again.
    #[arg(long, value_name = "F", help_heading = "Access", hide_short_help = true)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// PEM private key of the certificate, without a password
    #[arg(long, value_name = "F", help_heading = "Access", hide_short_help = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Origin of other web pages that may use the server, such as https://example.org; may be repeated
    #[arg(long, value_name = "ORIGIN", help_heading = "Access")]
    pub(crate) allow_origin: Vec<String>,
    /// Host name that a server on 127.0.0.1 accepts besides localhost; may be repeated
    ///
    /// For example the name of a proxy in front of it.
    #[arg(long, value_name = "NAME", help_heading = "Access")]
    pub(crate) allow_host: Vec<String>,
    /// Publish KV events in vLLM's format at this address, such as tcp://127.0.0.1:5557
    ///
    /// Events tell a router which blocks of text the server caches. They contain the tokens of prompts, and every
    /// client that connects can read them. A block is a page (--page-tokens).
    #[arg(
        long,
        value_name = "ADDRESS",
        help_heading = "Events for routers",
        hide_short_help = true
    )]
    pub(crate) kv_events: Option<String>,
    /// Send missed KV events again at this address, such as tcp://127.0.0.1:5558
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "kv_events",
        help_heading = "Events for routers",
        hide_short_help = true
    )]
    pub(crate) kv_events_replay: Option<String>,
    /// Topic of KV events
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        requires = "kv_events",
        help_heading = "Events for routers",
        hide_short_help = true
    )]
    pub(crate) kv_events_topic: String,
    /// Encoding of KV events; routers made for vLLM before 0.20 need array
    #[arg(
        long,
        value_enum,
        default_value = "map",
        requires = "kv_events",
        help_heading = "Events for routers",
        hide_short_help = true
    )]
    pub(crate) kv_events_encoding: EventEncoding,
}
