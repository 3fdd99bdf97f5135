use riffle_attention::{QueryTile, Selection, Span};

use crate::held::{Held, Protected};
use crate::parameter::{MAX_TOKENS, Parameters};
use crate::{
    ColumnMass, ParameterInfo, ParameterKind, Phase, PolicyError, PolicyInfo, Recall, SelectContext, SparsePolicy,
    state,
};

/// Heavy hitters: a bounded number of tokens, those that queries voted for most.
///
/// A token's score is the softmax mass it received, summed over the group, by the number of queries that could have
/// given it any: without that, old tokens would win by age. First and latest tokens and named ranges are never evicted,
/// nor is a token that nothing could vote for yet. What is evicted is not read again, and its memory is freed. A rollback
/// forgets the tokens after it and the votes of their queries, not the evictions before: votes become those of the latest
/// prompt's beginning or end that remains.
struct H2o {
    budget: usize,
    observed: usize,
    protected: Protected,
    held: Held,
    /// Mass and possible votes of each held token.
    votes: Vec<Votes>,
    /// One past the last query that has voted.
    voted: usize,
    /// Votes as they were before the latest prompt and at its end, in order.
    marks: Vec<Mark>,
    /// Whether queries of a prompt have voted since a token was generated.
    in_prompt: bool,
}

/// Votes as they were when the sequence ended at `tokens`, by position.
struct Mark {
    tokens: usize,
    votes: Vec<(usize, Votes)>,
}

#[derive(Clone, Copy, Default)]
struct Votes {
    mass: f32,
    possible: f32,
}

pub(super) const PROTECT: ParameterInfo = ParameterInfo {
    name: "protect",
    default: "none",
    meaning: "ranges that are never evicted, the system prompt for one",
    kind: ParameterKind::Spans,
};

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "h2o",
    supports_prefill: false,
    supports_decode: true,
    recall: Recall::None,
    saves: "compute, traffic",
    source: "H2O, Zhang et al. 2023, arXiv:2306.14048, with votes by the number of voters",
    chunk: None,
    work: None,
    stored_bytes: |_, _| 16.0,
    parameters: &[
        ParameterInfo::count(
            "budget",
            "1024",
            "tokens that are kept, protected ones counted",
            1,
            MAX_TOKENS,
        ),
        ParameterInfo::count("recent", "256", "latest tokens, never evicted", 1, MAX_TOKENS),
        ParameterInfo::tokens("sinks", "4", "first tokens, never evicted"),
        PROTECT,
        ParameterInfo::tokens("observed", "64", "last queries of each prompt chunk that vote"),
    ],
    build: |parameters| {
        Box::new(H2o {
            budget: parameters.count("budget"),
            observed: parameters.count("observed"),
            protected: protected(parameters, parameters.count("recent")),
            held: Held::default(),
            votes: Vec::new(),
            voted: 0,
            marks: Vec::new(),
            in_prompt: false,
        })
    },
};

pub(super) fn protected(parameters: &Parameters, recent: usize) -> Protected {
    Protected {
        sinks: parameters.count("sinks"),
        recent,
        ranges: parameters.spans("protect"),
    }
}

impl SparsePolicy for H2o {
    fn scans_keys(&self) -> bool {
        false
    }

    fn keys_from(&self, context: &SelectContext<'_>) -> usize {
        context.tokens
    }

    fn prepare(&mut self, _chunk: &QueryTile<'_>, context: &SelectContext<'_>) {
        self.take_in(context.tokens);
        if self.held.positions().len() > self.budget {
            let scores: Vec<f32> = self.votes.iter().map(Votes::score).collect();
            let stay = self.held.keep(&scores, self.budget, |place, position| {
                self.votes[place].possible == 0.0 || self.protected.holds(position, context.tokens)
            });
            self.votes = stay.into_iter().map(|place| self.votes[place]).collect();
        }
        if self.in_prompt {
            // Only now: a prompt may be far longer than what is kept of it.
            self.mark(context.chunk_start);
            self.in_prompt = false;
        }
    }

    fn select(&self, _queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        self.held.selection(context.tokens)
    }

    fn observes_from(&self, context: &SelectContext<'_>) -> usize {
        match context.phase {
            Phase::Prefill => context.chunk_start.max(context.tokens.saturating_sub(self.observed)),
            Phase::Decode => context.chunk_start,
        }
    }

    fn observe(&mut self, mass: &ColumnMass<'_>) {
        if mass.queries.len() > 1 && !self.in_prompt {
            self.marks.clear();
            self.mark(self.voted);
            self.in_prompt = true;
        }
        self.voted = self.voted.max(mass.queries.end);
        self.take_in(mass.mass.len());
        for (votes, position) in self.votes.iter_mut().zip(self.held.positions()) {
            if let Some(received) = mass.mass.get(*position) {
                votes.mass += received;
                votes.possible += mass.voters(*position);
            }
        }
    }

    fn follows_from_keys(&self) -> bool {
        false
    }

    fn retained(&self, tokens: usize) -> Option<Vec<Span>> {
        Some(self.held.selection(tokens).spans().to_vec())
    }

    fn close_gaps(&mut self) {
        let held = self.held.positions();
        let place = |position: usize| held.partition_point(|held| *held < position);
        for mark in &mut self.marks {
            mark.tokens = place(mark.tokens);
            mark.votes.retain(|(position, _)| held.binary_search(position).is_ok());
            for (position, _) in &mut mark.votes {
                *position = place(*position);
            }
        }
        self.voted = place(self.voted);
        self.held.close_gaps();
    }

    fn save_state(&self) -> Vec<u8> {
        let votes: Vec<f32> = self
            .votes
            .iter()
            .flat_map(|votes| [votes.mass, votes.possible])
            .collect();
        state::write(&self.held.numbers(), &votes)
    }

    fn restore_state(&mut self, state: &[u8]) -> Result<(), PolicyError> {
        self.reset();
        let (numbers, scores) = state::read(state).ok_or(PolicyError::BadState)?;
        let held = Held::from_numbers(&numbers).ok_or(PolicyError::BadState)?;
        let (pairs, rest) = scores.as_chunks::<2>();
        if !rest.is_empty() || pairs.len() != held.positions().len() {
            return Err(PolicyError::BadState);
        }
        self.votes = pairs
            .iter()
            .map(|[mass, possible]| Votes {
                mass: *mass,
                possible: *possible,
            })
            .collect();
        self.voted = numbers[0];
        self.held = held;
        self.mark(self.voted);
        Ok(())
    }

    fn truncate(&mut self, tokens: usize) {
        let remaining = self.held.truncate(tokens);
        self.votes.truncate(remaining);
        if tokens >= self.voted {
            return;
        }
        self.marks.retain(|mark| mark.tokens <= tokens);
        let (known, voted): (&[(usize, Votes)], usize) = match self.marks.last() {
            Some(mark) => (&mark.votes, mark.tokens),
            None => (&[], 0),
        };
        for (votes, position) in self.votes.iter_mut().zip(self.held.positions()) {
            let place = known.binary_search_by_key(position, |(position, _)| *position);
            *votes = place.map_or(Votes::default(), |place| known[place].1);
        }
        (self.voted, self.in_prompt) = (voted, false);
    }
}

impl H2o {
    /// Remembers the votes as they are.
    fn mark(&mut self, tokens: usize) {
        let votes = self.held.positions().iter().copied().zip(self.votes.iter().copied());
        let votes = votes.collect();
        self.marks.push(Mark { tokens, votes });
    }

    fn take_in(&mut self, tokens: usize) {
        self.held.take_in(tokens);
        self.votes.resize(self.held.positions().len(), Votes::default());
    }
}

impl Votes {
    fn score(&self) -> f32 {
        if self.possible > 0.0 {
            self.mass / self.possible
        } else {
            0.0
        }
    }
}
