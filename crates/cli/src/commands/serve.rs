//! `riffle serve`: the model over HTTP.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use riffle_engine::{Engine, EngineOptions, human_bytes, with_threads};
use riffle_server::{Encoding, Limits, PublisherOptions, Server, ServerOptions};

use super::{engine_options, grouped, note_activations, read_text};
use crate::console;
use crate::failure::Failure;
use crate::interrupt;
use crate::serve_args::{EventEncoding, ServeArguments};

pub(crate) fn serve(arguments: &ServeArguments) -> Result<(), Failure> {
    let own = EngineOptions {
        pool_tokens: arguments.pool_tokens,
        draft_model: arguments.draft.model().map(Path::to_owned),
        draft_predictor: arguments.draft.uses_predictor(),
        ..engine_options(&arguments.engine)?
    };
    let options = server_options(arguments)?;
    let path = &arguments.model.model;
    let engine_options = riffle_server::engine_options(path, own, arguments.parallel)?;
    let engine = with_threads(arguments.engine.threads, || Engine::load(path, engine_options))??;
    note_activations(
        &arguments.engine,
        engine.model().config(),
        engine.options().device.is_some(),
    );
    let server = Server::bind(&engine, options)?;
    let stopper = server.stopper();
    interrupt::on_interrupt(move || stopper.stop())?;
    console::note(introduction(arguments, &engine, server.address()));
    if let Some(addresses) = server.kv_events() {
        let replays = addresses.replays.as_ref();
        let replays = replays.map_or_else(String::new, |address| format!(", replays at {address}"));
        let page = engine.options().page_tokens;
        console::note(format!(
            "KV events at {}{replays}, blocks of {page} tokens",
            addresses.events
        ));
    }
    Ok(server.run()?)
}

fn introduction(arguments: &ServeArguments, engine: &Engine, address: SocketAddr) -> String {
    let plan = engine.plan();
    let room = engine.options().pool_tokens.unwrap_or(plan.context_tokens);
    format!(
        "serving {model} at http://{address} (page), http://{address}/v1 (programs)
context {context} tokens, {parallel} requests at a time with room for {room} tokens together, KV at most {kv}
Ctrl-C ends it; a second Ctrl-C ends it at once",
        model = model_name(arguments),
        context = grouped(plan.context_tokens),
        parallel = arguments.parallel,
        room = grouped(room),
        kv = human_bytes(plan.kv_bytes),
    )
}

fn model_name(arguments: &ServeArguments) -> String {
    let of_path = |path: &Path| {
        if let Some(name) = riffle_hub::ModelName::of_path(path) {
            return name.repository();
        }
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let name = match path.is_dir() {
            true => path.file_name(),
            false => path.file_stem(),
        };
        name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
    };
    arguments
        .alias
        .clone()
        .unwrap_or_else(|| of_path(&arguments.model.model))
}

fn server_options(arguments: &ServeArguments) -> Result<ServerOptions, Failure> {
    let keys = match &arguments.api_key_file {
        None => Vec::new(),
        Some(path) => keys_of(path)?,
    };
    let defaults = Limits::default();
    let places = arguments.prefix.places()?;
    Ok(ServerOptions {
        address: SocketAddr::new(arguments.host, arguments.port),
        threads: arguments.engine.threads,
        parallel: arguments.parallel,
        draft: arguments.draft.clone(),
        model_name: model_name(arguments),
        api_keys: keys,
        allowed_origins: arguments.allow_origin.clone(),
        allowed_hosts: arguments.allow_host.clone(),
        limits: Limits {
            body_bytes: usize::try_from(arguments.max_body).unwrap_or(usize::MAX),
            // Eight of the longest at a time.
            bodies_bytes: usize::try_from(arguments.max_body.saturating_mul(8)).unwrap_or(usize::MAX),
            requests: arguments.max_requests,
            connections: arguments.max_connections,
            request_time: Duration::from_secs(arguments.max_time),
            ..defaults
        },
        default_max_tokens: arguments.tokens,
        prefix_cache: places.folder,
        shared_store: places.store,
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
        keep_alive: arguments.keep_alive.map(Duration::from_secs),
        grace: Duration::from_secs(arguments.grace),
        logs_answers: !arguments.quiet,
        ..ServerOptions::default()
    })
}

/// Keys of a file, one a line.
fn keys_of(path: &Path) -> Result<Vec<String>, Failure> {
    let text = read_text(path)?;
    let keys: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(|key| !key.is_empty())
        .map(str::to_owned)
        .collect();
    match keys.is_empty() {
        true => Err(Failure::new(format!(
            "--api-key-file {}: it has no key: write one a line",
            path.display()
        ))),
        false => Ok(keys),
    }
}
