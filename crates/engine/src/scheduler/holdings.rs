//! The texts that a scheduler holds, with their tiers, reported as changes for request routing.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use riffle_kv::{ListingChange, PagePool, PrefixCache, PrefixListing, RowChange, RowTier, TextBlock};
use riffle_policy::{PolicyRules, PolicySpec};

use crate::origin::Origin;
use crate::scheduler::Scheduler;
use crate::sharing::serves_others;
use crate::{Engine, EngineError, Sequence, SequenceOptions};

/// Longest delay before another process's change of the prefix cache is noticed.
const LISTING_PAUSE: Duration = Duration::from_secs(10);

/// The parts of a block of text that are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HeldKind {
    /// Keys and values of all tokens of the block.
    KeysAndValues,
    /// The state of recurrent layers at the block's end.
    RecurrentState,
}

/// A change of the blocks of text from which requests can continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldingChange {
    /// A block is held.
    Stored {
        /// The block.
        block: TextBlock,
        /// Tier of the block.
        tier: RowTier,
        /// The held parts.
        kind: HeldKind,
    },
    /// A block is no longer held there.
    Removed {
        /// Key of the block.
        key: u128,
        /// Former tier of the block.
        tier: RowTier,
        /// Kinds of state that were held.
        kind: HeldKind,
    },
}

type Place = (u128, RowTier, HeldKind);

struct Held {
    block: TextBlock,
    /// Holders of the block, as a set of bits.
    holders: u8,
}

/// Bits for the holders of a block: pages of sequences, and the prefix cache on disk.
const PAGES: u8 = 1;
const PREFIX_CACHE: u8 = 2;

/// The held blocks, as reported.
pub(super) struct Holdings {
    held: HashMap<Place, Held>,
    /// For recurrent models: the blocks that sequences held at the last check.
    of_states: HashSet<Place>,
    listing: Option<PrefixListing>,
    next_listing: Instant,
    changes: Vec<HoldingChange>,
}

impl Holdings {
    /// Starts to watch exact pages, which dense attention computed.
    pub(super) fn new(engine: &Engine, pool: &PagePool, has_prefix_cache: bool) -> Result<Self, EngineError> {
        let mut listing = None;
        if let Some(exact) = exact_options(engine) {
            pool.watch_rows(&exact.pages_identity());
            if has_prefix_cache {
                let identity = Origin::of_pages(engine, &exact)?.to_bytes();
                let is_recurrent = engine.model().config().has_states();
                listing = Some(PrefixListing::new(pool.shape(), &identity, is_recurrent));
            }
        }
        Ok(Self {
            held: HashMap::new(),
            of_states: HashSet::new(),
            listing,
            next_listing: Instant::now(),
            changes: Vec::new(),
        })
    }

    /// Rereads the prefix cache at the next request for changes.
    pub(super) fn look_at_prefix_cache(&mut self) {
        self.next_listing = Instant::now();
    }

    fn add(&mut self, holder: u8, block: TextBlock, tier: RowTier, kind: HeldKind) {
        match self.held.entry((block.key, tier, kind)) {
            Entry::Occupied(mut held) => held.get_mut().holders |= holder,
            Entry::Vacant(place) => {
                place.insert(Held {
                    block: block.clone(),
                    holders: holder,
                });
                self.changes.push(HoldingChange::Stored { block, tier, kind });
            }
        }
    }

    fn remove(&mut self, holder: u8, place: Place) {
        let Some(held) = self.held.get_mut(&place) else {
            return;
        };
        held.holders &= !holder;
        if held.holders == 0 {
            self.held.remove(&place);
            let (key, tier, kind) = place;
            self.changes.push(HoldingChange::Removed { key, tier, kind });
        }
    }

    fn take_rows(&mut self, changes: Vec<RowChange>) {
        let kind = HeldKind::KeysAndValues;
        for change in changes {
            match change {
                RowChange::Known { block, tier } => self.add(PAGES, block, tier, kind),
                RowChange::Moved { key, from, to } => {
                    // The new place is reported first, so that the block never seems lost.
                    if let Some(held) = self.held.get(&(key, from, kind)) {
                        self.add(PAGES, held.block.clone(), to, kind);
                    }
                    self.remove(PAGES, (key, from, kind));
                }
                RowChange::Forgotten { key, tier } => self.remove(PAGES, (key, tier, kind)),
            }
        }
    }

    fn take_listing(&mut self, changes: Vec<ListingChange>) {
        let (pages, state) = (HeldKind::KeysAndValues, HeldKind::RecurrentState);
        for change in changes {
            match change {
                ListingChange::Stored(block) => self.add(PREFIX_CACHE, block, RowTier::Disk, pages),
                ListingChange::NoteStored(block) => self.add(PREFIX_CACHE, block, RowTier::Disk, state),
                ListingChange::Removed(key) => self.remove(PREFIX_CACHE, (key, RowTier::Disk, pages)),
                ListingChange::NoteRemoved(key) => self.remove(PREFIX_CACHE, (key, RowTier::Disk, state)),
            }
        }
    }

    fn refresh_listing(&mut self, cache: Option<&PrefixCache>) {
        let Some(listing) = &mut self.listing else { return };
        let changes = match cache {
            None => listing.clear(),
            Some(_) if Instant::now() < self.next_listing => return,
            Some(cache) => {
                self.next_listing = Instant::now() + LISTING_PAUSE;
                // If another process has locked the folder, the earlier reports stay valid until the next check.
                listing.refresh(cache).unwrap_or_default()
            }
        };
        self.take_listing(changes);
    }

    /// Reports the blocks that sequences of a recurrent model hold now.
    fn take_states(&mut self, held: Vec<(TextBlock, RowTier, HeldKind)>) {
        let now: HashSet<Place> = held
            .iter()
            .map(|(block, tier, kind)| (block.key, *tier, *kind))
            .collect();
        let before = std::mem::take(&mut self.of_states);
        for (block, tier, kind) in held {
            self.add(PAGES, block, tier, kind);
        }
        before
            .into_iter()
            .filter(|place| !now.contains(place))
            .for_each(|place| self.remove(PAGES, place));
        self.of_states = now;
    }
}

impl Scheduler {
    /// The changes since the last call of the blocks from which requests can continue, in order. Empty if
    /// [`SchedulerOptions::tells_holdings`](crate::SchedulerOptions::tells_holdings) is off. Applying all changes gives
    /// the blocks in memory now, and the blocks of the prefix cache on disk. The disk's part may be ten seconds old.
    ///
    /// Blocks computed under a sparse policy, an eviction or a compression are not reported, because they do not
    /// serve every request. For models with recurrent layers, the blocks up to each known state are reported.
    pub fn take_holding_changes(&mut self) -> Vec<HoldingChange> {
        let Some(mut holdings) = self.holdings.take() else {
            return Vec::new();
        };
        holdings.take_rows(self.pool.take_row_changes());
        holdings.refresh_listing(self.disk.as_ref().map(|disk| &disk.cache));
        if self.engine.model().config().has_states() {
            holdings.take_states(self.held_states());
        }
        let changes = std::mem::take(&mut holdings.changes);
        self.holdings = Some(holdings);
        changes
    }

    /// The blocks up to each recurrent state from which a request could continue, and these states.
    fn held_states(&self) -> Vec<(TextBlock, RowTier, HeldKind)> {
        let running = self.running.iter().map(|running| &running.sequence);
        let sequences = running.chain(self.idle.sequences.iter().map(|idle| &idle.sequence));
        sequences.flat_map(blocks_up_to_states).collect()
    }
}

fn blocks_up_to_states(sequence: &Sequence) -> Vec<(TextBlock, RowTier, HeldKind)> {
    let page = sequence.engine().options().cache.page_tokens;
    let is_exact = sequence.options().prefill.is_dense() && sequence.options().auto_target.is_none();
    if !is_exact || !serves_others(sequence) {
        return Vec::new();
    }
    let states = sequence.recurrence().positions();
    let states: Vec<usize> = states
        .into_iter()
        .filter(|tokens| *tokens > 0 && *tokens <= sequence.prefilled() && tokens.is_multiple_of(page))
        .collect();
    let last = states.iter().copied().max().unwrap_or(0);
    let mut held = Vec::new();
    for (row, block) in TextBlock::chain(page, &sequence.tokens()[..last]).enumerate() {
        let Some(tier) = sequence.attention().cache.row_tier(row) else {
            break;
        };
        if states.contains(&((row + 1) * page)) {
            held.push((block.clone(), RowTier::Near, HeldKind::RecurrentState));
        }
        held.push((block, tier, HeldKind::KeysAndValues));
    }
    held
}

/// The options of sequences with exact pages: the engine's if it reads everything, otherwise those of a request for
/// dense attention. `None` if the engine chooses policies automatically.
fn exact_options(engine: &Engine) -> Option<SequenceOptions> {
    let mut exact = engine.options().sequence.clone();
    if exact.auto_target.is_some() || exact.window.is_some() {
        return None;
    }
    if !exact.prefill.is_dense() {
        exact.prefill = PolicyRules::from(PolicySpec::full());
    }
    Some(exact)
}
