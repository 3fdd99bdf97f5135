//! Milliseconds of one thread for 8 heads × 64, window 128, block 64, causal: `original TOKENS [ours]`.

use riffle_attention::ceiling::best_of_thread_time;
use riffle_subquadratic as ours;
use ruvllm_sparse_attention::{self as original, AttentionBackend as _};

const HEADS: usize = 8;
const DIM: usize = 64;

fn noise(len: usize, mut state: u64) -> Vec<f32> {
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn milliseconds(tries: usize, work: impl FnMut()) -> f64 {
    best_of_thread_time(tries, work).as_secs_f64() * 1e3
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let tokens: usize = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(8192);
    let ours_only = arguments.next().is_some();
    let [q, k, v] = [1, 2, 3].map(|seed| noise(tokens * HEADS * DIM, seed));

    let tensor = |data: &Vec<f32>| ours::Tensor3::from_vec(data.clone(), tokens, HEADS, DIM).unwrap();
    let (our_q, our_k, our_v) = (tensor(&q), tensor(&k), tensor(&v));
    let attention = ours::SubquadraticSparseAttention::new(ours::SparseAttentionConfig::default()).unwrap();
    let time = milliseconds(5, || drop(attention.forward(&our_q, &our_k, &our_v).unwrap()));
    println!("ours forward {time}");
    let time = milliseconds(5, || drop(attention.forward_flash(&our_q, &our_k, &our_v).unwrap()));
    println!("ours forward_flash {time}");
    if ours_only {
        return;
    }
    let time = milliseconds(2, || drop(ours::dense_attention(&our_q, &our_k, &our_v, true).unwrap()));
    println!("ours dense {time}");

    let tensor = |data: &Vec<f32>| original::Tensor3::from_vec(data.clone(), tokens, HEADS, DIM).unwrap();
    let (q, k, v) = (tensor(&q), tensor(&k), tensor(&v));
    let attention = original::SubquadraticSparseAttention::new(original::SparseAttentionConfig {
        window: 128,
        block_size: 64,
        global_tokens: vec![0],
        causal: true,
        use_log_stride: true,
        use_landmarks: true,
        sort_candidates: false,
    })
    .unwrap();
    let time = milliseconds(3, || drop(attention.forward(&q, &k, &v).unwrap()));
    println!("original forward {time}");
    // One run is timed, because a run takes a minute.
    let start = std::time::Instant::now();
    original::dense_attention(&q, &k, &v, true).unwrap();
    println!("original dense {}", start.elapsed().as_secs_f64() * 1e3);
}
