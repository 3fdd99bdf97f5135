//! Baseline policies: random selection, and oracles that know every score.

use riffle_attention::{LANES, QueryTile, Selection, Span, read_keys};
use riffle_policy::{
    BudgetParameter, KeyUse, ParameterInfo, ParameterKind, PolicyError, PolicyInfo, PolicyRules, PolicySpec,
    SelectContext, SparsePolicy, Traits,
};

/// Policies for measurements. The oracles compute all scores of dense attention before they select. They save no
/// work; they show the best result at their size.
static BASELINES: [PolicyInfo; 3] = [
    PolicyInfo::outside(
        "random",
        Traits::PLAIN.with_budget(BudgetParameter::share("share")),
        &[
            SHARE,
            ParameterInfo::count("block", "64", "tokens in a block", 1, 1 << 20),
            ParameterInfo::count("seed", "1", "seed of the draws", 0, 1 << 20),
        ],
        |parameters| {
            Box::new(Random {
                share: f64::from(parameters.number("share")),
                block: parameters.count("block"),
                seed: parameters.count("seed") as u64,
            })
        },
    )
    .with_source("blocks drawn evenly; the first block and the queries' own are always read")
    .with_saves("nothing"),
    PolicyInfo::outside(
        "oracle-top-k",
        ORACLE.with_budget(BudgetParameter::share("share")),
        &[SHARE, LEAST],
        |parameters| {
            Box::new(Oracle {
                keep: Keep::Share(f64::from(parameters.number("share"))),
                least: parameters.count("least"),
            })
        },
    )
    .with_source("the keys with the largest softmax mass of each query, over the heads of its group")
    .with_saves("nothing"),
    PolicyInfo::outside(
        "oracle-top-p",
        ORACLE.with_budget(BudgetParameter::mass("mass")),
        &[
            ParameterInfo {
                name: "mass",
                default: "0.95",
                meaning: "share of the softmax mass that is read",
                kind: ParameterKind::Number { min: 0.0, max: 1.0 },
            },
            LEAST,
        ],
        |parameters| {
            Box::new(Oracle {
                keep: Keep::Mass(parameters.number("mass")),
                least: parameters.count("least"),
            })
        },
    )
    .with_source("the fewest keys that hold a share of each query's softmax mass, over the heads of its group")
    .with_saves("nothing"),
];

const ORACLE: Traits = Traits::PLAIN.with_keys(KeyUse::Scanned);

const SHARE: ParameterInfo = ParameterInfo {
    name: "share",
    default: "0.1",
    meaning: "share of the keys before a query that it reads",
    kind: ParameterKind::Number { min: 0.0, max: 1.0 },
};

const LEAST: ParameterInfo = ParameterInfo {
    name: "least",
    default: "1",
    meaning: "keys that a query reads at least",
    kind: ParameterKind::Count { min: 1, max: 1 << 20 },
};

/// The measurement policies: `random`, `oracle-top-k`, `oracle-top-p`.
pub fn baselines() -> &'static [PolicyInfo] {
    &BASELINES
}

/// Reads a policy of the catalogue or of the [`baselines`], for all layers and heads.
///
/// # Errors
/// The errors of parsing a [`PolicySpec`].
pub fn parse_policy(text: &str) -> Result<PolicyRules, PolicyError> {
    PolicySpec::parse_among(text, &BASELINES).map(PolicyRules::from)
}

/// Reads a policy of the catalogue, the baselines or `more`.
pub(crate) fn parse_among(text: &str, more: &'static [PolicyInfo]) -> Result<PolicySpec, PolicyError> {
    let name = text.split(':').next().unwrap_or_default().trim().to_ascii_lowercase();
    if more.iter().any(|info| info.name == name) {
        PolicySpec::parse_among(text, more)
    } else {
        PolicySpec::parse_among(text, &BASELINES)
    }
}

struct Random {
    share: f64,
    block: usize,
    seed: u64,
}

impl SparsePolicy for Random {
    fn select(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let end = (queries.start + queries.rows).min(context.tokens);
        let own = queries.start / self.block;
        let wanted = (self.share * end as f64 / self.block as f64).round() as usize;
        let forced = usize::from(own > 0) + (end.div_ceil(self.block) - own);
        let place = [context.layer, context.kv_head, queries.start, end];
        let place = place.iter().fold(self.seed, |hash, part| mix(hash ^ *part as u64));
        let mut drawn: Vec<(u64, usize)> = (1..own).map(|block| (mix(place ^ block as u64), block)).collect();
        drawn.sort_unstable();
        let drawn = drawn
            .iter()
            .take(wanted.saturating_sub(forced))
            .map(|(_, block)| *block);
        let blocks = drawn.chain([0]).chain(own..end.div_ceil(self.block));
        Selection::from_spans(blocks.map(|block| Span::new(block * self.block, ((block + 1) * self.block).min(end))))
    }
}

/// One round of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

struct Oracle {
    keep: Keep,
    least: usize,
}

#[derive(Clone, Copy)]
enum Keep {
    /// A share of the keys before a query.
    Share(f64),
    /// A share of the query's softmax mass.
    Mass(f32),
}

impl SparsePolicy for Oracle {
    fn select(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let logits = exact_logits(queries, context);
        let mut mass = Vec::new();
        let rows = (0..queries.rows).map(|row| {
            let visible = (queries.start + row + 1).min(context.tokens);
            mass.clear();
            mass.resize(visible, 0.0f32);
            for head in 0..queries.group {
                let logits = &logits[(row * queries.group + head) * context.tokens..][..visible];
                add_softmax(logits, &mut mass);
            }
            self.chosen(&mass, queries.group)
        });
        let rows: Vec<Vec<usize>> = rows.collect();
        Selection::none().with_row_extras(queries.start, rows)
    }
}

impl Oracle {
    /// Positions of the selected keys. `mass` is the sum over the group.
    fn chosen(&self, mass: &[f32], group: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..mass.len()).collect();
        // Ties go to the lower index.
        let heavier = |a: &usize, b: &usize| mass[*b].total_cmp(&mass[*a]).then(a.cmp(b));
        let least = self.least.min(mass.len());
        match self.keep {
            Keep::Share(share) => {
                let count = ((share * mass.len() as f64).round() as usize).clamp(least, mass.len());
                if count < mass.len() {
                    order.select_nth_unstable_by(count, heavier);
                    order.truncate(count);
                }
            }
            Keep::Mass(share) => {
                let goal = f64::from(share) * group as f64;
                // A few keys have most of the mass, so the sort ranks only a prefix.
                let mut ranked = (mass.len() / 16).max(64).max(least);
                let count = loop {
                    if ranked < order.len() {
                        order.select_nth_unstable_by(ranked, heavier);
                    }
                    let candidates = ranked.min(order.len());
                    order[..candidates].sort_unstable_by(heavier);
                    let mut sum = 0.0;
                    let needed = order[..candidates].iter().take_while(|key| {
                        let short = sum < goal;
                        sum += f64::from(mass[**key]);
                        short
                    });
                    let needed = needed.count();
                    if needed < candidates || candidates == order.len() {
                        break needed;
                    }
                    ranked *= 4;
                };
                order.truncate(count.max(least));
            }
        }
        order
    }
}

/// `queries · keys × scale`, `[rows × group, tokens]`.
fn exact_logits(queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Vec<f32> {
    let (head_dim, tokens) = (queries.head_dim, context.tokens);
    let mut logits = vec![0.0f32; queries.rows * queries.group * tokens];
    let mut rows = Vec::new();
    // `[head_dim, keys]`: the keys of a page are adjacent, so one channel multiplies many keys at once.
    let mut keys = Vec::new();
    for page in context.pages {
        let count = page.tokens.min(tokens.saturating_sub(page.start));
        rows.resize(count * head_dim, 0.0);
        read_keys(&page.keys, head_dim, 0, count, &mut rows, head_dim)
            .expect("pages hold the tokens they say, of the queries' head_dim");
        let stride = count.next_multiple_of(LANES);
        keys.clear();
        keys.resize(stride * head_dim, 0.0f32);
        for (key, row) in rows.chunks_exact(head_dim).enumerate() {
            for (channel, value) in row.iter().enumerate() {
                keys[channel * stride + key] = *value;
            }
        }
        for query in 0..queries.rows * queries.group {
            let vector = queries.query(query / queries.group, query % queries.group);
            let out = &mut logits[query * tokens + page.start..][..count];
            for (value, keys) in vector.iter().zip(keys.chunks_exact(stride)) {
                let value = value * context.scale;
                out.iter_mut().zip(keys).for_each(|(sum, key)| *sum += value * key);
            }
        }
    }
    logits
}

/// Adds the softmax of `logits` to `mass`.
fn add_softmax(logits: &[f32], mass: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - largest).exp())).sum();
    let factor = (1.0 / sum) as f32;
    for (mass, logit) in mass.iter_mut().zip(logits) {
        *mass += (logit - largest).exp() * factor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use riffle_attention::{PageView, Plane, PlaneMut, write_keys};
    use riffle_policy::{Phase, build};

    const HEAD_DIM: usize = 32;
    const TOKENS: usize = 100;
    const GROUP: usize = 2;

    /// Keys of which 5 and 60 match every query, far more than the others.
    fn keys() -> Vec<f32> {
        let mut keys = vec![0.0; TOKENS * HEAD_DIM];
        for (token, key) in keys.chunks_exact_mut(HEAD_DIM).enumerate() {
            key[0] = match token {
                5 => 8.0,
                60 => 6.0,
                _ => -(token as f32) / 100.0,
            };
        }
        keys
    }

    /// Selection of the last `rows` queries under `spec`.
    fn selected(spec: &str, rows: usize) -> Selection {
        let source = keys();
        let mut plane = vec![0.0; 112 * HEAD_DIM];
        write_keys(&mut PlaneMut::F32(&mut plane), HEAD_DIM, 0, TOKENS, &source, HEAD_DIM).unwrap();
        let pages = [PageView {
            start: 0,
            tokens: TOKENS,
            keys: Plane::F32(&plane),
            values: Plane::F32(&plane),
        }];
        let mut data = vec![0.0; rows * GROUP * HEAD_DIM];
        data.chunks_exact_mut(HEAD_DIM).for_each(|query| query[0] = 1.0);
        let queries = QueryTile {
            data: &data,
            rows,
            row_stride: GROUP * HEAD_DIM,
            group: GROUP,
            head_dim: HEAD_DIM,
            start: TOKENS - rows,
        };
        let context = SelectContext {
            phase: Phase::Prefill,
            layer: 1,
            layers: 2,
            kv_head: 0,
            chunk_start: TOKENS - rows,
            tokens: TOKENS,
            total_tokens: TOKENS,
            page_tokens: 112,
            scale: 1.0,
            soft_cap: None,
            pages: &pages,
            signs: None,
        };
        let rules = parse_policy(spec).unwrap();
        build(&rules.base, Phase::Prefill).unwrap().select(&queries, &context)
    }

    #[test]
    fn oracles_read_the_heaviest_keys_of_each_query() {
        let selection = selected("oracle-top-k:share=0.02", 4);
        for query in 96..100 {
            assert_eq!(selection.row_extras(query), [5, 60]);
        }
        // exp(8) of about exp(8) + exp(6) + 98 · exp(−0.5): 0.866 of the mass, and with the second key 0.983.
        assert_eq!(selected("oracle-top-p:mass=0.8", 1).row_extras(99), [5]);
        assert_eq!(selected("oracle-top-p:mass=0.95", 1).row_extras(99), [5, 60]);
        assert_eq!(selected("oracle-top-p:mass=0.1,least=3", 1).row_extras(99), [0, 5, 60]);
        assert_eq!(selected("oracle-top-p:mass=1", 1).row_extras(99).len(), 100);
    }

    #[test]
    fn random_blocks_have_the_share_asked_for_and_hold_the_ends() {
        let selection = selected("random:share=0.5,block=10", 10);
        assert!(selection.contains(99, 0) && selection.contains(99, 99));
        assert_eq!(selection.spans().iter().map(Span::len).sum::<usize>(), 50);
        assert_eq!(selection, selected("random:share=0.5,block=10", 10));
        assert_ne!(selection, selected("random:share=0.5,block=10,seed=2", 10));
    }

    #[test]
    fn policies_of_the_catalogue_are_read_as_well_and_a_wrong_name_lists_all() {
        assert_eq!(parse_policy("streaming").unwrap().base.name(), "streaming");
        let message = parse_policy("oracle").unwrap_err().to_string();
        assert!(message.contains("snapkv, random, oracle-top-k"), "{message}");
    }
}
