//! How a server is set up.

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
    /// Threads that compute; `None` takes every core.
    pub threads: Option<usize>,
    /// Requests that read or answer at a time; at most as many as the engine has sequences.
    pub parallel: usize,
    /// The name that answers give the model.
    pub model_name: String,
    /// Further names of the model.
    pub aliases: Vec<String>,
    /// Names of the engine's adapters (LoRA), in their order; those without a name here are chosen by number alone. A request for a model of
    /// such a name is computed with that adapter, at its full strength, and no other.
    pub adapter_names: Vec<String>,
    /// Refuse requests for a model of another name. Otherwise the one model serves every name.
    pub has_strict_names: bool,
    /// Keys, one of which every request has to bring; empty lets everybody in.
    pub api_keys: Vec<ApiKey>,
    /// Origins of web pages of others that may use the server (`https://example.org`); empty allows none.
    pub allowed_origins: Vec<String>,
    /// Names beside those of the loopback that a server on the loopback answers to, such as that of a proxy before it.
    pub allowed_hosts: Vec<String>,
    /// Upper bounds on the work that the server accepts.
    pub limits: Limits,
    /// Tokens of an answer whose request does not say how many.
    pub default_max_tokens: usize,
    /// End answers that write the same tokens again and again, where a request does not say otherwise.
    pub ends_loops: bool,
    /// Share of the time that prompts get while answers are written.
    pub prompt_share: f64,
    /// Draft source of requests that name none, if the model can draft.
    pub draft: DraftSpec,
    /// Beginnings on disk, which outlive the server.
    pub prefix_cache: Option<PrefixCacheOptions>,
    /// A store of beginnings that other processes and machines share: looked in behind those on disk.
    pub shared_store: Option<SharedStoreOptions>,
    /// Folder of named sessions; without one there are none.
    pub session_folder: Option<PathBuf>,
    /// Options for publishing the blocks of text that are held; `None` publishes nothing.
    pub kv_events: Option<PublisherOptions>,
    /// Time that an idle sequence stays in memory after its last use; `None` keeps it until its room is needed.
    pub keep_alive: Option<Duration>,
    /// Time that a model of several stays loaded after its last use, where a request does not say; `None` keeps it until its room is needed.
    pub unload_after: Option<Duration>,
    /// How long answers under way may go on when the server is to end.
    pub grace: Duration,
    /// Write a line to standard error for every answer and every refused request: counts and times, never a text.
    pub logs_requests: bool,
    /// How these lines are written.
    pub log_format: LogFormat,
}

/// Upper bounds on the work that a server accepts.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of the body of a request.
    pub body_bytes: usize,
    /// Bytes of the bodies of all requests that have come in and are not yet answered; further ones wait.
    pub bodies_bytes: usize,
    /// Requests that read, answer or wait; further ones are refused with 429.
    pub requests: usize,
    /// Connections; further ones wait until one is closed.
    pub connections: usize,
    /// Answers to one request, over its prompts and choices.
    pub answers_per_request: usize,
    /// Time from the arrival of a request to its end.
    pub request_time: Duration,
    /// Time in which the head of a request has to arrive, and the longest pause in its body.
    pub arrival_time: Duration,
    /// Time that a request waits at most until its model begins to load, while models in use have the memory.
    pub room_wait: Duration,
    /// Bytes of a schema, a pattern or a grammar.
    pub form_bytes: usize,
    /// Time that a schema, a pattern or a grammar may take to be prepared.
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
