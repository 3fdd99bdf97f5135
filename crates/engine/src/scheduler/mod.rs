//! Many requests on one engine: who reads, who answers, who waits.
//!
//! A [`Scheduler`] goes on by [`step`](Scheduler::step)s, each a bounded piece of work: one token of every answer under way, in
//! one pass through the weights, or a piece of one prompt pass (a chunk of attention in one layer, or the linear work of as many
//! rows). So an answer waits for one piece and one step at most between two of its tokens, however long a prompt is.
//!
//! Its rules:
//!
//! - A request that can never fit is refused when it is submitted; one that fits later waits. Requests are admitted by priority,
//!   then first come, first served. Whoever was admitted has pages for its prompt and a slice of its answer, and gets further slices.
//!   Where there is no room for one, younger requests give their pages to older ones and read their text again later.
//! - Prompts get a fixed share of the time while answers are written, so neither side starves.
//! - What was read of a prompt stays when its owner goes: the sequence becomes idle, and serves whoever asks next until its pages
//!   or its place are needed. Two requests with one prompt read it once. With a prefix cache on disk it outlives the process.
//! - Sequences that read, answer, are parked or idle are together at most those that the engine's plan has room for.
//! - An answer has the bits that it has alone.

mod admission;
mod answers;
mod compressing;
mod disk;
mod holdings;
mod idle;
mod promises;
mod prompts;
mod request;
mod sessions;
mod shared;
mod step;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use riffle_kv::PagePool;

use crate::draft::DraftedAnswer;
use crate::error::require;
use crate::pass::{Pass, Runner};
use crate::sharing::{MeasuredPrefixCache, SharedPrefixes, drop_fetch, serves_others, share_prefix};
use crate::{
    Engine, EngineError, EngineOptions, PrefixCacheOptions, PrefixReport, Sequence, SharedStoreOptions, StopReason,
};
use answers::End;
use compressing::Compressing;
use disk::{Lookup, offers};
use holdings::Holdings;
pub use holdings::{HeldKind, HoldingChange};
use idle::{Idle, Offered};
use prompts::work_of;
pub use request::{Event, Request, RequestId, RequestReport, RequestTimes, WrittenToken};
use sessions::{Amount, FileState, Promised, Room};
pub use sessions::{LoanedSequence, Restoring};
use step::Tell;

/// How a scheduler shares an engine.
#[derive(Debug, Clone)]
pub struct SchedulerOptions {
    /// Requests that read or answer at a time, at most. Others wait. At most [`MachineOptions::sequences`](crate::MachineOptions::sequences): what is left of these
    /// are parked answers and sequences whose owners have gone.
    pub most_running: usize,
    /// Share of the time that prompts get while answers are written, above 0 and below 1.
    pub prompt_share: f64,
    /// Beginnings on disk that prompts are looked up in and kept in.
    pub prefix_cache: Option<PrefixCacheOptions>,
    /// A store of beginnings that other processes and machines share: looked in behind those on disk.
    pub shared_store: Option<SharedStoreOptions>,
    /// True if changes of what is held are noted, for [`Scheduler::take_holding_changes`]. Whoever turns it on asks for them.
    pub tells_holdings: bool,
}

impl SchedulerOptions {
    /// As many requests at a time as the engine has sequences, half of the time for prompts, nothing on disk.
    pub fn for_engine(options: &EngineOptions) -> Self {
        Self {
            most_running: options.machine.sequences,
            prompt_share: 0.5,
            prefix_cache: None,
            shared_store: None,
            tells_holdings: false,
        }
    }
}

/// Admits requests, reads their prompts and writes their answers, on one engine and one pool of pages.
pub struct Scheduler {
    engine: Arc<Engine>,
    options: SchedulerOptions,
    pool: PagePool,
    /// By priority, then in order of arrival.
    waiting: Vec<Waiting>,
    /// In order of admission.
    running: Vec<Running>,
    idle: Idle,
    /// Beginnings on disk, as long as they can be used.
    disk: Option<MeasuredPrefixCache>,
    /// Beginnings in a store that other processes share.
    shared: Option<SharedPrefixes>,
    /// The texts that are held, where changes of them are told.
    holdings: Option<Holdings>,
    /// Scratch of prompt passes, which may be under way, and of answers.
    prompts: Runner,
    answers: Runner,
    prompt_pass: Option<PromptPass>,
    /// In the order in which they were asked for.
    compressing: VecDeque<Compressing>,
    /// True if prompts that are read let a compression go first.
    is_compressions_turn: bool,
    /// Room that is taken outside these lists.
    promised: Promised,
    /// Seconds that prompts may still take before answers go on; negative where they took more than their share.
    prompt_credit_s: f64,
    submitted: u64,
    /// Passes of answers so far.
    turn: u64,
    /// True if the first waiting request has no room until something ends.
    is_blocked: bool,
    // [rows, vocab]
    logits: Vec<f32>,
}

/// A request without a place, or a parked one.
struct Waiting {
    id: RequestId,
    request: Request,
    clock: Clock,
    /// The sequence and the answer of a request that was parked.
    parked: Option<(Sequence, Stage)>,
    /// As of [`Running`].
    resumed_tokens: usize,
    /// True if it waits until [`Scheduler::resume`] is called.
    is_held: bool,
}

/// A request with a place.
struct Running {
    id: RequestId,
    request: Request,
    sequence: Sequence,
    stage: Stage,
    /// The search for the prompt's beginning, which comes before it is read. It is over where the request has been parked.
    lookup: Lookup,
    clock: Clock,
    /// The latest pass of answers that it was part of.
    turn: u64,
    offered: Offered,
    /// Tokens of the answer that its text ends with, since it was read again.
    resumed_tokens: usize,
    /// Tokens that its sequence may hold for now.
    promised_tokens: usize,
    /// Its owner has gone; it leaves when the pass it is part of ends.
    is_cancelled: bool,
}

/// The next work of a request.
enum Stage {
    /// Reads the rest of its prompt.
    Reading {
        /// Tokens of the prompt that were there when it began to be read.
        reused_tokens: usize,
        /// The answer that goes on behind it, where its text is read again.
        resumed: Option<Box<OpenAnswer>>,
    },
    /// Writes the answer; its next token has been drawn.
    Answering(Box<OpenAnswer>),
}

/// An answer that has begun and has not ended.
struct OpenAnswer {
    /// Tokens of the prompt that were there when it began to be read.
    reused_tokens: usize,
    answer: DraftedAnswer,
    /// The token that was drawn last. The sequence has not read it yet.
    token: u32,
    /// Tokens before it that the sequence has to read again.
    again: Vec<u32>,
}

/// When what happened to a request.
#[derive(Debug, Clone, Copy)]
struct Clock {
    submitted: Instant,
    /// When it got its place; the submission until then.
    admitted: Instant,
    /// When its first token was drawn; the admission until then.
    begun: Instant,
}

/// A pass of prompts under way.
struct PromptPass {
    pass: Pass,
    /// In the order of the running requests.
    parts: Vec<PromptPart>,
}

/// The tokens that a request reads in a pass of prompts.
struct PromptPart {
    id: RequestId,
    tokens: Vec<u32>,
    /// True if the recurrent state after these tokens is kept for others.
    keeps_state: bool,
}

impl Scheduler {
    /// A scheduler without requests; memory of passes and pages is taken as they come, within the engine's plan.
    ///
    /// # Errors
    /// [`EngineError::Option`] for an option out of range; [`EngineError::Kv`] when the folder of the disk tier or of the prefix
    /// cache cannot be written to.
    pub fn new(engine: &Arc<Engine>, options: SchedulerOptions) -> Result<Self, EngineError> {
        if let Some(selection) = engine.options().model.token_selection {
            return Err(selection.refuse("requests that share an engine read every token in every layer"));
        }
        let (most, sequences, share) = (
            options.most_running,
            engine.options().machine.sequences,
            options.prompt_share,
        );
        require(most > 0, "most_running", 0, "at least 1 request must be able to run")?;
        let requirement =
            format!("{most} requests are to run at a time: give MachineOptions::sequences that number at least");
        require(most <= sequences, "sequences", sequences, requirement)?;
        let is_share = share > 0.0 && share < 1.0;
        require(is_share, "prompt_share", share, "it must be above 0 and below 1")?;
        if options.prefix_cache.is_some() || options.shared_store.is_some() {
            // Beginnings are found by it, and the weights are read for it once.
            engine.fingerprint()?;
        }
        let pool = engine.page_pool()?;
        let holdings = || Holdings::new(engine, &pool, options.prefix_cache.is_some());
        let disk = options.prefix_cache.as_ref().map(MeasuredPrefixCache::open);
        let shared = options.shared_store.as_ref().map(SharedPrefixes::open);
        Ok(Self {
            holdings: options.tells_holdings.then(holdings).transpose()?,
            pool,
            waiting: Vec::new(),
            running: Vec::new(),
            idle: Idle::default(),
            disk: disk.transpose()?,
            shared: shared.transpose()?,
            prompts: Runner::new(engine),
            answers: Runner::new(engine),
            prompt_pass: None,
            compressing: VecDeque::new(),
            is_compressions_turn: false,
            promised: Promised::default(),
            prompt_credit_s: 0.0,
            submitted: 0,
            turn: 0,
            is_blocked: false,
            logits: Vec::new(),
            options,
            engine: Arc::clone(engine),
        })
    }

    /// The engine it shares.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The pool of all its sequences.
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// Requests that have no place yet, parked ones included.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that read or answer.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// True if a request reads or answers, or a compression is under way.
    pub fn is_running(&self, id: RequestId) -> bool {
        self.running.iter().any(|running| running.id == id)
            || self.compressing.iter().any(|compressing| compressing.id == id)
    }

    /// True if a request reads or answers, or has begun to and waits for room to go on, or a compression is under way. One that is
    /// [parked](Self::park) waits for [`resume`](Self::resume) and does not count.
    pub fn has_begun(&self, id: RequestId) -> bool {
        let goes_on = |waiting: &Waiting| waiting.id == id && waiting.parked.is_some() && !waiting.is_held;
        self.is_running(id) || self.waiting.iter().any(goes_on)
    }

    /// Sequences that are kept for whoever asks next.
    pub fn idle(&self) -> usize {
        self.idle.sequences.len()
    }

    /// Drops idle sequences that nobody has asked for since `time`; returns how many. Their pages go with them where no other
    /// sequence holds these.
    pub fn forget_idle_since(&mut self, time: Instant) -> usize {
        let dropped = self
            .idle
            .drop_unused_since(time, |path| sessions::is_named(&self.waiting, path));
        self.is_blocked &= dropped == 0;
        dropped
    }

    /// Takes in a sequence of the [pool](Self::pool) without an owner, such as one [restored](Sequence::restore) from a file: it is
    /// idle from now on, and what it has read as prompt serves whoever asks next. An idle sequence makes room for it where there is
    /// none; false where it can serve nobody or none makes room.
    pub fn adopt(&mut self, mut sequence: Sequence) -> bool {
        if !serves_others(&sequence) || !self.make_room(Amount::PLACE) {
            return false;
        }
        // Models with recurrent layers are found by their idle sequences alone.
        drop(share_prefix(&mut sequence));
        self.idle.keep(sequence, Offered::default());
        true
    }

    /// The use of the prefix cache on disk, where there is one.
    pub fn prefix_report(&self) -> Option<&PrefixReport> {
        self.disk.as_ref().map(|disk| &disk.report)
    }

    /// The sequence of a request that reads, answers or is parked.
    pub fn sequence(&self, id: RequestId) -> Option<&Sequence> {
        let running = self.running.iter().find(|running| running.id == id);
        let parked = || self.waiting.iter().find(|waiting| waiting.id == id)?.parked.as_ref();
        running.map(|running| &running.sequence).or_else(|| Some(&parked()?.0))
    }

    /// Asks for an answer. It is admitted by a later [`step`](Self::step).
    ///
    /// # Errors
    /// For a request that could never be answered: [`EngineError::EmptyPrompt`], [`EngineError::ContextExceeded`] with the option
    /// that would help, [`EngineError::Option`] and [`EngineError::Policy`] for options that make no sense,
    /// [`EngineError::NoTokenizer`]. For one that names a session: [`EngineError::SessionNotHeld`], [`EngineError::OtherText`] where the
    /// prompt does not begin with its text.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        request.check(&self.engine)?;
        // A policy refuses before anybody waits.
        let empty = Sequence::new(&self.engine, &self.pool, request.sequence_options(&self.engine))?;
        DraftedAnswer::new(&empty, request.generate.clone())?;
        self.check_session(&request, empty.options())?;
        let id = self.next_id();
        let now = Instant::now();
        self.enqueue(Waiting {
            id,
            request,
            clock: Clock {
                submitted: now,
                admitted: now,
                begun: now,
            },
            parked: None,
            resumed_tokens: 0,
            is_held: false,
        });
        Ok(id)
    }

    /// Takes a request back. What was read of its prompt stays for others. A chunk of attention that is under way is the last work
    /// done for it. False for a request that has ended.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        if self.cancel_compression(id) {
            return true;
        }
        if let Some(place) = self.waiting.iter().position(|waiting| waiting.id == id) {
            self.is_blocked = false;
            if let Some((sequence, _)) = self.waiting.remove(place).parked {
                self.idle.keep(sequence, Offered::default());
            }
            return true;
        }
        let Some(place) = self.running.iter().position(|running| running.id == id) else {
            return false;
        };
        self.is_blocked = false;
        if self.is_in_pass(id) {
            self.leave_pass(place);
        } else {
            self.retire(place);
        }
        true
    }

    /// Ends an answer with what has been written: [`Event::Finished`] with [`StopReason::Interrupted`] is told at once. False for a
    /// request without a token of an answer; [`cancel`](Self::cancel) takes it back.
    pub fn stop(&mut self, id: RequestId, tell: &mut Tell<'_>) -> bool {
        self.place_to_end(id);
        let Some(place) = self.running.iter().position(|running| running.id == id) else {
            return false;
        };
        let running = &mut self.running[place];
        let Some(open) = running.take_answer().or_else(|| running.take_resumed()) else {
            return false;
        };
        let report = running.report(open.reused_tokens, open.answer, StopReason::Interrupted);
        // Its sequence is told, and holds parts of tokens in the middle of a pass.
        if self.is_in_pass(id)
            && let Some(under_way) = self.prompt_pass.take()
        {
            self.give_up_pass(under_way);
        }
        self.end(vec![(place, End::Finished(report))], tell);
        true
    }

    /// Gives a parked answer a place, without further room, so that it can end.
    fn place_to_end(&mut self, id: RequestId) {
        let has_answer = |stage: &Stage| matches!(stage, Stage::Answering(_) | Stage::Reading { resumed: Some(_), .. });
        let is_answer = |waiting: &Waiting| {
            let mut parked = waiting.parked.iter();
            waiting.id == id && parked.any(|(_, stage)| has_answer(stage))
        };
        let Some(place) = self.waiting.iter().position(is_answer) else {
            return;
        };
        let mut waiting = self.waiting.remove(place);
        let parked = waiting.parked.take();
        let placed = parked.map(|(sequence, stage)| waiting.placed(sequence, stage));
        self.running.extend(placed);
    }

    /// Moves the pages of a request to farther tiers and gives its place to others, until [`resume`](Self::resume) is called.
    /// Nothing is computed again then. False for a request that does not answer.
    ///
    /// # Errors
    /// [`EngineError::Kv`] when a tier cannot be written; the request goes on as if it had not been parked.
    pub fn park(&mut self, id: RequestId) -> Result<bool, EngineError> {
        let answers = |running: &Running| running.id == id && matches!(running.stage, Stage::Answering { .. });
        match self.running.iter().position(answers) {
            None => Ok(false),
            Some(place) => self.park_running(place, true).map(|()| true),
        }
    }

    /// Lets a parked request go on when there is a place for it. False for a request that is not parked.
    pub fn resume(&mut self, id: RequestId) -> bool {
        self.is_blocked = false;
        let held = self
            .waiting
            .iter_mut()
            .find(|waiting| waiting.id == id && waiting.is_held);
        held.map(|waiting| waiting.is_held = false).is_some()
    }

    fn park_running(&mut self, place: usize, is_held: bool) -> Result<(), EngineError> {
        self.running[place].sequence.park()?;
        let running = self.running.remove(place);
        self.enqueue(running.waits(is_held));
        Ok(())
    }

    /// Removes a request that has a place; its sequence becomes idle.
    fn retire(&mut self, place: usize) {
        let mut ended = self.running.remove(place);
        if let Lookup::Fetching(search) | Lookup::Arriving(search) = &ended.lookup {
            drop_fetch(&mut ended.sequence, search);
        }
        self.idle.keep(ended.sequence, ended.offered);
    }

    fn next_id(&mut self) -> RequestId {
        self.submitted += 1;
        RequestId(self.submitted)
    }

    fn enqueue(&mut self, waiting: Waiting) {
        self.is_blocked = false;
        let rank = waiting.rank();
        let place = self.waiting.partition_point(|before| before.rank() < rank);
        self.waiting.insert(place, waiting);
    }

    fn is_in_pass(&self, id: RequestId) -> bool {
        self.requests_in_pass().any(|other| other == id)
    }

    /// Requests whose prompts the pass under way reads.
    fn requests_in_pass(&self) -> impl Iterator<Item = RequestId> {
        let parts = self.prompt_pass.iter().flat_map(|pass| &pass.parts);
        parts.map(|part| part.id)
    }
}
