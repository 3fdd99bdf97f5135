//! Keeps a store within its budget and removes expired blocks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{BlockStore, SharedOptions, StoreError, StoredItem};

/// Time between two sweeps of a publishing process.
const EVERY: Duration = Duration::from_secs(300);
/// Time limit of listing and removing.
const MOST_TIME: Duration = Duration::from_secs(120);
/// Blocks used within this time count as used together. Of these, the last of a text are removed first, because a
/// block is found through its parents.
const TOGETHER: Duration = Duration::from_secs(3600);
/// Names removed per request.
const AT_A_TIME: usize = 256;

/// The result of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Bytes of all remaining blocks and notes.
    pub bytes: u64,
    /// Bytes removed.
    pub removed_bytes: u64,
    /// Blocks removed, with their notes.
    pub removed_blocks: usize,
}

/// When a process sweeps.
#[derive(Default)]
pub(super) struct SweepClock {
    /// When the first block since the latest sweep was published.
    since: Option<Instant>,
}

impl SweepClock {
    pub(super) fn note_published(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// True if a sweep is due; this restarts the clock.
    pub(super) fn is_due(&mut self, options: &SharedOptions) -> bool {
        let wanted = options.budget_bytes.is_some() || options.expiry.is_some();
        let due = wanted && self.since.is_some_and(|since| since.elapsed() >= EVERY);
        if due {
            self.since = None;
        }
        due
    }
}

/// All entries of a block in a store.
#[derive(Default)]
struct Kept {
    names: Vec<String>,
    bytes: u64,
    age: Duration,
    depth: u64,
}

pub(super) fn sweep(store: &dyn BlockStore, options: &SharedOptions) -> Result<Swept, StoreError> {
    let until = Instant::now() + MOST_TIME;
    let mut blocks: HashMap<u128, Kept> = HashMap::new();
    store.list(until, &mut |item: StoredItem| {
        // Leaves other programs' items in the same store alone.
        let Some((key, depth)) = parsed(&item.name) else {
            return;
        };
        let kept = blocks.entry(key).or_insert_with(|| Kept {
            age: Duration::MAX,
            ..Kept::default()
        });
        kept.age = kept.age.min(item.age);
        kept.bytes += item.bytes;
        kept.depth = depth;
        kept.names.push(item.name);
    })?;
    let mut blocks: Vec<(u128, Kept)> = blocks.into_iter().collect();
    blocks.sort_unstable_by_key(|(key, kept)| {
        let age = kept.age.as_secs() / TOGETHER.as_secs();
        (std::cmp::Reverse((age, kept.depth)), *key)
    });
    let mut swept = Swept {
        bytes: blocks.iter().map(|(_, kept)| kept.bytes).sum(),
        ..Swept::default()
    };
    let mut names = Vec::new();
    for (_, kept) in blocks {
        let is_old = options.expiry.is_some_and(|expiry| kept.age > expiry);
        let is_beyond = options.budget_bytes.is_some_and(|budget| swept.bytes > budget);
        if is_old || is_beyond {
            swept.bytes -= kept.bytes;
            swept.removed_bytes += kept.bytes;
            swept.removed_blocks += 1;
            names.extend(kept.names);
        }
    }
    for names in names.chunks(AT_A_TIME) {
        store.remove(names, until)?;
    }
    Ok(swept)
}

/// The key and the depth in a name of ours.
fn parsed(name: &str) -> Option<(u128, u64)> {
    let mut parts = name.split('.');
    let (key, depth, part) = (parts.next()?, parts.next()?, parts.next()?);
    let is_ours = key.len() == 32 && parts.next().is_none() && (part == "note" || part.parse::<u32>().is_ok());
    is_ours.then(|| Some((u128::from_str_radix(key, 16).ok()?, depth.parse().ok()?)))?
}
