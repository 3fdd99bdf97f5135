use std::borrow::Cow;
use std::collections::VecDeque;

use riffle_attention::{QueryTile, Selection, Span};

use crate::cost::{Setting, Work};
use crate::parameter::{MAX_TOKENS, Parameters};
use crate::ranking::top_count;
use crate::spans::runs;
use crate::{
    ChunkNeed, ColumnMass, ParameterInfo, PolicyError, PolicyInfo, Recall, SelectContext, SparsePolicy, state,
};

/// Chunks that read themselves and a bounded memory of what came before: the latest tokens and the heavy hitters.
///
/// Every chunk attends to itself first, all chunks of a logical batch at once. Then, chunk by chunk, it attends to its
/// memory: the `local` tokens before it and the `heavy` ones that queries voted for most, out of the previous memory and
/// the previous chunk. A vote is softmax mass under everything the query read, summed over the group and counted by the
/// number of queries that could give it, so that old tokens do not win by age. The first `sinks` tokens count among the
/// heavy ones. A rollback goes back to the votes of the latest chunk that remains, if it is not too far behind.
struct H2oChunk {
    local: usize,
    heavy: usize,
    sinks: usize,
    /// What a memory is chosen from after each of the latest chunks, with the chunk's end: the memory before it and the
    /// chunk itself, ascending. A rollback goes back to an earlier one.
    history: VecDeque<(usize, Vec<Candidate>)>,
    /// The memory of the chunk that begins at `memory_of`.
    memory: Vec<Candidate>,
    memory_of: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    position: usize,
    mass: f32,
    voters: f32,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "h2o-chunk",
    supports_prefill: true,
    supports_decode: false,
    recall: Recall::None,
    saves: "compute",
    source: "H2O, Zhang et al. 2023, arXiv:2306.14048, in two phases over chunks, with votes by the number of voters",
    chunk: Some(ChunkNeed {
        preferred: 1024,
        above: |parameters| parameters.count("local") + parameters.count("heavy"),
        two_phases: true,
    }),
    work: Some(work),
    stored_bytes: |_, _| 0.0,
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
            memory_of: 0,
        })
    },
};

/// Over a whole prompt: chunks and memories are read, and scored once more for the votes.
fn work(parameters: &Parameters, setting: &Setting) -> Work {
    let (rows, tokens) = (setting.rows as f64, setting.tokens as f64);
    let memory = (parameters.count("local") + parameters.count("heavy")) as f64;
    let chunks = (tokens / rows).ceil();
    let read = chunks * rows * (rows + 1.0) / 2.0 + (chunks - 1.0) * rows * memory;
    let all = tokens * (tokens + 1.0) / 2.0;
    // As shares of one chunk's work, which is what the caller compares with.
    let share = (read / all).min(1.0);
    Work {
        share,
        scored: share * setting.pairs(),
        weighed: 0.0,
        ranked: rows + memory,
    }
}

impl SparsePolicy for H2oChunk {
    fn scans_keys(&self) -> bool {
        false
    }

    fn keys_from(&self, context: &SelectContext<'_>) -> usize {
        context.tokens
    }

    fn has_two_phases(&self) -> bool {
        true
    }

    fn select_own(&self, _queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        Selection::from_spans([Span::new(context.chunk_start, context.tokens)])
    }

    fn prepare(&mut self, _chunk: &QueryTile<'_>, context: &SelectContext<'_>) {
        self.memory = self.memory_for(context.chunk_start);
        self.memory_of = context.chunk_start;
    }

    fn select(&self, _queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let memory = if self.memory_of == context.chunk_start {
            Cow::Borrowed(&self.memory)
        } else {
            Cow::Owned(self.memory_for(context.chunk_start))
        };
        Selection::from_spans(runs(memory.iter().map(|candidate| candidate.position)))
    }

    fn observes_from(&self, context: &SelectContext<'_>) -> usize {
        // Nothing in this prompt will read a memory that the last chunk votes for.
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

    fn follows_from_keys(&self) -> bool {
        false
    }

    fn save_state(&self) -> Vec<u8> {
        let positions: Vec<usize> = self.candidates().iter().map(|candidate| candidate.position).collect();
        let votes: Vec<f32> = self
            .candidates()
            .iter()
            .flat_map(|candidate| [candidate.mass, candidate.voters])
            .collect();
        state::write(&positions, &votes)
    }

    fn restore_state(&mut self, state: &[u8]) -> Result<(), PolicyError> {
        self.reset();
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
        let candidates: Vec<Candidate> = candidates.collect();
        if let Some(last) = candidates.last() {
            self.history.push_back((last.position + 1, candidates));
        }
        Ok(())
    }

    fn truncate(&mut self, tokens: usize) {
        let oldest = self.history.front().cloned();
        self.history.retain(|(end, _)| *end <= tokens);
        if let Some((_, mut candidates)) = oldest.filter(|(end, _)| *end > tokens && tokens > 0) {
            // Too far back: which tokens were read is known, but not who voted for them.
            candidates.retain(|candidate| candidate.position < tokens);
            let unvoted = candidates.iter().map(|candidate| Candidate::new(candidate.position));
            self.history.push_back((tokens, unvoted.collect()));
        }
        (self.memory, self.memory_of) = (Vec::new(), 0);
    }
}

/// Chunks whose votes are remembered: those of a logical batch by default, and one more.
const REMEMBERED: usize = 5;

impl H2oChunk {
    /// What the next memory is chosen from.
    fn candidates(&self) -> &[Candidate] {
        self.history.back().map_or(&[], |(_, candidates)| candidates)
    }

    /// The `local` tokens before `start` and the `heavy` best of the candidates before those, ascending; all tokens
    /// where there are no more.
    fn memory_for(&self, start: usize) -> Vec<Candidate> {
        let local = start.saturating_sub(self.local);
        // Tokens that nothing could vote for, the end of an earlier prompt and its answer, stand behind all others.
        let candidates = self.candidates();
        let known = candidates.last().map_or(0, |last| last.position + 1);
        let older = candidates
            .iter()
            .copied()
            .filter(|candidate| candidate.position < local);
        let older: Vec<Candidate> = older.chain((known..local).map(Candidate::new)).collect();
        let scores: Vec<f32> = older.iter().map(Candidate::score).collect();
        let heavy = top_count(&scores, self.heavy, |place| older[place].position < self.sinks);
        let latest = (local..start).map(|position| {
            let place = candidates.binary_search_by_key(&position, |candidate| candidate.position);
            place.map_or(Candidate::new(position), |place| candidates[place])
        });
        heavy.into_iter().map(|place| older[place]).chain(latest).collect()
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
