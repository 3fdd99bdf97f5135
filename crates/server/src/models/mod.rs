//! The models of a server: the listed ones, the loaded ones, and the requests that wait for one.
//!
//! A server has one memory plan. A model is loaded when a request names it and its memory fits beside the loaded
//! models. Otherwise the least recently used model is unloaded first, after its answers. Its prompts stay in the prefix
//! cache. One thread, the *keeper*, decides this ([`Rotation`]). It starts a thread for each load and unload, so that
//! nobody waits for another's model.
//!
//! A server with one engine that its caller has loaded is the simplest case: a model that stays, and no keeper.

pub(crate) mod choice;
pub(crate) mod entry;
pub(crate) mod keep_alive;
mod keeper;
mod lease;
mod planned;
mod rotation;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::http::StatusCode;
use riffle_engine::Engine;
use tokio::sync::watch;

use crate::api::openai::KeptItems;
use crate::app::{App, unix_seconds};
use crate::driver::KEEPING_TIME;
use crate::failure::Failure;
use crate::log::Log;
use crate::{Limits, ServerError, ServerOptions};
use entry::{Entry, Name};
use keep_alive::KeepAlive;
use lease::{Lease, Ticket};
pub use planned::{ModelSource, ModelsPlan, PlannedModel};
use rotation::{Rotation, Slot, Stage};

/// Maximum number of names in a refusal; the others are counted.
const MOST_NAMED: usize = 20;

/// Tag of an Ollama name without one.
const LATEST: &str = ":latest";

/// Seconds after which a request without memory should try again.
const RETRY_AFTER_S: u64 = 10;

/// All models of a server. Dropping it ends the thread that loads them.
pub(crate) struct Models(Arc<Shelf>);

/// The models and the state for loading them.
pub(crate) struct Shelf {
    entries: Vec<Entry>,
    state: Mutex<State>,
    /// Wakes the keeper.
    work: Condvar,
    /// Notifies waiting requests of changes.
    changed: watch::Sender<()>,
    /// Options of the whole server; each model has its own name and folder of sessions.
    options: ServerOptions,
    log: Log,
    kept_items: Arc<KeptItems>,
    started: u64,
}

struct State {
    rotation: Rotation,
    /// The loaded models, by their index.
    apps: Vec<Option<Arc<App>>>,
    /// For each model, the number of failed loads and the error of the last.
    failures: Vec<(u64, Option<Failure>)>,
    is_ending: bool,
}

/// State of a requested model.
enum Found {
    Ready(Lease),
    Refused(Failure),
    Waiting { is_loading: bool },
}

/// A loaded model, for lists.
pub(crate) struct LoadedModel<'a> {
    pub(crate) entry: &'a Entry,
    /// Time of the unloading if the model is not used; `None` without a limit.
    pub(crate) leaves: Option<SystemTime>,
}

impl Models {
    /// One model that stays loaded.
    pub(crate) fn of_engine(engine: &Arc<Engine>, options: &ServerOptions) -> Result<Self, ServerError> {
        let entry = Entry::of_engine(engine, options);
        let (log, kept_items) = (Log::of(options), Arc::default());
        let app = App::start(engine, options.clone(), &entry.metrics, Arc::clone(&kept_items), true)?;
        let rotation = Rotation::new(vec![Slot::resident()], 0);
        let shelf = Shelf::new(vec![entry], rotation, options, log, kept_items);
        shelf.state().apps[0] = Some(Arc::new(app));
        Ok(Self(Arc::new(shelf)))
    }

    /// Models that are loaded on demand.
    pub(crate) fn of_plan(plan: &ModelsPlan, options: &ServerOptions) -> Result<Self, ServerError> {
        let slots = (0..plan.models.len()).map(|index| Slot::new(plan.bytes(index)));
        let rotation = Rotation::new(slots.collect(), plan.room_bytes);
        let entries: Vec<Entry> = plan.models.iter().map(Entry::of_planned).collect();
        check_names(&entries)?;
        let shelf = Shelf::new(entries, rotation, options, Log::of(options), Arc::default());
        let models = Self(Arc::new(shelf));
        keeper::start(&models.0).map_err(ServerError::Thread)?;
        Ok(models)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.0.entries
    }

    /// Sent responses, common to all models.
    pub(crate) fn kept_items(&self) -> &KeptItems {
        &self.0.kept_items
    }

    /// Start of the server, in seconds since 1970.
    pub(crate) fn started(&self) -> u64 {
        self.0.started
    }

    /// The server's only model, if it was loaded at the start.
    pub(crate) fn resident(&self) -> Option<Arc<App>> {
        let state = self.0.state();
        let stays = self.0.entries.len() == 1 && state.rotation.slots[0].stays;
        state.apps[0].clone().filter(|_| stays)
    }

    /// True if the model with this index is loaded.
    pub(crate) fn is_loaded(&self, index: usize) -> bool {
        self.0.state().rotation.slots[index].stage == Stage::Loaded
    }

    /// The loaded models.
    pub(crate) fn all_loaded(&self) -> Vec<LoadedModel<'_>> {
        let state = self.0.state();
        let (now, clock) = (Instant::now(), SystemTime::now());
        let entries = self.0.entries.iter().zip(&state.rotation.slots);
        let loaded = entries.filter(|(_, slot)| slot.stage == Stage::Loaded);
        loaded
            .map(|(entry, slot)| {
                // The time of a model in use starts at the end of that use.
                let expires = slot.expires.or_else(|| now.checked_add(slot.keep?));
                let left = expires.map(|expires| expires.saturating_duration_since(now));
                LoadedModel {
                    entry,
                    leaves: left.and_then(|left| clock.checked_add(left)),
                }
            })
            .collect()
    }

    /// The index of the model with this name. Without a name it is the first.
    ///
    /// # Errors
    /// For an unknown name. A server with one model accepts any, unless it is strict.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<usize, Failure> {
        let entries = &self.0.entries;
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Ok(0);
        };
        let at = |name: &str| {
            let has_name = |entry: &Entry| entry.names().any(|own| own.text == name);
            entries.iter().position(has_name)
        };
        let found = at(name).or_else(|| at(name.strip_suffix(LATEST)?));
        match found {
            Some(index) => Ok(index),
            None if entries.len() == 1 && !self.0.options.has_strict_names => Ok(0),
            None => Err(self.unknown(name)),
        }
    }

    /// The model with exactly this name in the lists.
    ///
    /// # Errors
    /// For any other name.
    pub(crate) fn find_listed(&self, asked: &str) -> Result<(&Entry, Name<'_>), Failure> {
        let names = |entry| Entry::names(entry).map(move |name| (entry, name));
        let mut all = self.0.entries.iter().flat_map(names);
        all.find(|(_, name)| name.text == asked)
            .ok_or_else(|| self.unknown(asked))
    }

    fn unknown(&self, name: &str) -> Failure {
        unknown_model(name, self.0.entries.iter().map(|entry| entry.name.as_str()))
    }

    /// Waits until a model is loaded and may be used. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// For a model that cannot be loaded or gets no memory in time, and for too many requests.
    pub(crate) async fn lease(&self, index: usize, keep_alive: Option<KeepAlive>) -> Result<Lease, Failure> {
        let shelf = &self.0;
        let keep = KeepAlive::time(keep_alive, shelf.options.unload_after);
        // Subscribes before the first check, so that no change is missed.
        let mut changed = shelf.changed.subscribe();
        match shelf.look(index, keep, None) {
            Found::Ready(lease) => return Ok(lease),
            Found::Refused(failure) => return Err(failure),
            Found::Waiting { .. } => {}
        }
        let ticket = Ticket::new(shelf, index);
        let wait = shelf.options.limits.room_wait;
        let mut is_late = false;
        let late = tokio::time::sleep(wait);
        tokio::pin!(late);
        loop {
            let is_loading = match shelf.look(index, keep, Some(&ticket)) {
                Found::Ready(lease) => return Ok(lease),
                Found::Refused(failure) => return Err(failure),
                Found::Waiting { is_loading } => is_loading,
            };
            if is_late && !is_loading {
                return Err(self.no_room(index, wait));
            }
            tokio::select! {
                outcome = changed.changed() => outcome.map_err(|_| Failure::stopping())?,
                () = &mut late, if !is_late => is_late = true,
            }
        }
    }

    fn no_room(&self, index: usize, waited: Duration) -> Failure {
        let state = self.0.state();
        let entries = self.0.entries.iter().zip(&state.rotation.slots);
        let in_use = entries.filter(|(_, slot)| slot.stage != Stage::Absent);
        let names: Vec<String> = in_use.map(|(entry, _)| format!("{:?}", entry.name)).collect();
        // A model that is still there takes no requests while it leaves.
        let reason = match state.rotation.slots[index].stage {
            Stage::Absent => format!("{} is in use", names.join(", ")),
            _ => "it is about to leave for another model".to_owned(),
        };
        Failure {
            retry_after_s: Some(RETRY_AFTER_S),
            ..Failure::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!(
                    "the model {:?} found no memory within {} s, because {reason}: ask again later",
                    self.0.entries[index].name,
                    waited.as_secs(),
                ),
            )
        }
    }

    /// True unless the thread of a loaded model has ended.
    pub(crate) fn is_alive(&self) -> bool {
        let state = self.0.state();
        let mut slots = state.rotation.slots.iter().zip(&state.apps);
        slots.all(|(slot, app)| !slot.stays || app.as_ref().is_none_or(|app| app.driver.is_alive()))
    }

    /// True if a request would be accepted now.
    pub(crate) fn takes_requests(&self) -> bool {
        let limits = &self.0.options.limits;
        match self.resident() {
            Some(app) => app.driver.is_alive() && app.driver.taken() < limits.requests,
            None => self.0.state().waiting() < limits.requests,
        }
    }

    /// Ends all models: running answers may continue for `grace`. Returns when all have ended, without waiting for a
    /// model that is being loaded.
    pub(crate) fn end(&self, grace: Duration) {
        let mut state = self.0.state();
        state.is_ending = true;
        let apps: Vec<Arc<App>> = state.apps.iter().flatten().cloned().collect();
        drop(state);
        self.0.wake();
        std::thread::scope(|scope| {
            for app in &apps {
                scope.spawn(|| app.driver.stop(grace));
            }
        });
        // An unloading model may still be writing its prompts to disk.
        let is_leaving = |state: &mut State| state.rotation.slots.iter().any(|slot| slot.stage == Stage::Leaving);
        let state = self.0.state();
        drop(self.0.work.wait_timeout_while(state, KEEPING_TIME, is_leaving));
    }
}

impl Drop for Models {
    fn drop(&mut self) {
        self.0.state().is_ending = true;
        self.0.wake();
    }
}

impl Shelf {
    fn new(
        entries: Vec<Entry>,
        rotation: Rotation,
        options: &ServerOptions,
        log: Log,
        kept_items: Arc<KeptItems>,
    ) -> Self {
        let count = entries.len();
        Self {
            entries,
            state: Mutex::new(State {
                rotation,
                apps: vec![None; count],
                failures: vec![(0, None); count],
                is_ending: false,
            }),
            work: Condvar::new(),
            changed: watch::Sender::new(()),
            options: options.clone(),
            log,
            kept_items,
            started: unix_seconds(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the keeper and all waiting requests.
    fn wake(&self) {
        self.work.notify_all();
        self.changed.send_replace(());
    }

    /// Checks for a model that may be used. A `ticket` reports loads that failed since its request arrived.
    fn look(self: &Arc<Self>, index: usize, keep: Option<Duration>, ticket: Option<&Ticket>) -> Found {
        let mut state = self.state();
        let is_alive = |app: &Arc<App>| app.driver.is_alive();
        let slot = &state.rotation.slots[index];
        let (stays, is_open, stage) = (slot.stays, slot.is_open(), slot.stage);
        if let Some(app) = state.apps[index].clone().filter(|_| is_open) {
            // A model that never leaves is not loaded again: if it has stopped, its own thread refuses the request.
            if stays || is_alive(&app) {
                state.rotation.begin_use(index, keep);
                drop(state);
                return Found::Ready(Lease::new(self, index, app));
            }
            state.rotation.slots[index].is_broken = true;
            self.work.notify_all();
        }
        if state.is_ending {
            return Found::Refused(Failure::stopping());
        }
        match ticket {
            None if state.waiting() >= self.options.limits.requests => Found::Refused(too_many(&self.options.limits)),
            Some(ticket) if state.failures_of(index) > ticket.failures => {
                let failure = state.failures[index].1.clone();
                Found::Refused(failure.unwrap_or_else(Failure::stopping))
            }
            _ => Found::Waiting {
                is_loading: stage == Stage::Loading,
            },
        }
    }
}

impl State {
    /// Number of requests that wait for any model.
    fn waiting(&self) -> usize {
        self.rotation.slots.iter().map(|slot| slot.waiting).sum()
    }

    fn failures_of(&self, index: usize) -> u64 {
        self.failures[index].0
    }
}

fn too_many(limits: &Limits) -> Failure {
    Failure::busy(format!(
        "{} requests wait for a model already: try again in a few seconds",
        limits.requests
    ))
}

/// The refusal of an unknown model.
pub(crate) fn unknown_model<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Failure {
    let names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
    let (shown, left) = names.split_at(names.len().min(MOST_NAMED));
    let listed = match (shown, left.len()) {
        ([before @ .., last], 0) if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        (shown, 0) => shown.join(", "),
        (shown, left) => format!("{} or one of {left} more", shown.join(", ")),
    };
    Failure {
        param: Some("model".to_owned()),
        code: Some("model_not_found"),
        ..Failure::new(
            StatusCode::NOT_FOUND,
            format!("there is no model {name:?} here: ask for {listed}"),
        )
    }
}

/// Refuses a server without models, and two models with one name.
fn check_names(entries: &[Entry]) -> Result<(), ServerError> {
    let refuse = |value: &str, problem: &str| {
        Err(ServerError::Option {
            option: "model",
            value: value.to_owned(),
            problem: problem.to_owned(),
        })
    };
    if entries.is_empty() {
        return refuse("none", "a server needs at least one model");
    }
    for (at, entry) in entries.iter().enumerate() {
        if entry.name.trim().is_empty() {
            return refuse(
                &entry.path.display().to_string(),
                "the name of a model must not be empty",
            );
        }
        if entries[..at].iter().any(|other| other.name == entry.name) {
            return refuse(
                &entry.name,
                "two models have this name; give one of them another as NAME=PATH",
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_lists_the_names_that_there_are() {
        let message = |names: &[&str]| unknown_model("x", names.iter().copied()).message;
        assert_eq!(message(&["a"]), "there is no model \"x\" here: ask for \"a\"");
        assert_eq!(
            message(&["a", "b", "c"]),
            "there is no model \"x\" here: ask for \"a\", \"b\" or \"c\""
        );
        let many: Vec<String> = (0..25).map(|number| format!("m{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(message(&many).ends_with("\"m19\" or one of 5 more"));
    }
}
