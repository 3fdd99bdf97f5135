//! The thread that decides which models are loaded, and the threads that load and unload them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use riffle_engine::{Engine, with_threads};

use super::Shelf;
use super::entry::Entry;
use super::rotation::{Stage, Step};
use crate::app::App;
use crate::failure::Failure;
use crate::serve::make_session_folder;
use crate::{ServerError, ServerOptions};

/// Pause between two checks of an unloaded model whose memory is still held.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Longest time of these checks, before the memory counts as free.
const LONGEST_LOOK: Duration = Duration::from_secs(60);

/// Starts the keeper. It ends with the server.
pub(super) fn start(shelf: &Arc<Shelf>) -> std::io::Result<()> {
    let shelf = Arc::clone(shelf);
    let thread = std::thread::Builder::new().name("riffle-models".to_owned());
    thread.spawn(move || keep(&shelf)).map(drop)
}

fn keep(shelf: &Arc<Shelf>) {
    let mut state = shelf.state();
    while !state.is_ending {
        let now = Instant::now();
        match state.rotation.step(now) {
            Step::Load(index) => {
                drop(state);
                beside(shelf, index, load);
            }
            Step::Leave(index) => {
                drop(state);
                beside(shelf, index, leave);
            }
            Step::Wait(until) => {
                // Requests to models may have been stopped, or admitted again.
                shelf.changed.send_replace(());
                let work = &shelf.work;
                state = match until {
                    Some(until) => {
                        let time = until.saturating_duration_since(now);
                        let waited = work.wait_timeout(state, time);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => work.wait(state).unwrap_or_else(PoisonError::into_inner),
                };
                continue;
            }
        }
        state = shelf.state();
    }
}

/// Runs work on its own thread, or here if no thread can be started.
fn beside(shelf: &Arc<Shelf>, index: usize, work: fn(&Arc<Shelf>, usize)) {
    let own = Arc::clone(shelf);
    let thread = std::thread::Builder::new().name("riffle-model".to_owned());
    if thread.spawn(move || work(&own, index)).is_err() {
        work(shelf, index);
    }
}

fn load(shelf: &Arc<Shelf>, index: usize) {
    let entry = &shelf.entries[index];
    let began = Instant::now();
    let loaded = catch_unwind(AssertUnwindSafe(|| loaded(shelf, entry)));
    let loaded = loaded.unwrap_or_else(|_| {
        Err(Failure::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!(
                "the model {:?} failed while it was loaded: please report it",
                entry.name
            ),
        ))
    });
    let mut state = shelf.state();
    match loaded {
        Ok(app) if !state.is_ending => {
            entry.metrics.count_load(began.elapsed().as_secs_f64());
            shelf.log.model("loaded", &entry.name, began.elapsed().as_secs_f64());
            state.apps[index] = Some(Arc::new(app));
            let slot = &mut state.rotation.slots[index];
            (slot.stage, slot.is_broken, slot.expires) = (Stage::Loaded, false, None);
        }
        // The caller is gone.
        Ok(_) => {}
        Err(failure) => {
            shelf.log.note(&failure.message);
            let slot = &mut state.rotation.slots[index];
            (slot.stage, slot.waiting) = (Stage::Absent, 0);
            let failures = &mut state.failures[index];
            *failures = (failures.0 + 1, Some(failure));
        }
    }
    drop(state);
    shelf.wake();
}

fn loaded(shelf: &Shelf, entry: &Entry) -> Result<App, Failure> {
    let options = own_options(shelf, entry);
    let load = || -> Result<App, ServerError> {
        let (path, engine_options) = (&entry.path, entry.options.clone());
        let engine: Arc<Engine> = with_threads(options.threads, || Engine::load(path, engine_options))??;
        engine.tokenizer()?;
        if let Some(path) = &options.session_folder {
            make_session_folder(path)?;
        }
        App::start(&engine, options, &entry.metrics, Arc::clone(&shelf.kept_items), false)
    };
    load().map_err(|error| {
        let message = match &error {
            ServerError::Engine(error) => Failure::from_engine(error).message,
            error => error.to_string(),
        };
        Failure::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the model {:?} cannot be loaded: {message}", entry.name),
        )
    })
}

/// The server's options for one model, with its own name and folder of sessions.
fn own_options(shelf: &Shelf, entry: &Entry) -> ServerOptions {
    let options = shelf.options.clone();
    // A name may contain characters that a path must not.
    let plain = |letter: char| {
        if letter.is_alphanumeric() || "-_.".contains(letter) {
            letter
        } else {
            '_'
        }
    };
    let folder: String = entry.name.chars().map(plain).collect();
    ServerOptions {
        model_name: entry.name.clone(),
        aliases: entry.aliases.clone(),
        has_strict_names: false,
        session_folder: options.session_folder.as_ref().map(|sessions| sessions.join(folder)),
        ..options
    }
}

/// Unloads an unused model: its prompts go to the prefix cache, and its memory is freed.
fn leave(shelf: &Arc<Shelf>, index: usize) {
    let entry = &shelf.entries[index];
    let began = Instant::now();
    let app = shelf.state().apps[index].take();
    if let Some(app) = app {
        app.driver.stop(Duration::ZERO);
        let engine = Arc::downgrade(&app.engine);
        drop(app);
        // A cancelled request may still be ending on another thread.
        while engine.strong_count() > 0 && began.elapsed() < LONGEST_LOOK {
            std::thread::sleep(LOOK_PAUSE);
        }
        if engine.strong_count() > 0 {
            shelf
                .log
                .note(&format!("the memory of the model {:?} is not free yet", entry.name));
        }
    }
    entry.metrics.clear_gauges();
    shelf.log.model("unloaded", &entry.name, began.elapsed().as_secs_f64());
    let mut state = shelf.state();
    let slot = &mut state.rotation.slots[index];
    (slot.stage, slot.expires) = (Stage::Absent, None);
    drop(state);
    shelf.wake();
}
