//! Tells routers which blocks of text are held, by KV events.

use std::time::{Duration, Instant};

use riffle_engine::{HeldKind, HoldingChange, RowTier, Scheduler};
use riffle_events::{Block, Event, Group, Medium, Publisher, PublisherCounts};

use crate::metrics::Metrics;

/// How often changes are told while there is work.
const PAUSE: Duration = Duration::from_millis(50);

/// Publishes what changes with the scheduler.
pub(super) struct Telling {
    publisher: Publisher,
    told: Instant,
    counted: PublisherCounts,
}

impl Telling {
    pub(super) fn new(publisher: Publisher) -> Self {
        Self {
            publisher,
            told: Instant::now(),
            counted: PublisherCounts::default(),
        }
    }

    /// Publishes what has changed, at once where the scheduler has nothing to do.
    pub(super) fn tell(&mut self, scheduler: &mut Scheduler, metrics: &Metrics, is_idle: bool) {
        if !is_idle && self.told.elapsed() < PAUSE {
            return;
        }
        self.told = Instant::now();
        let changes = scheduler.take_holding_changes();
        self.publisher.publish(changes.into_iter().map(event_of).collect());
        let counts = self.publisher.counts();
        metrics.count_events(&self.counted, &counts);
        self.counted = counts;
    }

    /// Publishes that nothing is held: a scheduler has gone with all it held.
    pub(super) fn clear(&self) {
        self.publisher.publish(vec![Event::Cleared]);
    }
}

/// The event that tells routers of a change.
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
