//! Small models of the fixtures and what tests do with them.
// Each test binary uses its own part of this module.
#![allow(dead_code, unreachable_pub)]

pub mod device;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, PrefillProgress, Session};

/// A folder below `fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// A random model with two query heads to a KV head, on an f32 cache.
pub fn small_engine(options: EngineOptions) -> Arc<Engine> {
    let options = EngineOptions {
        key_format: Format::F32,
        value_format: Format::F32,
        ..options
    };
    Engine::load(fixture("vectors/group2-dim64-linear-bf16"), options).expect("a model")
}

/// A random model of recurrent layers and one of attention, on an f32 cache.
pub fn hybrid_engine(options: EngineOptions) -> Arc<Engine> {
    let options = EngineOptions {
        key_format: Format::F32,
        value_format: Format::F32,
        ..options
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors/qwen3_5-0");
    Engine::load(path, options).expect("a model")
}

/// A prompt of `length` tokens for [`hybrid_engine`].
pub fn hybrid_prompt(length: usize) -> Vec<u32> {
    prompt(length).into_iter().map(|token| token % 31).collect()
}

/// A prompt of `length` tokens.
pub fn prompt(length: usize) -> Vec<u32> {
    (0..length).map(|i| ((i * 37 + i / 7) % 61) as u32).collect()
}

/// For prefills that run to the end.
pub fn go_on(_: PrefillProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Logits after reading `tokens` in one prefill.
pub fn logits_after(engine: &Arc<Engine>, tokens: &[u32]) -> Vec<f32> {
    let mut session = Session::new(engine).expect("a session");
    session.prefill(tokens, &mut go_on).expect("a prefill");
    session.logits().to_vec()
}

/// The largest absolute difference.
pub fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
