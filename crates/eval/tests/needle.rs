//! The shipped model finds what full attention can see, and loses what streaming attention cannot.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use riffle_engine::{Engine, EngineOptions};
use riffle_eval::{NeedleAnswer, NeedleOptions, needle};

fn engine(policy: &str) -> Arc<Engine> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/model");
    let options = EngineOptions {
        prefill: policy.parse().unwrap(),
        decode: policy.parse().unwrap(),
        ..EngineOptions::default()
    };
    Engine::load(model, options).unwrap()
}

/// Ten needles at even depths in each of `documents` documents.
fn answers(policy: &str, context_tokens: usize, documents: u64) -> Vec<NeedleAnswer> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/text/prophets.txt");
    let text = fs::read_to_string(path).unwrap();
    let engine = engine(policy);
    (1..=documents)
        .flat_map(|seed| {
            needle(
                &engine,
                &text,
                &NeedleOptions {
                    context_tokens,
                    depths: 10,
                    seed,
                },
            )
            .unwrap()
        })
        .collect()
}

fn exact(answers: &[NeedleAnswer]) -> f64 {
    answers.iter().filter(|answer| answer.correct).count() as f64 / answers.len() as f64
}

#[test]
fn full_attention_finds_needles_at_4k() {
    let answers = answers("full", 4096, 4);
    assert_eq!(answers.len(), 40);
    assert!(exact(&answers) >= 0.95, "{answers:?}");
}

#[test]
fn full_attention_finds_needles_at_16k() {
    let answers = answers("full", 16384, 2);
    assert_eq!(answers.len(), 20);
    assert!(exact(&answers) >= 0.95, "{answers:?}");
}

#[test]
fn streaming_attention_loses_needles_outside_its_window_and_keeps_those_inside() {
    let answers = answers("streaming:sinks=64,window=1024", 4096, 3);
    // The question itself takes a few dozen tokens of the window.
    let (inside, outside): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.distance_tokens < 900);
    assert!(inside.len() >= 3 && outside.len() >= 20);
    assert!(exact(&inside) >= 0.6, "{inside:?}");
    assert!(exact(&outside) <= 0.05, "{outside:?}");
}
