//! Beginnings on disk: found and stored in bounded steps.

use crate::scheduler::{Event, Holdings, Idle, Offered, Running, Scheduler, Stage, Tell};
use crate::sharing::{
    MeasuredPrefixCache, PrefixSearch, SharedSearch, can_share, fill_next, find_prefix, keepable_tokens, share_prefix,
};
use crate::{EngineError, Sequence};

/// Maximum number of bytes of pages read or written per step, after the first page.
const STEP_BYTES: u64 = 32 << 20;

/// Progress of the search for a prompt's beginning.
pub(super) enum Lookup {
    Ahead,
    Filling(Box<PrefixSearch>),
    /// The disk has no more; a shared store is next.
    Elsewhere,
    Fetching(Box<SharedSearch>),
    /// A pass continues from the layers that have arrived.
    Arriving(Box<SharedSearch>),
    Done,
}

/// Advances the search for a prompt by one step: finds the longest beginning in the cache, or loads some of its
/// pages.
fn look_up(
    disk: &mut MeasuredPrefixCache,
    sequence: &mut Sequence,
    prompt: &[u32],
    lookup: Lookup,
) -> Result<Lookup, EngineError> {
    disk.load(sequence, |sequence, cache| {
        Ok(match lookup {
            Lookup::Ahead => (Lookup::Filling(Box::new(find_prefix(sequence, cache, prompt)?)), 0),
            Lookup::Filling(mut search) => {
                if fill_next(sequence, cache, prompt, &mut search, step_tokens(sequence))? {
                    (Lookup::Filling(search), 0)
                } else {
                    (Lookup::Elsewhere, search.damaged_blocks)
                }
            }
            other => (other, 0),
        })
    })
}

/// Stores the next pages of a sequence's prompt, of which `offered_tokens` were offered before and `goal` should be.
/// Returns the number of tokens that need not be offered again.
fn keep(
    disk: &mut MeasuredPrefixCache,
    sequence: &Sequence,
    offered_tokens: usize,
    goal: usize,
) -> Result<usize, EngineError> {
    let page = sequence.engine().options().cache.page_tokens;
    let pages = offered_tokens / page * page;
    let asked = pages.saturating_add(step_tokens(sequence)).min(goal);
    let kept = disk.store(sequence, asked)?;
    // The budget is exhausted, or this sequence cannot be stored.
    Ok(if kept + page <= asked {
        sequence.prefilled()
    } else {
        asked
    })
}

impl Scheduler {
    /// Loads a part of a prompt's beginning from disk. Returns false if no request needs this.
    pub(super) fn look_up_on_disk(&mut self, tell: &mut Tell<'_>) -> Result<bool, EngineError> {
        let Some(disk) = &mut self.disk else {
            return Ok(false);
        };
        let is_ahead = |running: &&mut Running| matches!(running.lookup, Lookup::Ahead | Lookup::Filling(_));
        let Some(running) = self.running.iter_mut().find(is_ahead) else {
            return Ok(false);
        };
        let (sequence, prompt) = (&mut running.sequence, &running.request.tokens);
        let lookup = std::mem::replace(&mut running.lookup, Lookup::Elsewhere);
        match look_up(disk, sequence, prompt, lookup) {
            // A search removes damaged blocks, so the list of blocks may have changed.
            Ok(Lookup::Elsewhere) => self.holdings.iter_mut().for_each(Holdings::look_at_prefix_cache),
            Ok(next) => running.lookup = next,
            Err(error) => {
                self.disk = None;
                tell(Event::PrefixCacheLost(error));
            }
        }
        running.count_reused();
        if !running.sequence.recurrence().is_recurrent() {
            share_prefix(&mut running.sequence)?;
        }
        Ok(true)
    }

    /// True if the prefix cache on disk should store more tokens.
    pub(super) fn has_more_to_keep(&mut self) -> bool {
        self.disk.is_some() && self.next_to_keep().is_some()
    }

    /// The next sequence with a beginning to offer to the disk, the number of tokens already offered, and the target.
    fn next_to_keep(&mut self) -> Option<(&Sequence, &mut usize, usize)> {
        let offers = offers(&mut self.running, &mut self.idle);
        let mut goals =
            offers.map(|(sequence, offered, is_read)| (sequence, &mut offered.disk, goal(sequence, is_read)));
        goals.find(|(sequence, stored, goal)| **stored < *goal && can_share(sequence))
    }

    /// Writes some pages of a beginning to the prefix cache on disk.
    pub(super) fn keep_on_disk(&mut self, tell: &mut Tell<'_>) {
        let Some(mut disk) = self.disk.take() else {
            return;
        };
        let mut kept = Ok(());
        if let Some((sequence, stored_tokens, goal)) = self.next_to_keep() {
            kept = keep(&mut disk, sequence, *stored_tokens, goal).map(|stored| *stored_tokens = stored);
        }
        self.holdings.iter_mut().for_each(Holdings::look_at_prefix_cache);
        match kept {
            Ok(()) => self.disk = Some(disk),
            Err(error) => tell(Event::PrefixCacheLost(error)),
        }
    }
}

impl Running {
    /// Counts all tokens of the request's sequence as reused, because they existed before the prompt was read.
    pub(super) fn count_reused(&mut self) {
        if let Stage::Reading { reused_tokens, .. } = &mut self.stage {
            *reused_tokens = self.sequence.tokens().len();
        }
    }
}

/// The sequences that may be offered to caches outside the pool. With each come the tokens already offered, and true if
/// the whole prompt has been read.
pub(super) fn offers<'a>(
    running: &'a mut [Running],
    idle: &'a mut Idle,
) -> impl Iterator<Item = (&'a Sequence, &'a mut Offered, bool)> {
    let whole = |running: &&mut Running| !running.is_cancelled && !running.is_arriving();
    let running = running.iter_mut().filter(whole).map(|running| {
        let answers = matches!(running.stage, Stage::Answering(_));
        let is_read = answers || running.sequence.prefilled() >= running.request.tokens.len();
        (&running.sequence, &mut running.offered, is_read)
    });
    let idle = idle.sequences.iter_mut();
    running.chain(idle.map(|idle| (&idle.sequence, &mut idle.offered, true)))
}

/// Number of a sequence's prompt tokens that the disk should have by now. A partial page is written only after the
/// whole prompt is read: until then the next pass fills it further.
fn goal(sequence: &Sequence, is_read: bool) -> usize {
    let (page, keepable) = (sequence.engine().options().cache.page_tokens, keepable_tokens(sequence));
    if is_read { keepable } else { keepable / page * page }
}

/// Tokens of whole pages read or written per step.
fn step_tokens(sequence: &Sequence) -> usize {
    let page = sequence.engine().options().cache.page_tokens;
    let pages = STEP_BYTES / (sequence.pool().shape().bytes_per_token() * page as u64).max(1);
    page * usize::try_from(pages.max(1)).unwrap_or(1)
}
