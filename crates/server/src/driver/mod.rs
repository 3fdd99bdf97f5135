//! The thread that steps the scheduler, and how requests get to it and answers come back.
//!
//! The HTTP side never waits for the engine: it sends a request and takes events as they come. The driver cancels an
//! answer before the next piece of work once its receiver is dropped. The prompt's pages stay for a later request.

mod entry;
mod telling;
mod thread;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use riffle_engine::{
    AuditReport, CompressOptions, Compressed, Engine, LoanedSequence, PairCount, PrefillProgress, Request,
    RequestReport, Scheduler, SchedulerOptions, Sequence, TokenProbabilities,
};
use riffle_events::Publisher;
use telling::Telling;
pub use telling::{EventSink, event_of};
pub(crate) use thread::KEEPING_TIME;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::failure::Failure;
use crate::metrics::Metrics;
use crate::request_notes::RequestNotes;
use crate::{ServerError, ServerOptions};

/// An event of an answer.
#[derive(Debug)]
pub(crate) enum DriverEvent {
    /// The scheduler has accepted the request.
    Accepted,
    /// The prompt is being read.
    Reading(Reading),
    /// Probabilities of the next prompt tokens.
    PromptProbabilities(Vec<TokenProbabilities>),
    /// A token was written.
    Token(Token),
    /// The answer is complete.
    Finished(Box<Finished>),
    /// A sequence requested by `/sessions`.
    Session(SessionTold),
    /// The answer failed.
    Failed(Failure),
}

/// A sequence requested by a handler of `/sessions`.
#[derive(Debug)]
pub(crate) enum SessionTold {
    /// The sequence of an answer, sent before its end.
    Read(Box<Sequence>),
    /// A compressed sequence.
    Compressed(Compressed, Box<LoanedSequence>),
}

/// The progress of reading a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reading {
    pub(crate) progress: PrefillProgress,
    /// Number of reused tokens.
    pub(crate) reused_tokens: usize,
    pub(crate) elapsed_s: f64,
    /// Estimated seconds until the end of reading, if known.
    pub(crate) left_s: Option<f64>,
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Token {
    pub(crate) token: u32,
    /// The text that can no longer change, often empty.
    pub(crate) text: String,
    pub(crate) probabilities: Option<TokenProbabilities>,
}

/// Report and counts of a finished answer.
#[derive(Debug, Clone)]
pub(crate) struct Finished {
    pub(crate) report: RequestReport,
    /// Query-key pairs computed for this request, without pairs of cached tokens.
    pub(crate) pairs: PairCount,
    pub(crate) audit: Option<AuditReport>,
}

/// The events of one answer. Dropping it cancels the request.
#[derive(Debug)]
pub(crate) struct Answer {
    events: UnboundedReceiver<DriverEvent>,
    /// Counts the request as long as the answer is alive.
    _permit: RequestPermit,
}

/// Permit for one of the requests that the server accepts at a time. Dropping it admits another request.
#[derive(Debug)]
pub(crate) struct RequestPermit(Arc<AtomicUsize>);

/// A command to the driver thread.
enum Command {
    Ask(Box<Submission>),
    Compress(Box<LoanedSequence>, Box<CompressOptions>, Listener),
    /// Work between two pieces.
    Work(Box<dyn FnOnce(&mut Scheduler) + Send>),
    /// Shutdown: running answers may continue until this time.
    Stop(Instant),
}

/// A request for the scheduler, and the listener of its events.
struct Submission {
    request: Request,
    listener: Listener,
    /// True if the sequence is sent after the complete answer.
    wants_sequence: bool,
}

/// Receiver of a request's events, and its deadline.
struct Listener {
    events: UnboundedSender<DriverEvent>,
    deadline: Instant,
    /// HTTP request, for the log.
    notes: Option<Arc<RequestNotes>>,
}

/// Addresses to which routers connect for KV events.
#[derive(Debug, Clone)]
pub struct KvEventAddresses {
    /// Address of events.
    pub events: String,
    /// Address for requests of missed events.
    pub replays: Option<String>,
}

impl KvEventAddresses {
    fn from_publisher(publisher: &Publisher) -> Self {
        Self {
            events: publisher.address().to_owned(),
            replays: publisher.replay_address().map(str::to_owned),
        }
    }
}

/// Sends requests to the thread that owns the scheduler.
#[derive(Debug)]
pub(crate) struct Driver {
    commands: mpsc::Sender<Command>,
    taken: Arc<AtomicUsize>,
    most_requests: usize,
    request_time: Duration,
    kv_events: Option<KvEventAddresses>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Driver {
    /// Starts the thread. With a `sink` KV events go there and are not published.
    pub(crate) fn start(
        engine: &Arc<Engine>,
        options: &ServerOptions,
        metrics: Arc<Metrics>,
        sink: Option<EventSink>,
    ) -> Result<Self, ServerError> {
        let scheduling = SchedulerOptions {
            most_running: options.parallel,
            prompt_share: options.prompt_share,
            prefix_cache: options.prefix_cache.clone(),
            shared_store: options.shared_store.clone(),
            tells_holdings: options.kv_events.is_some() || sink.is_some(),
        };
        // Events name blocks only by their tokens, so a router would confuse the pages of an adapter with the
        // model's.
        if scheduling.tells_holdings && !engine.adapters().is_empty() {
            return Err(ServerError::Option {
                option: "kv_events",
                value: "on".to_owned(),
                problem: "events cannot tell the pages of adapters apart; leave out the adapters or the events"
                    .to_owned(),
            });
        }
        let published = options.kv_events.clone().filter(|_| sink.is_none());
        let publisher = published.map(Publisher::start).transpose()?;
        let kv_events = publisher.as_ref().map(KvEventAddresses::from_publisher);
        let telling = publisher.map(Telling::publishing).or(sink.map(Telling::handing_over));
        let scheduler = Scheduler::new(engine, scheduling.clone())?;
        let (commands, received) = mpsc::channel();
        let threads = options.threads;
        let work = thread::Work::new(scheduler, scheduling, received, metrics, options, telling);
        let thread = std::thread::Builder::new()
            .name("riffle-engine".to_owned())
            .spawn(move || {
                // If the thread pool cannot be started, the work runs on this thread only.
                let mut work = Some(work);
                let run = |work: &mut Option<thread::Work>| work.take().map(thread::Work::run);
                if riffle_engine::with_threads(threads, || run(&mut work)).is_err() {
                    run(&mut work);
                }
            })
            .map_err(ServerError::Thread)?;
        Ok(Self {
            commands,
            taken: Arc::default(),
            most_requests: options.limits.requests,
            request_time: options.limits.request_time,
            kv_events,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Requests an answer.
    pub(crate) fn ask(&self, request: Request) -> Result<Answer, Failure> {
        self.send(|listener| {
            Command::Ask(Box::new(Submission {
                request,
                listener,
                wants_sequence: false,
            }))
        })
    }

    /// Requests an answer, and a fork of its sequence after the end.
    pub(crate) fn ask_for_sequence(&self, request: Request) -> Result<Answer, Failure> {
        self.send(|listener| {
            Command::Ask(Box::new(Submission {
                request,
                listener,
                wants_sequence: true,
            }))
        })
    }

    /// Requests the compression of a sequence.
    pub(crate) fn compress(&self, session: LoanedSequence, options: CompressOptions) -> Result<Answer, Failure> {
        self.send(|listener| Command::Compress(Box::new(session), Box::new(options), listener))
    }

    fn send(&self, command: impl FnOnce(Listener) -> Command) -> Result<Answer, Failure> {
        let place = self.permit()?;
        let (events, received) = unbounded_channel();
        let listener = Listener {
            events,
            deadline: Instant::now() + self.request_time,
            notes: RequestNotes::current(),
        };
        self.commands.send(command(listener)).map_err(|_| Failure::stopping())?;
        Ok(Answer {
            events: received,
            _permit: place,
        })
    }

    /// Counts a request for as long as the permit is alive.
    pub(crate) fn permit(&self) -> Result<RequestPermit, Failure> {
        RequestPermit::take(&self.taken, self.most_requests).ok_or_else(|| {
            Failure::busy(format!(
                "{} requests are being answered or wait already: try again in a few seconds",
                self.most_requests
            ))
        })
    }

    /// Runs work on the scheduler between two of its pieces.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Scheduler) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let (done, outcome) = oneshot::channel();
        let work = move |scheduler: &mut Scheduler| drop(done.send(work(scheduler)));
        self.commands
            .send(Command::Work(Box::new(work)))
            .map_err(|_| Failure::stopping())?;
        outcome.await.map_err(|_| Failure::stopping())
    }

    /// Number of requests that run or wait.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Addresses of the published KV events; `None` if none are published.
    pub(crate) fn kv_events(&self) -> Option<&KvEventAddresses> {
        self.kv_events.as_ref()
    }

    /// True if the thread is alive.
    pub(crate) fn is_alive(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends the thread. It refuses waiting requests, lets answers continue for `grace`, and writes held beginnings to
    /// the prefix cache if there is one. Returns at the end.
    pub(crate) fn stop(&self, grace: Duration) {
        drop(self.commands.send(Command::Stop(Instant::now() + grace)));
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            drop(thread.join());
        }
    }
}

impl Answer {
    /// Waits until the scheduler has accepted or refused the request.
    pub(crate) async fn accepted(&mut self) -> Result<(), Failure> {
        match self.events.recv().await {
            Some(DriverEvent::Failed(failure)) => Err(failure),
            Some(_) => Ok(()),
            None => Err(Failure::stopping()),
        }
    }

    /// The next event; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<DriverEvent> {
        self.events.recv().await
    }

    /// The next event, if it has arrived; `None` after the last.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<DriverEvent>> {
        self.events.poll_recv(context)
    }
}

impl RequestPermit {
    fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let one_more = |taken: usize| (taken < most).then_some(taken + 1);
        taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()?;
        Some(Self(Arc::clone(taken)))
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
