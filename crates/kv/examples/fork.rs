//! Prints how long a fork of 100,000 tokens takes and which memory it takes: `cargo run --release -p riffle-kv --example fork`.

use std::time::Instant;

use riffle_attention::Format;
use riffle_kv::{CacheShape, KvError, KvTiers, PagePool};

const TOKENS: usize = 100_000;
const APPENDED: usize = 4_000;
const FORKS: usize = 20;

fn main() -> Result<(), KvError> {
    // The page tables of a model of 28 layers with 8 KV heads, over narrow heads so that the pages fit anywhere.
    let shape = CacheShape {
        layers: 28,
        kv_heads: 8,
        head_dim: 16,
        page_tokens: 256,
        key_format: Format::Q4_0,
        value_format: Format::Q4_0,
    };
    let pool = PagePool::new(shape, KvTiers::memory(None))?;
    let mut book = pool.cache();
    let tokens = vec![0.5; APPENDED * shape.kv_heads * shape.head_dim];
    for _ in 0..TOKENS / APPENDED {
        for layer in 0..shape.layers {
            book.append(layer, &tokens, &tokens)?;
        }
    }
    let before = pool.near_bytes();
    let mut times: Vec<f64> = Vec::new();
    let mut forks = Vec::new();
    for _ in 0..FORKS {
        let start = Instant::now();
        forks.push(book.fork());
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "{TOKENS} tokens in {} pages: a fork takes {:.3} ms (median of {FORKS}, {:.3} to {:.3}) and {} bytes of page memory",
        pool.pages(),
        times[FORKS / 2],
        times[0],
        times[FORKS - 1],
        pool.near_bytes() - before,
    );
    Ok(())
}
