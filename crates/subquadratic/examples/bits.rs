//! Sums over the bits of results, by which two machines are compared: attention in every format, and the pattern's two
//! phases.
//!
//! `RIFFLE_INSTRUCTIONS=scalar cargo run --release -p riffle-subquadratic --example bits`; `scripts/test/wasm-test`
//! compares with node.

use std::error::Error;
use std::time::Instant;

use riffle_attention::*;
use riffle_subquadratic::{KvCache, SparseAttentionConfig, SubquadraticSparseAttention, Tensor3};

const TOKENS: usize = 4096;
const DIM: usize = 64;
const PAGE: usize = 256;
/// Query heads, all on one KV head.
const GROUP: usize = 4;
/// Queries of a prompt's last chunk.
const ROWS: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut noise = Noise(0x2545_f491_4f6c_dd1d);
    let [keys, values] = [(); 2].map(|()| noise.values(TOKENS * DIM));
    let queries = noise.values(ROWS * GROUP * DIM);
    for format in Format::ALL {
        for rows in [1, ROWS] {
            let start = Instant::now();
            let out = attended(format, rows, &keys, &values, &queries)?;
            print(&format!("attention, {}, rows {rows}", format.name()), &out, start);
        }
    }

    let attention = SubquadraticSparseAttention::new(SparseAttentionConfig::default())?;
    let [k, v] = [keys, values].map(|data| Tensor3::from_vec(data, TOKENS, 1, DIM));
    let (k, v) = (k?, v?);
    let q = Tensor3::from_vec(noise.values(TOKENS * GROUP * DIM), TOKENS, GROUP, DIM)?;
    let start = Instant::now();
    print("pattern, prefill", attention.forward_gqa(&q, &k, &v)?.data(), start);

    let mut cache = KvCache::new(TOKENS, 1, DIM, attention.config().block_size);
    cache.append_all(&k, &v)?;
    let q = Tensor3::from_vec(queries[..GROUP * DIM].to_vec(), 1, GROUP, DIM)?;
    let start = Instant::now();
    print("pattern, decode", attention.decode_step(&q, &cache)?.data(), start);
    Ok(())
}

/// Dense attention of the last `rows` tokens over pages in a format, the time of packing included.
fn attended(
    format: Format,
    rows: usize,
    keys: &[f32],
    values: &[f32],
    queries: &[f32],
) -> Result<Vec<f32>, AttendError> {
    let mut planes = Vec::new();
    for (keys, values) in keys.chunks(PAGE * DIM).zip(values.chunks(PAGE * DIM)) {
        let [mut k, mut v] = [(); 2].map(|()| PlaneBuf::filled(format, PAGE, DIM, 0));
        write_keys(&mut k.plane_mut(), DIM, 0, PAGE, keys, DIM)?;
        write_values(&mut v.plane_mut(), DIM, 0, PAGE, values, DIM)?;
        planes.push((k, v));
    }
    let pages = planes.iter().enumerate().map(|(number, (keys, values))| PageView {
        start: number * PAGE,
        tokens: PAGE,
        keys: keys.plane(),
        values: values.plane(),
    });
    let pages: Vec<PageView<'_>> = pages.collect();
    let queries = QueryTile {
        data: &queries[..rows * GROUP * DIM],
        rows,
        row_stride: GROUP * DIM,
        group: GROUP,
        head_dim: DIM,
        start: TOKENS - rows,
    };
    let kv = KvView {
        head_dim: DIM,
        pages: &pages,
    };
    let mut partial = Partial::new(rows, GROUP, DIM);
    attend(
        &queries,
        &kv,
        &Selection::full(TOKENS),
        &AttendOptions::for_head_dim(DIM),
        &mut partial,
    )?;
    let mut out = vec![0.0; rows * GROUP * DIM];
    partial.finish_into(&mut out, GROUP * DIM, None)?;
    Ok(out)
}

/// Prints the sum to standard output and the time to standard error.
fn print(name: &str, out: &[f32], start: Instant) {
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    // FNV-1a.
    let bytes = out.iter().flat_map(|x| x.to_bits().to_le_bytes());
    let sum = bytes.fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    println!("{name}: {sum:016x}");
    eprintln!("{name}: {milliseconds:.2} ms");
}

/// Pseudo-random values in −1..1, the same in every run.
struct Noise(u64);

impl Noise {
    fn values(&mut self, count: usize) -> Vec<f32> {
        let mut next = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 40) as f32 / 8_388_608.0 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }
}
