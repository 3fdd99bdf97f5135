//! What selecting costs beside what it saves, from constants measured once: so that a short prompt is read densely,
//! and the same prompt always in the same way.

use std::hint::black_box;
use std::time::Instant;

use riffle_attention::{
    AttendOptions, KvView, PageView, Partial, Plane, PlaneMut, QueryTile, Scorer, Selection, Span, attend,
    exponentiate, write_keys, write_values,
};

use crate::parameter::Parameters;
use crate::ranking::top_share;
use crate::{Phase, PolicySpec};

/// What a policy is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyShape {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads of a layer.
    pub kv_heads: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Elements of a key.
    pub head_dim: usize,
    /// Queries in a chunk of the prompt.
    pub chunk_tokens: usize,
}

/// Nanoseconds of the operations that attention and estimates are made of, on one thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    /// Attending: one channel of one (query, key) pair, where many queries share the keys.
    pub attend_ns: f64,
    /// Attending with one query position: one channel of one key and value.
    pub decode_ns: f64,
    /// Estimating: one channel of one (vector, key) product.
    pub score_ns: f64,
    /// Estimating: one logit through a softmax and into sums.
    pub weigh_ns: f64,
    /// Estimating: one score among those that the best are chosen of.
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
pub(crate) struct Setting {
    pub(crate) rows: usize,
    pub(crate) group: usize,
    pub(crate) tokens: usize,
}

/// Operations of one chunk of one KV head.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    /// Share of the causal pairs that are read.
    pub(crate) share: f64,
    /// (vector, key) products of the estimate.
    pub(crate) scored: f64,
    /// Logits that go through a softmax.
    pub(crate) weighed: f64,
    /// Scores that are ranked.
    pub(crate) ranked: f64,
}

/// How much work a policy makes of a chunk.
pub(crate) type WorkOf = fn(&Parameters, &Setting) -> Work;

impl Setting {
    /// Causal (query, key) pairs, heads of the group counted.
    pub(crate) fn pairs(&self) -> f64 {
        let before = self.tokens.saturating_sub(self.rows) as f64;
        let rows = self.rows.min(self.tokens) as f64;
        self.group as f64 * rows * (before + (rows + 1.0) / 2.0)
    }
}

impl CostModel {
    /// The shortest sequence from which on the policy is faster than reading everything; `None` where it never is.
    ///
    /// It is a property of the policy, the shape and these constants: nothing is timed.
    pub fn break_even_tokens(&self, policy: &PolicySpec, phase: Phase, shape: &PolicyShape) -> Option<usize> {
        if policy.info().work.is_none() {
            return Some(0);
        }
        let pays = |tokens: usize| self.relative_cost(policy, phase, shape, tokens, None) < 1.0;
        // Steps of an eighth of a power of two.
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

    /// What a chunk (or a decode step) at the end of `tokens` costs under the policy, estimate included, as a share of
    /// reading everything. `share` is the share of the pairs that it reads, where that was measured.
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
        let setting = Setting {
            rows,
            group: shape.group,
            tokens,
        };
        let work = policy.info().work.map(|work_of| work_of(policy.parameters(), &setting));
        let work = work.unwrap_or_default();
        let head_dim = shape.head_dim as f64;
        let dense_ns = match phase {
            Phase::Prefill => setting.pairs() * head_dim * self.attend_ns,
            Phase::Decode => tokens as f64 * head_dim * self.decode_ns,
        };
        let estimate_ns =
            work.scored * head_dim * self.score_ns + work.weighed * self.weigh_ns + work.ranked * self.rank_ns;
        share.unwrap_or(work.share) + estimate_ns / dense_ns.max(f64::MIN_POSITIVE)
    }

    /// Times the operations on this machine and thread, for about a second.
    pub fn measure() -> Self {
        const HEAD_DIM: usize = 64;
        const TOKENS: usize = 8192;
        const ROWS: usize = 32;
        const GROUP: usize = 4;
        let value = |n: usize| ((n * 7919 + 13) % 1009) as f32 / 500.0 - 1.0;
        let rows: Vec<f32> = (0..TOKENS * HEAD_DIM).map(value).collect();
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
        let attended = |rows_read: usize| {
            let queries = QueryTile {
                data: &rows,
                rows: rows_read,
                row_stride: GROUP * HEAD_DIM,
                group: GROUP,
                head_dim: HEAD_DIM,
                start: TOKENS - rows_read,
            };
            let kv = KvView {
                head_dim: HEAD_DIM,
                pages: &pages,
            };
            let mut partial = Partial::new(rows_read, GROUP, HEAD_DIM);
            best_ns(|| {
                partial.reset(rows_read, GROUP, HEAD_DIM);
                attend(
                    &queries,
                    &kv,
                    &Selection::full(TOKENS),
                    &AttendOptions::new(0.1),
                    &mut partial,
                )
                .expect("shapes agree");
            })
        };
        let (mut scorer, mut logits) = (Scorer::default(), vec![0.0; ROWS * TOKENS]);
        let scored = best_ns(|| {
            scorer
                .set(rows[..ROWS * HEAD_DIM].chunks(HEAD_DIM), HEAD_DIM, 0.1)
                .and_then(|()| scorer.score(&pages[0].keys, Span::new(0, TOKENS), None, &mut logits, TOKENS))
                .expect("shapes agree");
        });
        let scores: Vec<f32> = (0..TOKENS).map(value).collect();
        let mut weights = scores.clone();
        let mut sums = vec![0.0; TOKENS];
        let weighed = best_ns(|| {
            weights.copy_from_slice(&scores);
            black_box(exponentiate(&mut weights));
            sums.iter_mut().zip(&weights).for_each(|(sum, weight)| *sum += weight);
        });
        let ranked = best_ns(|| {
            black_box(top_share(&weights, 0.9, 0, |_| false));
        });
        let elements = (TOKENS * HEAD_DIM) as f64;
        Self {
            attend_ns: attended(ROWS) / (elements * (ROWS * GROUP) as f64),
            decode_ns: attended(1) / elements,
            score_ns: scored / (elements * ROWS as f64),
            weigh_ns: weighed / TOKENS as f64,
            rank_ns: ranked / TOKENS as f64,
        }
    }
}

/// The fastest of several runs.
fn best_ns(mut run: impl FnMut()) -> f64 {
    let times = (0..7).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1e9
    });
    times.fold(f64::INFINITY, f64::min)
}
