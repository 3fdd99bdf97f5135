use riffle_attention::{QueryTile, Selection};

use crate::cost::{Setting, Work};
use crate::kernel::softmax;
use crate::keys::Logits;
use crate::parameter::Parameters;
use crate::prepared::Prepared;
use crate::ranking::top_share;
use crate::spans::runs;
use crate::{ParameterInfo, ParameterKind, PolicyInfo, SelectContext, SparsePolicy};

/// The fewest tokens that hold 1 − ε of every query's mass, found by scanning all keys.
///
/// The scan gives the softmax itself, so what is left out is known: no query of any head drops more than ε, and an
/// output moves by at most the dropped mass times the diameter of the values. It bounds one layer's heads, not the
/// model's answer. Values are read for the chosen tokens only; tokens are shared by the rows and heads of the tile.
struct Certified {
    epsilon: f32,
    prepared: Prepared<Choice>,
}

#[derive(Clone)]
struct Choice {
    /// Ascending.
    tokens: Vec<usize>,
    dropped: f32,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "certified",
    supports_prefill: false,
    supports_decode: true,
    saves: "traffic of values",
    source: "Top-p over scanned keys, after Twilight, Lin et al. 2025, arXiv:2502.02770, with the dropped mass known",
    chunk: None,
    work: Some(work),
    stored_bytes: |_, _| 8.0,
    parameters: &[ParameterInfo {
        name: "epsilon",
        default: "0.05",
        meaning: "largest share of a query's softmax mass that is not read",
        kind: ParameterKind::Number { min: 0.0, max: 0.5 },
    }],
    build: |parameters| {
        Box::new(Certified {
            epsilon: parameters.number("epsilon"),
            prepared: Prepared::new(),
        })
    },
};

impl SparsePolicy for Certified {
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) {
        let choice = self.choice(chunk, context);
        self.prepared.store(chunk, context, choice);
    }

    fn select(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let choice = self
            .prepared
            .find_or(queries, context, || self.choice(queries, context));
        Selection::from_spans(runs(choice.tokens.iter().copied()))
    }

    fn dropped_mass(&self) -> Option<f32> {
        self.prepared.latest().map(|choice| choice.dropped)
    }

    fn truncate(&mut self, _tokens: usize) {
        self.prepared.clear();
    }
}

impl Certified {
    fn choice(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Choice {
        let vectors: Vec<f32> = (0..chunk.rows)
            .flat_map(|row| (0..chunk.group).flat_map(move |head| chunk.query(row, head)))
            .copied()
            .collect();
        let mut logits = Logits::default();
        logits.compute(
            &vectors,
            context.pages,
            chunk.head_dim,
            1,
            context.tokens,
            context.scale,
        );
        let queries = chunk.rows * chunk.group;
        let visible = |query: usize| (chunk.start + query / chunk.group + 1).min(context.tokens);
        let mut chosen = vec![false; context.tokens];
        for (query, logits) in logits.rows_mut().take(queries).enumerate() {
            let weights = &mut logits[..visible(query)];
            softmax(weights);
            for token in top_share(weights, 1.0 - self.epsilon, 0, |_| false) {
                chosen[token] = true;
            }
        }
        // Tokens chosen for one query are read by all: what a query drops is counted at the end.
        let dropped = logits.rows_mut().take(queries).enumerate().map(|(query, weights)| {
            let left = weights[..visible(query)]
                .iter()
                .zip(&chosen)
                .filter(|(_, chosen)| !**chosen);
            left.map(|(weight, _)| f64::from(*weight)).sum::<f64>() as f32
        });
        Choice {
            dropped: dropped.fold(0.0, f32::max),
            tokens: (0..context.tokens).filter(|token| chosen[*token]).collect(),
        }
    }
}

fn work(_: &Parameters, setting: &Setting) -> Work {
    let logits = (setting.rows * setting.group * setting.tokens) as f64;
    Work {
        // Tokens of all heads of the group, as measured on text.
        share: 0.2,
        scored: logits,
        weighed: 2.0 * logits,
        ranked: logits,
    }
}
