//! Prints the time and memory of a fork of 100,000 tokens: `cargo run --release -p riffle-kv --example fork`.

use std::time::Instant;

use riffle_attention::Format;
use riffle_kv::{CacheShape, KvError, KvTiers, LayerShape, LayerShapes, PagePool};

const TOKENS: usize = 100_000;
const APPENDED: usize = 4_000;
const FORKS: usize = 20;

fn main() -> Result<(), KvError> {
    // The page tables of a model of 28 layers with 8 KV heads. The heads are narrow, so that the pages fit in any
    // memory.
    let shape = CacheShape {
        layers: LayerShapes::alike(28, LayerShape::new(8, 16)),
        page_tokens: 256,
        key_format: Format::Q4_0,
        value_format: Format::Q4_0,
    };
    let pool = PagePool::new(shape, KvTiers::memory(None))?;
    let mut book = pool.cache();
    let tokens = vec![0.5; APPENDED * shape.layer(0).kv_heads * shape.layer(0).key_width];
    for _ in 0..TOKENS / APPENDED {
        for layer in 0..shape.layers.count() {
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
