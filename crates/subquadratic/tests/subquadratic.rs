//! The four edge families, the contiguous caches and eviction.

mod testing;

use std::collections::BTreeSet;

use proptest::prelude::*;
use riffle_attention::{f16_to_f32, f32_to_f16};
use riffle_subquadratic::*;
use testing::Noise;

/// Tokens and landmark blocks of one query by their definition.
fn edges(config: &SparseAttentionConfig, i: usize, seq: usize) -> (BTreeSet<usize>, BTreeSet<usize>) {
    let visible = |j: usize| j < seq && (!config.causal || j <= i);
    let mut tokens: BTreeSet<usize> = (0..seq)
        .filter(|j| visible(*j) && i.abs_diff(*j) <= config.window)
        .collect();
    tokens.extend(config.global_tokens.iter().filter(|j| visible(**j)));
    let strides: Vec<usize> = (0..40).map(|k| 1usize << k).take_while(|s| *s < seq).collect();
    if config.use_log_stride {
        tokens.extend(strides.iter().filter(|s| **s <= i).map(|s| i - s));
        tokens.extend(strides.iter().map(|s| i + s).filter(|j| visible(*j)));
    }
    let mut blocks = BTreeSet::new();
    let count = seq.div_ceil(config.block_size);
    let available = if config.causal {
        (i + 1) / config.block_size
    } else {
        count
    };
    if config.use_landmarks && available > 0 {
        let own = i / config.block_size;
        let pivot = if config.causal { available - 1 } else { own };
        for block in 0..available {
            let distance = pivot.abs_diff(block);
            let strided = config.use_log_stride && distance.is_power_of_two() && distance < count;
            if (distance <= 1 || strided) && (config.causal || block != own) {
                blocks.insert(block);
            }
        }
    }
    (tokens, blocks)
}

/// Softmax in f64 over a query's tokens and the means of its blocks, each with + ln n.
fn reference_forward(config: &SparseAttentionConfig, q: &Tensor3, k: &Tensor3, v: &Tensor3) -> Vec<f64> {
    let ((seq, heads, dim), group) = (q.shape(), q.heads() / k.heads());
    let mut out = Vec::new();
    for i in 0..seq {
        let (tokens, blocks) = edges(config, i, seq);
        for h in 0..heads {
            let row =
                |t: &Tensor3, j: usize| -> Vec<f64> { t.row(j, h / group).iter().map(|x| f64::from(*x)).collect() };
            let mut read: Vec<(f64, Vec<f64>, Vec<f64>)> =
                tokens.iter().map(|j| (1.0, row(k, *j), row(v, *j))).collect();
            for block in &blocks {
                let span = block * config.block_size..((block + 1) * config.block_size).min(seq);
                let before = !config.causal || span.end <= i;
                if !before || span.clone().any(|j| tokens.contains(&j)) {
                    continue;
                }
                let n = span.len() as f64;
                let mean = |t: &Tensor3| {
                    span.clone().fold(vec![0.0; dim], |sum, j| {
                        sum.iter().zip(row(t, j)).map(|(a, b)| a + b / n).collect::<Vec<f64>>()
                    })
                };
                read.push((n, mean(k), mean(v)));
            }
            let query: Vec<f64> = q.row(i, h).iter().map(|x| f64::from(*x)).collect();
            let logit = |key: &[f64]| query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() / (dim as f64).sqrt();
            let logits: Vec<f64> = read.iter().map(|(n, key, _)| logit(key) + n.ln()).collect();
            let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = logits.iter().map(|l| (l - top).exp()).sum();
            let mut sum = vec![0.0; dim];
            for ((_, _, value), logit) in read.iter().zip(&logits) {
                let weight = (logit - top).exp() / total;
                sum.iter_mut().zip(value).for_each(|(sum, x)| *sum += weight * x);
            }
            out.extend(sum);
        }
    }
    out
}

fn config() -> impl Strategy<Value = SparseAttentionConfig> {
    (
        0..40usize,
        prop_oneof![Just(1usize), Just(4), Just(7), Just(16), Just(64)],
        proptest::collection::vec(0..200usize, 0..3),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(window, block_size, global_tokens, causal, use_log_stride, use_landmarks)| SparseAttentionConfig {
                window,
                block_size,
                global_tokens,
                causal,
                use_log_stride,
                use_landmarks,
                sort_candidates: false,
            },
        )
}

fn close(ours: &[f32], exact: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), exact.len());
    for (at, (a, b)) in ours.iter().zip(exact).enumerate() {
        assert!((f64::from(*a) - b).abs() < tolerance, "element {at}: {a} for {b}");
    }
}

#[test]
fn the_edge_table_is_exact() {
    let attention = SubquadraticSparseAttention::new(SparseAttentionConfig::default()).unwrap();
    for (seq, edges) in [
        (512, 59_778),
        (1024, 129_858),
        (2048, 272_130),
        (4096, 560_834),
        (8192, 1_146_498),
        (16_384, 2_334_274),
        (32_768, 4_742_658),
    ] {
        assert_eq!(attention.estimate_sparse_edges(seq), edges, "{seq} tokens");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn every_form_equals_the_definition(
        config in config(),
        seed in any::<u64>(),
        seq in 0usize..150,
        dim in prop_oneof![Just(8usize), Just(16), Just(20), Just(32)],
        kv_heads in 1usize..3,
        group in 1usize..4,
    ) {
        let mut noise = Noise::new(seed);
        let q = noise.tensor(seq, kv_heads * group, dim);
        let (k, v) = (noise.tensor(seq, kv_heads, dim), noise.tensor(seq, kv_heads, dim));
        let attention = SubquadraticSparseAttention::new(config.clone()).unwrap();
        let out = attention.forward_gqa(&q, &k, &v).unwrap();
        close(out.data(), &reference_forward(&config, &q, &k, &v), 3e-5);
        prop_assert_eq!(&out, &attention.forward_gqa_flash(&q, &k, &v).unwrap());
        prop_assert_eq!(&out, &attention.forward_auto(&q, &k, &v).unwrap());
        if group == 1 {
            prop_assert_eq!(&out, &attention.forward(&q, &k, &v).unwrap());
            prop_assert_eq!(&out, &attention.forward_flash(&q, &k, &v).unwrap());
        }
        let mut count = 0;
        for i in 0..seq {
            let (tokens, blocks) = edges(&config, i, seq);
            count += tokens.len() + blocks.len();
        }
        prop_assert_eq!(attention.estimate_sparse_edges(seq), count);
    }

    #[test]
    fn decoding_equals_the_last_row_of_a_prefill(
        config in config(),
        seed in any::<u64>(),
        seq in 1usize..150,
        dim in prop_oneof![Just(16usize), Just(24)],
        draft in 1usize..5,
    ) {
        let config = SparseAttentionConfig { causal: true, ..config };
        let draft = draft.min(seq);
        let mut noise = Noise::new(seed);
        let q = noise.tensor(seq, 4, dim);
        let (k, v) = (noise.tensor(seq, 2, dim), noise.tensor(seq, 2, dim));
        let attention = SubquadraticSparseAttention::new(config.clone()).unwrap();
        let part = |t: &Tensor3, from: usize, to: usize| {
            let width = t.heads() * t.dim();
            Tensor3::from_vec(t.data()[from * width..to * width].to_vec(), to - from, t.heads(), t.dim()).unwrap()
        };
        let exact = reference_forward(&config, &q, &k, &v);
        let mut cache = KvCache::new(seq, 2, dim, config.block_size);
        cache.append_all(&part(&k, 0, seq - draft), &part(&v, 0, seq - draft)).unwrap();
        let last = (part(&q, seq - draft, seq), part(&k, seq - draft, seq), part(&v, seq - draft, seq));
        let mut stepwise = cache.clone();
        let out = attention.decode_batch(&last.0, &last.1, &last.2, &mut cache).unwrap();
        close(out.data(), &exact[(seq - draft) * 4 * dim..], 3e-5);
        for token in 0..draft {
            stepwise.try_append(&part(&last.1, token, token + 1), &part(&last.2, token, token + 1)).unwrap();
            let one = attention.decode_step(&part(&last.0, token, token + 1), &stepwise).unwrap();
            prop_assert_eq!(one.data(), &out.data()[token * 4 * dim..(token + 1) * 4 * dim]);
        }
        prop_assert!(cache.is_full());

        let mut halves = KvCacheF16::new(seq, 2, dim, config.block_size);
        halves.append_all(&k, &v).unwrap();
        let rounded = |t: &Tensor3| {
            let data = t.data().iter().map(|x| f16_to_f32(f32_to_f16(*x))).collect();
            Tensor3::from_vec(data, t.seq(), t.heads(), t.dim()).unwrap()
        };
        let exact = reference_forward(&config, &q, &rounded(&k), &rounded(&v));
        let out = attention.decode_step_f16(&part(&q, seq - 1, seq), &halves).unwrap();
        close(out.data(), &exact[(seq - 1) * 4 * dim..], 3e-5);
    }

    #[test]
    fn a_later_token_never_changes_an_earlier_row(config in config(), seed in any::<u64>(), seq in 2usize..150, from in 1usize..150) {
        let config = SparseAttentionConfig { causal: true, ..config };
        let from = from.min(seq - 1);
        let mut noise = Noise::new(seed);
        let (q, queries) = (noise.tensor(seq, 2, 16), noise.tensor(seq, 6, 16));
        let (mut k, mut v) = (noise.tensor(seq, 2, 16), noise.tensor(seq, 2, 16));
        let attention = SubquadraticSparseAttention::new(config.clone()).unwrap();
        let run = |k: &Tensor3, v: &Tensor3| {
            let mut cache = KvCache::new(seq, 2, 16, config.block_size);
            [
                attention.forward(&q, k, v).unwrap(),
                attention.forward_flash(&q, k, v).unwrap(),
                attention.forward_gqa(&queries, k, v).unwrap(),
                attention.forward_gqa_flash(&queries, k, v).unwrap(),
                attention.forward_auto(&queries, k, v).unwrap(),
                attention.decode_batch(&queries, k, v, &mut cache).unwrap(),
                dense_attention(&queries, k, v, true).unwrap(),
            ]
        };
        let before = run(&k, &v);
        for x in k.data_mut()[from * 32..].iter_mut().chain(&mut v.data_mut()[from * 32..]) {
            *x = noise.value() * 5.0;
        }
        for (before, after) in before.iter().zip(&run(&k, &v)) {
            let len = from * before.heads() * 16;
            prop_assert_eq!(&before.data()[..len], &after.data()[..len]);
        }
    }

    #[test]
    fn dense_attention_equals_an_unbounded_window(seed in any::<u64>(), seq in 0usize..300, causal in any::<bool>()) {
        let mut noise = Noise::new(seed);
        let q = noise.tensor(seq, 2, 16);
        let (k, v) = (noise.tensor(seq, 1, 16), noise.tensor(seq, 1, 16));
        let config = SparseAttentionConfig { window: 1000, causal, use_landmarks: false, ..Default::default() };
        close(dense_attention(&q, &k, &v, causal).unwrap().data(), &reference_forward(&config, &q, &k, &v), 3e-5);
    }
}

/// A cache in which all queries attend to one token.
fn cache_with_a_favourite(favourite: usize) -> (KvCache, SubquadraticSparseAttention, Tensor3) {
    let config = SparseAttentionConfig {
        window: 1000,
        use_landmarks: true,
        block_size: 8,
        ..Default::default()
    };
    let attention = SubquadraticSparseAttention::new(config).unwrap();
    let mut cache = KvCache::new(32, 2, 16, 8).with_protection(2, 4);
    let mut noise = Noise::new(3);
    let mut k = noise.tensor(32, 2, 16);
    let v = noise.tensor(32, 2, 16);
    for head in 0..2 {
        k.row_mut(favourite, head).fill(3.0);
    }
    cache.append_all(&k, &v).unwrap();
    let q = Tensor3::from_vec(vec![1.0; 64], 1, 4, 16).unwrap();
    (cache, attention, q)
}

#[test]
fn eviction_keeps_the_heavy_hitter_the_sinks_and_the_recent() {
    let (mut cache, attention, q) = cache_with_a_favourite(9);
    attention.decode_step(&q, &cache).unwrap();
    assert!(
        cache.mass(0, 9).unwrap() > 1.9,
        "two heads of the group give it nearly all their mass"
    );
    let mut noise = Noise::new(8);
    let mut dropped = Vec::new();
    for step in 0..40 {
        let (k, v) = (noise.tensor(1, 2, 16), noise.tensor(1, 2, 16));
        let before = [cache.positions(0), cache.positions(1)];
        let evicted = cache.evict_and_append(&k, &v).unwrap();
        assert_eq!(evicted.len(), 2, "one token of each KV head");
        for token in &evicted {
            assert!(before[token.kv_head].contains(&token.position));
            assert!(!cache.positions(token.kv_head).contains(&token.position));
            assert!(token.position >= 2 && token.position + 4 < 33 + step && token.position != 9);
            dropped.push(token.position);
        }
        let held = cache.positions(0);
        assert_eq!((held.len(), held[0], held[1], held[31]), (32, 0, 1, 32 + step));
        attention.decode_step(&q, &cache).unwrap();
    }
    assert_eq!(cache.len(), 32);
    assert_eq!(cache.next_position(), 72);
    assert!(cache.positions(0).contains(&9) && cache.positions(1).contains(&9));
    assert!(dropped.len() == 80);
}

#[test]
fn after_evictions_attention_reads_exactly_what_is_held() {
    let (mut cache, _, q) = cache_with_a_favourite(9);
    let config = SparseAttentionConfig {
        window: 1000,
        use_landmarks: false,
        ..Default::default()
    };
    let attention = SubquadraticSparseAttention::new(config).unwrap();
    let (mut held, mut noise) = (Vec::new(), Noise::new(4));
    cache.reset();
    for position in 0..80 {
        let (k, v) = (noise.tensor(1, 2, 16), noise.tensor(1, 2, 16));
        for token in cache.evict_and_append(&k, &v).unwrap() {
            held.retain(|(head, at, _, _)| (*head, *at) != (token.kv_head, token.position));
        }
        for head in 0..2 {
            held.push((head, position, k.row(0, head).to_vec(), v.row(0, head).to_vec()));
        }
        let out = attention.decode_step(&q, &cache).unwrap();
        for query_head in 0..4 {
            let rows: Vec<_> = held.iter().filter(|(head, ..)| *head == query_head / 2).collect();
            let logits: Vec<f64> = rows
                .iter()
                .map(|(_, _, k, _)| k.iter().map(|x| f64::from(*x)).sum::<f64>() / 4.0)
                .collect();
            let total: f64 = logits.iter().map(|l| l.exp()).sum();
            for d in 0..16 {
                let exact: f64 = rows
                    .iter()
                    .zip(&logits)
                    .map(|((_, _, _, v), l)| l.exp() / total * f64::from(v[d]))
                    .sum();
                assert!((f64::from(out.row(0, query_head)[d]) - exact).abs() < 3e-5);
            }
        }
    }
}

#[test]
fn a_cache_refuses_what_does_not_fit_and_stays_as_it_was() {
    let mut cache = KvCache::new(4, 2, 16, 8).with_protection(2, 2);
    let (one, five) = (Tensor3::zeros(1, 2, 16), Tensor3::zeros(5, 2, 16));
    assert_eq!(cache.bytes(), 0);
    assert!(matches!(
        cache.try_append(&five, &five),
        Err(SubquadraticError::Full { capacity: 4, wanted: 5 })
    ));
    assert!(cache.try_append(&one, &Tensor3::zeros(1, 2, 8)).is_err());
    assert!(cache.try_append(&one, &Tensor3::zeros(1, 1, 16)).is_err());
    assert!(cache.is_empty());
    for _ in 0..4 {
        assert_eq!(cache.evict_and_append(&one, &one), Ok(vec![]));
    }
    assert!(cache.is_full());
    assert_eq!(
        cache.evict_and_append(&one, &one),
        Err(SubquadraticError::AllProtected { capacity: 4 })
    );
    assert_eq!(cache.positions(0), [0, 1, 2, 3]);
    cache.reset();
    assert!(cache.is_empty() && cache.try_append(&one, &one).is_ok());
    let mut none = KvCache::new(0, 2, 16, 8);
    assert!(none.try_append(&one, &one).is_err() && none.evict_and_append(&one, &one).is_err());
}

#[test]
fn shapes_that_do_not_belong_together_are_errors() {
    let attention = SubquadraticSparseAttention::new(SparseAttentionConfig::default()).unwrap();
    let t = |seq, heads, dim| Tensor3::zeros(seq, heads, dim);
    assert!(attention.forward(&t(4, 4, 16), &t(4, 2, 16), &t(4, 2, 16)).is_err());
    assert!(attention.forward_gqa(&t(4, 4, 16), &t(4, 3, 16), &t(4, 3, 16)).is_err());
    assert!(attention.forward_gqa(&t(4, 4, 16), &t(5, 2, 16), &t(5, 2, 16)).is_err());
    assert!(attention.forward_gqa(&t(4, 4, 16), &t(4, 2, 16), &t(4, 4, 16)).is_err());
    assert!(attention.forward_gqa(&t(4, 4, 16), &t(4, 2, 8), &t(4, 2, 8)).is_err());
    assert!(attention.forward_gqa(&t(4, 4, 16), &t(4, 2, 16), &t(4, 2, 8)).is_err());
    assert!(attention.forward_gqa(&t(4, 0, 16), &t(4, 0, 16), &t(4, 0, 16)).is_err());
    assert!(attention.forward_gqa(&t(4, 2, 0), &t(4, 2, 0), &t(4, 2, 0)).is_err());
    assert!(
        SubquadraticSparseAttention::new(SparseAttentionConfig {
            block_size: 0,
            ..Default::default()
        })
        .is_err()
    );
    let mut cache = KvCache::new(8, 2, 16, 64);
    assert!(attention.decode_step(&t(1, 4, 16), &cache).is_err(), "an empty cache");
    cache.try_append(&t(1, 2, 16), &t(1, 2, 16)).unwrap();
    assert!(attention.decode_step(&t(2, 4, 16), &cache).is_err());
    assert!(attention.decode_step(&t(1, 3, 16), &cache).is_err());
    assert!(attention.decode_step(&t(1, 4, 8), &cache).is_err());
    assert!(
        attention
            .decode_batch(&t(2, 4, 16), &t(1, 2, 16), &t(2, 2, 16), &mut cache)
            .is_err()
    );
    assert!(
        attention
            .decode_batch(&t(9, 4, 16), &t(9, 2, 16), &t(9, 2, 16), &mut cache)
            .is_err()
    );
    assert_eq!(cache.len(), 1);
    let other = KvCache::new(8, 2, 16, 32);
    assert!(
        attention.decode_step(&t(1, 4, 16), &other).is_err(),
        "another block size"
    );
}
