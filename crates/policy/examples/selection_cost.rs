//! Time to select beside time to attend, for the last chunk of a prompt and one decode step, on one thread.
//!
//! `cargo run --release -p riffle-policy --example selection_cost [tokens…]`
//!
//! Keys are noise with some loud tokens and a drift along the sequence, so densities say little about real models; what
//! the columns show is what a selection costs against the dense attention of the same chunk.

use std::error::Error;
use std::sync::LazyLock;
use std::time::Instant;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use riffle_attention::{
    AttendOptions, KvView, PageView, Partial, Plane, PlaneMut, QueryTile, Selection, attend, write_keys, write_values,
};
use riffle_policy::{Phase, PolicySpec, SelectContext, build, catalogue};

const HEAD_DIM: usize = 64;
const GROUP: usize = 4;
const CHUNK: usize = 512;
const TILE_ROWS: usize = 32;
const PAGE_TOKENS: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let lengths: Vec<usize> = std::env::args()
        .skip(1)
        .map(|text| text.parse())
        .collect::<Result<_, _>>()?;
    let lengths = if lengths.is_empty() {
        vec![4096, 32_768]
    } else {
        lengths
    };
    println!("policy           phase     tokens   dense ms  prepare ms  select ms  attend ms  density");
    for tokens in lengths {
        let tokens = tokens.max(CHUNK);
        let planes = planes(tokens);
        let pages: Vec<PageView<'_>> = planes
            .iter()
            .enumerate()
            .map(|(number, (keys, values))| PageView {
                start: number * PAGE_TOKENS,
                tokens: PAGE_TOKENS.min(tokens - number * PAGE_TOKENS),
                keys: Plane::F32(keys),
                values: Plane::F32(values),
            })
            .collect();
        for phase in [Phase::Prefill, Phase::Decode] {
            for info in catalogue().iter().filter(|info| info.supports(phase)) {
                measure(info.name, phase, tokens, &pages)?;
            }
        }
    }
    Ok(())
}

fn measure(name: &str, phase: Phase, tokens: usize, pages: &[PageView<'_>]) -> Result<(), Box<dyn Error>> {
    let rows = if phase == Phase::Prefill { CHUNK } else { 1 };
    let queries = noise(2, rows * GROUP * HEAD_DIM);
    let tile = |from: usize, to: usize| QueryTile {
        data: &queries[from * GROUP * HEAD_DIM..],
        rows: to - from,
        row_stride: GROUP * HEAD_DIM,
        group: GROUP,
        head_dim: HEAD_DIM,
        start: tokens - rows + from,
    };
    let context = SelectContext {
        phase,
        layer: 20,
        layers: 28,
        kv_head: 0,
        chunk_start: tokens - rows,
        tokens,
        // The chunk is not the prompt's last, which some policies read densely.
        total_tokens: if phase == Phase::Prefill { 2 * tokens } else { tokens },
        page_tokens: PAGE_TOKENS,
        scale: 0.125,
        soft_cap: None,
        pages,
    };
    let mut policy = build(&name.parse::<PolicySpec>()?, phase)?;
    // Summaries of what came before are made as it comes.
    policy.prepare(&tile(0, rows), &context);
    let prepare = best_ms(|| policy.prepare(&tile(0, rows), &context));
    let tiles: Vec<QueryTile<'_>> = (0..rows)
        .step_by(TILE_ROWS)
        .map(|from| tile(from, (from + TILE_ROWS).min(rows)))
        .collect();
    let mut selections = Vec::new();
    let select = best_ms(|| selections = tiles.iter().map(|tile| policy.select(tile, &context)).collect());
    let sparse = attend_ms(&tiles, &selections, pages)?;
    let dense = attend_ms(&tiles, &vec![Selection::full(tokens); tiles.len()], pages)?;
    let pairs = |selections: &[Selection]| -> usize {
        tiles
            .iter()
            .zip(selections)
            .map(|(tile, selection)| selection.pair_count(tile.start, tile.rows))
            .sum()
    };
    let density = pairs(&selections) as f64 / pairs(&vec![Selection::full(tokens); tiles.len()]) as f64;
    println!(
        "{name:<16} {:<8} {tokens:>7} {dense:>10.3} {prepare:>11.3} {select:>10.3} {sparse:>10.3} {density:>8.3}",
        phase.to_string()
    );
    Ok(())
}

fn attend_ms(tiles: &[QueryTile<'_>], selections: &[Selection], pages: &[PageView<'_>]) -> Result<f64, Box<dyn Error>> {
    let kv = KvView {
        head_dim: HEAD_DIM,
        pages,
    };
    let mut partial = Partial::new(0, 0, 0);
    let mut result = Ok(());
    let time = best_ms(|| {
        for (tile, selection) in tiles.iter().zip(selections) {
            partial.reset(tile.rows, GROUP, HEAD_DIM);
            let attended = attend(tile, &kv, selection, &AttendOptions::new(0.125), &mut partial);
            result = result.clone().and(attended);
        }
    });
    result?;
    Ok(time)
}

/// The fastest of three, each long enough for the clock.
fn best_ms(mut run: impl FnMut()) -> f64 {
    const LEAST_MS: f64 = 20.0;
    let times = (0..3).map(|_| {
        let (start, mut runs) = (thread_ms(), 0.0);
        loop {
            run();
            runs += 1.0;
            let passed = thread_ms() - start;
            if passed >= LEAST_MS {
                return passed / runs;
            }
        }
    });
    times.fold(f64::INFINITY, f64::min)
}

/// Milliseconds this thread has computed, whatever else the machine does, or that have passed where the system does not
/// say.
fn thread_ms() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let computed = text.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    computed.map_or_else(|| START.elapsed().as_secs_f64() * 1e3, |ns| ns / 1e6)
}

fn planes(tokens: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let mut keys = noise(1, tokens * HEAD_DIM);
    for (token, key) in keys.chunks_mut(HEAD_DIM).enumerate() {
        let loud = if token % 97 == 3 { 2.0 } else { 0.0 };
        let drift = (token as f32 / 500.0).sin();
        key[..8].iter_mut().for_each(|value| *value += loud);
        key[8..16].iter_mut().for_each(|value| *value += drift);
    }
    keys.chunks(PAGE_TOKENS * HEAD_DIM)
        .map(|keys| {
            let (mut key_plane, mut value_plane) =
                (vec![0.0; PAGE_TOKENS * HEAD_DIM], vec![0.0; PAGE_TOKENS * HEAD_DIM]);
            let count = keys.len() / HEAD_DIM;
            write_keys(&mut PlaneMut::F32(&mut key_plane), HEAD_DIM, 0, count, keys, HEAD_DIM)
                .expect("the plane is a page");
            write_values(&mut PlaneMut::F32(&mut value_plane), HEAD_DIM, 0, count, keys, HEAD_DIM)
                .expect("the plane is a page");
            (key_plane, value_plane)
        })
        .collect()
}

fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count)
        .map(|_| (0..4).map(|_| random.random_range(-1.0f32..1.0)).sum())
        .collect()
}
