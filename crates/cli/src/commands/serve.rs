//! `riffle serve`: models over HTTP.

mod secrets;
mod several;
mod signals;

use std::net::SocketAddr;
use std::time::Duration;

use riffle_engine::{Engine, human_bytes};
use riffle_model::AdapterSpec;
use riffle_server::{Encoding, Limits, ListenAddress, Log, LogFormat, PublisherOptions, Server, ServerOptions};

use secrets::Secrets;

use super::{grouped, template_note};
use crate::console;
use crate::failure::Failure;
use crate::serve_args::{EventEncoding, Host, LogForm, NamedAdapter, ServeArguments};
use crate::serving_args::{ServingArguments, name_of_path};

/// A listening server, and facts about it for notes.
pub(crate) struct Bound {
    pub(crate) server: Server,
    introduction: String,
    /// Tokens of a block of KV events.
    page_tokens: usize,
}

pub(crate) fn serve(arguments: &ServeArguments) -> Result<(), Failure> {
    run(bound(arguments)?, arguments)
}

/// Loads the model, or plans several, and listens.
pub(crate) fn bound(arguments: &ServeArguments) -> Result<Bound, Failure> {
    if arguments.models.len() > 1 || arguments.models_dir.is_some() {
        return several::bound(arguments);
    }
    let shared = ServerOptions {
        adapter_names: adapter_names(arguments)?,
        ..arguments.serving.server_options()?
    };
    let options = server_options(arguments, shared)?;
    let engine = with_named_adapters(arguments).load(bodies_bytes(arguments))?;
    let server = Server::bind(&engine, options)?;
    let note = template_note(&engine).map_or_else(String::new, |note| format!("{note}\n"));
    Ok(Bound {
        introduction: note + &introduction(arguments, &engine, server.address())?,
        page_tokens: engine.options().cache.page_tokens,
        server,
    })
}

/// Runs a server until a signal ends it.
fn run(bound: Bound, arguments: &ServeArguments) -> Result<(), Failure> {
    let Bound {
        server,
        introduction,
        page_tokens,
    } = bound;
    let notes = Notes {
        form: arguments.log_format,
        log: server.log(),
    };
    let stopper = server.stopper();
    let secrets = Secrets::of(&server, arguments, notes)?;
    signals::handle(move || stopper.stop(), move || secrets.read_again())?;
    notes.tell(&introduction);
    if server.address().is_open() && arguments.api_key_file.is_none() {
        notes.tell("warning: every machine that reaches this address may use the model: give --api-key-file, or --host localhost");
    }
    if let Some(addresses) = server.kv_events() {
        let replays = addresses.replays.as_ref();
        let replays = replays.map_or_else(String::new, |address| format!(", replays at {address}"));
        notes.tell(&format!(
            "KV events at {}{replays}, blocks of {page_tokens} tokens",
            addresses.events
        ));
    }
    Ok(server.run()?)
}

/// The command's notes about the server: plain lines, or lines of its log for programs that read JSON.
#[derive(Clone, Copy)]
struct Notes {
    form: LogForm,
    log: Log,
}

impl Notes {
    fn tell(self, text: &str) {
        match self.form {
            LogForm::Text => console::note(text),
            LogForm::Json => text.lines().for_each(|line| self.log.note(line)),
        }
    }
}

fn introduction(arguments: &ServeArguments, engine: &Engine, address: &ListenAddress) -> Result<String, Failure> {
    let plan = engine.plan();
    let room = engine.options().cache.pool_tokens.unwrap_or(plan.context_tokens);
    let place = place(arguments, address);
    Ok(format!(
        "serving {model} at {place}
context {context} tokens, {parallel} requests at a time with room for {room} tokens together, KV at most {kv}
Ctrl-C ends it; a second Ctrl-C ends it at once",
        model = arguments.serving.model_name()?,
        context = grouped(plan.context_tokens),
        parallel = arguments.serving.parallel(),
        room = grouped(room),
        kv = human_bytes(plan.kv_bytes),
    ))
}

/// The addresses of the page and of programs.
fn place(arguments: &ServeArguments, address: &ListenAddress) -> String {
    let base = &arguments.base_path;
    match address {
        ListenAddress::Tcp(address) => {
            let scheme = if arguments.tls_cert.is_some() { "https" } else { "http" };
            format!("{scheme}://{address}{base}/ (page), {scheme}://{address}{base}/v1 (programs)")
        }
        ListenAddress::Unix(_) => format!("{address}, paths from {base}/"),
    }
}

/// Bytes of all bodies together: eight of the longest at a time.
fn bodies_bytes(arguments: &ServeArguments) -> u64 {
    arguments.max_body.saturating_mul(8)
}

/// The options of the server; `shared` are independent of HTTP.
fn server_options(arguments: &ServeArguments, shared: ServerOptions) -> Result<ServerOptions, Failure> {
    Ok(ServerOptions {
        address: match &arguments.host {
            Host::Address(address) => SocketAddr::new(*address, arguments.port).into(),
            Host::Socket(path) => ListenAddress::Unix(path.clone()),
        },
        base_path: arguments.base_path.clone(),
        log_format: match arguments.log_format {
            LogForm::Text => LogFormat::Text,
            LogForm::Json => LogFormat::Json,
        },
        tls: secrets::tls_identity(arguments)?,
        api_keys: secrets::api_keys(arguments)?,
        allowed_origins: arguments.allow_origin.clone(),
        allowed_hosts: arguments.allow_host.clone(),
        limits: Limits {
            body_bytes: usize::try_from(arguments.max_body).unwrap_or(usize::MAX),
            bodies_bytes: usize::try_from(bodies_bytes(arguments)).unwrap_or(usize::MAX),
            connections: arguments.max_connections,
            room_wait: Duration::from_secs(arguments.room_wait),
            ..shared.limits
        },
        unload_after: arguments.unload_after.map(Duration::from_secs),
        session_folder: arguments.sessions.clone(),
        kv_events: arguments.kv_events.clone().map(|address| PublisherOptions {
            address,
            replay_address: arguments.kv_events_replay.clone(),
            topic: arguments.kv_events_topic.clone(),
            encoding: match arguments.kv_events_encoding {
                EventEncoding::Map => Encoding::Map,
                EventEncoding::Array => Encoding::Array,
            },
            ..PublisherOptions::default()
        }),
        ..shared
    })
}

/// The options of the model with all adapters beside it. Adapters with their own names are off until a request names
/// them.
fn with_named_adapters(arguments: &ServeArguments) -> ServingArguments {
    let mut serving = arguments.serving.clone();
    let named = arguments.lora_modules.iter().map(|adapter| AdapterSpec {
        path: adapter.path.clone(),
        scale: 0.0,
    });
    serving.engine.lora.extend(named);
    serving
}

/// Names of all adapters, in their load order.
fn adapter_names(arguments: &ServeArguments) -> Result<Vec<String>, Failure> {
    let serving = &arguments.serving;
    let model = serving.model_name()?;
    let mut names: Vec<String> = serving
        .engine
        .lora
        .iter()
        .map(|adapter| name_of_path(&adapter.path))
        .collect();
    for NamedAdapter { name, .. } in &arguments.lora_modules {
        if names.contains(name) || *name == model || serving.alias.contains(name) {
            return Err(Failure::new(format!(
                "--lora-modules {name}: this name is taken, give the adapter another one"
            )));
        }
        names.push(name.clone());
    }
    Ok(names)
}
