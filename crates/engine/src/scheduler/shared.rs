//! Beginnings in a shared store: fetched while other work continues, published as they are read.

use std::time::Duration;

use riffle_kv::SharedCounts;

use crate::scheduler::{Event, Lookup, PromptPass, Running, Scheduler, Tell, offers, work_of};
use crate::sharing::{
    Fetched, SharedPrefixes, SharedReport, advance_early, advance_fetch, begin_early, begin_fetch, can_share,
    complete_early, drop_fetch, give_up_early, has_layer, publish, share_prefix,
};
use crate::{EngineError, Sequence};

/// Longest wait of a step for blocks when there is no other work: new requests are checked in between.
const PATIENCE: Duration = Duration::from_millis(5);

impl Running {
    /// True if blocks of the prompt are loading and none has arrived.
    pub(super) fn waits_for_blocks(&self) -> bool {
        matches!(&self.lookup, Lookup::Fetching(search) if !search.has_arrived())
    }

    /// True if blocks of the prompt's beginning have arrived.
    pub(super) fn has_blocks(&self) -> bool {
        matches!(&self.lookup, Lookup::Fetching(search) | Lookup::Arriving(search) if search.has_arrived())
    }

    /// True if the request continues from the first layers while later ones are loading. Other requests cannot use its
    /// pages yet.
    pub(super) fn is_arriving(&self) -> bool {
        matches!(self.lookup, Lookup::Arriving(_))
    }
}

impl Scheduler {
    /// Statistics of the shared store, if there is one.
    pub fn shared_report(&self) -> Option<SharedReport> {
        self.shared.as_ref().map(|shared| shared.report())
    }

    /// As [`shared_report`](Self::shared_report), as counts since the scheduler began.
    pub fn shared_counts(&self) -> Option<SharedCounts> {
        self.shared.as_ref().map(|shared| shared.blocks.counts())
    }

    /// Waits until all published data is in the shared store, at most `time`; returns false if this was too short.
    pub fn flush_shared(&mut self, time: Duration) -> bool {
        self.shared.as_mut().is_none_or(|shared| shared.flush(time))
    }

    /// Reports notices of the shared store.
    pub(super) fn tell_notices(&self, tell: &mut Tell<'_>) {
        let notices = self.shared.iter().flat_map(|shared| shared.blocks.take_notices());
        notices.for_each(|notice| tell(Event::SharedStore(notice)));
    }

    /// Takes one step of fetching beginnings. Returns false if nothing has arrived.
    pub(super) fn fetch(&mut self, tell: &mut Tell<'_>) -> Result<bool, EngineError> {
        let looks_on_disk = self.disk.is_some();
        for running in &mut self.running {
            let lookup = &mut running.lookup;
            if matches!(lookup, Lookup::Ahead | Lookup::Filling(_)) && !looks_on_disk {
                *lookup = Lookup::Elsewhere;
            }
            let Some(shared) = &mut self.shared else {
                if matches!(lookup, Lookup::Elsewhere) {
                    *lookup = Lookup::Done;
                }
                continue;
            };
            let is_reading = matches!(lookup, Lookup::Arriving(_));
            let (sequence, prompt) = (&mut running.sequence, &running.request.tokens);
            let next = match std::mem::replace(lookup, Lookup::Done) {
                Lookup::Elsewhere => Lookup::Fetching(Box::new(begin_fetch(sequence, shared, prompt)?)),
                Lookup::Fetching(mut search) => match advance_fetch(sequence, shared, &mut search, prompt) {
                    Ok(Fetched::Over) => Lookup::Done,
                    Ok(Fetched::Some) => {
                        if begin_early(sequence, &mut search, prompt) {
                            Lookup::Arriving(search)
                        } else {
                            Lookup::Fetching(search)
                        }
                    }
                    Ok(Fetched::NotYet) => {
                        *lookup = Lookup::Fetching(search);
                        continue;
                    }
                    // There is no room for pages now, so the prompt is read.
                    Err(error) => {
                        tell(Event::SharedStore(format!("fetched pages cannot be kept: {error}")));
                        Lookup::Done
                    }
                },
                Lookup::Arriving(mut search) if search.has_arrived() => {
                    advance_early(sequence, &mut search);
                    Lookup::Arriving(search)
                }
                other => {
                    *lookup = other;
                    continue;
                }
            };
            *lookup = next;
            // A pass that continues reading does not change the search result.
            if !is_reading {
                running.count_reused();
            }
            if matches!(running.lookup, Lookup::Done) && !running.sequence.recurrence().is_recurrent() {
                share_prefix(&mut running.sequence)?;
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// True if the current pass may do its next piece: the layer it attends in has arrived for all its parts. `None`
    /// if it never will.
    pub(super) fn has_next_layer(&mut self, under_way: &PromptPass) -> Option<bool> {
        let layer = under_way.pass.attends_next();
        let layer = layer.and_then(|layer| self.engine.model().config().cache_layer(layer));
        let Some(layer) = layer else {
            return Some(true);
        };
        let mut has_all = true;
        let mut parts = self.running.iter_mut();
        for part in &under_way.parts {
            let Some(running) = parts.find(|running| running.id == part.id) else {
                continue;
            };
            if let Lookup::Arriving(search) = &mut running.lookup
                && !running.is_cancelled
            {
                has_all &= has_layer(&mut running.sequence, search, layer)?;
            }
        }
        Some(has_all)
    }

    /// True if the current pass waits for a layer that has not arrived.
    pub(super) fn pass_waits(&mut self) -> bool {
        let Some(under_way) = self.prompt_pass.take() else {
            return false;
        };
        let has_layer = self.has_next_layer(&under_way);
        self.prompt_pass = Some(under_way);
        has_layer == Some(false)
    }

    /// Abandons a pass that needs a layer which will not arrive: its parts return to their complete tokens, and read
    /// the rest.
    pub(super) fn give_up_pass(&mut self, under_way: PromptPass) {
        let PromptPass { pass, parts } = under_way;
        self.prompts.abandon(pass, &mut work_of(&mut self.running, &parts));
        for running in &mut self.running {
            let is_part = parts.iter().any(|part| part.id == running.id);
            if let (true, Lookup::Arriving(search)) = (is_part, &running.lookup) {
                give_up_early(&mut running.sequence, search);
                running.count_reused();
                running.lookup = Lookup::Done;
            }
        }
    }

    /// Ends the fetch of a request whose pass has ended, either complete or failed.
    pub(super) fn end_arriving(&mut self, place: usize, is_read: bool) {
        let running = &mut self.running[place];
        if let Lookup::Arriving(search) = &mut running.lookup {
            match (is_read, &mut self.shared) {
                (true, Some(shared)) => complete_early(shared, search),
                _ => drop_fetch(&mut running.sequence, search),
            }
            running.lookup = Lookup::Done;
        }
    }

    /// Waits briefly if requests wait for blocks; returns false if none does.
    pub(super) fn wait_for_blocks(&self) -> bool {
        let first = self.running.iter().find_map(|running| match &running.lookup {
            Lookup::Fetching(search) | Lookup::Arriving(search) if !search.is_over => Some(search),
            _ => None,
        });
        first.iter().for_each(|search| search.fetch.wait(PATIENCE));
        first.is_some()
    }

    /// Publishes pages of a request that has just read some.
    pub(super) fn publish_read(&mut self, place: usize, tell: &mut Tell<'_>) {
        let running = &mut self.running[place];
        let shared = self.shared.as_ref();
        if let Some(shared) = shared.filter(|shared| can_publish(shared, &running.sequence)) {
            publish_more(shared, &running.sequence, &mut running.offered.shared, tell);
        }
    }

    /// True if there are pages for the shared store, and it can accept them.
    pub(super) fn has_more_to_publish(&mut self) -> bool {
        let Some(shared) = &self.shared else {
            return false;
        };
        let mut offers =
            offers(&mut self.running, &mut self.idle).map(|(sequence, offered, _)| (sequence, offered.shared));
        offers.any(|(sequence, offered)| is_worth_publishing(sequence, offered) && can_publish(shared, sequence))
    }

    /// Publishes some pages of a beginning.
    pub(super) fn publish_next(&mut self, tell: &mut Tell<'_>) {
        let Some(shared) = &self.shared else {
            return;
        };
        let mut offers = offers(&mut self.running, &mut self.idle);
        let next = offers.find(|(sequence, offered, _)| is_worth_publishing(sequence, offered.shared));
        if let Some((sequence, offered, _)) = next {
            publish_more(shared, sequence, &mut offered.shared, tell);
        }
    }
}

fn publish_more(shared: &SharedPrefixes, sequence: &Sequence, offered: &mut usize, tell: &mut Tell<'_>) {
    if !is_worth_publishing(sequence, *offered) {
        return;
    }
    match publish(sequence, shared, *offered) {
        Ok(tokens) => *offered = tokens,
        Err(error) => {
            // A page that is unreadable now stays unreadable.
            *offered = sequence.prefilled();
            tell(Event::SharedStore(format!("pages cannot be shared: {error}")));
        }
    }
}

fn can_publish(shared: &SharedPrefixes, sequence: &Sequence) -> bool {
    shared.blocks.can_publish(sequence.pool().shape())
}

/// True if a sequence has read more of a prompt than has been offered.
fn is_worth_publishing(sequence: &Sequence, offered: usize) -> bool {
    let page = sequence.engine().options().cache.page_tokens;
    offered / page < sequence.prefilled() / page && can_share(sequence)
}
