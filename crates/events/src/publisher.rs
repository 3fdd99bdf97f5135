//! Publishes events on a separate thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as blocking};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use zeromq::{PubSocket, RouterSendHalf, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use crate::replay::Kept;
use crate::{Encoding, Event, EventsError, Picture, PublisherOptions};

/// Time limit of one replay. A slow subscriber loses the rest.
const REPLAY_TIME: Duration = Duration::from_secs(30);

/// Maximum number of concurrent replays; further ones are not answered.
const REPLAYS: usize = 16;

/// Time for the last batch to reach subscribers when the publisher ends.
const LINGER: Duration = Duration::from_millis(100);

/// The number that ends a replay: -1 as a signed number.
const END: [u8; 8] = [0xFF; 8];

/// Publishes batches of events over ZeroMQ, as vLLM does: a PUB socket of `[topic, number, batch]`, with numbers from
/// 0 as 8 big-endian bytes. A ROUTER socket receives a number and answers with all batches from there on, each
/// `[number, batch]`, and `[-1, ""]` at the end.
///
/// Publishing never waits. If the queue is full, a batch is dropped and counted. The next batch is then a snapshot of
/// all blocks, starting with `AllBlocksCleared`. A slow subscriber gets the same snapshot in place of lost batches,
/// with the number of the latest batch. So does a subscriber that asks for batches no longer kept. A subscriber that
/// applies all events therefore knows the server's blocks.
///
/// Events contain the tokens of prompts, and every connected client can read them.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<Shared>,
    batches: Option<Sender<Batch>>,
    thread: Option<JoinHandle<()>>,
    address: String,
    replay_address: Option<String>,
}

/// Counts of a publisher's work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PublisherCounts {
    /// Batches passed to the socket.
    pub batches: u64,
    /// Events in dropped batches. The batch after them is a snapshot.
    pub dropped_events: u64,
    /// Replays that were answered.
    pub replays: u64,
    /// Replays answered by a snapshot, because the requested batches are no longer kept.
    pub whole_replays: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    batches: AtomicU64,
    dropped_events: AtomicU64,
    replays: AtomicU64,
    whole_replays: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Blocks held after all numbered batches.
    picture: Picture,
    /// The number of the next batch.
    next: u64,
    /// True if the next batch must be a snapshot.
    is_behind: bool,
}

#[derive(Debug)]
struct Batch {
    number: u64,
    unix_seconds: f64,
    events: Vec<Event>,
}

impl Publisher {
    /// Starts listening, and publishes an empty state.
    ///
    /// # Errors
    /// [`EventsError::Address`], [`EventsError::Thread`].
    pub fn start(options: PublisherOptions) -> Result<Self, EventsError> {
        let shared = Arc::new(Shared::default());
        let (batches, waiting) = channel(options.waiting_batches.max(1));
        let (told, listening) = blocking::channel();
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("riffle-events".to_owned())
            .spawn(move || run(&options, theirs, waiting, &told))
            .map_err(EventsError::Thread)?;
        let gone = || EventsError::Thread(std::io::Error::other("it has ended"));
        let (address, replay_address) = listening.recv().map_err(|_| gone())??;
        let publisher = Self {
            shared,
            batches: Some(batches),
            thread: Some(thread),
            address,
            replay_address,
        };
        publisher.publish(vec![Event::Cleared]);
        Ok(publisher)
    }

    /// Address for subscribers.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Address for replays of missed batches.
    pub fn replay_address(&self) -> Option<&str> {
        self.replay_address.as_deref()
    }

    /// Publishes events as one batch. An empty list publishes the snapshot that is due after a dropped batch, if any.
    /// Never waits.
    pub fn publish(&self, events: Vec<Event>) {
        let Some(batches) = &self.batches else { return };
        let mut state = self.shared.state();
        events.iter().for_each(|event| state.picture.apply(event));
        if events.is_empty() && !state.is_behind {
            return;
        }
        match batches.try_reserve() {
            Ok(place) => {
                let events = if state.is_behind {
                    state.picture.snapshot()
                } else {
                    events
                };
                place.send(Batch {
                    number: state.next,
                    unix_seconds: unix_seconds(),
                    events,
                });
                state.next += 1;
                state.is_behind = false;
            }
            Err(_) => {
                state.is_behind = true;
                add(&self.shared.dropped_events, events.len() as u64);
            }
        }
    }

    /// Counts of the publisher's work so far.
    pub fn counts(&self) -> PublisherCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PublisherCounts {
            batches: count(&self.shared.batches),
            dropped_events: count(&self.shared.dropped_events),
            replays: count(&self.shared.replays),
            whole_replays: count(&self.shared.whole_replays),
        }
    }

    /// Number of held blocks as published, counted once per medium.
    pub fn held(&self) -> usize {
        self.shared.state().picture.len()
    }
}

impl Drop for Publisher {
    /// Publishes an empty state, and ends.
    fn drop(&mut self) {
        self.publish(vec![Event::Cleared]);
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the addresses when the sockets listen, or the error.
type ReadySender = blocking::Sender<Result<(String, Option<String>), EventsError>>;

fn run(options: &PublisherOptions, shared: Arc<Shared>, waiting: Receiver<Batch>, told: &ReadySender) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return drop(told.send(Err(EventsError::Thread(error)))),
    };
    runtime.block_on(async {
        match listen(options).await {
            Err(error) => drop(told.send(Err(error))),
            Ok(sockets) => {
                drop(told.send(Ok((sockets.address.clone(), sockets.replay_address.clone()))));
                let kept = Kept::new(options.kept_batches, options.kept_bytes);
                // Dropping the socket discards unsent data.
                let publisher = serve(options, &shared, waiting, sockets, kept).await;
                tokio::time::sleep(LINGER).await;
                drop(publisher);
            }
        }
    });
}

struct Sockets {
    publisher: PubSocket,
    address: String,
    replays: Option<RouterSocket>,
    replay_address: Option<String>,
}

async fn listen(options: &PublisherOptions) -> Result<Sockets, EventsError> {
    let mut publisher = PubSocket::new();
    let address = bind(&mut publisher, &options.address).await?;
    let (mut replays, mut replay_address) = (None, None);
    if let Some(wanted) = &options.replay_address {
        let mut router = RouterSocket::new();
        replay_address = Some(bind(&mut router, wanted).await?);
        replays = Some(router);
    }
    Ok(Sockets {
        publisher,
        address,
        replays,
        replay_address,
    })
}

async fn bind(socket: &mut impl Socket, address: &str) -> Result<String, EventsError> {
    let refuse = |problem: String| EventsError::Address {
        address: address.to_owned(),
        problem,
    };
    if !address.starts_with("tcp://") {
        let problem = "give it as tcp://HOST:PORT, such as tcp://127.0.0.1:5557";
        return Err(refuse(problem.to_owned()));
    }
    let every = address.replacen("tcp://*:", "tcp://0.0.0.0:", 1);
    let bound = socket.bind(&every).await;
    bound
        .map(|endpoint| endpoint.to_string())
        .map_err(|error| refuse(format!("it cannot be listened on: {error}")))
}

/// Sends batches and answers replays, until no more batches can come.
async fn serve(
    options: &PublisherOptions,
    shared: &Arc<Shared>,
    mut waiting: Receiver<Batch>,
    sockets: Sockets,
    mut kept: Kept,
) -> PubSocket {
    let mut publisher = sockets.publisher;
    let topic = Bytes::from(options.topic.clone().into_bytes());
    let (sender, mut requests) = match sockets.replays.map(RouterSocket::split) {
        Some((sender, requests)) => (Some(sender), Some(requests)),
        None => (None, None),
    };
    let places = Arc::new(Semaphore::new(REPLAYS));
    loop {
        let request = async {
            match &mut requests {
                Some(requests) => requests.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            batch = waiting.recv() => {
                let Some(batch) = batch else { return publisher };
                let payload = Bytes::from(crate::encode_batch(&batch.events, batch.unix_seconds, options.encoding));
                kept.push(batch.number, payload.clone());
                let number = Bytes::copy_from_slice(&batch.number.to_be_bytes());
                // A subscriber that disconnects during a send is not an error.
                drop(publisher.send(message([topic.clone(), number, payload])).await);
                add(&shared.batches, 1);
            }
            request = request => match (request, &sender, Arc::clone(&places).try_acquire_owned()) {
                (Ok(request), Some(sender), Ok(place)) => {
                    let Some((client, first)) = read_request(&request) else { continue };
                    let batches = replayed(shared, &kept, first, options.encoding);
                    let sender = sender.clone();
                    tokio::spawn(async move {
                        drop(tokio::time::timeout(REPLAY_TIME, answer(sender, client, batches)).await);
                        drop(place);
                    });
                }
                (Err(_), ..) => requests = None,
                _ => {}
            }
        }
    }
}

/// Client and first batch of a replay request, `[client, "", number]`. `None` for any other message.
fn read_request(request: &ZmqMessage) -> Option<(Bytes, u64)> {
    let first = match (request.len(), request.get(1)) {
        (3, Some(empty)) if empty.is_empty() => request.get(2),
        _ => None,
    };
    let first: [u8; 8] = first?[..].try_into().ok()?;
    Some((request.get(0)?.clone(), u64::from_be_bytes(first)))
}

/// The batches from number `first` on, or a snapshot as one batch with the latest number.
fn replayed(shared: &Shared, kept: &Kept, first: u64, encoding: Encoding) -> Vec<(u64, Bytes)> {
    add(&shared.replays, 1);
    let state = shared.state();
    if let Some(batches) = kept.since(first, state.next) {
        return batches;
    }
    add(&shared.whole_replays, 1);
    let (number, events) = (state.next.saturating_sub(1), state.picture.snapshot());
    drop(state);
    let payload = crate::encode_batch(&events, unix_seconds(), encoding);
    vec![(number, Bytes::from(payload))]
}

async fn answer(mut sender: RouterSendHalf, client: Bytes, batches: Vec<(u64, Bytes)>) {
    let numbered = batches
        .into_iter()
        .map(|(number, payload)| (Bytes::copy_from_slice(&number.to_be_bytes()), payload));
    let end = (Bytes::from_static(&END), Bytes::new());
    for (number, payload) in numbered.chain([end]) {
        let reply = message([client.clone(), Bytes::new(), number, payload]);
        if sender.send(reply).await.is_err() {
            return;
        }
    }
}

fn message<const FRAMES: usize>(frames: [Bytes; FRAMES]) -> ZmqMessage {
    let mut frames = frames.into_iter();
    let mut message = ZmqMessage::from(frames.next().unwrap_or_default());
    frames.for_each(|frame| message.push_back(frame));
    message
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn unix_seconds() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
