//! A model family of a crate of its own. The engine loads a tiny StarCoder2, and its logits equal those of Python's
//! `transformers`.
//!
//! `cargo run --release` in this folder; with the path of a StarCoder2 model it loads that one and says what it is.

mod starcoder2;

use std::error::Error;
use std::ops::ControlFlow;

use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, Session};
use safetensors::SafeTensors;

use starcoder2::FAMILIES;

/// A tiny random model and the logits of `make_model.py`.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/model");

/// Largest difference of a logit, as for the families of riffle-model.
const TOLERANCE: f32 = 2e-4;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1);
    let options = EngineOptions::default()
        .with_families(&FAMILIES)
        .with_key_format(Format::F32)
        .with_value_format(Format::F32);
    let engine = Engine::load(path.as_deref().unwrap_or(MODEL), options)?;
    let config = engine.model().config();
    println!(
        "{}: {} layers, {} heads of {}",
        config.architecture, config.layers, config.heads, config.head_dim
    );
    if path.is_some() {
        return Ok(());
    }
    let bytes = std::fs::read(format!("{MODEL}/expected.safetensors"))?;
    let expected = SafeTensors::deserialize(&bytes)?;
    let tokens = expected.tensor("tokens")?;
    let tokens: Vec<u32> = tokens
        .data()
        .as_chunks()
        .0
        .iter()
        .map(|bytes| i64::from_le_bytes(*bytes) as u32)
        .collect();
    let logits = expected.tensor("logits")?;
    let logits = logits
        .data()
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes));
    let mut found: Vec<f32> = Vec::new();
    Session::new(&engine)?.prefill_with_logits_at(
        &tokens,
        &[0..tokens.len()],
        &mut |_| ControlFlow::Continue(()),
        &mut |_, logits| {
            found.extend(logits);
            ControlFlow::Continue(())
        },
    )?;
    let worst = found.iter().zip(logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{} logits, largest difference from transformers {worst:e}", found.len());
    match found.len() == tokens.len() * engine.model().config().vocab_size && worst <= TOLERANCE {
        true => Ok(()),
        false => Err(format!("logits differ by more than {TOLERANCE:e}, or some are missing").into()),
    }
}
