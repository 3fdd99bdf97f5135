//! The whole engine (paged cache, policy, attention kernels) gives the logits of `transformers`, for every cut of the
//! text.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, Session};
use riffle_eval::write_logits;
use riffle_testing::{fixtures, largest_difference};
use safetensors::SafeTensors;

/// Tensors of a vector's `expected.safetensors`.
struct Expected(Vec<u8>);

impl Expected {
    fn read(case: &str) -> Self {
        Self(fs::read(fixtures().join("vectors").join(case).join("expected.safetensors")).unwrap())
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        tensor
            .data()
            .chunks(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect()
    }

    /// Ids or indices, stored as i64 or as u32.
    fn indices(&self, name: &str) -> Vec<usize> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        let width = tensor.data().len() / tensor.shape().iter().product::<usize>();
        tensor
            .data()
            .chunks(width)
            .map(|bytes| {
                bytes
                    .iter()
                    .rev()
                    .fold(0, |value, &byte| value << 8 | usize::from(byte))
            })
            .collect()
    }

    fn tokens(&self) -> Vec<u32> {
        self.indices("tokens").into_iter().map(|token| token as u32).collect()
    }
}

fn engine(model: &Path, chunk_tokens: usize) -> Arc<Engine> {
    let options = EngineOptions::default()
        .with_chunk_tokens(chunk_tokens)
        .with_page_tokens(48)
        .with_key_format(Format::F32)
        .with_value_format(Format::F32);
    Engine::load(model, options).unwrap()
}

/// Logits of every position, `[tokens, vocab]`, on an f32 cache.
fn logits(model: &Path, tokens: &[u32], chunk_tokens: usize) -> Vec<f32> {
    let engine = engine(model, chunk_tokens);
    let mut session = Session::new(&engine).unwrap();
    let mut all = Vec::new();
    session
        .prefill_with_logits(tokens, &mut |position, logits| {
            assert_eq!(position * engine.model().config().vocab_size, all.len());
            all.extend_from_slice(logits);
            ControlFlow::Continue(())
        })
        .unwrap();
    all
}

#[test]
fn random_models_give_the_logits_of_transformers_for_every_chunk_size() {
    let mut cases = 0;
    for entry in fs::read_dir(fixtures().join("vectors")).unwrap() {
        let case = entry.unwrap().file_name().into_string().unwrap();
        if !case.starts_with("group") {
            continue;
        }
        cases += 1;
        let expected = Expected::read(&case);
        let model = fixtures().join("vectors").join(&case);
        let tokens = expected.tokens();
        assert_eq!(tokens.len(), 512);
        let whole = logits(&model, &tokens, 512);
        let difference = largest_difference(&whole, expected.floats("logits"));
        assert!(difference <= 2e-4, "{case}: {difference}");
        for chunk_tokens in [1, 7, 64] {
            let difference = largest_difference(logits(&model, &tokens, chunk_tokens), &whole);
            assert!(difference <= 1e-5, "{case}, -ub {chunk_tokens}: {difference}");
        }
    }
    assert!(cases >= 7, "only {cases} cases");
}

/// The model gives the logits of `transformers`; other chunk sizes may differ by `rounding` of the largest logit.
fn check_shipped(model: &str, case: &str, rounding: f32) {
    let expected = Expected::read(case);
    let model = fixtures().join(model);
    let tokens = expected.tokens();
    let whole = logits(&model, &tokens, 512);
    let vocab = whole.len() / tokens.len();
    let columns = expected.indices("columns");
    let chosen: Vec<f32> = whole
        .chunks(vocab)
        .flat_map(|row| columns.iter().map(|&column| row[column]).collect::<Vec<_>>())
        .collect();
    let difference = largest_difference(&chosen, expected.floats("logits_columns"));
    assert!(difference <= 2e-4, "{difference}");
    let rows: Vec<f32> = expected
        .indices("row_positions")
        .iter()
        .flat_map(|&position| whole[position * vocab..][..vocab].to_vec())
        .collect();
    let difference = largest_difference(&rows, expected.floats("logits_rows"));
    assert!(difference <= 2e-4, "{difference}");
    let largest = whole.iter().fold(1.0, |largest: f32, logit| largest.max(logit.abs()));
    for chunk_tokens in [1, 7, 64] {
        let difference = largest_difference(logits(&model, &tokens, chunk_tokens), &whole);
        assert!(difference <= rounding * largest, "-ub {chunk_tokens}: {difference}");
    }
}

#[test]
fn the_shipped_model_gives_the_logits_of_transformers_for_every_chunk_size() {
    check_shipped("model", "shipped", 1e-6);
}

#[test]
fn the_shipped_hybrid_model_gives_the_logits_of_transformers_for_every_chunk_size() {
    // Recurrent layers compute chunks of 64 tokens; parts of a chunk round differently.
    check_shipped("model-hybrid", "shipped-hybrid", 1e-5);
}

#[test]
fn the_logits_file_holds_what_the_session_computes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("logits.safetensors");
    let model = fixtures().join("model");
    let engine = engine(&model, 512);
    let tokens = Expected::read("shipped").tokens()[..100].to_vec();
    let report = write_logits(&engine, &tokens, &path).unwrap();
    assert_eq!((report.tokens, report.vocab_size), (100, 2048));
    let file = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let tensor = tensors.tensor("logits").unwrap();
    assert_eq!(tensor.shape(), [100, 2048]);
    let written: Vec<f32> = tensor
        .data()
        .chunks(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    assert_eq!(written, logits(&model, &tokens, 512));
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "no partial file is left"
    );
}
