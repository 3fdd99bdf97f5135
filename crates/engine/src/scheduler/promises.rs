//! Promises of room to requests: a prompt, and one slice of its answer at a time.
//!
//! A request that has used its slice gets the next one. If there is no room, an older request takes the pages of
//! younger ones, which read their text again later. A request without younger ones is parked until another one ends.
//! So the oldest request always ends, and requests never wait for an answer's unused length.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use riffle_policy::Phase;

use crate::draft::{MOST_ROWS, rows_alike};
use crate::pass::{FinishedRows, Work};
use crate::scheduler::{End, Lookup, Offered, Request, RequestId, Running, Scheduler, Stage, Waiting};
use crate::sharing::can_share;
use crate::{EngineError, Sequence};

/// Maximum number of tokens of an answer promised at a time.
const SLICE: usize = 1024;

/// A slice takes at most one in this many parts of the pool.
const SLICES: usize = 8;

/// Requests take pages from later ones in this order.
type Rank = (Reverse<i32>, RequestId);

/// A request with a sequence.
#[derive(Debug, Clone, Copy)]
struct Holder {
    rank: Rank,
    /// True if the request's pages may be taken. It can then read its text again with the same bits, and no pass is
    /// reading it.
    can_yield: bool,
    is_running: bool,
}

/// The request that gives its pages to a request of rank `taker`: the last one after the taker; `None` if there is
/// none.
fn next_to_yield(holders: &[Holder], taker: Rank, takes_from_running: bool) -> Option<RequestId> {
    let behind = holders
        .iter()
        .filter(|holder| holder.can_yield && holder.rank > taker && (takes_from_running || !holder.is_running));
    behind.max_by_key(|holder| holder.rank).map(|holder| holder.rank.1)
}

impl Scheduler {
    /// Tokens of a further promise.
    fn slice(&self) -> usize {
        let options = self.engine.options();
        let context = self.engine.plan().context_tokens;
        let pool = options.cache.pool_tokens.map_or(context, |tokens| tokens.max(context));
        SLICE.min(pool / SLICES).max(2 * MOST_ROWS)
    }

    /// Tokens promised to a request at admission. If its pages cannot be computed again, all its tokens.
    pub(super) fn first_promise(&self, started: &Running) -> usize {
        let most = started.request.most_tokens();
        if is_read_again(&started.request, &started.sequence) {
            started.text_tokens().saturating_add(self.slice()).min(most)
        } else {
            most
        }
    }

    /// Promises further slices to answers that have used theirs, oldest first.
    pub(super) fn renew_promises(&mut self) -> Result<(), EngineError> {
        let has_used = |running: &&Running| {
            matches!(running.stage, Stage::Answering(_))
                && running.promised_tokens < running.request.most_tokens()
                && running.sequence.tokens().len() + MOST_ROWS > running.promised_tokens
        };
        let mut renewed: Vec<Rank> = self.running.iter().filter(has_used).map(Running::rank).collect();
        renewed.sort_unstable();
        for rank in renewed {
            while let Some(place) = self.running.iter().position(|running| running.id == rank.1) {
                if self.promise_further(place) {
                    break;
                }
                if !self.take_pages(rank, true) {
                    self.park_running(place, false)?;
                }
            }
        }
        Ok(())
    }

    /// Promises the next slice, if idle sequences make room for it.
    fn promise_further(&mut self, place: usize) -> bool {
        let running = &self.running[place];
        let before = running.promised_tokens;
        let wanted = (running.sequence.tokens().len() + self.slice()).min(running.request.most_tokens());
        self.running[place].promised_tokens = wanted;
        while self.taken_bytes() > self.capacity_bytes() {
            if !self.drop_oldest_idle() {
                self.running[place].promised_tokens = before;
                return false;
            }
        }
        true
    }

    /// Takes the pages of the last request after `taker`; returns false if no request can give its pages.
    pub(super) fn take_pages(&mut self, taker: Rank, takes_from_running: bool) -> bool {
        let Some(id) = next_to_yield(&self.holders(), taker, takes_from_running) else {
            return false;
        };
        if let Some(place) = self.running.iter().position(|running| running.id == id) {
            let mut running = self.running.remove(place);
            forget(&running.request, &mut running.sequence, &mut running.stage);
            self.enqueue(running.waits(false));
        } else if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.id == id)
            && let Some((sequence, stage)) = &mut waiting.parked
        {
            forget(&waiting.request, sequence, stage);
        }
        true
    }

    fn holders(&self) -> Vec<Holder> {
        let in_pass: Vec<RequestId> = self.requests_in_pass().collect();
        let running = self.running.iter().map(|running| Holder {
            rank: running.rank(),
            can_yield: !in_pass.contains(&running.id)
                && matches!(running.lookup, Lookup::Ahead | Lookup::Elsewhere | Lookup::Done)
                && is_read_again(&running.request, &running.sequence),
            is_running: true,
        });
        let parked = self.waiting.iter().filter_map(|waiting| {
            let (sequence, _) = waiting.parked.as_ref()?;
            Some(Holder {
                rank: waiting.rank(),
                can_yield: !waiting.is_held && sequence.usage().pages > 0 && is_read_again(&waiting.request, sequence),
                is_running: false,
            })
        });
        running.chain(parked).collect()
    }

    /// Reads the tokens of answers again after their pages were taken, one row per token as before.
    pub(super) fn read_answers_again(&mut self, places: &[usize]) -> Result<Vec<(usize, End)>, EngineError> {
        let (mut again, mut tokens) = (Vec::new(), Vec::new());
        for place in places {
            let running = &mut self.running[*place];
            let most = rows_alike(&running.sequence);
            if let Stage::Answering(open) = &mut running.stage {
                let count = open.again.len().min(most);
                again.push(*place);
                tokens.push(open.again.drain(..count).collect::<Vec<u32>>());
            }
        }
        let running = self.running.iter_mut().enumerate();
        let sequences = running.filter(|(place, _)| again.contains(place));
        let mut work: Vec<Work<'_>> = sequences
            .zip(&tokens)
            .map(|((_, running), tokens)| Work {
                goal: running.sequence.tokens().len() + tokens.len(),
                sequence: &mut running.sequence,
                tokens,
                phase: Phase::Decode,
                finished_rows: FinishedRows::All,
            })
            .collect();
        let outcomes = self.answers.pass(&mut work, &mut |_| ControlFlow::Continue(()));
        drop(work);
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => {
                // A failed pass leaves every sequence unchanged.
                for (place, tokens) in again.into_iter().zip(tokens) {
                    if let Stage::Answering(open) = &mut self.running[place].stage {
                        open.again.splice(..0, tokens);
                    }
                }
                return Err(error);
            }
        };
        let failed = again.into_iter().zip(outcomes);
        let failed = failed.filter_map(|(place, outcome)| Some((place, End::Failed(outcome?.error))));
        Ok(failed.collect())
    }
}

impl Running {
    pub(super) fn rank(&self) -> Rank {
        (Reverse(self.request.priority), self.id)
    }

    /// Number of tokens of the prompt and of the answer so far.
    fn text_tokens(&self) -> usize {
        match &self.stage {
            Stage::Reading { resumed, .. } => {
                self.request.tokens.len() + resumed.as_ref().map_or(0, |open| open.again.len())
            }
            Stage::Answering(open) => self.sequence.tokens().len() + open.again.len(),
        }
    }

    /// The request in its waiting form.
    pub(super) fn waits(self, is_held: bool) -> Waiting {
        Waiting {
            id: self.id,
            request: self.request,
            clock: self.clock,
            parked: Some((self.sequence, self.stage)),
            resumed_tokens: self.resumed_tokens,
            is_held,
        }
    }
}

impl Waiting {
    pub(super) fn rank(&self) -> Rank {
        (Reverse(self.request.priority), self.id)
    }

    /// The request as a running one, without a promise yet.
    pub(super) fn placed(self, sequence: Sequence, stage: Stage) -> Running {
        Running {
            id: self.id,
            request: self.request,
            sequence,
            stage,
            lookup: Lookup::Done,
            clock: self.clock,
            turn: 0,
            offered: Offered::default(),
            resumed_tokens: self.resumed_tokens,
            promised_tokens: 0,
            is_cancelled: false,
        }
    }
}

/// Frees the pages of a sequence, whose text is then read again: the prompt in prompt passes, then the tokens of the
/// answer.
fn forget(request: &Request, sequence: &mut Sequence, stage: &mut Stage) {
    let text = sequence.forget_all();
    let resumed = match std::mem::replace(stage, Stage::from_the_start(None)) {
        Stage::Reading { resumed, .. } => resumed,
        Stage::Answering(mut open) => {
            open.again.splice(..0, text.into_iter().skip(request.tokens.len()));
            Some(open)
        }
    };
    *stage = Stage::from_the_start(resumed);
}

/// True if a request's pages can be computed again with the same bits.
fn is_read_again(request: &Request, sequence: &Sequence) -> bool {
    let policies = &sequence.attention().policies;
    let policies = policies.prefill.iter().chain(policies.decode.iter());
    let evicts = policies.into_iter().any(|policy| policy.traits().evicts);
    request.session.is_none() && request.prompt_probabilities.is_none() && can_share(sequence) && !evicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_request_behind_the_taker_yields() {
        let holder = |priority: i32, id: u64| Holder {
            rank: (Reverse(priority), RequestId(id)),
            can_yield: true,
            is_running: true,
        };
        let rank = |priority: i32, id: u64| (Reverse(priority), RequestId(id));
        let holders = [holder(0, 1), holder(0, 2), holder(1, 3), holder(0, 4)];
        assert_eq!(next_to_yield(&holders, rank(0, 1), true), Some(RequestId(4)));
        assert_eq!(next_to_yield(&holders[..3], rank(0, 1), true), Some(RequestId(2)));
        assert_eq!(next_to_yield(&holders[..1], rank(0, 1), true), None, "it is alone");
        assert_eq!(next_to_yield(&holders, rank(0, 4), true), None, "nobody is behind it");
        assert_eq!(next_to_yield(&holders, rank(0, 1), false), None, "all of them run");
        let parked = Holder {
            is_running: false,
            ..holder(0, 2)
        };
        let in_pass = Holder {
            can_yield: false,
            ..holder(0, 4)
        };
        let holders = [holder(0, 1), parked, holder(0, 3), in_pass];
        assert_eq!(next_to_yield(&holders, rank(0, 1), false), Some(RequestId(2)));
        assert_eq!(next_to_yield(&holders, rank(0, 1), true), Some(RequestId(3)));
    }
}
