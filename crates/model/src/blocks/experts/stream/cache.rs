//! The experts of a model that are in memory, for all layers together.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use riffle_linear::{Activations, PackedMatrix};

use super::budget::{ExpertClass, expert_cache_bytes, expert_slots};
use super::form::ExpertForm;
use super::loader::{self, Load, ReadParts, Sources};
use super::slots::{Content, Entry, Matrices, Slots};
use super::statistics::ExpertStatistics;
use super::usage::{Guesses, Usage};
use crate::ModelError;

/// The most experts read ahead while others compute, and the share of slots that they may use.
const MOST_AHEAD: usize = 32;
const AHEAD_SHARE: usize = 4;

/// The experts of a model that are in its files. A budget limits how many are in memory; the cache's threads load
/// them.
pub struct ExpertCache {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The memory budget of one user of a cache. With several users, the smallest budget counts.
pub struct ExpertBudget {
    shared: Arc<Shared>,
    number: u64,
}

/// When experts are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    Now,
    /// Perhaps soon.
    Early,
}

/// An expert that stays in memory until this is dropped.
pub(crate) struct Held {
    matrices: Option<Arc<Matrices>>,
    shared: Arc<Shared>,
}

/// The state that threads share.
pub(super) struct Shared {
    state: Mutex<State>,
    /// An expert arrived, failed, or is no longer held.
    changed: Condvar,
    /// Signals new loads.
    asked: Condvar,
    pub(super) sources: Sources,
}

struct State {
    sizes: Vec<ExpertClass>,
    classes: Vec<Slots>,
    budget_bytes: u64,
    /// The users' budgets by number, and the next number.
    budgets: BTreeMap<u64, u64>,
    next_budget: u64,
    layers: Vec<LayerState>,
    needed: VecDeque<Load>,
    early: VecDeque<Load>,
    /// Errors of failed loads, until a user needs the expert.
    failures: BTreeMap<Entry, ModelError>,
    statistics: ExpertStatistics,
    /// Number of uses so far.
    clock: u64,
    is_closed: bool,
}

struct LayerState {
    class: usize,
    /// For each expert, its slot.
    slot_of: Vec<Option<usize>>,
    /// For each expert, true if its weights were checked once.
    is_checked: Vec<bool>,
    usage: Usage,
    guesses: Guesses,
}

impl ExpertCache {
    /// A cache of the experts of `forms` within `budget_bytes`, which must be
    /// [enough](super::least_expert_cache_bytes). Memory is taken only for loaded experts.
    pub(crate) fn start(
        forms: Vec<ExpertForm>,
        files: Vec<(PathBuf, impl ReadParts + 'static)>,
        activations: Activations,
        budget_bytes: u64,
    ) -> Result<Arc<ExpertCache>, ModelError> {
        let classes = super::expert_classes(&forms);
        let mut first_of_class: Vec<&ExpertForm> = Vec::new();
        let mut layers = Vec::with_capacity(forms.len());
        for form in &forms {
            let known = first_of_class.iter().position(|first| first.is_like(form));
            let class = known.unwrap_or_else(|| {
                first_of_class.push(form);
                first_of_class.len() - 1
            });
            let experts = classes.get(class).map_or(0, |class: &ExpertClass| class.experts);
            layers.push(LayerState {
                class,
                slot_of: vec![None; experts],
                is_checked: vec![false; experts],
                usage: Usage::new(experts),
                guesses: Guesses::default(),
            });
        }
        let state = State {
            classes: expert_slots(&classes, budget_bytes)
                .into_iter()
                .map(Slots::new)
                .collect(),
            sizes: classes,
            budget_bytes,
            budgets: BTreeMap::new(),
            next_budget: 0,
            layers,
            needed: VecDeque::new(),
            early: VecDeque::new(),
            failures: BTreeMap::new(),
            statistics: ExpertStatistics::default(),
            clock: 0,
            is_closed: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            asked: Condvar::new(),
            sources: Sources {
                files: files
                    .into_iter()
                    .map(|(path, file)| (path, Box::new(file) as Box<dyn ReadParts>))
                    .collect(),
                layers: forms.into_iter().map(|form| form.parts).collect(),
                activations,
            },
        });
        Ok(Arc::new(ExpertCache {
            threads: loader::start(&shared)?,
            shared,
        }))
    }

    /// Maximum number of bytes of the cache, with all slots used.
    pub fn bytes(&self) -> u64 {
        let state = self.shared.lock();
        expert_cache_bytes(&state.sizes, state.budget_bytes)
    }

    /// Bytes of the slots with memory now.
    pub fn taken_bytes(&self) -> u64 {
        let state = self.shared.lock();
        let classes = state.classes.iter().zip(&state.sizes);
        classes
            .map(|(slots, size)| slots.present() as u64 * size.expert_bytes)
            .sum()
    }

    /// Sets a budget until the returned value is dropped. It must be [enough](super::least_expert_cache_bytes).
    /// Experts beyond the smallest budget of all users are freed, those in use after their computation.
    pub fn set_budget(&self, bytes: u64) -> ExpertBudget {
        let mut state = self.shared.lock();
        let number = state.next_budget;
        state.next_budget += 1;
        state.budgets.insert(number, bytes);
        state.keep_to_budgets();
        ExpertBudget {
            shared: Arc::clone(&self.shared),
            number,
        }
    }

    /// Counts since the model was loaded.
    pub fn statistics(&self) -> ExpertStatistics {
        self.shared.lock().statistics
    }

    /// Number of experts of a layer that may be read ahead.
    pub(crate) fn most_ahead(&self, layer: usize) -> usize {
        let state = self.shared.lock();
        let slots = state.classes[state.layers[layer].class].most();
        (slots / AHEAD_SHARE).min(MOST_AHEAD)
    }

    /// Records that `tokens` tokens reached a layer and chose experts; each expert comes with its number of tokens.
    pub(crate) fn choose(&self, layer: usize, tokens: usize, chosen: impl Iterator<Item = (usize, usize)>) {
        let mut state = self.shared.lock();
        let State {
            classes,
            layers,
            statistics,
            ..
        } = &mut *state;
        let layer = &mut layers[layer];
        let slots = &mut classes[layer.class].slots;
        let chosen: Vec<(usize, usize)> = chosen.collect();
        layer.usage.pass(tokens, chosen.iter().copied());
        let mut is_chosen = vec![false; layer.slot_of.len()];
        for (expert, _) in chosen {
            is_chosen[expert] = true;
            match layer.slot_of[expert].map(|slot| slots[slot].is_fresh) {
                None => statistics.misses += 1,
                Some(true) => statistics.early += 1,
                Some(false) => statistics.hits += 1,
            }
        }
        layer.guesses.judge(&is_chosen);
        for (slot, is_chosen) in layer.slot_of.iter().zip(is_chosen) {
            if let Some(slot) = slot.filter(|_| !is_chosen) {
                slots[slot].is_fresh = false;
            }
        }
    }

    /// Records a guess of the experts that a layer's tokens choose next. Begins to load the missing ones if the
    /// latest guesses were right.
    pub(crate) fn guess(&self, layer: usize, experts: Vec<usize>) {
        let mut state = self.shared.lock();
        let own = &mut state.layers[layer];
        let missing: Vec<usize> = experts
            .into_iter()
            .filter(|expert| own.slot_of[*expert].is_none())
            .collect();
        let is_trusted = own.guesses.make(missing.clone());
        drop(state);
        if is_trusted {
            self.ask(layer, missing.into_iter(), Urgency::Early);
        }
    }

    /// Begins to load experts of a layer that are not in memory, as far as there are slots.
    pub(crate) fn ask(&self, layer: usize, experts: impl Iterator<Item = usize>, urgency: Urgency) {
        let mut state = self.shared.lock();
        for expert in experts {
            if !state.ask(&self.shared.sources, layer, expert, urgency) {
                break;
            }
        }
        self.shared.asked.notify_all();
    }

    /// Waits until one of the `wanted` experts of a layer is in memory. Removes all such experts from `wanted` and
    /// returns them with their numbers.
    ///
    /// # Errors
    /// The reason one of them could not be read; another call tries again.
    pub(crate) fn wait(&self, layer: usize, wanted: &mut Vec<usize>) -> Result<Vec<(usize, Held)>, ModelError> {
        let mut began: Option<Instant> = None;
        let mut state = self.shared.lock();
        for expert in wanted.iter() {
            // The failure of a load that no caller waited for.
            state.failures.remove(&entry(layer, *expert));
        }
        loop {
            let mut held = Vec::new();
            let mut failure = None;
            wanted.retain(|expert| {
                failure = failure.take().or_else(|| state.failures.remove(&entry(layer, *expert)));
                let matrices = state.hold(layer, *expert);
                let is_here = matrices.is_some();
                held.extend(matrices.map(|matrices| (*expert, self.held(matrices))));
                !is_here
            });
            if let Some(error) = failure {
                // Dropping `held` takes the lock again.
                drop(state);
                return Err(error);
            }
            for expert in wanted.iter() {
                state.ask(&self.shared.sources, layer, *expert, Urgency::Now);
            }
            self.shared.asked.notify_all();
            if !held.is_empty() || wanted.is_empty() {
                if let Some(began) = began {
                    state.statistics.waited_ns += began.elapsed().as_nanos() as u64;
                }
                return Ok(held);
            }
            began.get_or_insert_with(Instant::now);
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn held(&self, matrices: Arc<Matrices>) -> Held {
        Held {
            matrices: Some(matrices),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for ExpertCache {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.asked.notify_all();
        for thread in self.threads.drain(..) {
            // A panicked thread has nothing to clean up.
            thread.join().ok();
        }
    }
}

impl Drop for ExpertBudget {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.budgets.remove(&self.number);
        state.keep_to_budgets();
    }
}

impl Held {
    /// Gate, up and down.
    pub(crate) fn matrix(&self, part: usize) -> Option<&PackedMatrix> {
        self.matrices.as_ref()?[part].as_ref()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _state = self.shared.lock();
        self.matrices = None;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next matrix to load, and returns it with the memory for it, if it has some; `None` when the
    /// cache is closed.
    pub(super) fn next(&self) -> Option<(Load, Option<PackedMatrix>)> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            let load = state.needed.pop_front();
            if let Some(load) = load.or_else(|| state.early.pop_front()) {
                let memory = match &mut state.classes[load.class].slots[load.slot].content {
                    Content::Loading { parts, .. } => parts[load.part].take(),
                    _ => None,
                };
                return Some((load, memory));
            }
            state = self.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Stores a loaded matrix; after a failure, the memory and the error.
    pub(super) fn loaded(&self, load: &Load, matrix: Option<PackedMatrix>, failure: Option<ModelError>) {
        let mut state = self.lock();
        let entry = entry(load.layer, load.expert);
        let bytes = self.sources.layers[load.layer][load.part]
            .as_ref()
            .map_or(0, |form| form.file_bytes() as u64);
        let is_failure = failure.is_some();
        match failure {
            None => state.statistics.read_bytes += bytes,
            Some(error) => _ = state.failures.entry(entry).or_insert(error),
        }
        let slot = &mut state.classes[load.class].slots[load.slot];
        let Content::Loading {
            left,
            has_failed,
            parts,
        } = &mut slot.content
        else {
            return;
        };
        parts[load.part] = matrix;
        *left -= 1;
        // The error stays stored: a caller may take the failure while other parts are still loading.
        *has_failed |= is_failure;
        if *left > 0 {
            return;
        }
        let (has_failed, parts) = (*has_failed, std::mem::take(parts));
        if has_failed {
            slot.content = Content::Empty(parts);
            (slot.entry, slot.is_fresh) = (None, false);
            state.layers[load.layer].slot_of[load.expert] = None;
        } else {
            slot.content = Content::Ready(Arc::new(parts));
            state.layers[load.layer].is_checked[load.expert] = true;
        }
        self.changed.notify_all();
    }
}

impl State {
    /// Applies the smallest budget of all users. Without users, the latest one stays.
    fn keep_to_budgets(&mut self) {
        let Some(least) = self.budgets.values().min() else {
            return;
        };
        self.budget_bytes = *least;
        let most = expert_slots(&self.sizes, self.budget_bytes);
        for (class, most) in most.into_iter().enumerate() {
            self.classes[class].set_most(most);
            self.shrink(class);
        }
    }

    /// Frees slots beyond the budget, lowest rank first, unless they are in use.
    fn shrink(&mut self, class: usize) {
        let (classes, layers) = (&mut self.classes, &self.layers);
        let rank = |entry: Entry| layers[entry.layer as usize].usage.rank(entry.expert as usize);
        for entry in classes[class].shrink(rank) {
            self.layers[entry.layer as usize].slot_of[entry.expert as usize] = None;
        }
    }

    /// An expert that is in memory.
    fn hold(&mut self, layer: usize, expert: usize) -> Option<Arc<Matrices>> {
        let layer = &self.layers[layer];
        let slot = &mut self.classes[layer.class].slots[layer.slot_of[expert]?];
        let Content::Ready(matrices) = &slot.content else {
            return None;
        };
        self.clock += 1;
        (slot.is_fresh, slot.used_at) = (false, self.clock);
        Some(Arc::clone(matrices))
    }

    /// Begins to load an expert that is not in memory, and raises the urgency of one requested early. False if no
    /// slot is free.
    fn ask(&mut self, sources: &Sources, layer: usize, expert: usize, urgency: Urgency) -> bool {
        let is_early = urgency == Urgency::Early;
        let class = self.layers[layer].class;
        if self.layers[layer].slot_of[expert].is_some() {
            if !is_early {
                self.hurry(layer, expert);
            }
            return true;
        }
        self.shrink(class);
        let (classes, layers) = (&mut self.classes, &self.layers);
        let rank = |entry: Entry| layers[entry.layer as usize].usage.rank(entry.expert as usize);
        let Some((number, emptied)) = classes[class].take(is_early, rank) else {
            return false;
        };
        if let Some(emptied) = emptied {
            self.layers[emptied.layer as usize].slot_of[emptied.expert as usize] = None;
        }
        let parts = sources.layers[layer].iter().enumerate();
        let parts: Vec<usize> = parts.filter_map(|(part, form)| form.as_ref().map(|_| part)).collect();
        let slot = &mut self.classes[class].slots[number];
        let memory = match &mut slot.content {
            Content::Empty(memory) => std::mem::take(memory),
            _ => Matrices::default(),
        };
        slot.content = Content::Loading {
            left: parts.len(),
            has_failed: false,
            parts: memory,
        };
        (slot.entry, slot.is_fresh) = (Some(entry(layer, expert)), is_early);
        self.layers[layer].slot_of[expert] = Some(number);
        // Clears the failure of an earlier read.
        self.failures.remove(&entry(layer, expert));
        let is_unchecked = !self.layers[layer].is_checked[expert];
        let queue = if is_early { &mut self.early } else { &mut self.needed };
        queue.extend(parts.into_iter().map(|part| Load {
            class,
            slot: number,
            layer,
            expert,
            part,
            is_unchecked,
        }));
        true
    }

    /// Moves the remaining loads of an expert to the urgent queue.
    fn hurry(&mut self, layer: usize, expert: usize) {
        let is_own = |load: &Load| (load.layer, load.expert) == (layer, expert);
        if self.early.iter().any(is_own) {
            let (own, others) = self.early.drain(..).partition(is_own);
            self.early = others;
            let own: VecDeque<Load> = own;
            self.needed.extend(own);
        }
    }
}

fn entry(layer: usize, expert: usize) -> Entry {
    Entry {
        layer: layer as u32,
        expert: expert as u32,
    }
}
