//! Schedules many requests on one engine: reading, answering, waiting.
//!
//! A [`Scheduler`] works in [`step`](Scheduler::step)s, each a bounded piece of work: one token of every answer, in
//! one pass through the weights, or a piece of one prompt pass (a chunk of attention in one layer, or the linear work
//! of as many rows). So an answer waits for at most one piece and one step between two tokens, for prompts of any
//! length.
//!
//! Its rules:
//!
//! - A request that can never fit is refused at submission; one that fits later waits. Requests are admitted by
//!   priority, then in order of arrival. An admitted request has pages for its prompt and a slice of its answer, and
//!   gets further slices. If there is no room for a slice, younger requests give their pages to older ones and read
//!   their text again later.
//! - Prompts get a fixed share of the time while answers are generated, so neither side starves.
//! - The pages of a prompt stay after its request ends: the sequence becomes idle, and serves later requests until
//!   its pages or its place are needed. Two requests with the same prompt read it once. With a prefix cache on disk,
//!   pages outlive the process.
//! - The number of sequences that read, answer, are parked or idle never exceeds the engine's plan.
//! - An answer has the same bits as alone.

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

/// Options of a scheduler.
#[derive(Debug, Clone)]
pub struct SchedulerOptions {
    /// Maximum number of requests that read or answer at a time; others wait. At most
    /// [`MachineOptions::sequences`](crate::MachineOptions::sequences); the remaining sequences are parked answers and
    /// idle ones.
    pub most_running: usize,
    /// Share of the time for prompts while answers are generated, above 0 and below 1.
    pub prompt_share: f64,
    /// Prefix cache on disk in which prompts are looked up and stored.
    pub prefix_cache: Option<PrefixCacheOptions>,
    /// A store of beginnings shared with other processes and machines, searched after the disk.
    pub shared_store: Option<SharedStoreOptions>,
    /// True to record changes of held blocks, for [`Scheduler::take_holding_changes`], which the caller must then
    /// call.
    pub tells_holdings: bool,
}

impl SchedulerOptions {
    /// Serves as many requests at a time as the engine has sequences. Prompts get half of the time. No disk is used.
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

/// Admits requests, reads their prompts and generates their answers, on one engine and one pool of pages.
pub struct Scheduler {
    engine: Arc<Engine>,
    options: SchedulerOptions,
    pool: PagePool,
    /// Waiting requests by priority, then in order of arrival.
    waiting: Vec<Waiting>,
    /// Admitted requests in order of admission.
    running: Vec<Running>,
    idle: Idle,
    /// Prompt beginnings on disk; `None` after the folder failed.
    disk: Option<MeasuredPrefixCache>,
    /// Beginnings in a store shared with other processes.
    shared: Option<SharedPrefixes>,
    /// The held texts, if their changes are reported.
    holdings: Option<Holdings>,
    /// Scratch of prompt passes, possibly unfinished, and of answers.
    prompts: Runner,
    answers: Runner,
    prompt_pass: Option<PromptPass>,
    /// Compressions in the order of their requests.
    compressing: VecDeque<Compressing>,
    /// True if prompts let a compression go first.
    is_compressions_turn: bool,
    /// Memory and sequences promised to requests outside these lists.
    promised: Promised,
    /// Seconds that prompts may still use before answers continue; negative after they exceeded their share.
    prompt_credit_s: f64,
    submitted: u64,
    /// Number of answer passes so far.
    turn: u64,
    /// True if the first waiting request has no room until another ends.
    is_blocked: bool,
    // [rows, vocab]
    logits: Vec<f32>,
}

/// A request without a place, or a parked one.
struct Waiting {
    id: RequestId,
    request: Request,
    clock: Clock,
    /// The sequence and the answer of a parked request.
    parked: Option<(Sequence, Stage)>,
    /// As `resumed_tokens` of [`Running`].
    resumed_tokens: usize,
    /// True if the request waits for [`Scheduler::resume`].
    is_held: bool,
}

/// A request with a place.
struct Running {
    id: RequestId,
    request: Request,
    sequence: Sequence,
    stage: Stage,
    /// The search for the prompt's beginning, before it is read. It is finished for a request that was parked.
    lookup: Lookup,
    clock: Clock,
    /// The latest answer pass with this request.
    turn: u64,
    offered: Offered,
    /// Number of answer tokens at the end of its text, after the text was read again.
    resumed_tokens: usize,
    /// Number of tokens that the request's sequence may hold at present.
    promised_tokens: usize,
    /// True if the request was cancelled. It is removed when its current pass ends.
    is_cancelled: bool,
}

/// The next work of a request.
enum Stage {
    /// The scheduler reads the rest of the prompt.
    Reading {
        /// Prompt tokens that were available before reading began.
        reused_tokens: usize,
        /// The answer to continue afterwards, if its text is read again.
        resumed: Option<Box<OpenAnswer>>,
    },
    /// The scheduler generates the answer. The next token is already drawn.
    Answering(Box<OpenAnswer>),
}

/// An unfinished answer.
struct OpenAnswer {
    /// Prompt tokens that were available before reading began.
    reused_tokens: usize,
    answer: DraftedAnswer,
    /// The latest drawn token. The sequence has not read it yet.
    token: u32,
    /// Tokens before `token` that the sequence must read again.
    again: Vec<u32>,
}

/// Times of a request.
#[derive(Debug, Clone, Copy)]
struct Clock {
    submitted: Instant,
    /// Time of admission; until then, the time of submission.
    admitted: Instant,
    /// Time of the first drawn token; until then, the time of admission.
    begun: Instant,
}

/// An unfinished prompt pass.
struct PromptPass {
    pass: Pass,
    /// Parts of the pass, in the order of the running requests.
    parts: Vec<PromptPart>,
}

/// The tokens that a request reads in a prompt pass.
struct PromptPart {
    id: RequestId,
    tokens: Vec<u32>,
    /// True if the recurrent state after these tokens is stored for others.
    keeps_state: bool,
}

impl Scheduler {
    /// A scheduler without requests. Passes and pages are allocated on demand, within the engine's plan.
    ///
    /// # Errors
    /// [`EngineError::Option`] for an option out of range; [`EngineError::Kv`] if the folder of the disk tier or of
    /// the prefix cache is not writable.
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
            // The fingerprint finds beginnings of prompts. Computing it reads the weights once.
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

    /// The scheduler's engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The pool of all sequences.
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// Number of requests without a place, including parked ones.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of requests that read or answer.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// True if a request reads or answers, or a compression is running.
    pub fn is_running(&self, id: RequestId) -> bool {
        self.running.iter().any(|running| running.id == id)
            || self.compressing.iter().any(|compressing| compressing.id == id)
    }

    /// True if a request reads or answers, or has begun to and waits for room, or a compression is running. A
    /// [parked](Self::park) request, which waits for [`resume`](Self::resume), does not count.
    pub fn has_begun(&self, id: RequestId) -> bool {
        let goes_on = |waiting: &Waiting| waiting.id == id && waiting.parked.is_some() && !waiting.is_held;
        self.is_running(id) || self.waiting.iter().any(goes_on)
    }

    /// Number of idle sequences kept for later requests.
    pub fn idle(&self) -> usize {
        self.idle.sequences.len()
    }

    /// Drops idle sequences not used since `time`; returns their number. Their unshared pages are freed.
    pub fn forget_idle_since(&mut self, time: Instant) -> usize {
        let dropped = self
            .idle
            .drop_unused_since(time, |path| sessions::is_named(&self.waiting, path));
        self.is_blocked &= dropped == 0;
        dropped
    }

    /// Adds a sequence of the [pool](Self::pool) without an owner, such as one [restored](Sequence::restore) from a
    /// file. It becomes idle, and its prompt serves later requests. An idle sequence makes room for it if necessary.
    /// Returns false if it cannot serve any request or there is no room.
    pub fn adopt(&mut self, mut sequence: Sequence) -> bool {
        if !serves_others(&sequence) || !self.make_room(Amount::PLACE) {
            return false;
        }
        // In models with recurrent layers only idle sequences are searched.
        drop(share_prefix(&mut sequence));
        self.idle.keep(sequence, Offered::default());
        true
    }

    /// Statistics of the prefix cache on disk, if there is one.
    pub fn prefix_report(&self) -> Option<&PrefixReport> {
        self.disk.as_ref().map(|disk| &disk.report)
    }

    /// The sequence of a request that reads, answers or is parked.
    pub fn sequence(&self, id: RequestId) -> Option<&Sequence> {
        let running = self.running.iter().find(|running| running.id == id);
        let parked = || self.waiting.iter().find(|waiting| waiting.id == id)?.parked.as_ref();
        running.map(|running| &running.sequence).or_else(|| Some(&parked()?.0))
    }

    /// Submits a request. A later [`step`](Self::step) admits it.
    ///
    /// # Errors
    /// For a request that can never be answered: [`EngineError::EmptyPrompt`], [`EngineError::ContextExceeded`] with
    /// the option that would help, [`EngineError::Option`] and [`EngineError::Policy`] for invalid options,
    /// [`EngineError::NoTokenizer`]. For one that names a session: [`EngineError::SessionNotHeld`],
    /// [`EngineError::OtherText`] if the prompt does not begin with its text.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        request.check(&self.engine)?;
        // A policy refuses before the request waits.
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

    /// Cancels a request. Its prompt's pages stay for others. A running chunk of attention is its last work. Returns
    /// false for a request that has ended.
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

    /// Ends an answer early: [`Event::Finished`] with [`StopReason::Interrupted`] is reported at once. Returns false
    /// for a request without an answer token; use [`cancel`](Self::cancel) for it.
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
        // The request's sequence is reported, but has incomplete tokens during a pass.
        if self.is_in_pass(id)
            && let Some(under_way) = self.prompt_pass.take()
        {
            self.give_up_pass(under_way);
        }
        self.end(vec![(place, End::Finished(report))], tell);
        true
    }

    /// Gives a parked answer a place without further room, so that it can end.
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

    /// Moves the pages of a request to farther tiers and frees its place, until [`resume`](Self::resume) is called.
    /// Nothing is computed again then. Returns false for a request without an answer.
    ///
    /// # Errors
    /// [`EngineError::Kv`] if a tier is not writable; the request then continues unparked.
    pub fn park(&mut self, id: RequestId) -> Result<bool, EngineError> {
        let answers = |running: &Running| running.id == id && matches!(running.stage, Stage::Answering { .. });
        match self.running.iter().position(answers) {
            None => Ok(false),
            Some(place) => self.park_running(place, true).map(|()| true),
        }
    }

    /// Lets a parked request continue when there is a place for it. Returns false for a request that is not parked.
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

    /// Requests whose prompts the current pass reads.
    fn requests_in_pass(&self) -> impl Iterator<Item = RequestId> {
        let parts = self.prompt_pass.iter().flat_map(|pass| &pass.parts);
        parts.map(|part| part.id)
    }
}
