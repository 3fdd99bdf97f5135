//! Times a decode step of several sequences with one document, and with separate documents.
//!
//! `cargo run --release -p riffle-attention --example shared_pages [--features parallel] -- [SEQUENCES] [TOKENS]`

mod documents;
mod noise;

use std::time::Instant;

use riffle_attention::*;

use documents::{Document, PAGE};
use noise::noise;

const KV_HEADS: usize = 8;
const GROUP: usize = 4;
const HEAD_DIM: usize = 128;
const RUNS: usize = 7;

/// The shortest time of a step, in ms; sequence `n` reads document `n`, or the last one.
fn step_ms(documents: &[Document], sequences: usize, tokens: usize) -> f64 {
    let queries = noise(sequences * KV_HEADS * GROUP * HEAD_DIM);
    let pages: Vec<Vec<_>> = documents
        .iter()
        .map(|document| (0..KV_HEADS).map(|head| document.pages(head)).collect())
        .collect();
    let selection = Selection::full(tokens);
    let jobs: Vec<AttendJob> = (0..sequences * KV_HEADS)
        .map(|job| AttendJob {
            queries: QueryTile {
                data: &queries[job * GROUP * HEAD_DIM..],
                rows: 1,
                row_stride: GROUP * HEAD_DIM,
                group: GROUP,
                head_dim: HEAD_DIM,
                start: tokens,
            },
            kv: KvView {
                head_dim: HEAD_DIM,
                pages: &pages[(job / KV_HEADS).min(documents.len() - 1)][job % KV_HEADS],
            },
            selection: &selection,
        })
        .collect();
    let options = AttendOptions::for_head_dim(HEAD_DIM).with_arithmetic(Arithmetic::Fused);
    let run = |_| {
        let mut partials = vec![Partial::new(1, GROUP, HEAD_DIM); jobs.len()];
        let start = Instant::now();
        attend_batch(&jobs, &options, &mut partials).unwrap();
        start.elapsed().as_secs_f64() * 1e3
    };
    (0..RUNS).map(run).fold(f64::INFINITY, f64::min)
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|text| text.parse::<usize>().expect("a number"));
    let sequences = arguments.next().unwrap_or(8);
    let tokens = arguments.next().unwrap_or(32_768).next_multiple_of(PAGE);
    println!(
        "{sequences} sequences of {tokens} tokens, {GROUP} query heads on each of {KV_HEADS} KV heads of {HEAD_DIM}"
    );
    println!("| format | own documents, ms | GB/s | one document, ms | GB/s | one sequence, ms | GB/s | gain |");
    println!("|---|---|---|---|---|---|---|---|");
    for format in [Format::F16, Format::Q8_0, Format::Q4_0] {
        let bytes =
            (2 * KV_HEADS * format.plane_len(tokens, HEAD_DIM)) as f64 * if format == Format::F16 { 2.0 } else { 1.0 };
        let rate = |documents: usize, ms: f64| documents as f64 * bytes / ms / 1e6;
        let documents: Vec<_> = (0..sequences)
            .map(|seed| Document::new(tokens, format, (KV_HEADS, HEAD_DIM), seed))
            .collect();
        let own = step_ms(&documents, sequences, tokens);
        let one = step_ms(&documents[..1], sequences, tokens);
        let alone = step_ms(&documents[..1], 1, tokens);
        println!(
            "| {} | {own:.1} | {:.1} | {one:.1} | {:.1} | {alone:.1} | {:.1} | {:.2}× |",
            format.name(),
            rate(sequences, own),
            rate(1, one),
            rate(1, alone),
            own / one
        );
    }
}
