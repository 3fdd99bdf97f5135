//! The threads of a fetch: they find out how much the store has, then load slices ahead of the caller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::envelope::{BlockName, MOST_NOTE_BYTES, most_bytes, open_note, open_slice, slices};
use super::known::Standing;
use super::{Inner, lock};
use crate::CacheShape;

/// Pause before the store is asked again for a block that another process will publish.
const POLL: Duration = Duration::from_millis(30);
/// Each of this many last blocks is searched for a note. Of earlier blocks only a coarse grid is searched.
const NOTES_NEAR_END: usize = 64;
/// Tokens between two blocks of this grid.
const NOTE_GRID_TOKENS: usize = 16 << 10;
/// Ratio of the time limits of a note and a slice.
const NOTE_PATIENCE: u32 = 10;
/// One in this many blocks, at the end, is loaded layer by layer.
const TAIL: usize = 4;

/// The state shared by a fetch's threads and its caller.
pub(super) struct Loading {
    pub(super) inner: Arc<Inner>,
    pub(super) shape: CacheShape,
    /// The blocks of the prompt, from the first missing one on.
    pub(super) blocks: Vec<BlockName>,
    /// True if a note is wanted; then all blocks up to the end count.
    pub(super) wants_note: bool,
    pub(super) wait: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

/// The progress of a fetch. An item is a slice; its number is its place in the loading order.
pub(super) struct State {
    /// Blocks that the store probably has; `None` while it is being asked.
    pub(super) found: Option<usize>,
    /// The next item to load.
    next: usize,
    /// Items taken by the caller.
    taken: usize,
    asked: BTreeSet<usize>,
    arrived: BTreeMap<usize, Vec<u8>>,
    /// Items from here on will not arrive.
    end: usize,
    /// The time of the latest arrival of an item.
    latest: Instant,
    pub(super) note: Option<Note>,
    threads: usize,
    cancelled: bool,
}

/// Recurrent state saved at the end of a beginning.
pub(super) struct Note {
    /// Number of the fetch's blocks in the beginning.
    pub(super) blocks: usize,
    pub(super) bytes: Vec<u8>,
}

/// The result of taking an item.
pub(super) enum Taken {
    /// An item, by number.
    Item(usize, Vec<u8>),
    /// Nothing yet.
    NotYet,
    /// Nothing more.
    Over,
}

impl Loading {
    /// Starts the threads. If none can be started, the fetch ends at once.
    pub(super) fn start(
        inner: &Arc<Inner>,
        shape: CacheShape,
        blocks: Vec<BlockName>,
        wants_note: bool,
        wait: Duration,
    ) -> Arc<Self> {
        let loading = Arc::new(Self {
            inner: Arc::clone(inner),
            shape,
            blocks,
            wants_note,
            wait,
            state: Mutex::new(State {
                found: None,
                next: 0,
                taken: 0,
                asked: BTreeSet::new(),
                arrived: BTreeMap::new(),
                end: usize::MAX,
                latest: Instant::now(),
                note: None,
                threads: 0,
                cancelled: false,
            }),
            changed: Condvar::new(),
        });
        if loading.blocks.is_empty() {
            loading.state().found = Some(0);
            return loading;
        }
        let threads = inner.options.parallel.clamp(1, loading.items(loading.blocks.len()));
        loading.state().threads = threads;
        for number in 0..threads {
            let shared = Arc::clone(&loading);
            let started = std::thread::Builder::new()
                .name("riffle-fetch".to_owned())
                .spawn(move || shared.run(number == 0));
            if started.is_err() {
                loading.thread_ends(number == 0);
            }
        }
        loading
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Ends the threads after their current work.
    pub(super) fn cancel(&self) {
        let mut state = self.state();
        state.cancelled = true;
        state.arrived.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// The next item, in order.
    pub(super) fn take(&self) -> Taken {
        let mut state = self.state();
        let item = state.taken;
        if let Some(planes) = state.arrived.remove(&item) {
            state.taken += 1;
            drop(state);
            self.changed.notify_all();
            return Taken::Item(item, planes);
        }
        if self.is_over(&state) {
            Taken::Over
        } else {
            Taken::NotYet
        }
    }

    /// Waits until there is an item or the fetch has ended, at most `time`.
    pub(super) fn wait_for_item(&self, time: Duration) {
        let state = self.state();
        let nothing = |state: &mut State| !state.arrived.contains_key(&state.taken) && !self.is_over(state);
        drop(self.changed.wait_timeout_while(state, time, nothing));
    }

    pub(super) fn has_item(&self) -> bool {
        let state = self.state();
        state.arrived.contains_key(&state.taken)
    }

    pub(super) fn has_arrived(&self) -> bool {
        let state = self.state();
        state.arrived.contains_key(&state.taken) || self.is_over(&state)
    }

    fn is_over(&self, state: &State) -> bool {
        state.threads == 0 && !state.arrived.contains_key(&state.taken)
    }

    /// Number of items of the first `blocks` blocks.
    fn items(&self, blocks: usize) -> usize {
        blocks * slices(&self.shape)
    }

    /// Number of the last blocks that are loaded layer by layer, if `found` blocks exist.
    fn tail(&self, found: usize) -> usize {
        // While another process publishes, blocks arrive one by one.
        if self.wait.is_zero() { found.div_ceil(TAIL) } else { 0 }
    }

    /// The block and the slice of an item, for `found` blocks: block by block, and the tail layer by layer.
    pub(super) fn place_of(&self, item: usize, found: usize) -> (usize, usize) {
        let (slices, tail) = (slices(&self.shape), self.tail(found));
        let before = found - tail;
        match item.checked_sub(before * slices) {
            Some(in_tail) if tail > 0 => (before + in_tail % tail, in_tail / tail),
            _ => (item / slices, item % slices),
        }
    }

    fn run(&self, is_first: bool) {
        if is_first {
            let found = self.look();
            self.state().found = Some(found);
            self.changed.notify_all();
        }
        while let Some((item, found)) = self.next_item() {
            let (block, slice) = self.place_of(item, found);
            let loaded = self.load(item, &self.blocks[block], slice);
            let mut state = self.state();
            state.asked.remove(&item);
            match loaded {
                Some(planes) => {
                    state.latest = Instant::now();
                    if !state.cancelled {
                        state.arrived.insert(item, planes);
                    }
                }
                None => state.end = state.end.min(item),
            }
            drop(state);
            self.changed.notify_all();
        }
        self.thread_ends(is_first);
    }

    fn thread_ends(&self, is_first: bool) {
        let mut state = self.state();
        if is_first {
            state.found.get_or_insert(0);
        }
        let is_last = state.threads == 1 && !state.cancelled;
        if let (true, true, false, Some(found)) = (is_last, self.wants_note, self.wait.is_zero(), state.found) {
            // Blocks published by other processes come first, then their note.
            let whole = state.end.min(self.items(found)) / slices(&self.shape);
            drop(state);
            let note = self.find_note(whole);
            state = self.state();
            state.note = note;
        }
        state.threads -= 1;
        drop(state);
        self.changed.notify_all();
    }

    /// The next item to load, once it is known and there is room for it; `None` at the end.
    fn next_item(&self) -> Option<(usize, usize)> {
        let ahead = (self.inner.options.fetch_bytes / most_bytes(&self.shape)).max(self.inner.options.parallel);
        let mut state = self.state();
        loop {
            if state.cancelled {
                return None;
            }
            if let Some(found) = state.found {
                if state.next >= self.items(found).min(state.end) {
                    return None;
                }
                if state.next < state.taken + ahead {
                    let item = state.next;
                    state.next += 1;
                    state.asked.insert(item);
                    return Some((item, found));
                }
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Number of blocks that the store has, up to a note if one is wanted.
    fn look(&self) -> usize {
        if !self.wait.is_zero() {
            return self.blocks.len();
        }
        let found = self.count_blocks();
        if !self.wants_note || found == 0 {
            return found;
        }
        let note = self.find_note(found);
        let blocks = note.as_ref().map_or(0, |note| note.blocks);
        self.state().note = note;
        blocks
    }

    /// Number of leading blocks that the store has: a search in ever finer steps between a present block and a
    /// missing one.
    fn count_blocks(&self) -> usize {
        let (mut there, mut absent) = (0, self.blocks.len() + 1);
        let last_slice = slices(&self.shape) - 1;
        while absent - there > 1 && !self.state().cancelled {
            let between = absent - there - 1;
            let asked = between.min(self.inner.store.names_per_question().max(1));
            // Numbers of blocks, at equal distances.
            let counts: Vec<usize> = (1..=asked)
                .map(|number| there + number * (between + 1) / (asked + 1))
                .collect();
            let names = counts.iter().map(|count| self.blocks[count - 1].slice(last_slice));
            let names: Vec<String> = names.collect();
            let Some(answers) = self.ask(1, |store, until| store.contains(&names, until)) else {
                return 0;
            };
            for (count, is_there) in counts.into_iter().zip(answers).rev() {
                match is_there {
                    // Others may have removed a block before a present one: then the fetch ends there.
                    true => there = there.max(count),
                    false if count > there => absent = absent.min(count),
                    false => {}
                }
            }
            absent = absent.max(there + 1);
        }
        there
    }

    /// The note of the longest of the first `blocks` blocks that has one.
    fn find_note(&self, blocks: usize) -> Option<Note> {
        let grid = (NOTE_GRID_TOKENS / self.shape.page_tokens).max(1);
        let near = (1..=blocks).rev().take(NOTES_NEAR_END);
        let far = (1..=blocks.saturating_sub(NOTES_NEAR_END)).rev();
        // Depths count from the beginning of the text, the fetch's blocks from the end of the caller's tokens.
        let far = far.filter(|count| (self.blocks[count - 1].depth + 1).is_multiple_of(grid));
        let candidates: Vec<usize> = near.chain(far).collect();
        for counts in candidates.chunks(self.inner.store.names_per_question().max(1)) {
            let names: Vec<String> = counts.iter().map(|count| self.blocks[count - 1].note()).collect();
            let answers = self.ask(1, |store, until| store.contains(&names, until))?;
            for (count, _) in counts.iter().zip(answers).filter(|(_, is_there)| *is_there) {
                let block = &self.blocks[count - 1];
                let read = |store: &dyn super::BlockStore, until| store.get(&block.note(), MOST_NOTE_BYTES, until);
                let Some(sealed) = self.ask(NOTE_PATIENCE, read)? else {
                    continue;
                };
                let Some(bytes) = open_note(block, &sealed) else {
                    self.inner.found_bad(crate::prefix::note_key(block.key));
                    continue;
                };
                self.inner.counts.count_fetched(sealed.len(), bytes.len());
                return Some(Note { blocks: *count, bytes });
            }
        }
        None
    }

    /// Loads a slice; `None` if it is missing or unusable.
    fn load(&self, item: usize, block: &BlockName, slice: usize) -> Option<Vec<u8>> {
        let (name, most_bytes) = (block.slice(slice), most_bytes(&self.shape));
        loop {
            let get = |store: &dyn super::BlockStore, until| match store.get(&name, most_bytes, until) {
                // Bytes that are no block count as a bad block.
                Err(super::StoreError::Wrong(_)) => Ok(Some(Vec::new())),
                answer => answer,
            };
            match self.ask(1, get)? {
                Some(sealed) => {
                    let Some(planes) = open_slice(&self.shape, block, slice, &sealed) else {
                        self.inner.found_bad(block.key);
                        return None;
                    };
                    self.inner.counts.count_fetched(sealed.len(), planes.len());
                    self.inner.found_good(block.key);
                    return Some(planes);
                }
                None if self.wait.is_zero() => {
                    // The store had reported this block as present.
                    lock(&self.inner.known).set(block.key, Standing::Bad);
                    return None;
                }
                None if !self.wait_for_others(item) => return None,
                None => {}
            }
        }
    }

    /// Waits briefly for another process to publish, or for as long as an earlier item is missing; false after too
    /// long a wait.
    fn wait_for_others(&self, item: usize) -> bool {
        let mut state = self.state();
        let mut pause = POLL;
        loop {
            if state.cancelled || state.end < item || state.latest.elapsed() >= self.wait {
                return false;
            }
            let (next, _) = self
                .changed
                .wait_timeout(state, pause)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            state = next;
            if state.asked.first() == Some(&item) {
                return !state.cancelled;
            } else {
                pause = POLL * 3
            }
        }
    }

    fn ask<T>(
        &self,
        patience: u32,
        ask: impl FnOnce(&dyn super::BlockStore, Instant) -> Result<T, super::StoreError>,
    ) -> Option<T> {
        self.inner.ask(self.inner.options.operation_time * patience, ask)
    }
}
