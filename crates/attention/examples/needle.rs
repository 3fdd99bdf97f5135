//! Finds a needle in a long context with different patterns, and prints the tokens that each pattern reads.
//!
//! `cargo run --release -p riffle-attention --example needle`
//!
//! One key among 32768 matches the query and carries the answer in its value. Dense attention finds it;
//! window, globals and log-stride do not read it; a selection that names its page does, at a fraction of
//! the cost.

mod noise;

use std::time::Instant;

use riffle_attention::*;

use noise::noise;

const TOKENS: usize = 32_768;
const DIM: usize = 64;
const PAGE: usize = 256;
const NEEDLE: usize = 20_011;

fn main() -> Result<(), AttendError> {
    let mut keys = noise(TOKENS * DIM);
    let mut values = noise(TOKENS * DIM);
    let query = noise(DIM);
    for d in 0..DIM {
        keys[NEEDLE * DIM + d] = 8.0 * query[d];
        values[NEEDLE * DIM + d] = 1.0;
    }

    let cache = pages(&keys, &values)?;
    let pages: Vec<PageView<'_>> = cache
        .iter()
        .enumerate()
        .map(|(number, page)| PageView {
            start: number * PAGE,
            tokens: PAGE,
            keys: Plane::F16(&page.keys),
            values: Plane::Q8_0(&page.values),
        })
        .collect();
    let kv = KvView {
        head_dim: DIM,
        pages: &pages,
    };
    let position = TOKENS - 1;
    let queries = QueryTile {
        data: &query,
        rows: 1,
        row_stride: DIM,
        group: 1,
        head_dim: DIM,
        start: position,
    };
    let options = AttendOptions::new(1.0 / (DIM as f32).sqrt());

    println!(
        "{TOKENS} tokens, the needle at {NEEDLE}; instructions: {}\n",
        ceiling::instructions()
    );
    for (name, selection) in &selections() {
        let mut partial = Partial::new(1, 1, DIM);
        attend(&queries, &kv, selection, &options, &mut partial)?;
        let start = Instant::now();
        partial.reset(1, 1, DIM);
        attend(&queries, &kv, selection, &options, &mut partial)?;
        let time = start.elapsed();
        let mut out = [0.0; DIM];
        partial.finish_into(&mut out, DIM, None)?;
        let mean = out.iter().sum::<f32>() / DIM as f32;
        println!(
            "{name:<34} reads {:>6} keys in {:>7.1} µs: answer {mean:>6.3} ({})",
            selection.pair_count(position, 1),
            time.as_secs_f64() * 1e6,
            if mean > 0.9 { "found" } else { "lost" }
        );
    }
    Ok(())
}

/// A page of 256 tokens: keys in half precision, values in 8 bits.
struct Page {
    keys: Vec<u16>,
    values: Vec<u8>,
}

fn pages(keys: &[f32], values: &[f32]) -> Result<Vec<Page>, AttendError> {
    let rows = keys.chunks(PAGE * DIM).zip(values.chunks(PAGE * DIM));
    let pages = rows.map(|(keys, values)| {
        let mut page = Page {
            keys: vec![0; Format::F16.plane_len(PAGE, DIM)],
            values: vec![0; Format::Q8_0.plane_len(PAGE, DIM)],
        };
        write_keys(&mut PlaneMut::F16(&mut page.keys), DIM, 0, PAGE, keys, DIM)?;
        write_values(&mut PlaneMut::Q8_0(&mut page.values), DIM, 0, PAGE, values, DIM)?;
        Ok(page)
    });
    pages.collect()
}

fn selections() -> [(&'static str, Selection); 4] {
    let strides = (8..15).map(|k| 1usize << k);
    let needle_page = NEEDLE / PAGE * PAGE;
    [
        ("dense", Selection::full(TOKENS)),
        (
            "4 sinks + window of 1024",
            Selection::from_spans([Span::new(0, 4)]).with_row_window(1024),
        ),
        (
            "window, global, log-stride",
            Selection::from_spans([Span::new(0, 1)])
                .with_row_window(129)
                .with_diagonals(strides),
        ),
        (
            "sinks, window and one chosen page",
            Selection::from_spans([Span::new(0, 4), Span::new(needle_page, needle_page + PAGE)]).with_row_window(1024),
        ),
    ]
}
