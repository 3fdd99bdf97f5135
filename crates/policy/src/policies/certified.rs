use riffle_attention::{QueryTile, Scan, Span};

use crate::cost::{Setting, Work};
use crate::keys::scan_keys;
use crate::parameter::Parameters;
use crate::ranking::{cut, cut_sampled};
use crate::scanned::{Choice, Choose, Scanned};
use crate::{ParameterInfo, ParameterKind, PolicyInfo, Recall, SelectContext};

/// The fewest tokens that hold 1 − ε of every query's mass, found by scanning all keys.
///
/// The scan gives the softmax itself, so what is left out is known: no query of any head drops more than ε, and an
/// output moves by at most the dropped mass times the diameter of the values. It bounds one layer's heads, not the
/// model's answer. Values are read for the chosen tokens only, and keys once; tokens are shared by the rows and heads of
/// the tile. Over long sequences each query's least weight is found in a sample, so that a few tokens more than the
/// fewest are read; what is dropped is counted over all.
struct Certified {
    epsilon: f32,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "certified",
    supports_prefill: false,
    supports_decode: true,
    recall: Recall::Anywhere,
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
        Box::new(Scanned::new(Certified {
            epsilon: parameters.number("epsilon"),
        }))
    },
};

impl Choose for Certified {
    fn choose(&self, scan: &mut Scan, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Choice {
        scan_keys(scan, tile, context);
        // A little less than ε, so that sums in another order keep it.
        let allowed = |scan: &Scan, query: usize| f64::from(self.epsilon) * scan.total(query);
        let mut least: Vec<f32> = (0..scan.queries())
            .map(|query| cut_sampled(scan.weights(query), (1.0 - 1e-6) * allowed(scan, query)))
            .collect();
        let mut sampled = vec![true; least.len()];
        let (mut spans, mut left) = (Vec::new(), Vec::new());
        loop {
            scan.at_least(&least, &mut spans, &mut left);
            let mut kept = true;
            for (query, left) in left.iter().enumerate() {
                if *left > allowed(scan, query) {
                    kept = false;
                    // A sample may miss tokens that are rare and hold much.
                    least[query] = match std::mem::take(&mut sampled[query]) {
                        true => cut(scan.weights(query), (1.0 - 1e-6) * allowed(scan, query)).min(1.0),
                        false if least[query] > 1e-30 => least[query] * 0.9,
                        false => 0.0,
                    };
                }
            }
            if kept {
                break;
            }
        }
        let shares = left.iter().enumerate().map(|(query, left)| match scan.total(query) {
            0.0 => 0.0,
            total => (left / total) as f32,
        });
        Choice {
            dropped: shares.fold(0.0, f32::max),
            parts: vec![(Span::new(tile.start, tile.start + tile.rows), spans)],
        }
    }
}

fn work(_: &Parameters, setting: &Setting) -> Work {
    let logits = (setting.rows * setting.group * setting.tokens) as f64;
    Work {
        // Values of the tokens of all heads of the group, as measured on text; keys are in the scan.
        share: 0.1,
        scored: logits,
        weighed: logits,
        ranked: 0.0,
    }
}
