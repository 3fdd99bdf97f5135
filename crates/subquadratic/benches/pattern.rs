//! Times of the fixed pattern, sampled by criterion.
//!
//! `cargo bench -p riffle-subquadratic -- [FILTER]`, with `--features parallel` for all threads.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use riffle_subquadratic::*;

fn noise(len: usize) -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// The fixed pattern of window, globals, log strides and landmarks: 8 heads × 64, window 128, block 64.
fn pattern(criterion: &mut Criterion) {
    let attention = SubquadraticSparseAttention::new(SparseAttentionConfig::default()).unwrap();
    let mut group = criterion.benchmark_group("pattern");
    group.sample_size(10);
    for tokens in [1024, 8192, 32_768] {
        let q = Tensor3::from_vec(noise(tokens * 512), tokens, 8, 64).unwrap();
        group.throughput(Throughput::Elements(tokens as u64));
        group.bench_function(format!("forward/{tokens}"), |bencher| {
            bencher.iter(|| attention.forward(&q, &q, &q).unwrap());
        });
        group.bench_function(format!("forward_flash/{tokens}"), |bencher| {
            bencher.iter(|| attention.forward_flash(&q, &q, &q).unwrap());
        });
    }
    let q = Tensor3::from_vec(noise(8192 * 512), 8192, 8, 64).unwrap();
    let mut cache = KvCache::new(8192, 8, 64, 64);
    cache.append_all(&q, &q).unwrap();
    let one = Tensor3::from_vec(noise(512), 1, 8, 64).unwrap();
    group.throughput(Throughput::Elements(1));
    group.bench_function("decode_step/8192", |bencher| {
        bencher.iter(|| attention.decode_step(&one, &cache).unwrap())
    });
    group.finish();
}

criterion_group!(benches, pattern);
criterion_main!(benches);
