use std::borrow::Cow;
use std::collections::VecDeque;

use riffle_attention::{QueryTile, Selection};

use crate::cost::{ChunkSize, ChunkWork};
use crate::parameter::{MAX_TOKENS, Parameters};
use crate::ranking::top_count;
use crate::spans::runs;
use crate::{
    BudgetParameter, ChunkNeed, ColumnMass, Estimated, Learn, ParameterInfo, Persist, PolicyError, PolicyInfo,
    SelectContext, SparsePolicy, Traits, state,
};

/// Lets a chunk read itself and a bounded memory of earlier tokens: the latest ones and the heavy hitters.
///
/// In the first phase every chunk of a logical batch attends to itself. In the second phase, chunk by chunk, a chunk
/// attends to its memory. The memory is the `local` tokens before the chunk, and the `heavy` tokens with most votes in
/// the previous memory and the previous chunk. A vote is softmax mass over everything that the query read, summed over
/// the group. It is divided by the number of queries that could give it. Without the division old tokens would win by
/// age. The first `sinks` tokens count among the heavy ones. A rollback returns to the votes of the latest remaining
/// chunk, if they are still stored.
#[derive(Clone)]
struct H2oChunk {
    local: usize,
    heavy: usize,
    sinks: usize,
    /// For each of the latest chunks its end, and the candidates for the next memory: the chunk's memory and the
    /// chunk itself, ascending. A rollback returns to an earlier chunk.
    history: VecDeque<(usize, Vec<Candidate>)>,
    /// The memory of the chunk that begins at `memory_start`.
    memory: Vec<Candidate>,
    memory_start: usize,
}

/// A candidate for the memory, with its votes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    position: usize,
    mass: f32,
    voters: f32,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "h2o-chunk",
    source: "H2O, Zhang et al. 2023, arXiv:2306.14048, in two phases over chunks, with votes by the number of voters",
    saves: "compute",
    traits: Traits {
        two_phases: true,
        learns: true,
        persists: true,
        follows_from_keys: false,
        depends_on_chunks: true,
        chunk: Some(ChunkNeed {
            preferred: 1024,
            above: |parameters| parameters.count("local") + parameters.count("heavy"),
        }),
        work: Some(work),
        budget: Some(BudgetParameter::tokens("heavy", 4.0)),
        ..Traits::PREFILL
    },
    parameters: &[
        ParameterInfo::count("local", "256", "tokens before a chunk that it reads", 1, MAX_TOKENS),
        ParameterInfo::count("heavy", "256", "older tokens, by votes, that it reads", 1, MAX_TOKENS),
        ParameterInfo::tokens("sinks", "4", "first tokens, always among the heavy ones"),
    ],
    build: |parameters| {
        Box::new(H2oChunk {
            local: parameters.count("local"),
            heavy: parameters.count("heavy"),
            sinks: parameters.count("sinks").min(parameters.count("heavy")),
            history: VecDeque::new(),
            memory: Vec::new(),
            memory_start: 0,
        })
    },
};

/// Work of a whole prompt. Chunks and memories are read, and the votes score them again.
fn work(parameters: &Parameters, chunk: &ChunkSize) -> ChunkWork {
    let (rows, tokens) = (chunk.rows as f64, chunk.tokens as f64);
    let memory = (parameters.count("local") + parameters.count("heavy")) as f64;
    let chunks = (tokens / rows).ceil();
    let read = chunks * rows * (rows + 1.0) / 2.0 + (chunks - 1.0) * rows * memory;
    let all = tokens * (tokens + 1.0) / 2.0;
    // Shares of one chunk's work, because the caller compares with one chunk.
    let share = (read / all).min(1.0);
    ChunkWork {
        share,
        scored: share * chunk.pairs(),
        weighed: 0.0,
        ranked: rows + memory,
    }
}

impl SparsePolicy for H2oChunk {
    fn prepare(&mut self, _chunk: &QueryTile<'_>, context: &SelectContext<'_>, _: Option<Estimated>) {
        self.memory = self.memory_for(context.chunk_start);
        self.memory_start = context.chunk_start;
    }

    fn select(&self, _tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let memory = if self.memory_start == context.chunk_start {
            Cow::Borrowed(&self.memory)
        } else {
            Cow::Owned(self.memory_for(context.chunk_start))
        };
        Selection::from_spans(runs(memory.iter().map(|candidate| candidate.position)))
    }

    fn truncate(&mut self, tokens: usize) {
        let oldest = self.history.front().cloned();
        self.history.retain(|(end, _)| *end <= tokens);
        if let Some((_, mut candidates)) = oldest.filter(|(end, _)| *end > tokens && tokens > 0) {
            // The state is too far back: the tokens that were read are known, but their votes are not.
            candidates.retain(|candidate| candidate.position < tokens);
            let unvoted = candidates.iter().map(|candidate| Candidate::new(candidate.position));
            self.history.push_back((tokens, unvoted.collect()));
        }
        (self.memory, self.memory_start) = (Vec::new(), 0);
    }

    fn learn(&mut self) -> Option<&mut dyn Learn> {
        Some(self)
    }

    fn persist(&self) -> Option<&dyn Persist> {
        Some(self)
    }
}

impl Learn for H2oChunk {
    fn observes_from(&self, context: &SelectContext<'_>) -> usize {
        // After the last chunk, no chunk of this prompt reads the memory.
        if context.tokens < context.total_tokens {
            context.chunk_start
        } else {
            context.tokens
        }
    }

    fn observe(&mut self, mass: &ColumnMass<'_>) {
        let chunk = mass.queries.range().map(Candidate::new);
        let voted = self.memory.iter().copied().chain(chunk).map(|candidate| Candidate {
            mass: candidate.mass + mass.mass.get(candidate.position).unwrap_or(&0.0),
            voters: candidate.voters + mass.voters(candidate.position),
            ..candidate
        });
        self.history.push_back((mass.queries.end, voted.collect()));
        if self.history.len() > REMEMBERED {
            self.history.pop_front();
        }
    }
}

impl Persist for H2oChunk {
    fn save(&self) -> Vec<u8> {
        let positions: Vec<usize> = self.candidates().iter().map(|candidate| candidate.position).collect();
        let votes: Vec<f32> = self
            .candidates()
            .iter()
            .flat_map(|candidate| [candidate.mass, candidate.voters])
            .collect();
        state::write(&positions, &votes)
    }

    fn restored(&self, state: &[u8]) -> Result<Box<dyn SparsePolicy>, PolicyError> {
        let (positions, scores) = state::read(state).ok_or(PolicyError::BadState)?;
        let (pairs, rest) = scores.as_chunks::<2>();
        if !rest.is_empty() || pairs.len() != positions.len() || !positions.is_sorted_by(|a, b| a < b) {
            return Err(PolicyError::BadState);
        }
        let candidates = positions.iter().zip(pairs).map(|(position, [mass, voters])| Candidate {
            position: *position,
            mass: *mass,
            voters: *voters,
        });
        let end = positions.last().map(|last| last + 1);
        Ok(Box::new(Self {
            history: end.map(|end| (end, candidates.collect())).into_iter().collect(),
            memory: Vec::new(),
            memory_start: 0,
            ..*self
        }))
    }

    fn copied(&self) -> Result<Box<dyn SparsePolicy>, PolicyError> {
        Ok(Box::new(self.clone()))
    }
}

/// Number of chunks whose votes are stored: the chunks of a logical batch by default, plus one.
const REMEMBERED: usize = 5;

impl H2oChunk {
    /// The candidates for the next memory.
    fn candidates(&self) -> &[Candidate] {
        self.history.back().map_or(&[], |(_, candidates)| candidates)
    }

    /// The `local` tokens before `start` and the `heavy` best candidates before them, ascending. All tokens if there
    /// are no more.
    fn memory_for(&self, start: usize) -> Vec<Candidate> {
        let local = start.saturating_sub(self.local);
        // Tokens without votes (the end of an earlier prompt, and its answer) rank last.
        let candidates = self.candidates();
        let known = candidates.last().map_or(0, |last| last.position + 1);
        let older = candidates
            .iter()
            .copied()
            .filter(|candidate| candidate.position < local);
        let older: Vec<Candidate> = older.chain((known..local).map(Candidate::new)).collect();
        let scores: Vec<f32> = older.iter().map(Candidate::score).collect();
        let heavy = top_count(&scores, self.heavy, |index| older[index].position < self.sinks);
        let latest = (local..start).map(|position| {
            let index = candidates.binary_search_by_key(&position, |candidate| candidate.position);
            index.map_or(Candidate::new(position), |index| candidates[index])
        });
        heavy.into_iter().map(|index| older[index]).chain(latest).collect()
    }
}

impl Candidate {
    fn new(position: usize) -> Self {
        Self {
            position,
            mass: 0.0,
            voters: 0.0,
        }
    }

    fn score(&self) -> f32 {
        if self.voters > 0.0 {
            self.mass / self.voters
        } else {
            0.0
        }
    }
}
