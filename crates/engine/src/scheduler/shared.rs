//! Beginnings in a shared store: fetched while others go on, published as they are read.

use crate::sharing::beginning::can_share;
use crate::sharing::memory::share_prefix;
use std::time::Duration;

use riffle_kv::SharedCounts;

use crate::scheduler::disk::Lookup;
use crate::scheduler::prompts::work_of;
use crate::scheduler::step::Tell;
use crate::scheduler::{Event, PromptPass, Running, Scheduler, Stage};
use crate::sharing::store;
use crate::sharing::store::{
    Fetched, SharedReport, advance_early, advance_fetch, begin_early, begin_fetch, complete_early, drop_fetch,
    give_up_early, has_layer,
};
use crate::{EngineError, Sequence};

/// How long a step waits for blocks where there is nothing else to do: new requests are looked for between.
const PATIENCE: Duration = Duration::from_millis(5);

impl Running {
    /// True if its blocks are on their way and none has arrived.
    pub(super) fn waits_for_blocks(&self) -> bool {
        match &self.stage {
            Stage::Reading {
                lookup: Lookup::Fetching(search),
                ..
            } => !search.has_arrived(),
            _ => false,
        }
    }

    /// True if blocks of its beginning have arrived.
    pub(super) fn has_blocks(&self) -> bool {
        match &self.stage {
            Stage::Reading {
                lookup: Lookup::Fetching(search) | Lookup::Arriving(search),
                ..
            } => search.has_arrived(),
            _ => false,
        }
    }

    /// True if it reads on from layers whose followers are still on their way: its pages serve nobody else yet.
    pub(super) fn is_arriving(&self) -> bool {
        matches!(
            self.stage,
            Stage::Reading {
                lookup: Lookup::Arriving(_),
                ..
            }
        )
    }
}

impl Scheduler {
    /// The use of the shared store, where there is one.
    pub fn shared_report(&self) -> Option<SharedReport> {
        self.shared.as_ref().map(|shared| shared.report())
    }

    /// As [`shared_report`](Self::shared_report), since the scheduler began.
    pub fn shared_counts(&self) -> Option<SharedCounts> {
        self.shared.as_ref().map(|shared| shared.counts())
    }

    /// Waits until what was published has been written to the shared store, at most `time`; false where that was too short.
    pub fn flush_shared(&mut self, time: Duration) -> bool {
        self.shared.as_mut().is_none_or(|shared| shared.flush(time))
    }

    /// Tells what the shared store has to say.
    pub(super) fn tell_notices(&self, tell: &mut Tell<'_>) {
        let notices = self.shared.iter().flat_map(|shared| shared.take_notices());
        notices.for_each(|notice| tell(Event::SharedStore(notice)));
    }

    /// Takes one step of fetching beginnings. False where nothing of any has arrived.
    pub(super) fn fetch(&mut self, tell: &mut Tell<'_>) -> Result<bool, EngineError> {
        let looks_on_disk = self.disk.is_some();
        for running in &mut self.running {
            let Stage::Reading {
                reused_tokens, lookup, ..
            } = &mut running.stage
            else {
                continue;
            };
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
                    // Pages have no room now: the prompt is read.
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
            // A pass that reads on does not change what was found.
            if !is_reading {
                *reused_tokens = sequence.tokens().len();
            }
            if matches!(lookup, Lookup::Done) && !sequence.recurrence().is_recurrent() {
                share_prefix(sequence)?;
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// True if the pass under way may do its next piece: the layer it attends in has arrived for all its parts. `None` where it never
    /// will.
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
            if let Stage::Reading {
                lookup: Lookup::Arriving(search),
                ..
            } = &mut running.stage
                && !running.is_cancelled
            {
                has_all &= has_layer(&mut running.sequence, search, layer)?;
            }
        }
        Some(has_all)
    }

    /// True if the pass under way waits for a layer of which nothing has arrived.
    pub(super) fn pass_waits(&mut self) -> bool {
        let Some(under_way) = self.prompt_pass.take() else {
            return false;
        };
        let has_layer = self.has_next_layer(&under_way);
        self.prompt_pass = Some(under_way);
        has_layer == Some(false)
    }

    /// Gives up a pass that needs a layer which will not arrive: its parts go back to what they hold whole, and read the rest.
    pub(super) fn give_up_pass(&mut self, under_way: PromptPass) {
        let PromptPass { pass, parts } = under_way;
        self.prompts.abandon(pass, &mut work_of(&mut self.running, &parts));
        for running in &mut self.running {
            let is_part = parts.iter().any(|part| part.id == running.id);
            let Stage::Reading {
                reused_tokens, lookup, ..
            } = &mut running.stage
            else {
                continue;
            };
            if let (true, Lookup::Arriving(search)) = (is_part, &lookup) {
                give_up_early(&mut running.sequence, search);
                *reused_tokens = running.sequence.tokens().len();
                *lookup = Lookup::Done;
            }
        }
    }

    /// Ends the fetch of a request whose pass has ended: it went through all layers, or failed.
    pub(super) fn end_arriving(&mut self, place: usize, is_read: bool) {
        let running = &mut self.running[place];
        let Stage::Reading { lookup, .. } = &mut running.stage else {
            return;
        };
        if let Lookup::Arriving(search) = lookup {
            match (is_read, &mut self.shared) {
                (true, Some(shared)) => complete_early(shared, search),
                _ => drop_fetch(&mut running.sequence, search),
            }
            *lookup = Lookup::Done;
        }
    }

    /// Waits for a moment where requests wait for blocks; false where none does.
    pub(super) fn wait_for_blocks(&self) -> bool {
        let searches = self.running.iter().filter_map(|running| match &running.stage {
            Stage::Reading {
                lookup: Lookup::Fetching(search) | Lookup::Arriving(search),
                ..
            } if !search.is_over() => Some(search),
            _ => None,
        });
        let first = searches.into_iter().next();
        first.iter().for_each(|search| search.wait(PATIENCE));
        first.is_some()
    }

    /// Publishes pages of a request that has just read some.
    pub(super) fn publish_read(&mut self, place: usize, tell: &mut Tell<'_>) {
        let running = &mut self.running[place];
        if let Some(shared) = self
            .shared
            .as_ref()
            .filter(|shared| shared.can_publish(&running.sequence))
        {
            publish(shared, &running.sequence, &mut running.offered.shared, tell);
        }
    }

    /// True if the shared store is to be given more of what has been read, and can take it.
    pub(super) fn has_more_to_publish(&mut self) -> bool {
        let Some(shared) = &self.shared else {
            return false;
        };
        let whole = |running: &&Running| !running.is_cancelled && !running.is_arriving();
        let running = self.running.iter().filter(whole);
        let running = running.map(|running| (&running.sequence, running.offered.shared));
        let idle = self.idle.iter().map(|idle| (&idle.sequence, idle.offered.shared));
        let mut offers = running.chain(idle);
        offers.any(|(sequence, offered)| is_worth_publishing(sequence, offered) && shared.can_publish(sequence))
    }

    /// Publishes some pages of a beginning.
    pub(super) fn publish_next(&mut self, tell: &mut Tell<'_>) {
        let Some(shared) = &self.shared else {
            return;
        };
        let whole = |running: &&mut Running| !running.is_cancelled && !running.is_arriving();
        let running = self.running.iter_mut().filter(whole);
        let running = running.map(|running| (&running.sequence, &mut running.offered.shared));
        let idle = self.idle.iter_mut();
        let idle = idle.map(|idle| (&idle.sequence, &mut idle.offered.shared));
        let next = running
            .chain(idle)
            .find(|(sequence, offered)| is_worth_publishing(sequence, **offered));
        if let Some((sequence, offered)) = next {
            publish(shared, sequence, offered, tell);
        }
    }
}

fn publish(
    shared: &crate::sharing::store::SharedPrefixes,
    sequence: &Sequence,
    offered: &mut usize,
    tell: &mut Tell<'_>,
) {
    if !is_worth_publishing(sequence, *offered) {
        return;
    }
    match store::publish(sequence, shared, *offered) {
        Ok(tokens) => *offered = tokens,
        Err(error) => {
            // A page that cannot be read now cannot be read later.
            *offered = sequence.prefilled();
            tell(Event::SharedStore(format!("pages cannot be shared: {error}")));
        }
    }
}

/// True if a sequence has read more of a prompt than has been offered.
fn is_worth_publishing(sequence: &Sequence, offered: usize) -> bool {
    let page = sequence.engine().options().cache.page_tokens;
    offered / page < sequence.prefilled() / page && can_share(sequence)
}
