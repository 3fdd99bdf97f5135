//! Admission of requests, and room for pages.

use std::time::Instant;

use crate::scheduler::{Amount, Event, Lookup, Request, RequestId, Running, Scheduler, Stage, Tell, Waiting};
use crate::sequence::common_prefix;
use crate::sharing::{
    adopt_prefix, adopt_prefix_for, beginning_step, can_share, fork_beginning, has_evicted, known_beginning,
};
use crate::{EngineError, Sequence};

/// Fewest prompt tokens that are worth waiting for while another request reads them.
const WORTH_WAITING: usize = 64;

impl Scheduler {
    /// Admits waiting requests in order, as far as there are places and room. No request overtakes one that waits for
    /// room, unless nothing is running that could free room.
    pub(super) fn admit(&mut self, tell: &mut Tell<'_>) -> Result<(), EngineError> {
        let mut place = 0;
        while place < self.waiting.len() && !self.is_blocked {
            let waiting = &self.waiting[place];
            if waiting.is_held || self.waits_for_reader(waiting) {
                place += 1;
                continue;
            }
            let priority = waiting.request.priority;
            if self.running.len() == self.options.most_running && !self.make_place(priority)? {
                break;
            }
            let waiting = self.waiting.remove(place);
            if let Some(waiting) = self.start(waiting, tell) {
                self.waiting.insert(place, waiting);
                self.is_blocked = !self.running.is_empty();
                place += 1;
            }
        }
        Ok(())
    }

    /// True if another request will soon have read enough more of the same prompt to wait for. A running pass cannot
    /// be shared, and waiting for its end costs nothing.
    fn waits_for_reader(&self, waiting: &Waiting) -> bool {
        let request = &waiting.request;
        if waiting.parked.is_some() || request.prompt_probabilities.is_some() || request.session.is_some() {
            return false;
        }
        let prompt = &request.tokens;
        let reads = |running: &&Running| matches!(running.stage, Stage::Reading { .. }) && can_share(&running.sequence);
        self.running.iter().filter(reads).any(|running| {
            let step = beginning_step(&running.sequence);
            let shared = common_prefix(&running.request.tokens, prompt) / step * step;
            if shared < WORTH_WAITING {
                return false;
            }
            let known = if self.is_in_pass(running.id) {
                self.known_beginning(prompt)
            } else {
                running.sequence.tokens().len()
            };
            shared >= known + WORTH_WAITING
        })
    }

    /// Tokens of the longest beginning of `prompt` from which a request could continue now.
    fn known_beginning(&self, prompt: &[u32]) -> usize {
        let free = |running: &&Running| !self.is_in_pass(running.id) && !running.is_arriving();
        let free = self.running.iter().filter(free);
        let free = free.map(|running| known_beginning(&running.sequence, prompt));
        let idle = self.idle.longest(prompt).map(|(_, tokens)| tokens);
        free.chain(idle).max().unwrap_or(0)
    }

    /// Parks the answer of the lowest priority below `priority`; returns false if there is none, or no room for
    /// another sequence.
    fn make_place(&mut self, priority: i32) -> Result<bool, EngineError> {
        if self.alive() - self.idle.sequences.len() >= self.engine.options().machine.sequences {
            return Ok(false);
        }
        let answers = self.running.iter().enumerate().rev();
        let answers = answers.filter(|(_, running)| matches!(running.stage, Stage::Answering { .. }));
        let lowest = answers.min_by_key(|(_, running)| running.request.priority);
        match lowest.filter(|(_, running)| running.request.priority < priority) {
            None => Ok(false),
            Some((place, _)) => self.park_running(place, false).map(|()| true),
        }
    }

    /// Starts a request, or returns it if its pages have no room yet. A request that cannot start ends.
    fn start(&mut self, mut waiting: Waiting, tell: &mut Tell<'_>) -> Option<Waiting> {
        let (was_parked, is_held) = (waiting.parked.is_some(), waiting.is_held);
        let begun = match waiting.parked.take() {
            Some((mut sequence, mut stage)) => {
                adopt_again(&waiting.request, &mut sequence, &mut stage).map(|()| (sequence, stage))
            }
            None => {
                waiting.clock.admitted = Instant::now();
                self.sequence_for(&waiting.request).map(|sequence| {
                    let reused_tokens = sequence.tokens().len();
                    let resumed = None;
                    (sequence, Stage::Reading { reused_tokens, resumed })
                })
            }
        };
        let (sequence, stage) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                tell(Event::Failed(waiting.id, error));
                return None;
            }
        };
        let mut started = waiting.placed(sequence, stage);
        let reads_all = started.request.prompt_probabilities.is_some() || started.request.session.is_some();
        if !was_parked && !reads_all && can_share(&started.sequence) {
            started.lookup = Lookup::Ahead;
        }
        started.promised_tokens = self.first_promise(&started);
        let rank = started.rank();
        while !self.has_room_for(&started) {
            let is_placed = self.alive() < self.engine.options().machine.sequences;
            // A request that has begun takes pages from later ones.
            let has_yielded = self.drop_oldest_idle() || is_placed && self.take_pages(rank, was_parked);
            if !has_yielded {
                let mut waiting = started.waits(is_held);
                waiting.parked = waiting.parked.filter(|_| was_parked);
                return Some(waiting);
            }
        }
        self.running.push(started);
        None
    }

    fn has_room_for(&self, started: &Running) -> bool {
        let needed = self.taken_bytes() + self.growth_bytes(started);
        needed <= self.capacity_bytes() && self.alive() < self.engine.options().machine.sequences
    }

    /// An empty sequence for a request, or one with a known beginning of its prompt.
    fn sequence_for(&mut self, request: &Request) -> Result<Sequence, EngineError> {
        let options = request.sequence_options(&self.engine);
        if let Some(path) = &request.session {
            return self.fork_session(path, &request.tokens, &options);
        }
        let mut sequence = Sequence::new(&self.engine, &self.pool, options)?;
        sequence.turn_for(request.tokens.len());
        if !can_share(&sequence) || request.prompt_probabilities.is_some() {
            return Ok(sequence);
        }
        if !sequence.recurrence().is_recurrent() {
            adopt_prefix(&mut sequence, &request.tokens)?;
        }
        let adopted = sequence.tokens().len();
        Ok(self.fork_longer(request, adopted)?.unwrap_or(sequence))
    }

    /// A fork of a sequence that has read more than `known` tokens of a request's prompt: partly shared pages, and
    /// recurrent states, are only available by forking.
    fn fork_longer(&mut self, request: &Request, known: usize) -> Result<Option<Sequence>, EngineError> {
        let options = request.sequence_options(&self.engine);
        let in_pass: Vec<RequestId> = self.requests_in_pass().collect();
        let running = self.running.iter_mut();
        let free = running.filter(|running| !in_pass.contains(&running.id) && !running.is_arriving());
        let free = free.map(|running| {
            let tokens = known_beginning(&running.sequence, &request.tokens);
            (&mut running.sequence, tokens)
        });
        let longest = free
            .chain(self.idle.longest_shared(&request.tokens))
            .max_by_key(|(_, tokens)| *tokens);
        match longest {
            Some((sequence, tokens)) if tokens > known => fork_beginning(sequence, tokens, &options),
            _ => Ok(None),
        }
    }

    /// Stores the state of a sequence with recurrent layers for others that continue from its tokens, if there is
    /// room.
    pub(super) fn keep_state(&mut self, place: usize) -> Result<(), EngineError> {
        if !self.make_room(Amount::PLACE) {
            return Ok(());
        }
        let running = &mut self.running[place];
        let copy = running.sequence.fork()?;
        self.idle.keep(copy, running.offered);
        Ok(())
    }

    /// Bytes of pages in use or promised.
    pub(super) fn taken_bytes(&self) -> u64 {
        let running: u64 = self.running.iter().map(|running| self.growth_bytes(running)).sum();
        let promised = running.saturating_add(self.promised.amount().bytes);
        self.pool.pages_bytes().saturating_add(promised)
    }

    /// Number of sequences that are running, parked, idle or promised.
    pub(super) fn alive(&self) -> usize {
        let parked = self.waiting.iter().filter(|waiting| waiting.parked.is_some());
        self.running.len() + parked.count() + self.idle.sequences.len() + self.promised.amount().sequences
    }

    /// Bytes of pages that a request may still take of its promise.
    fn growth_bytes(&self, running: &Running) -> u64 {
        let (most, row) = (self.bytes_of(running.promised_tokens), self.pool.shape().row_bytes());
        let (tokens, usage) = (running.sequence.tokens().len(), running.sequence.usage());
        if has_evicted(&running.sequence) {
            // After an eviction the heads hold fewer tokens than the sequence. Further tokens take pages as usual.
            return (most + 2 * row).saturating_sub(self.bytes_of(tokens));
        }
        // A partly filled page that others share is copied when it is written, and theirs stays.
        let is_copied = usage.shared_bytes > 0 && !tokens.is_multiple_of(self.engine.options().cache.page_tokens);
        let copied = if is_copied { row } else { 0 };
        (most + row + copied).saturating_sub(usage.bytes_by_tier.total())
    }

    /// Bytes of the pages of `tokens` tokens.
    pub(super) fn bytes_of(&self, tokens: usize) -> u64 {
        let tokens = tokens.min(self.engine.plan().context_tokens);
        self.engine.resolved.pages_bytes(tokens)
    }

    /// The limit on the bytes of all sequences' pages. It includes a page of each layer, because every count of a
    /// request includes one beyond its promise.
    pub(super) fn capacity_bytes(&self) -> u64 {
        let row = self.pool.shape().row_bytes();
        self.engine.plan().kv_bytes.saturating_add(row)
    }
}

/// Lets a request whose pages were taken continue from others' pages of its prompt.
fn adopt_again(request: &Request, sequence: &mut Sequence, stage: &mut Stage) -> Result<(), EngineError> {
    let length = stage.text_length(request);
    let Stage::Reading { reused_tokens, .. } = stage else {
        return Ok(());
    };
    if sequence.tokens().is_empty() && !sequence.recurrence().is_recurrent() && can_share(sequence) {
        *reused_tokens = adopt_prefix_for(sequence, &request.tokens, length)?;
    }
    Ok(())
}
