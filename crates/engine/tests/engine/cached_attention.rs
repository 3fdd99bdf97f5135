//! Attention over pages for a model that computes elsewhere.

use riffle_attention::Format;
use riffle_engine::{
    AttentionPrecision, CachedAttention, CachedAttentionOptions, EngineError, LayerCall, ProjectedRows,
};
use riffle_kv::{CacheShape, KvCache, LayerShape, LayerShapes};
use riffle_policy::{CostModel, Phase, PolicyError};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const TOKENS: usize = 1400;

fn numbers(length: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..length).map(|_| next()).collect()
}

/// A sequence's rows.
struct Rows {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Rows {
    fn new(seed: u64) -> Self {
        Self {
            queries: numbers(TOKENS * HEADS * HEAD_DIM, seed),
            keys: numbers(TOKENS * KV_HEADS * HEAD_DIM, seed + 1),
            values: numbers(TOKENS * KV_HEADS * HEAD_DIM, seed + 2),
        }
    }

    fn part(&self, tokens: std::ops::Range<usize>) -> ProjectedRows<'_> {
        let cut = |width: usize| tokens.start * width..tokens.end * width;
        ProjectedRows {
            tokens: tokens.len(),
            queries: &self.queries[cut(HEADS * HEAD_DIM)],
            keys: &self.keys[cut(KV_HEADS * HEAD_DIM)],
            values: &self.values[cut(KV_HEADS * HEAD_DIM)],
        }
    }

    /// The softmax over the keys that `reads` names, in f64: `[tokens, heads, head_dim]`.
    fn attended(&self, reads: impl Fn(usize, usize) -> bool) -> Vec<f64> {
        let (mut output, group) = (Vec::new(), HEADS / KV_HEADS);
        for (at, query) in self.queries.chunks_exact(HEAD_DIM).enumerate() {
            let (token, kv_head) = (at / HEADS, at % HEADS / group);
            let mut sums = [0.0; HEAD_DIM];
            let mut total = 0.0;
            for key in (0..=token).filter(|key| reads(token, *key)) {
                let first = (key * KV_HEADS + kv_head) * HEAD_DIM;
                let dot = query
                    .iter()
                    .zip(&self.keys[first..])
                    .map(|(q, k)| f64::from(q * k))
                    .sum::<f64>();
                let weight = (dot * 0.25).exp();
                total += weight;
                let values = self.values[first..].iter();
                sums.iter_mut()
                    .zip(values)
                    .for_each(|(sum, value)| *sum += weight * f64::from(*value));
            }
            output.extend(sums.map(|sum| sum / total));
        }
        output
    }
}

fn attention(prefill: &str, decode: &str) -> Result<CachedAttention, EngineError> {
    let shape = CacheShape {
        layers: LayerShapes::alike(2, LayerShape::new(KV_HEADS, HEAD_DIM)),
        page_tokens: 32,
        key_format: Format::F32,
        value_format: Format::F32,
    };
    CachedAttention::new(
        KvCache::new(shape, None)?,
        CachedAttentionOptions {
            heads: HEADS,
            prefill: prefill.parse()?,
            decode: decode.parse()?,
            chunk_tokens: 128,
            attention: AttentionPrecision::Exact,
            cost: CostModel::default(),
            audit: true,
        },
    )
}

fn call(phase: Phase, window: Option<usize>) -> LayerCall {
    LayerCall {
        layer: 1,
        phase,
        scale: 0.25,
        soft_cap: None,
        window,
    }
}

/// Reads the rows in parts that end at `cuts`. A part of one token counts as generated.
fn read(attention: &mut CachedAttention, rows: &Rows, cuts: &[usize], window: Option<usize>) -> Vec<f32> {
    let (mut output, mut begin) = (Vec::new(), attention.tokens(1));
    for end in cuts {
        let phase = if end - begin == 1 {
            Phase::Decode
        } else {
            Phase::Prefill
        };
        let mut part = vec![0.0; (end - begin) * HEADS * HEAD_DIM];
        let rows = rows.part(begin..*end);
        attention.attend(&call(phase, window), &rows, &mut part).unwrap();
        output.extend(part);
        begin = *end;
    }
    output
}

fn close(found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let worst = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs());
    let worst = worst.fold(0.0, f64::max);
    assert!(worst < 1e-5, "{worst}");
}

#[test]
fn rows_in_any_parts_read_everything_before_them() {
    let rows = Rows::new(3);
    let expected = rows.attended(|_, _| true);
    for cuts in [vec![TOKENS], vec![1000, 1001, 1002, 1300, 1301, TOKENS]] {
        let mut attention = attention("full", "full").unwrap();
        close(&read(&mut attention, &rows, &cuts, None), &expected);
        assert_eq!(
            (attention.tokens(0), attention.tokens(1), attention.tokens(7)),
            (0, TOKENS, 0)
        );
        let pairs = attention.pairs();
        assert_eq!(pairs.read, pairs.causal);
        assert!(attention.audit().unwrap().mean_mass > 0.999_99);
    }
}

#[test]
fn two_phases_read_a_chunk_and_what_is_selected_before_it() {
    let rows = Rows::new(5);
    let mut attention = attention("h2o-chunk:local=64,heavy=4,sinks=4,from=0", "full").unwrap();
    let found = read(&mut attention, &rows, &[TOKENS], None);
    // The heavy tokens are the sinks.
    let expected = rows.attended(|query, key| key < 4 || key + 64 >= query / 128 * 128);
    close(&found, &expected);
}

#[test]
fn a_window_frees_the_pages_behind_it() {
    let rows = Rows::new(8);
    let expected = rows.attended(|query, key| query - key < 50);
    let mut attention = attention("full", "full").unwrap();
    let cuts: Vec<usize> = (100..=TOKENS).step_by(100).collect();
    close(&read(&mut attention, &rows, &cuts, Some(50)), &expected);
    assert!(
        attention.usage().pages <= KV_HEADS * 720 / 32,
        "{:?}",
        attention.usage()
    );
    assert!(!attention.truncate(300));
    assert_eq!(attention.tokens(1), TOKENS);
    assert!(attention.truncate(1350));
    close(
        &read(&mut attention, &rows, &[TOKENS], Some(50)),
        &expected[1350 * HEADS * HEAD_DIM..],
    );
    assert!(attention.truncate(0));
    close(&read(&mut attention, &rows, &cuts, Some(50)), &expected);
}

#[test]
fn a_policy_that_evicts_frees_pages_and_reads_what_it_keeps() {
    let rows = Rows::new(9);
    let mut attention = attention("full", "snapkv:from=0").unwrap();
    let cuts: Vec<usize> = std::iter::once(1380).chain(1381..=TOKENS).collect();
    let found = read(&mut attention, &rows, &cuts, None);
    assert!(found.iter().all(|value| value.is_finite()));
    let whole = KV_HEADS * TOKENS.div_ceil(32);
    assert!(attention.usage().pages <= whole);
    assert_eq!(attention.tokens(1), TOKENS);
    assert!(attention.pairs().read < attention.pairs().causal);
}

#[test]
fn rows_of_another_cache_are_appended_without_attending() {
    let rows = Rows::new(11);
    let mut attention = attention("full", "quest:from=0,dense_layers=0").unwrap();
    let held = rows.part(0..1399);
    attention.append(1, held.keys, held.values).unwrap();
    assert_eq!(attention.tokens(1), 1399);
    let found = read(&mut attention, &rows, &[TOKENS], None);
    assert_eq!(found.len(), HEADS * HEAD_DIM);
    let mut dense = self::attention("full", "full").unwrap();
    dense.append(1, held.keys, held.values).unwrap();
    let expected = rows.attended(|_, _| true);
    close(
        &read(&mut dense, &rows, &[TOKENS], None),
        &expected[1399 * HEADS * HEAD_DIM..],
    );
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let rows = Rows::new(13);
    let mut attention = attention("full", "full").unwrap();
    let mut output = vec![0.0; 10 * HEADS * HEAD_DIM];
    let short = ProjectedRows {
        keys: &rows.keys[..5],
        ..rows.part(0..10)
    };
    let error = attention
        .attend(&call(Phase::Prefill, None), &short, &mut output)
        .unwrap_err();
    assert!(error.to_string().contains("keys 320 and values 320"), "{error}");
    let beyond = LayerCall {
        layer: 2,
        ..call(Phase::Prefill, None)
    };
    let error = attention.attend(&beyond, &rows.part(0..10), &mut output).unwrap_err();
    assert!(error.to_string().contains("layer 2"), "{error}");
    assert_eq!(attention.tokens(1), 0);
    let error = self::attention("quest", "full").map(|_| ()).unwrap_err();
    assert!(
        matches!(error, EngineError::Policy(PolicyError::UnsupportedPhase { .. })),
        "{error}"
    );
}
