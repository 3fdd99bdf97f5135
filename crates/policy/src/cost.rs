//! Compares a policy's cost with its savings, using constants measured once.

use std::hint::black_box;
use std::time::Instant;

use riffle_attention::{
    AttendOptions, KvView, PageView, Partial, Plane, PlaneMut, QueryTile, Scorer, Selection, Span, attend,
    exponentiate, write_keys, write_values,
};

use crate::ranking::top_share;
use crate::{Phase, PolicySpec};

/// The layer for which policies are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyShape {
    /// KV heads of the layer.
    pub kv_heads: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Elements of a key.
    pub head_dim: usize,
    /// Queries in a chunk of the prompt.
    pub chunk_tokens: usize,
}

/// Nanoseconds of the operations of attention and estimates, on one thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    /// Attention: one channel of one (query, key) pair, when many queries share the keys.
    pub attend_ns: f64,
    /// Attention of one query position: one channel of one key and value.
    pub decode_ns: f64,
    /// Estimate: one channel of one (vector, key) product.
    pub score_ns: f64,
    /// Estimate: one logit through a softmax and into sums.
    pub weigh_ns: f64,
    /// Estimate: one score in the ranking.
    pub rank_ns: f64,
}

impl Default for CostModel {
    /// Measured by `riffle calibrate` on an AMD EPYC (Zen 4) with AVX-512.
    fn default() -> Self {
        Self {
            attend_ns: 0.041,
            decode_ns: 0.179,
            score_ns: 0.021,
            weigh_ns: 0.35,
            rank_ns: 13.3,
        }
    }
}

/// The queries and keys of one chunk, or one decode step, of one KV head.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ChunkSize {
    /// Query positions.
    pub rows: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Keys, up to the end of the chunk.
    pub tokens: usize,
}

/// The operations of a policy for one chunk of one KV head, including the estimate.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct ChunkWork {
    /// Share of the causal pairs that the policy reads.
    pub share: f64,
    /// (vector, key) products of the estimate.
    pub scored: f64,
    /// Logits of the estimate that pass a softmax.
    pub weighed: f64,
    /// Scores of the estimate that are ranked.
    pub ranked: f64,
}

impl ChunkSize {
    /// Causal (query, key) pairs, summed over the heads of the group.
    pub fn pairs(&self) -> f64 {
        let before = self.tokens.saturating_sub(self.rows) as f64;
        let rows = self.rows.min(self.tokens) as f64;
        self.group as f64 * rows * (before + (rows + 1.0) / 2.0)
    }
}

impl ChunkWork {
    /// Work of reading a share of the pairs, if the choice needs no estimate.
    pub const fn reading(share: f64) -> Self {
        Self {
            share,
            scored: 0.0,
            weighed: 0.0,
            ranked: 0.0,
        }
    }

    /// Nanoseconds of the estimate alone.
    fn estimate_ns(&self, cost: &CostModel, head_dim: f64) -> f64 {
        self.scored * head_dim * cost.score_ns + self.weighed * cost.weigh_ns + self.ranked * cost.rank_ns
    }

    fn has_estimate(&self) -> bool {
        self.scored > 0.0 || self.weighed > 0.0 || self.ranked > 0.0
    }
}

impl CostModel {
    /// The shortest sequence for which the policy is faster than reading everything; `None` if it never is.
    ///
    /// It depends only on the policy, the shape and these constants. Nothing is timed, so the same prompt always gets
    /// the same selections.
    pub fn break_even_tokens(&self, policy: &PolicySpec, phase: Phase, shape: &PolicyShape) -> Option<usize> {
        let longest = ChunkSize {
            rows: 1,
            group: shape.group,
            tokens: 1 << 20,
        };
        if !work_of(policy, &longest).has_estimate() && policy.delta().is_none() {
            return Some(0);
        }
        let pays = |tokens: usize| self.relative_cost(policy, phase, shape, tokens, None) < 1.0;
        // A grid of lengths in steps of an eighth of a power of two.
        let grid = (8..21).flat_map(|power| (8..16).map(move |eighth| (1usize << power) / 8 * eighth));
        let mut grid: Vec<usize> = grid.collect();
        grid.reverse();
        let longest_that_does_not = grid.iter().position(|tokens| !pays(*tokens));
        match longest_that_does_not {
            None => Some(0),
            Some(0) => None,
            Some(place) => Some(grid[place - 1]),
        }
    }

    /// The cost of a chunk (or a decode step) at the end of `tokens` under the policy, as a share of the cost of
    /// reading everything. It includes the estimate. `share` is the measured share of pairs that the policy reads,
    /// including correcting queries that read everything.
    pub fn relative_cost(
        &self,
        policy: &PolicySpec,
        phase: Phase,
        shape: &PolicyShape,
        tokens: usize,
        share: Option<f64>,
    ) -> f64 {
        let rows = match phase {
            Phase::Prefill => shape.chunk_tokens.min(tokens),
            Phase::Decode => 1,
        };
        let chunk = ChunkSize {
            rows,
            group: shape.group,
            tokens,
        };
        let work = work_of(policy, &chunk);
        let head_dim = shape.head_dim as f64;
        let dense_ns = match phase {
            Phase::Prefill => chunk.pairs() * head_dim * self.attend_ns,
            Phase::Decode => tokens as f64 * head_dim * self.decode_ns,
        };
        // Correcting queries are computed one by one, like those of decode steps.
        let corrections = policy.delta().map_or(0.0, |delta| rows as f64 / delta as f64);
        let corrections_ns = corrections * tokens as f64 * head_dim * self.decode_ns;
        let dense_ns = dense_ns.max(f64::MIN_POSITIVE);
        let of_means = policy.summary_tokens().map_or(0.0, |block| 1.0 / block as f64);
        let share = share.unwrap_or(work.share + corrections_ns / dense_ns + of_means);
        share + work.estimate_ns(self, head_dim) / dense_ns
    }

    /// Times the operations on this machine and thread, for about a second.
    pub fn measure() -> Self {
        let rows: Vec<f32> = (0..TOKENS * HEAD_DIM).map(sample_value).collect();
        let (mut keys, mut values) = (vec![0u16; rows.len()], vec![0u16; rows.len()]);
        let written = write_keys(&mut PlaneMut::F16(&mut keys), HEAD_DIM, 0, TOKENS, &rows, HEAD_DIM)
            .and_then(|()| write_values(&mut PlaneMut::F16(&mut values), HEAD_DIM, 0, TOKENS, &rows, HEAD_DIM));
        written.expect("the planes hold the tokens");
        let pages = [PageView {
            start: 0,
            tokens: TOKENS,
            keys: Plane::F16(&keys),
            values: Plane::F16(&values),
        }];
        let elements = (TOKENS * HEAD_DIM) as f64;
        let scores: Vec<f32> = (0..TOKENS).map(sample_value).collect();
        let mut weights = scores.clone();
        let mut sums = vec![0.0; TOKENS];
        let weigh_ns = best_ns(|| {
            weights.copy_from_slice(&scores);
            black_box(exponentiate(&mut weights));
            sums.iter_mut().zip(&weights).for_each(|(sum, weight)| *sum += weight);
        });
        let rank_ns = best_ns(|| {
            black_box(top_share(&weights, 0.9, 0, |_| false));
        });
        Self {
            attend_ns: attending_ns(&rows, &pages, ROWS) / (elements * (ROWS * GROUP) as f64),
            decode_ns: attending_ns(&rows, &pages, 1) / elements,
            score_ns: scoring_ns(&rows, &pages[0]) / (elements * ROWS as f64),
            weigh_ns: weigh_ns / TOKENS as f64,
            rank_ns: rank_ns / TOKENS as f64,
        }
    }
}

// The timed chunk.
const HEAD_DIM: usize = 64;
const TOKENS: usize = 8192;
const ROWS: usize = 32;
const GROUP: usize = 4;

/// Work of a policy; none for a policy that does not declare it.
fn work_of(policy: &PolicySpec, chunk: &ChunkSize) -> ChunkWork {
    let work = policy.info().traits.work;
    work.map(|work| work(policy.parameters(), chunk)).unwrap_or_default()
}

/// Pseudorandom numbers from −1 to 1.
fn sample_value(n: usize) -> f32 {
    ((n * 7919 + 13) % 1009) as f32 / 500.0 - 1.0
}

/// Nanoseconds of attending with the last `rows` query positions.
fn attending_ns(data: &[f32], pages: &[PageView<'_>], rows: usize) -> f64 {
    let queries = QueryTile {
        data,
        rows,
        row_stride: GROUP * HEAD_DIM,
        group: GROUP,
        head_dim: HEAD_DIM,
        start: TOKENS - rows,
    };
    let kv = KvView {
        head_dim: HEAD_DIM,
        pages,
    };
    let (everything, options) = (Selection::full(TOKENS), AttendOptions::new(0.1));
    let mut partial = Partial::new(rows, GROUP, HEAD_DIM);
    best_ns(|| {
        partial.reset(rows, GROUP, HEAD_DIM);
        attend(&queries, &kv, &everything, &options, &mut partial).expect("shapes agree");
    })
}

/// Nanoseconds of scoring the keys of a page with `ROWS` vectors.
fn scoring_ns(data: &[f32], page: &PageView<'_>) -> f64 {
    let (mut scorer, mut logits) = (Scorer::default(), vec![0.0; ROWS * TOKENS]);
    best_ns(|| {
        scorer
            .set(data[..ROWS * HEAD_DIM].chunks(HEAD_DIM), HEAD_DIM, 0.1)
            .and_then(|()| scorer.score(&page.keys, Span::new(0, TOKENS), None, &mut logits, TOKENS))
            .expect("shapes agree");
    })
}

/// Nanoseconds of the fastest of several runs.
fn best_ns(mut run: impl FnMut()) -> f64 {
    let times = (0..7).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1e9
    });
    times.fold(f64::INFINITY, f64::min)
}
