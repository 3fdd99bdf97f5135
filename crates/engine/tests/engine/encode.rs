//! Whole texts: vectors and scores as sentence-transformers and transformers compute them.

use std::ops::ControlFlow;
use std::sync::Arc;

use riffle_engine::{Encoding, Engine, EngineError, EngineOptions, Session, embed, with_threads};
use riffle_model::TextTokens;
use riffle_testing::fixture;
use serde_json::Value;

/// Largest difference of a vector's element, or of a score, from transformers.
const TOLERANCE: f64 = 1e-5;

fn load(name: &str) -> Arc<Engine> {
    Engine::load(fixture(name), EngineOptions::default().with_context_tokens(Some(64))).unwrap()
}

/// A random model, and the vectors that transformers computes for it.
fn made(name: &str) -> (Arc<Engine>, Value) {
    let expected = fixture(&format!("vectors/embedding/{name}/expected.json"));
    let expected = serde_json::from_slice(&std::fs::read(expected).unwrap()).unwrap();
    let file = if name.ends_with("-file") { "/model.gguf" } else { "" };
    (load(&format!("vectors/embedding/{name}{file}")), expected)
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|text| text.as_str().unwrap())
        .collect()
}

fn rows(list: &Value) -> Vec<Vec<f64>> {
    serde_json::from_value(list.clone()).unwrap()
}

fn tokens(list: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(list.clone()).unwrap()
}

fn scores(engine: &Arc<Engine>, prompts: Vec<TextTokens>) -> Vec<Vec<f32>> {
    let mut encoding = Encoding::scores(engine, prompts).unwrap();
    while encoding.advance().unwrap().is_continue() {}
    encoding.into_results()
}

fn close(found: &[Vec<f32>], expected: &[Vec<f64>], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let off = (f64::from(*found) - expected).abs();
            assert!(off < TOLERANCE, "{what}: {found} and not {expected}");
        }
    }
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    for name in ["qwen3", "gemma", "gemma-file", "bert", "bert-file", "xlm-roberta"] {
        let (engine, expected) = made(name);
        let tokenizer = engine.tokenizer().unwrap();
        let encode = |text: &str| tokenizer.encode(text, true).unwrap();
        let ids: Vec<Vec<u32>> = texts(&expected["texts"]).into_iter().map(encode).collect();
        assert_eq!(ids, tokens(&expected["tokens"]), "{name}");
        close(&embed(&engine, ids).unwrap(), &rows(&expected["vectors"]), name);
        let embedding = engine.embedding().unwrap();
        assert!(embedding.is_normalised);
        if expected["prompt"].is_null() || name.ends_with("-file") {
            continue;
        }
        let prompt = &embedding.prompts[expected["prompt"].as_str().unwrap()];
        let prompted = texts(&expected["texts"])
            .into_iter()
            .map(|text| encode(&format!("{prompt}{text}")));
        close(
            &embed(&engine, prompted.collect()).unwrap(),
            &rows(&expected["prompted"]),
            name,
        );
    }
}

#[test]
fn scores_are_those_of_transformers() {
    for name in [
        "reranker",
        "classifier",
        "reranker-file",
        "bert-reranker",
        "xlm-reranker",
        "xlm-reranker-file",
    ] {
        let (engine, expected) = made(name);
        let (tokenizer, reranking) = (engine.tokenizer().unwrap(), engine.reranking().unwrap());
        let query = expected["query"].as_str().unwrap();
        let prompt = |document: &str| {
            let text = reranking.text(None, query, document);
            text.encode_until(tokenizer, &mut |_| ControlFlow::Continue(()))
                .unwrap()
        };
        let prompts: Vec<TextTokens> = texts(&expected["documents"]).into_iter().map(prompt).collect();
        let ids: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.tokens.clone()).collect();
        assert_eq!(ids, tokens(&expected["tokens"]), "{name}");
        let wanted: Vec<f64> = serde_json::from_value(expected["scores"].clone()).unwrap();
        let wanted: Vec<Vec<f64>> = wanted.into_iter().map(|score| vec![score]).collect();
        close(&scores(&engine, prompts), &wanted, name);
    }
}

#[test]
fn a_text_has_the_same_bits_alone_and_beside_others_on_any_number_of_threads() {
    for name in [
        "vectors/embedding/qwen3",
        "vectors/embedding/gemma",
        "vectors/embedding/bert",
        "model",
        "model-hybrid",
    ] {
        let engine = load(name);
        let most = Encoding::most_tokens(&engine).min(1500);
        let text = |length: usize| {
            (0..length.min(most))
                .map(|at| 3 + (at * at % 160) as u32)
                .collect::<Vec<u32>>()
        };
        let texts: Vec<Vec<u32>> = [5, 700, 1, 300, 1500, 20].into_iter().map(text).collect();
        let together = with_threads(Some(2), || embed(&engine, texts.clone()))
            .unwrap()
            .unwrap();
        let one_thread = with_threads(Some(1), || embed(&engine, texts.clone()))
            .unwrap()
            .unwrap();
        assert_eq!(together, one_thread, "{name}");
        for (text, together) in texts.into_iter().zip(&together) {
            assert_eq!(&embed(&engine, vec![text]).unwrap()[0], together, "{name}");
        }
    }
}

#[test]
fn a_decoder_without_files_for_vectors_gives_the_state_of_the_last_token() {
    let engine = load("model");
    let embedding = engine.embedding().unwrap();
    assert!(embedding.ends_texts && embedding.is_normalised);
    let vectors = embed(&engine, vec![vec![5, 6, 7], vec![9, 6, 7], vec![5, 6, 8]]).unwrap();
    let length = |vector: &[f32]| vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    assert!(vectors.iter().all(|vector| (length(vector) - 1.0).abs() < 1e-5));
    assert!(vectors[0] != vectors[1] && vectors[0] != vectors[2]);
}

#[test]
fn texts_beyond_the_model_are_refused_and_never_cut() {
    let (engine, _) = made("qwen3");
    let error = embed(&engine, vec![vec![1], vec![5; 129]]).unwrap_err();
    assert!(
        matches!(
            error,
            EngineError::TextTooLong {
                number: 1,
                tokens: 129,
                most: 128
            }
        ),
        "{error}"
    );
    assert!(matches!(
        embed(&engine, vec![Vec::new()]),
        Err(EngineError::EmptyPrompt)
    ));
    assert_eq!(embed(&engine, vec![vec![5; 128]]).unwrap().len(), 1);
    assert!(embed(&engine, Vec::new()).unwrap().is_empty());
}

#[test]
fn models_refuse_what_they_were_not_made_for() {
    for name in ["qwen3", "gemma", "classifier", "bert", "xlm-roberta", "bert-reranker"] {
        let (engine, _) = made(name);
        let error = Session::new(&engine).err().unwrap();
        assert!(matches!(error, EngineError::NoTokens), "{name}: {error}");
    }
    let error = load("model").reranking().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("how a query and a document stand in its prompt"),
        "{error}"
    );
    let (engine, _) = made("gemma");
    assert!(matches!(engine.reranking(), Err(EngineError::NoScores(_))));
}
