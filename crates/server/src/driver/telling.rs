//! Reports held blocks of text to routers, as KV events.

use std::time::{Duration, Instant};

use riffle_engine::{HeldKind, HoldingChange, RowTier, Scheduler};
use riffle_events::{Block, Event, Group, Medium, Publisher, PublisherCounts};

use crate::metrics::Metrics;

/// Pause between two reports while there is work.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes KV events in order, on the thread that drives the engine. It must not wait.
pub type EventSink = Box<dyn FnMut(Vec<Event>) + Send>;

/// Reports changes of the scheduler's holdings.
pub(super) struct Telling {
    to: Listener,
    told: Instant,
}

/// Receiver of the changes.
enum Listener {
    Publisher {
        publisher: Publisher,
        counted: PublisherCounts,
    },
    Sink(EventSink),
}

impl Telling {
    /// Publishes changes to subscribers.
    pub(super) fn publishing(publisher: Publisher) -> Self {
        Self::to(Listener::Publisher {
            publisher,
            counted: PublisherCounts::default(),
        })
    }

    /// Passes changes to this process.
    pub(super) fn handing_over(sink: EventSink) -> Self {
        Self::to(Listener::Sink(sink))
    }

    fn to(to: Listener) -> Self {
        Self {
            to,
            told: Instant::now(),
        }
    }

    /// Publishes changes of the held blocks: at once if the scheduler is idle, else after a pause.
    pub(super) fn publish_changes(&mut self, scheduler: &mut Scheduler, metrics: &Metrics, is_idle: bool) {
        if !is_idle && self.told.elapsed() < PAUSE {
            return;
        }
        self.told = Instant::now();
        let events: Vec<Event> = scheduler.take_holding_changes().into_iter().map(event_of).collect();
        match &mut self.to {
            Listener::Publisher { publisher, counted } => {
                publisher.publish(events);
                let counts = publisher.counts();
                metrics.count_events(counted, &counts);
                *counted = counts;
            }
            Listener::Sink(sink) => {
                if !events.is_empty() {
                    sink(events);
                }
            }
        }
    }

    /// Reports that nothing is held, because the scheduler and its pages are gone.
    pub(super) fn clear(&mut self) {
        match &mut self.to {
            Listener::Publisher { publisher, .. } => publisher.publish(vec![Event::Cleared]),
            Listener::Sink(sink) => sink(vec![Event::Cleared]),
        }
    }
}

/// The event for a change.
pub fn event_of(change: HoldingChange) -> Event {
    match change {
        HoldingChange::Stored { block, tier, kind } => Event::Stored {
            block: Block {
                hash: hash_of(block.key),
                parent: block.parent.map(hash_of),
                tokens: block.tokens,
            },
            medium: medium_of(tier),
            group: group_of(kind),
        },
        HoldingChange::Removed { key, tier, kind } => Event::Removed {
            hash: hash_of(key),
            medium: medium_of(tier),
            group: group_of(kind),
        },
    }
}

/// Routers take hashes of 64 bits.
fn hash_of(key: u128) -> u64 {
    key as u64
}

fn medium_of(tier: RowTier) -> Medium {
    match tier {
        RowTier::Near => Medium::Gpu,
        RowTier::Ram => Medium::Cpu,
        RowTier::Disk => Medium::Disk,
    }
}

fn group_of(kind: HeldKind) -> Group {
    match kind {
        HeldKind::KeysAndValues => Group::Attention,
        HeldKind::RecurrentState => Group::RecurrentState,
    }
}
