//! Rotated heads in the cache: only the loss of a coarse format changes.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::testing::{fixture, largest_difference, logits_after, prompt};
use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, Session};

fn logits(rotate: Option<bool>, keys: Format, values: Format, policy: &str, tokens: &[u32]) -> Vec<f32> {
    let options = EngineOptions::default()
        .with_context_tokens(Some(8192))
        .with_key_format(keys)
        .with_value_format(values)
        .with_rotate(rotate)
        .with_prefill(policy.parse().unwrap());
    let engine: Arc<Engine> = Engine::load(fixture("model"), options).unwrap();
    logits_after(&engine, tokens)
}

#[test]
fn in_full_precision_a_rotation_changes_nothing_but_rounding() {
    let tokens = prompt(600);
    for policy in ["full", "streaming:sinks=4,window=100,from=0", "tri-shape:from=0"] {
        let plain = logits(Some(false), Format::F32, Format::F32, policy, &tokens);
        let rotated = logits(Some(true), Format::F32, Format::F32, policy, &tokens);
        let difference = largest_difference(&plain, &rotated);
        assert!(difference > 0.0 && difference < 1e-3, "{policy}: {difference}");
    }
}

#[test]
fn planes_of_four_bits_are_rotated_unless_told_otherwise() {
    let tokens = prompt(300);
    let of = |rotate, keys, values| logits(rotate, keys, values, "full", &tokens);
    let (f16, q4) = (Format::F16, Format::Q4_0);
    assert_eq!(of(None, f16, f16), of(Some(false), f16, f16));
    assert_eq!(of(None, q4, q4), of(Some(true), q4, q4));
    assert_ne!(of(None, f16, q4), of(Some(true), f16, q4));
    assert_ne!(of(None, f16, q4), of(Some(false), f16, q4));
}

/// The effect of the rotation on the shipped model, for docs/results/sessions.md:
/// `cargo test --release -p riffle-engine --test engine rotation:: -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn loss_of_four_bits_with_and_without_the_rotation() {
    let book = std::fs::read_to_string(fixture("text/prophets.txt")).unwrap();
    let engine = Engine::load(fixture("model"), EngineOptions::default()).unwrap();
    let tokens = engine.tokenizer().unwrap().encode(&book, true).unwrap();
    let all = |rotate, keys, values| {
        let options = EngineOptions::default()
            .with_context_tokens(Some(8192))
            .with_key_format(keys)
            .with_value_format(values)
            .with_rotate(Some(rotate));
        let engine = Engine::load(fixture("model"), options).unwrap();
        let mut logits = Vec::new();
        for start in (0..6).map(|part| part * 5000) {
            let mut session = Session::new(&engine).unwrap();
            let mut take = |first, rows: &[f32]| {
                // The first tokens have few keys.
                if first >= 256 {
                    logits.extend_from_slice(rows);
                }
                ControlFlow::Continue(())
            };
            session
                .prefill_with_logits(&tokens[start..start + 1536], &mut take)
                .unwrap();
        }
        logits
    };
    let exact = all(false, Format::F32, Format::F32);
    for (keys, values) in [
        (Format::Q4_0, Format::F32),
        (Format::F32, Format::Q4_0),
        (Format::Q4_0, Format::Q4_0),
    ] {
        let error = |rotate| {
            let got = all(rotate, keys, values);
            let squares = got.iter().zip(&exact).map(|(a, b)| f64::from(a - b).powi(2));
            (squares.sum::<f64>() / exact.len() as f64).sqrt()
        };
        let (plain, rotated) = (error(false), error(true));
        eprintln!("{keys:?}:{values:?}: root mean square error of logits {plain:.4} plain, {rotated:.4} rotated");
    }
}
