//! Delta correction of sparse attention to prompts.

use crate::testing::{go_on, largest_difference, prompt, small_engine};
use riffle_attention::Format;
use riffle_engine::{EngineOptions, LayerAttention, PairCount, Session};
use riffle_kv::{CacheShape, KvCache, LayerShape, LayerShapes};
use riffle_policy::{Phase, PolicySpec};

const HEAD_DIM: usize = 16;
const KV_HEADS: usize = 2;

/// Queries, keys and values of one layer, `[tokens, heads or KV heads, head_dim]`.
struct Rows {
    group: usize,
    tokens: usize,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Rows {
    fn new(tokens: usize, group: usize) -> Self {
        let made = |heads: usize, seed: usize| -> Vec<f32> {
            let value = |i: usize| ((i * 7919 + seed * 4099) % 251) as f32 / 100.0 - 1.25;
            (0..tokens * heads * HEAD_DIM).map(value).collect()
        };
        Self {
            group,
            tokens,
            queries: made(KV_HEADS * group, 1),
            keys: made(KV_HEADS, 2),
            values: made(KV_HEADS, 3),
        }
    }

    /// Output of a query head at `position` over the keys that `reads` names, in f64.
    fn attended(&self, position: usize, head: usize, reads: impl Fn(usize) -> bool) -> Vec<f64> {
        let (kv_head, heads) = (head / self.group, KV_HEADS * self.group);
        let query = &self.queries[(position * heads + head) * HEAD_DIM..][..HEAD_DIM];
        let row = |of: &[f32], token: usize| of[(token * KV_HEADS + kv_head) * HEAD_DIM..][..HEAD_DIM].to_vec();
        let (mut total, mut sum) = (0.0, vec![0.0; HEAD_DIM]);
        for token in (0..=position).filter(|token| reads(*token)) {
            let products = query.iter().zip(row(&self.keys, token)).map(|(q, k)| f64::from(q * k));
            let weight = (products.sum::<f64>() / (HEAD_DIM as f64).sqrt()).exp();
            total += weight;
            let values = row(&self.values, token);
            sum.iter_mut()
                .zip(values)
                .for_each(|(sum, value)| *sum += weight * f64::from(value));
        }
        sum.iter_mut().for_each(|sum| *sum /= total);
        sum
    }

    /// The layer's output and the number of pairs for chunks that end at `ends`.
    fn read(&self, policy: &str, ends: &[usize]) -> (Vec<f32>, PairCount) {
        let shape = CacheShape {
            layers: LayerShapes::alike(1, LayerShape::new(KV_HEADS, HEAD_DIM)),
            page_tokens: 16,
            key_format: Format::F32,
            value_format: Format::F32,
        };
        let (heads, spec) = (KV_HEADS * self.group, policy.parse::<PolicySpec>().unwrap());
        let cache = KvCache::new(shape, None).unwrap();
        let attention = LayerAttention::new(cache, heads, &spec, Phase::Prefill, self.tokens).unwrap();
        let mut attention = attention.within_prompt(self.tokens);
        let (mut output, mut start) = (Vec::new(), 0);
        for end in ends {
            let part = |of: &[f32], heads: usize| of[start * heads * HEAD_DIM..end * heads * HEAD_DIM].to_vec();
            let (keys, values) = (part(&self.keys, KV_HEADS), part(&self.values, KV_HEADS));
            let chunk = attention
                .chunk(end - start, part(&self.queries, heads), keys, values)
                .unwrap();
            attention.attend(0, &chunk).unwrap();
            output.extend(attention.output(&chunk).unwrap());
            start = *end;
        }
        (output, attention.pairs())
    }
}

fn streaming(position: usize, token: usize) -> bool {
    token < 3 || token + 9 > position
}

#[test]
fn outputs_are_sparse_ones_and_the_difference_of_the_latest_query_that_read_everything() {
    for (tokens, group, delta, ends) in [
        (97, 1, 8, vec![97]),
        (97, 3, 8, vec![40, 97]),
        // Chunks that begin between two exact queries.
        (130, 2, 32, vec![13, 50, 51, 130]),
        (40, 1, 1, vec![40]),
        (40, 2, 1000, vec![40]),
    ] {
        let rows = Rows::new(tokens, group);
        let (output, pairs) = rows.read(&format!("streaming:sinks=3,window=9,delta={delta}"), &ends);
        let heads = KV_HEADS * group;
        let mut found = output.chunks_exact(HEAD_DIM);
        let (mut start, mut read) = (0, 0);
        for end in ends {
            let mut dense = start;
            for position in start..end {
                if position % delta == 0 {
                    dense = position;
                }
                let sparse_count = (0..=position).filter(|token| streaming(position, *token)).count();
                read += if dense == position { position + 1 } else { sparse_count };
                for head in 0..heads {
                    let sparse = |at: usize| rows.attended(at, head, |token| streaming(at, token));
                    let mut expected = sparse(position);
                    if sparse_count <= position {
                        let exact = rows.attended(dense, head, |_| true);
                        let difference = exact.iter().zip(sparse(dense)).map(|(exact, sparse)| exact - sparse);
                        expected.iter_mut().zip(difference).for_each(|(sum, more)| *sum += more);
                    }
                    for (found, expected) in found.next().unwrap().iter().zip(&expected) {
                        let error = (f64::from(*found) - expected).abs();
                        assert!(error < 2e-5, "{delta} {position} {head}: {found} {expected}");
                    }
                }
            }
            start = end;
        }
        assert_eq!(pairs.read as usize, KV_HEADS * read, "{delta}");
    }
}

#[test]
fn prompts_cut_at_multiples_of_delta_have_the_same_bits() {
    let rows = Rows::new(173, 2);
    let anywhere = [&[64, 128, 173][..], &[16, 160, 173], &[96, 112, 144, 173]];
    for (policy, cuts) in [
        ("streaming:sinks=3,window=9,delta=16", &anywhere[..]),
        ("log-stride:window=12,landmarks=0,delta=16", &anywhere),
        // All queries of a tile (64 of two heads) read the same blocks.
        (
            "xattention:block=16,stride=4,threshold=0.4,tail=20,delta=16",
            &anywhere[..1],
        ),
    ] {
        let (whole, pairs) = rows.read(policy, &[173]);
        for ends in cuts {
            let (cut, of_cut) = rows.read(policy, ends);
            assert!(cut == whole, "{policy} {ends:?}");
            assert_eq!(of_cut, pairs, "{policy} {ends:?}");
        }
        let (uncorrected, _) = rows.read(&policy.replace(",delta=16", ""), &[173]);
        assert!(uncorrected != whole, "{policy}");
    }
}

fn options(prefill: &str) -> EngineOptions {
    EngineOptions::default()
        .with_prefill(prefill.parse().unwrap())
        .with_chunk_tokens(64)
        .with_page_tokens(32)
}

#[test]
fn queries_that_all_read_everything_have_the_logits_of_dense_attention() {
    let read = |prefill: &str| {
        let mut session = Session::new(&small_engine(options(prefill))).unwrap();
        session.prefill(&prompt(300), &mut go_on).unwrap();
        (session.logits().to_vec(), session.sequence().counts().pairs.density())
    };
    let (full, _) = read("full");
    let (corrected, density) = read("streaming:sinks=2,window=16,delta=1");
    assert!(largest_difference(&corrected, &full) <= 1e-4);
    assert_eq!(density, 1.0);
    // A dense prompt needs no correction.
    assert_eq!(read("streaming:sinks=2,window=16,delta=8,from=301").0, full);
}

#[test]
fn an_audit_sees_corrected_outputs() {
    let audited = |prefill: &str| {
        let options = options(prefill).with_audit(true);
        let mut session = Session::new(&small_engine(options)).unwrap();
        session.prefill(&prompt(300), &mut go_on).unwrap();
        session.sequence().audit().expect("an audit")
    };
    let (sparse, corrected) = (
        audited("streaming:sinks=2,window=16"),
        audited("streaming:sinks=2,window=16,delta=1"),
    );
    assert!(sparse.mean_output_error > 0.01 && corrected.largest_output_error < 1e-3);
    assert!(corrected.density == 1.0 && sparse.density < 0.2);
}
