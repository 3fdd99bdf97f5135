//! Options of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use riffle_engine::{DraftSpec, PrefixCacheOptions, SharedStoreOptions};
use riffle_events::PublisherOptions;

use crate::{ApiKey, ListenAddress, LogFormat, TlsIdentity};

/// Options of a server: its address, its clients and its limits.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Address to listen on.
    pub address: ListenAddress,
    /// Certificate and key of a server that speaks HTTPS; `None` for plain HTTP.
    pub tls: Option<TlsIdentity>,
    /// Path under which the server answers, such as `/riffle`; empty for none.
    pub base_path: String,
    /// Threads for computation; `None` for all cores.
    pub threads: Option<usize>,
    /// Requests that run at a time; at most the engine's number of sequences.
    pub parallel: usize,
    /// The model's name in answers.
    pub model_name: String,
    /// Further names of the model.
    pub aliases: Vec<String>,
    /// Names of the engine's adapters (LoRA), in their order; adapters without a name are chosen by index only. A
    /// request for a model of such a name uses only that adapter, at full strength.
    pub adapter_names: Vec<String>,
    /// Refuse requests for other model names. Otherwise the one model answers to every name.
    pub has_strict_names: bool,
    /// API keys, one of which every request needs; empty for no keys.
    pub api_keys: Vec<ApiKey>,
    /// Origins of other web pages that may use the server (`https://example.org`).
    pub allowed_origins: Vec<String>,
    /// Host names that a server on the loopback accepts besides the loopback's, such as the name of a proxy.
    pub allowed_hosts: Vec<String>,
    /// Upper bounds on the work that the server accepts.
    pub limits: Limits,
    /// Maximum number of tokens of an answer whose request sets no limit.
    pub default_max_tokens: usize,
    /// End answers that repeat the same tokens, unless the request allows them.
    pub ends_loops: bool,
    /// Share of the time for prompts while answers are written.
    pub prompt_share: f64,
    /// Draft source of requests without one, if the model can draft.
    pub draft: DraftSpec,
    /// Cache of beginnings on disk, which outlives the server.
    pub prefix_cache: Option<PrefixCacheOptions>,
    /// Store of beginnings for several processes and machines, searched after the disk.
    pub shared_store: Option<SharedStoreOptions>,
    /// Folder of named sessions; `None` for no sessions.
    pub session_folder: Option<PathBuf>,
    /// Options for publishing held blocks; `None` publishes nothing.
    pub kv_events: Option<PublisherOptions>,
    /// Time that an idle sequence stays in memory; `None` until its memory is needed.
    pub keep_alive: Option<Duration>,
    /// Time that one of several models stays loaded after its last use, unless a request sets it; `None` until its
    /// memory is needed.
    pub unload_after: Option<Duration>,
    /// Time for running answers to finish at shutdown.
    pub grace: Duration,
    /// Log a line for every answer and every refused request: counts and times, never a text.
    pub logs_requests: bool,
    /// Format of these lines.
    pub log_format: LogFormat,
}

/// Limits on the work that a server accepts.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Bytes of the bodies of all unanswered requests; further ones wait.
    pub bodies_bytes: usize,
    /// Requests that run or wait; further ones are refused with 429.
    pub requests: usize,
    /// Connections; further ones wait.
    pub connections: usize,
    /// Number of answers to one request, over its prompts and choices.
    pub answers_per_request: usize,
    /// Time limit from the arrival of a request to its end.
    pub request_time: Duration,
    /// Time for the head of a request to arrive, and longest pause in its body.
    pub arrival_time: Duration,
    /// Longest wait for a model to begin loading, while models in use have the memory.
    pub room_wait: Duration,
    /// Maximum number of bytes of a schema, a pattern or a grammar.
    pub form_bytes: usize,
    /// Longest time to prepare a schema, a pattern or a grammar.
    pub form_time: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8080)).into(),
            tls: None,
            base_path: String::new(),
            threads: None,
            parallel: 1,
            model_name: "riffle".to_owned(),
            aliases: Vec::new(),
            adapter_names: Vec::new(),
            has_strict_names: false,
            api_keys: Vec::new(),
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            limits: Limits::default(),
            default_max_tokens: 4096,
            ends_loops: true,
            prompt_share: 0.5,
            draft: DraftSpec::NONE,
            prefix_cache: None,
            shared_store: None,
            session_folder: None,
            kv_events: None,
            keep_alive: None,
            unload_after: None,
            grace: Duration::from_secs(10),
            logs_requests: false,
            log_format: LogFormat::Text,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 32 << 20,
            bodies_bytes: 256 << 20,
            requests: 256,
            connections: 1024,
            answers_per_request: 64,
            request_time: Duration::from_secs(6 * 3600),
            arrival_time: Duration::from_secs(30),
            room_wait: Duration::from_secs(120),
            form_bytes: 256 << 10,
            form_time: Duration::from_secs(5),
        }
    }
}
