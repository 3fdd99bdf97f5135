//! The arguments of `riffle serve`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use riffle_engine::DraftSpec;

use crate::args::{EngineArguments, ModelArguments};
use crate::prefix_cache::PrefixCacheArguments;
use crate::{hub_args, numbers};

/// How a KV event is written.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum EventEncoding {
    Map,
    Array,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Address to listen on; 0.0.0.0 lets other machines in
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value = "8080")]
    pub(crate) port: u16,
    /// Name that clients see the model under [default: that of its file or folder]
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Option<String>,
    /// Requests that are read or answered at a time; others wait
    #[arg(long, value_name = "N", value_parser = numbers::sequences, default_value = "8")]
    pub(crate) parallel: usize,
    /// Tokens that all requests together may hold, what they share counted once
    ///
    /// [default: as many whole contexts as memory allows, one for each request at most]
    #[arg(long, value_name = "N", value_parser = numbers::tokens, hide_short_help = true)]
    pub(crate) pool_tokens: Option<usize>,
    /// Guess tokens and verify several in one pass: auto, none, ngram, sparse, mtp or model:PATH
    ///
    /// Answers are the same to the byte. A request may say otherwise: "riffle": {"draft": "none"}.
    #[arg(long, value_name = "SPEC", value_parser = hub_args::draft, default_value = "auto", hide_short_help = true)]
    pub(crate) draft: DraftSpec,
    /// Tokens of an answer whose request does not say how many
    #[arg(short = 'n', long = "tokens", aliases = ["predict", "n-predict"], value_name = "N", value_parser = numbers::tokens, default_value = "4096")]
    pub(crate) tokens: usize,
    /// File of keys, one a line; every request then has to bring one
    #[arg(long, value_name = "F", help_heading = "Who is let in")]
    pub(crate) api_key_file: Option<PathBuf>,
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
    #[command(flatten)]
    pub(crate) prefix: PrefixCacheArguments,
    /// Folder of named sessions, which clients may save, restore, copy and delete
    #[arg(long, value_name = "DIR", help_heading = "What is kept")]
    pub(crate) sessions: Option<PathBuf>,
    /// Seconds that what was read stays in memory after its last use [default: until its room is needed]
    #[arg(long, value_name = "SECONDS", help_heading = "What is kept", hide_short_help = true)]
    pub(crate) keep_alive: Option<u64>,
    /// Publish KV events for routers, as vLLM does: listen here, such as tcp://127.0.0.1:5557
    ///
    /// They tell which blocks of text the server holds. Events hold the tokens of prompts: whoever can connect can read them. A block is a page (--page-tokens).
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
    /// Requests that are answered or wait at most; further ones are refused with 429
    #[arg(long, value_name = "N", value_parser = numbers::samples, default_value = "256", help_heading = "Limits", hide_short_help = true)]
    pub(crate) max_requests: usize,
    /// Open connections at most
    #[arg(long, value_name = "N", value_parser = numbers::samples, default_value = "1024", help_heading = "Limits", hide_short_help = true)]
    pub(crate) max_connections: usize,
    /// Bytes of a request at most
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, default_value = "32M", help_heading = "Limits", hide_short_help = true)]
    pub(crate) max_body: u64,
    /// Seconds from the arrival of a request to the end of its answer at most
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "21600",
        help_heading = "Limits",
        hide_short_help = true
    )]
    pub(crate) max_time: u64,
    /// Seconds that answers under way may go on when the server is to end
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "10",
        help_heading = "Limits",
        hide_short_help = true
    )]
    pub(crate) grace: u64,
    /// Write no line for each answer to standard error
    #[arg(long, hide_short_help = true)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
}
