use riffle_attention::{QueryTile, Scan, Span};

use crate::cost::{ChunkSize, ChunkWork};
use crate::keys::scan_keys;
use crate::parameter::Parameters;
use crate::ranking::{cut, cut_sampled};
use crate::scan_policy::{RangeReads, ScanPolicy, SelectByScan};
use crate::{BudgetParameter, KeyUse, ParameterInfo, ParameterKind, PolicyInfo, Recall, SelectContext, Traits};

/// Reads the fewest tokens with 1 − ε of every query's mass, found by a scan of all keys.
///
/// The scan gives the softmax itself, so the dropped mass is known. No query of any head drops more than ε. An output
/// changes by at most the dropped mass times the diameter of the values. This bounds the heads of one layer, not the
/// model's answer. Keys are read once, and values only of the chosen tokens. The queries and heads of a tile share
/// their tokens. In long sequences each query's threshold comes from a sample, so slightly more tokens than necessary
/// are read. The dropped mass is counted over all tokens.
struct Certified {
    epsilon: f32,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "certified",
    source: "Top-p over scanned keys, after Twilight, Lin et al. 2025, arXiv:2502.02770, with the dropped mass bounded",
    saves: "traffic of values",
    traits: Traits {
        recall: Recall::Anywhere,
        keys: KeyUse::Scanned,
        work: Some(work),
        stored_bytes: |_, _| 8.0,
        budget: Some(BudgetParameter::falling("epsilon", 1e-6, 0.5)),
        ..Traits::DECODE
    },
    parameters: &[ParameterInfo {
        name: "epsilon",
        default: "0.05",
        meaning: "largest share of a query's softmax mass that is not read",
        kind: ParameterKind::Number { min: 0.0, max: 0.5 },
    }],
    build: |parameters| {
        Box::new(ScanPolicy::new(Certified {
            epsilon: parameters.number("epsilon"),
        }))
    },
};

impl SelectByScan for Certified {
    fn select_by_scan(&self, scan: &mut Scan, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Vec<RangeReads> {
        scan_keys(scan, tile, context);
        let allowed = |scan: &Scan, query: usize| f64::from(self.epsilon) * scan.total(query);
        // Slightly less than ε, so that sums in another order stay below it.
        let aimed = |scan: &Scan, query: usize| (1.0 - 1e-6) * allowed(scan, query);
        // The lowest weight that each query reads.
        let mut lowest: Vec<f32> = (0..scan.queries())
            .map(|query| cut_sampled(scan.weights(query), aimed(scan, query)))
            .collect();
        let mut sampled = vec![true; lowest.len()];
        let (mut tokens, mut dropped) = (Vec::new(), Vec::new());
        loop {
            scan.at_least(&lowest, &mut tokens, &mut dropped);
            let mut within_bound = true;
            for (query, dropped) in dropped.iter().enumerate() {
                if *dropped > allowed(scan, query) {
                    within_bound = false;
                    // A sample may miss rare tokens with much mass.
                    lowest[query] = match std::mem::take(&mut sampled[query]) {
                        true => cut(scan.weights(query), aimed(scan, query)).min(1.0),
                        false if lowest[query] > 1e-30 => lowest[query] * 0.9,
                        false => 0.0,
                    };
                }
            }
            if within_bound {
                break;
            }
        }
        vec![RangeReads {
            queries: Span::new(tile.start, tile.start + tile.rows),
            tokens,
        }]
    }
}

fn work(_: &Parameters, chunk: &ChunkSize) -> ChunkWork {
    let logits = (chunk.rows * chunk.group * chunk.tokens) as f64;
    ChunkWork {
        // Values of the tokens of all heads of the group, as measured on text. The scan has already read the keys.
        share: 0.1,
        scored: logits,
        weighed: logits,
        ranked: 0.0,
    }
}
