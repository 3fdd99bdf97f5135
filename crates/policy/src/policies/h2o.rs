use riffle_attention::{QueryTile, Selection, Span};

use crate::parameter::{MAX_TOKENS, Parameters};
use crate::retained::{ProtectedTokens, RetainedTokens};
use crate::{
    BudgetParameter, ColumnMass, Estimated, Evict, Learn, ParameterInfo, ParameterKind, Persist, Phase, PolicyError,
    PolicyInfo, SelectContext, SparsePolicy, Traits, state,
};

/// Reads the heavy hitters: a bounded number of tokens with the most votes from queries.
///
/// A token's score is the softmax mass that it received, summed over the group. It is divided by the number of queries
/// that could see the token. Without the division old tokens would win by age. The first tokens, the latest tokens and
/// named ranges are never evicted, nor are tokens without a possible vote so far. An evicted token is not read again,
/// and its memory is freed. A rollback removes the tokens after it and the votes of their queries; earlier evictions
/// remain. Votes return to the latest remaining snapshot, taken at the beginning or the end of the latest prompt.
#[derive(Clone)]
struct H2o {
    budget: usize,
    observed: usize,
    protected: ProtectedTokens,
    retained: RetainedTokens,
    /// Votes for each retained token.
    votes: Vec<Votes>,
    /// One past the last query that voted.
    voted_tokens: usize,
    /// Votes before the latest prompt, then at its end.
    snapshots: Vec<VoteSnapshot>,
    /// True if queries of a prompt have voted since a token was generated.
    in_prompt: bool,
}

/// The votes when the sequence ended at `tokens`, by position.
#[derive(Clone)]
struct VoteSnapshot {
    tokens: usize,
    votes: Vec<(usize, Votes)>,
}

/// Attention mass of a token.
#[derive(Clone, Copy, Default)]
struct Votes {
    mass: f32,
    /// (query, head) pairs that could see the token.
    voters: f32,
}

pub(super) const PROTECT: ParameterInfo = ParameterInfo {
    name: "protect",
    default: "none",
    meaning: "ranges that are never evicted, the system prompt for one",
    kind: ParameterKind::Spans,
};

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "h2o",
    source: "H2O, Zhang et al. 2023, arXiv:2306.14048, with votes by the number of voters",
    saves: "compute, traffic",
    traits: Traits {
        learns: true,
        evicts: true,
        persists: true,
        follows_from_keys: false,
        depends_on_chunks: true,
        stored_bytes: |_, _| 16.0,
        budget: Some(BudgetParameter::tokens("budget", 260.0)),
        ..Traits::DECODE
    },
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
            retained: RetainedTokens::default(),
            votes: Vec::new(),
            voted_tokens: 0,
            snapshots: Vec::new(),
            in_prompt: false,
        })
    },
};

pub(super) fn protected(parameters: &Parameters, recent: usize) -> ProtectedTokens {
    ProtectedTokens {
        sinks: parameters.count("sinks"),
        recent,
        ranges: parameters.spans("protect"),
    }
}

impl SparsePolicy for H2o {
    fn prepare(&mut self, _chunk: &QueryTile<'_>, context: &SelectContext<'_>, _: Option<Estimated>) {
        self.extend(context.tokens);
        if self.retained.positions().len() > self.budget {
            let scores: Vec<f32> = self.votes.iter().map(Votes::score).collect();
            let remaining = self.retained.evict(&scores, self.budget, |index, position| {
                self.votes[index].voters == 0.0 || self.protected.contains(position, context.tokens)
            });
            self.votes = remaining.into_iter().map(|index| self.votes[index]).collect();
        }
        if self.in_prompt {
            // The snapshot follows the eviction, because a prompt may be far longer than its retained tokens.
            self.take_snapshot(context.chunk_start);
            self.in_prompt = false;
        }
    }

    fn select(&self, _tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        self.retained.selection(context.tokens)
    }

    fn truncate(&mut self, tokens: usize) {
        let remaining = self.retained.truncate(tokens);
        self.votes.truncate(remaining);
        if tokens >= self.voted_tokens {
            return;
        }
        self.snapshots.retain(|snapshot| snapshot.tokens <= tokens);
        let (known, voted_tokens): (&[(usize, Votes)], usize) = match self.snapshots.last() {
            Some(snapshot) => (&snapshot.votes, snapshot.tokens),
            None => (&[], 0),
        };
        for (votes, position) in self.votes.iter_mut().zip(self.retained.positions()) {
            let index = known.binary_search_by_key(position, |(position, _)| *position);
            *votes = index.map_or(Votes::default(), |index| known[index].1);
        }
        (self.voted_tokens, self.in_prompt) = (voted_tokens, false);
    }

    fn learn(&mut self) -> Option<&mut dyn Learn> {
        Some(self)
    }

    fn evict(&mut self) -> Option<&mut dyn Evict> {
        Some(self)
    }

    fn persist(&self) -> Option<&dyn Persist> {
        Some(self)
    }
}

impl Learn for H2o {
    fn observes_from(&self, context: &SelectContext<'_>) -> usize {
        match context.phase {
            Phase::Prefill => context.chunk_start.max(context.tokens.saturating_sub(self.observed)),
            Phase::Decode => context.chunk_start,
        }
    }

    fn observe(&mut self, mass: &ColumnMass<'_>) {
        if mass.queries.len() > 1 && !self.in_prompt {
            self.snapshots.clear();
            self.take_snapshot(self.voted_tokens);
            self.in_prompt = true;
        }
        self.voted_tokens = self.voted_tokens.max(mass.queries.end);
        self.extend(mass.mass.len());
        for (votes, position) in self.votes.iter_mut().zip(self.retained.positions()) {
            if let Some(received) = mass.mass.get(*position) {
                votes.mass += received;
                votes.voters += mass.voters(*position);
            }
        }
    }
}

impl Evict for H2o {
    fn retained(&self, tokens: usize) -> Vec<Span> {
        self.retained.selection(tokens).spans().to_vec()
    }

    fn close_gaps(&mut self) {
        let retained = self.retained.positions();
        let moved = |position: usize| retained.partition_point(|retained| *retained < position);
        for snapshot in &mut self.snapshots {
            snapshot.tokens = moved(snapshot.tokens);
            snapshot
                .votes
                .retain(|(position, _)| retained.binary_search(position).is_ok());
            for (position, _) in &mut snapshot.votes {
                *position = moved(*position);
            }
        }
        self.voted_tokens = moved(self.voted_tokens);
        self.retained.close_gaps();
    }
}

impl Persist for H2o {
    fn save(&self) -> Vec<u8> {
        let votes: Vec<f32> = self.votes.iter().flat_map(|votes| [votes.mass, votes.voters]).collect();
        state::write(&self.retained.to_numbers(), &votes)
    }

    fn restored(&self, state: &[u8]) -> Result<Box<dyn SparsePolicy>, PolicyError> {
        let (numbers, scores) = state::read(state).ok_or(PolicyError::BadState)?;
        let retained = RetainedTokens::from_numbers(&numbers).ok_or(PolicyError::BadState)?;
        let (pairs, rest) = scores.as_chunks::<2>();
        if !rest.is_empty() || pairs.len() != retained.positions().len() {
            return Err(PolicyError::BadState);
        }
        let votes = pairs.iter().map(|[mass, voters]| Votes {
            mass: *mass,
            voters: *voters,
        });
        let mut restored = Self {
            protected: self.protected.clone(),
            retained,
            votes: votes.collect(),
            voted_tokens: numbers[0],
            snapshots: Vec::new(),
            in_prompt: false,
            ..*self
        };
        restored.take_snapshot(restored.voted_tokens);
        Ok(Box::new(restored))
    }

    fn copied(&self) -> Result<Box<dyn SparsePolicy>, PolicyError> {
        Ok(Box::new(self.clone()))
    }
}

impl H2o {
    /// Stores the votes, for a rollback to `tokens` or later.
    fn take_snapshot(&mut self, tokens: usize) {
        let votes = self
            .retained
            .positions()
            .iter()
            .copied()
            .zip(self.votes.iter().copied());
        let votes = votes.collect();
        self.snapshots.push(VoteSnapshot { tokens, votes });
    }

    fn extend(&mut self, tokens: usize) {
        self.retained.extend(tokens);
        self.votes.resize(self.retained.positions().len(), Votes::default());
    }
}

impl Votes {
    fn score(&self) -> f32 {
        if self.voters > 0.0 {
            self.mass / self.voters
        } else {
            0.0
        }
    }
}
