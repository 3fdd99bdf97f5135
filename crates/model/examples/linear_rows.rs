//! Measures passes without attention: rates of generated rows of several sequences, the ceiling of
//! `riffle bench batch`. Run `cargo run --release -p riffle-model --example linear_rows -- PATH_OF_MODEL [ROWS…]`.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use riffle_model::{Batch, Forward, HostForward, RecurrentState, SegmentTokens, load};

const PASSES: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = Arc::new(load(arguments.next().ok_or("give the path of a model")?)?.model);
    let rows: Vec<usize> = arguments.map(|rows| rows.parse()).collect::<Result<_, _>>()?;
    let rows = if rows.is_empty() { vec![1, 2, 4, 8, 16] } else { rows };
    println!("{} threads, median of {PASSES} passes", rayon::current_num_threads());
    for rows in rows {
        let mut forward = HostForward::new(&model, rows);
        let mut states = vec![RecurrentState::new(&model.config); rows];
        let mut logits = vec![0.0; rows * model.config.vocab_size];
        let mut times_ms = Vec::with_capacity(PASSES);
        for position in 0..PASSES {
            let began = Instant::now();
            pass(&mut forward, model.config.layers, position, &mut states, &mut logits)?;
            times_ms.push(began.elapsed().as_secs_f64() * 1e3);
        }
        times_ms.sort_by(f64::total_cmp);
        let median_ms = times_ms[PASSES / 2];
        println!(
            "{rows:3} rows: {median_ms:8.2} ms a pass, {:8.1} rows/s",
            rows as f64 / median_ms * 1e3
        );
    }
    Ok(())
}

/// Computes one token of each sequence through all layers, and the logits.
fn pass(
    forward: &mut HostForward,
    layers: usize,
    position: usize,
    states: &mut [RecurrentState],
    logits: &mut [f32],
) -> Result<(), Box<dyn Error>> {
    let rows = states.len();
    let tokens: Vec<[u32; 1]> = (0..rows).map(|row| [(31 * row + position) as u32]).collect();
    let segments = tokens.iter().map(|tokens| SegmentTokens::generated(tokens, position));
    forward.embed(&Batch::new(segments)?)?;
    for layer in 0..layers {
        forward.project(layer, 0..rows)?;
        let mut states: Vec<&mut RecurrentState> = states.iter_mut().collect();
        forward.finish(layer, 0..rows, &mut states)?;
    }
    forward.logits(&(0..rows).collect::<Vec<_>>(), logits)?;
    Ok(())
}
