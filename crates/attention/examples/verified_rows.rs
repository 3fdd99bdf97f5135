//! Times one row, and several rows of one sequence verified together.
//!
//! `cargo run --release -p riffle-attention --example verified_rows -- [TOKENS] [KV_HEADS] [GROUP] [HEAD_DIM] [TURNS]`

mod documents;
mod noise;

use std::time::Instant;

use riffle_attention::*;

use documents::{Document, PAGE};
use noise::noise;

const ROWS: [usize; 7] = [1, 2, 3, 4, 6, 8, 16];

fn main() {
    let arguments = std::env::args().skip(1);
    let given: Vec<usize> = arguments.map(|text| text.parse().expect("a number")).collect();
    let argument = |index: usize, usual: usize| given.get(index).copied().unwrap_or(usual);
    let tokens = argument(0, 4096).next_multiple_of(PAGE);
    let (kv_heads, group, head_dim, turns) = (argument(1, 8), argument(2, 4), argument(3, 128), argument(4, 7));
    println!("{tokens} keys, {group} query heads on each of {kv_heads} KV heads of {head_dim}, one thread");
    println!("ms, median of {turns} turns and the range; passes of one row; ns for a row, a KV head and 16 keys");
    println!("| format | rows | ms | passes | ns |");
    println!("|---|---|---|---|---|");
    for format in [Format::F16, Format::Q8_0, Format::Q4_0] {
        let document = Document::new(tokens, format, (kv_heads, head_dim), 0);
        let pages: Vec<_> = (0..kv_heads).map(|head| document.pages(head)).collect();
        let mut times = ROWS.map(|_| Vec::new());
        for turn in 0..=turns {
            for (rows, times) in ROWS.into_iter().zip(&mut times) {
                let ms = verify_ms(&pages, rows, (group, head_dim), tokens);
                // The first turn warms caches.
                if turn > 0 {
                    times.push(ms);
                }
            }
        }
        times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
        let one = times[0][turns / 2];
        for (rows, times) in ROWS.into_iter().zip(&times) {
            let (median, least, most) = (times[turns / 2], times[0], times[turns - 1]);
            println!(
                "| {} | {rows} | {median:.2} [{least:.2}–{most:.2}] | {:.2} | {:.0} |",
                format.name(),
                median / one,
                median * 1e6 / (rows * kv_heads * tokens / 16) as f64
            );
        }
    }
}

/// The time for the last `rows` of `tokens`.
fn verify_ms(pages: &[Vec<PageView>], rows: usize, (group, head_dim): (usize, usize), tokens: usize) -> f64 {
    let queries = noise(pages.len() * rows * group * head_dim);
    let selection = Selection::full(tokens);
    let jobs: Vec<AttendJob> = pages
        .iter()
        .enumerate()
        .map(|(job, pages)| AttendJob {
            queries: QueryTile {
                data: &queries[job * rows * group * head_dim..],
                rows,
                row_stride: group * head_dim,
                group,
                head_dim,
                start: tokens - rows,
            },
            kv: KvView { head_dim, pages },
            selection: &selection,
        })
        .collect();
    let options = AttendOptions::for_head_dim(head_dim).with_arithmetic(Arithmetic::Fused);
    let mut partials = vec![Partial::new(rows, group, head_dim); jobs.len()];
    let start = Instant::now();
    attend_batch(&jobs, &options, &mut partials).unwrap();
    start.elapsed().as_secs_f64() * 1e3
}
