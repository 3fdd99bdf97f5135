//! Small models of the fixtures and their helpers. Each test binary uses its own part of this module.
#![allow(dead_code, unreachable_pub)]

pub mod device;
pub mod made;

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, PrefillProgress, Session};
pub use riffle_testing::{fixture, largest_difference};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

/// The bits of logits.
pub fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// A session that has read the tokens.
pub fn read(engine: &Arc<Engine>, tokens: &[u32]) -> Session {
    let mut session = Session::new(engine).unwrap();
    session.prefill(tokens, &mut go_on).unwrap();
    session
}

/// Bits of the logits after each of some more tokens.
pub fn write(session: &mut Session, tokens: Range<u32>) -> Vec<Vec<u32>> {
    let written = tokens.map(|token| {
        session.advance(token).unwrap();
        bits(session.logits())
    });
    written.collect()
}

/// A random model with two query heads per KV head, on an f32 cache.
pub fn small_engine(options: EngineOptions) -> Arc<Engine> {
    let options = options.with_key_format(Format::F32).with_value_format(Format::F32);
    Engine::load(fixture("vectors/group2-dim64-linear-bf16"), options).expect("a model")
}

/// A random model with recurrent layers and one attention layer, on an f32 cache.
pub fn hybrid_engine(options: EngineOptions) -> Arc<Engine> {
    let options = options.with_key_format(Format::F32).with_value_format(Format::F32);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors/qwen3_5-0");
    Engine::load(path, options).expect("a model")
}

/// Writes the shipped hybrid model with a layer for further tokens into `folder`, and returns its path. Parts of the
/// layer are copies of the model's own. Its projection of embeddings and states is trained
/// (`scripts/train_predictor.py`), so that about half of its tokens are right.
pub fn hybrid_with_predictor(folder: &Path) -> PathBuf {
    let (model, path) = (fixture("model-hybrid"), folder.join("model-with-predictor"));
    std::fs::create_dir(&path).expect("a folder");
    for file in [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        std::fs::copy(model.join(file), path.join(file)).expect("a copy");
    }
    let weights = std::fs::read(model.join("model.safetensors")).expect("weights");
    let trained = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/predictor.safetensors");
    let trained = std::fs::read(trained).expect("a matrix");
    let [weights, trained] = [&weights, &trained].map(|file| SafeTensors::deserialize(file).expect("tensors"));
    let norm = weights.tensor("model.norm.weight").expect("a norm");
    // Norms multiply by 1 + weight.
    let zeros = vec![0; norm.data().len()];
    let zeros = TensorView::new(norm.dtype(), norm.shape().to_vec(), &zeros).expect("a norm");
    let mut tensors = [weights.tensors(), trained.tensors()].concat();
    for (name, tensor) in weights.tensors() {
        if let Some(part) = name.strip_prefix("model.layers.1.") {
            tensors.push((format!("mtp.layers.0.{part}"), tensor));
        }
    }
    for part in ["embedding", "hidden"] {
        tensors.push((format!("mtp.pre_fc_norm_{part}.weight"), zeros.clone()));
    }
    safetensors::serialize_to_file(tensors, None, &path.join("model.safetensors")).expect("a file");
    path
}

/// A prompt of `length` tokens for [`hybrid_engine`].
pub fn hybrid_prompt(length: usize) -> Vec<u32> {
    prompt(length).into_iter().map(|token| token % 31).collect()
}

/// A prompt of `length` tokens.
pub fn prompt(length: usize) -> Vec<u32> {
    (0..length).map(|i| ((i * 37 + i / 7) % 61) as u32).collect()
}

/// A progress callback that never stops the prefill.
pub fn go_on(_: PrefillProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Logits after reading `tokens` in one prefill.
pub fn logits_after(engine: &Arc<Engine>, tokens: &[u32]) -> Vec<f32> {
    let mut session = Session::new(engine).expect("a session");
    session.prefill(tokens, &mut go_on).expect("a prefill");
    session.logits().to_vec()
}
