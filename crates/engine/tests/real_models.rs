//! Real models, compared with the results of `transformers` for the same weights in f32.
//!
//! `scripts/make/real-models DIR smollm2 smollm2-f32` downloads the files, and `RIFFLE_REAL_MODELS=DIR` names the
//! folder. Without it each test prints that it was skipped. `fixtures/vectors/smollm2.py` makes the vectors.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_engine::{Engine, EngineOptions, GenerateOptions, Session};
use riffle_model::ChatMessage;
use safetensors::SafeTensors;
use serde::Deserialize;

const SMOLLM2: &str = "smollm2-135m-instruct-q4_1.gguf";
/// The same model with f32 weights.
const SMOLLM2_F32: &str = "smollm2-135m-instruct-f32.gguf";

/// The file of a model; `None`, with a note, if it was not downloaded.
fn real_model(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("RIFFLE_REAL_MODELS") else {
        println!(
            "skipped: RIFFLE_REAL_MODELS does not name a folder with {name}; scripts/make/real-models DIR fetches it"
        );
        return None;
    };
    let path = PathBuf::from(folder).join(name);
    assert!(
        path.is_file(),
        "RIFFLE_REAL_MODELS is set, but there is no {}",
        path.display()
    );
    Some(path)
}

fn vectors(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/vectors/smollm2")
        .join(name)
}

fn engine(model: &Path) -> Arc<Engine> {
    let options = EngineOptions::default().with_context_tokens(Some(2048));
    Engine::load(model, options).unwrap()
}

fn i32s(tensors: &SafeTensors<'_>, name: &str) -> Vec<u32> {
    let bytes = tensors.tensor(name).unwrap().data();
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|bytes| i32::from_le_bytes(*bytes) as u32)
        .collect()
}

fn f32s(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let bytes = tensors.tensor(name).unwrap().data();
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect()
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    f64::from(largest) + sum.ln()
}

#[test]
fn logits_of_smollm2_are_those_of_transformers_within_the_rounding_of_activations() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let bytes = fs::read(vectors("logits.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let [tokens, positions, likeliest] = ["tokens", "positions", "likeliest"].map(|name| i32s(&tensors, name));
    let [expected, expected_sums] = ["logits", "log_sum_exp"].map(|name| f32s(&tensors, name));
    let per_position = likeliest.len() / positions.len();

    let mut session = Session::new(&engine(&model)).unwrap();
    let (mut divergence, mut same_first, mut begin) = (0.0, 0, 0);
    for (row, position) in positions.iter().enumerate() {
        let end = *position as usize + 1;
        session
            .prefill(&tokens[begin..end], &mut |_| ControlFlow::Continue(()))
            .unwrap();
        begin = end;
        let logits = session.logits();
        let sum = log_sum_exp(logits);
        let row = row * per_position..(row + 1) * per_position;
        let expected_sum = f64::from(expected_sums[row.start / per_position]);
        for (token, expected) in likeliest[row.clone()].iter().zip(&expected[row.clone()]) {
            let log_probability = f64::from(*expected) - expected_sum;
            let found = f64::from(logits[*token as usize]) - sum;
            divergence += log_probability.exp() * (log_probability - found);
        }
        let first = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        same_first += usize::from(first == Some(likeliest[row.start] as usize));
    }
    divergence /= positions.len() as f64;
    println!(
        "mean divergence over the {per_position} likeliest tokens: {divergence:.5} nats, {same_first} of {} first choices",
        positions.len()
    );
    // Quantised weights round activations to 8 bits. llama.cpp does the same and is 2.8e-3 nats away.
    assert!(divergence.abs() < 5e-3, "{divergence} nats");
    assert!(same_first >= positions.len() - 3, "{same_first} of {}", positions.len());
}

#[derive(Deserialize)]
struct Greedy {
    prompt: String,
    prompt_tokens: Vec<u32>,
    answer_tokens: Vec<u32>,
    text: String,
}

#[test]
fn greedy_answers_of_smollm2_in_f32_are_those_of_transformers() {
    let Some(model) = real_model(SMOLLM2_F32) else { return };
    let cases: Vec<Greedy> = serde_json::from_slice(&fs::read(vectors("greedy.json")).unwrap()).unwrap();
    assert_eq!(cases.len(), 5);
    let engine = engine(&model);
    for case in cases {
        let template = engine.chat_template().unwrap();
        let text = template
            .render_messages_until(&[ChatMessage::new("user", &case.prompt)], true, &mut || {
                ControlFlow::Continue(())
            })
            .unwrap();
        let prompt = engine.tokenizer().unwrap().encode_conversation(&text, false).unwrap();
        assert_eq!(prompt, case.prompt_tokens);
        let mut session = Session::new(&engine).unwrap();
        session.prefill(&prompt, &mut |_| ControlFlow::Continue(())).unwrap();
        let options = GenerateOptions {
            max_tokens: 64,
            ..GenerateOptions::default()
        };
        let answer = session.generate(&options, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(answer.tokens, case.answer_tokens, "{:?}: {}", case.prompt, answer.text);
        assert_eq!(answer.text, case.text);
    }
}
