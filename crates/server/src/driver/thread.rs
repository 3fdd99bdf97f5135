//! The loop of the thread that owns the scheduler.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use riffle_engine::{Engine, EngineError, Event, RequestId, Scheduler, SchedulerOptions, TimeLeft};

use super::entry::Entry;
use super::telling::Telling;
use super::{Command, DriverEvent, Finished, SessionTold, Submission, Token};
use crate::ServerOptions;
use crate::failure::Failure;
use crate::log::{Line, Log};
use crate::metrics::Metrics;

/// Time that the idle thread waits for a command, before it looks for expired sequences.
const IDLE_PAUSE: Duration = Duration::from_millis(500);

/// Pause between two updates of the gauges while there is work.
const GAUGE_PAUSE: Duration = Duration::from_millis(200);

/// Time limit for writing held beginnings to the prefix cache at shutdown.
pub(crate) const KEEPING_TIME: Duration = Duration::from_secs(60);

/// State that the driver thread owns.
pub(super) struct Work {
    scheduler: Scheduler,
    scheduling: SchedulerOptions,
    commands: mpsc::Receiver<Command>,
    entries: HashMap<RequestId, Entry>,
    metrics: Arc<Metrics>,
    telling: Option<Telling>,
    keep_alive: Option<Duration>,
    log: Log,
    told_gauges: Instant,
    /// Shutdown deadline: answers may continue until then.
    stops: Option<Instant>,
}

impl Work {
    pub(super) fn new(
        scheduler: Scheduler,
        scheduling: SchedulerOptions,
        commands: Receiver<Command>,
        metrics: Arc<Metrics>,
        options: &ServerOptions,
        telling: Option<Telling>,
    ) -> Self {
        Self {
            scheduler,
            scheduling,
            commands,
            entries: HashMap::new(),
            metrics,
            telling,
            keep_alive: options.keep_alive,
            log: Log::of(options),
            told_gauges: Instant::now(),
            stops: None,
        }
    }

    /// Runs until it is told to stop and has no work left.
    pub(super) fn run(mut self) {
        loop {
            if self.take_commands().is_err() {
                self.stops.get_or_insert_with(Instant::now);
            }
            self.drop_gone_and_late();
            if let Some(keep_alive) = self.keep_alive
                && let Some(time) = Instant::now().checked_sub(keep_alive)
            {
                self.scheduler.forget_idle_since(time);
            }
            let has_more = self.step();
            self.tell_gauges(!has_more);
            self.tell_holdings(!has_more);
            match self.stops {
                Some(until) if Instant::now() >= until || self.entries.is_empty() => break,
                _ if has_more => {}
                _ => self.wait(),
            }
        }
        self.end();
    }

    /// Takes the received commands; an error if all senders are dropped.
    fn take_commands(&mut self) -> Result<(), ()> {
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(()),
            }
        }
    }

    fn wait(&mut self) {
        match self.commands.recv_timeout(IDLE_PAUSE) {
            Ok(command) => self.take(command),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.stops = Some(Instant::now()),
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Ask(asked) => self.submit(*asked),
            Command::Compress(session, options, listener) => {
                let entry = Entry::new(listener, false, TimeLeft::new(self.scheduler.engine()));
                self.begin(entry, |scheduler| scheduler.compress(*session, &options));
            }
            Command::Work(work) => {
                let scheduler = &mut self.scheduler;
                if catch_unwind(AssertUnwindSafe(|| work(scheduler))).is_err() {
                    self.begin_anew();
                }
            }
            Command::Stop(until) => {
                self.stops = Some(until);
                let waiting: Vec<RequestId> = self.entries.keys().copied().collect();
                for id in waiting {
                    if !self.scheduler.has_begun(id) {
                        self.fail(id, Failure::stopping());
                    }
                }
            }
        }
    }

    fn submit(&mut self, asked: Submission) {
        let Submission {
            request,
            listener,
            wants_sequence,
        } = asked;
        let entry = Entry::new(listener, wants_sequence, TimeLeft::new(self.scheduler.engine()));
        self.begin(entry, |scheduler| scheduler.submit(request));
    }

    fn begin(&mut self, entry: Entry, begin: impl FnOnce(&mut Scheduler) -> Result<RequestId, EngineError>) {
        if self.stops.is_some() {
            return entry.send(DriverEvent::Failed(Failure::stopping()));
        }
        match begin(&mut self.scheduler) {
            Ok(id) => {
                entry.send(DriverEvent::Accepted);
                self.entries.insert(id, entry);
            }
            Err(error) => entry.send(DriverEvent::Failed(Failure::from_engine(&error))),
        }
    }

    /// Cancels the requests of disconnected clients, and requests beyond their deadline.
    fn drop_gone_and_late(&mut self) {
        let now = Instant::now();
        let gone = |entry: &Entry| entry.is_gone() || entry.deadline <= now;
        let gone: Vec<RequestId> = self
            .entries
            .iter()
            .filter(|(_, entry)| gone(entry))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            if let Some(entry) = self.entries.get(&id).filter(|entry| entry.is_gone()) {
                self.metrics.count_end("abort");
                let line = entry.line("cancelled").with("reason", "the client went away");
                self.log.request(&line.with_seconds("total_s", entry.age_s()));
            }
            let late = "the request took longer than the server allows: what was read stays, ask again to go on";
            self.fail(id, Failure::new(StatusCode::SERVICE_UNAVAILABLE, late));
        }
    }

    fn fail(&mut self, id: RequestId, failure: Failure) {
        self.scheduler.cancel(id);
        if let Some(entry) = self.entries.remove(&id) {
            entry.send(DriverEvent::Failed(failure));
        }
    }

    /// Runs one piece of work. Returns false if there is none.
    fn step(&mut self) -> bool {
        let (entries, metrics) = (&mut self.entries, &self.metrics);
        let (scheduler, log) = (&mut self.scheduler, self.log);
        let mut lost = None;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            scheduler.step(&mut |event| match event {
                Event::PrefixCacheLost(error) => lost = Some(error),
                Event::SharedStore(notice) => log.note(&notice),
                event => forward(entries, metrics, log, event),
            })
        }));
        if let Some(error) = lost {
            log.note(&format!("the prefix cache cannot be used any more: {error}"));
        }
        match outcome {
            Ok(Ok(has_more)) => has_more,
            Ok(Err(error)) => {
                self.fail_all(&error);
                true
            }
            Err(_) => {
                self.begin_anew();
                true
            }
        }
    }

    fn fail_all(&mut self, error: &EngineError) {
        self.log.note(&format!("all requests end: {error}"));
        let all: Vec<RequestId> = self.entries.keys().copied().collect();
        for id in all {
            self.metrics.count_end("error");
            self.fail(id, Failure::from_engine(error));
        }
    }

    /// After a panic in the engine its state is dropped: all its requests end, and later ones get a new scheduler.
    fn begin_anew(&mut self) {
        let failure = Failure::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the engine failed while it worked on this and other requests: ask again",
        );
        for (_, entry) in self.entries.drain() {
            self.metrics.count_end("error");
            entry.send(DriverEvent::Failed(failure.clone()));
        }
        let engine: Arc<Engine> = Arc::clone(self.scheduler.engine());
        if let Some(telling) = &mut self.telling {
            telling.clear();
        }
        match Scheduler::new(&engine, self.scheduling.clone()) {
            Ok(scheduler) => self.scheduler = scheduler,
            Err(error) => {
                self.log.note(&format!("the engine cannot begin anew: {error}"));
                self.stops = Some(Instant::now());
            }
        }
    }

    fn tell_gauges(&mut self, is_idle: bool) {
        if is_idle || self.told_gauges.elapsed() >= GAUGE_PAUSE {
            self.told_gauges = Instant::now();
            self.metrics.observe(&self.scheduler);
        }
    }

    fn tell_holdings(&mut self, is_idle: bool) {
        if let Some(telling) = &mut self.telling {
            telling.publish_changes(&mut self.scheduler, &self.metrics, is_idle);
        }
    }

    /// Ends the remaining requests, and writes held beginnings to disk if there is a prefix cache.
    fn end(mut self) {
        let all: Vec<RequestId> = self.entries.keys().copied().collect();
        for id in all {
            self.fail(id, Failure::stopping());
        }
        let until = Instant::now() + KEEPING_TIME;
        while Instant::now() < until && self.step() {}
        self.scheduler
            .flush_shared(until.saturating_duration_since(Instant::now()));
    }
}

/// A log line about an answer, without any text of it.
fn answer_line(entry: &Entry, finished: &Finished) -> Line {
    let (report, times) = (&finished.report, finished.report.times);
    // Some models rotate positions differently in longer texts.
    let read_again = Some(report.turned_tokens).filter(|tokens| *tokens > 0);
    entry
        .line("answer")
        .with("prompt_tokens", report.prompt_tokens)
        .with("reused_tokens", report.reused_tokens)
        .with_some("read_again_tokens", read_again)
        .with("answer_tokens", report.generation.tokens.len())
        .with("ended_by", report.generation.stop.name())
        .with_seconds("waited_s", times.waited_s)
        .with_seconds("read_s", times.read_s)
        .with_seconds("answered_s", times.answered_s)
        .with_seconds("total_s", entry.age_s())
}

/// Forwards an event of the scheduler to the listener of its request.
fn forward(entries: &mut HashMap<RequestId, Entry>, metrics: &Metrics, log: Log, event: Event<'_>) {
    match event {
        Event::Reading(id, progress, reused_tokens) => {
            if let Some(entry) = entries.get_mut(&id) {
                entry.send_progress(progress, reused_tokens);
            }
        }
        Event::PromptProbabilities(id, probabilities) => {
            if let Some(entry) = entries.get(&id) {
                entry.send(DriverEvent::PromptProbabilities(probabilities));
            }
        }
        Event::Token(id, written) => {
            if let Some(entry) = entries.get_mut(&id) {
                let (gap_s, is_first) = entry.gap_s();
                metrics.count_token(gap_s, is_first);
                entry.send(DriverEvent::Token(Token {
                    token: written.token,
                    text: written.text.to_owned(),
                    probabilities: written.probabilities,
                }));
            }
        }
        Event::Finished(id, report, sequence) => {
            if let Some(entry) = entries.remove(&id) {
                if entry.wants_sequence {
                    match sequence.fork() {
                        Ok(fork) => entry.send(DriverEvent::Session(SessionTold::Read(Box::new(fork)))),
                        Err(error) => {
                            metrics.count_end("error");
                            return entry.send(DriverEvent::Failed(Failure::from_engine(&error)));
                        }
                    }
                }
                let finished = Finished {
                    report,
                    pairs: sequence.counts().pairs,
                    audit: sequence.audit(),
                };
                metrics.count_finished(&finished, entry.age_s());
                log.request(&answer_line(&entry, &finished));
                entry.send(DriverEvent::Finished(Box::new(finished)));
            }
        }
        Event::Failed(id, error) => {
            if let Some(entry) = entries.remove(&id) {
                metrics.count_end("error");
                let line = entry.line("failed").with("message", error.to_string());
                log.request(&line.with_seconds("total_s", entry.age_s()));
                entry.send(DriverEvent::Failed(Failure::from_engine(&error)));
            }
        }
        Event::Compressed(id, compressed, session) => {
            if let Some(entry) = entries.remove(&id) {
                entry.send(DriverEvent::Session(SessionTold::Compressed(compressed, session)));
            }
        }
        Event::PrefixCacheLost(_) | Event::SharedStore(_) => {}
    }
}
