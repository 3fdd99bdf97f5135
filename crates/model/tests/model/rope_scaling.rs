//! Stretching by the user gives the same result as the same stretching in the model's files.

use std::path::Path;
use std::sync::Arc;

use crate::testing::{Expected, load_model, logits_of, vectors};
use riffle_model::{LoadOptions, LoadedModel, ModelError, RopeScaling, inspect_with, load_with};
use serde_json::Value;

/// Largest difference from the reference, as for models that name their stretching themselves.
const TOLERANCE: f32 = 2e-4;

fn scaling(text: &str) -> RopeScaling {
    text.parse().unwrap()
}

fn load_scaled(path: &Path, rope_scaling: RopeScaling) -> Result<LoadedModel, ModelError> {
    load_with(path, &LoadOptions::default().with_rope_scaling(Some(rope_scaling)))
}

/// A copy of a model with `change` applied to its config.json.
fn copy_of(model: &Path, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(model).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, directory.path().join(from.file_name().unwrap())).unwrap();
    }
    let path = directory.path().join("config.json");
    let mut config = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(&path, config.to_string()).unwrap();
    directory
}

#[test]
fn a_stretching_given_is_the_stretching_of_the_reference() {
    for case in ["llama-1", "qwen3-0"] {
        let case = vectors().join(case);
        let plain = copy_of(&case, |config| {
            config["max_position_embeddings"] = 256.into();
            config["rope_parameters"] = serde_json::json!({"rope_theta": 1e4, "rope_type": "default"});
        });
        let expected = Expected::read(&case.join("expected.safetensors"));
        let model = Arc::new(load_scaled(plain.path(), scaling("yarn:factor=4")).unwrap().model);
        assert_eq!(model.config.max_position, 1024);
        let logits = logits_of(&model, &expected.tokens, expected.tokens.len());
        let difference = expected.largest_difference(&logits, model.config.vocab_size);
        assert!(difference <= TOLERANCE, "{}: {difference:e}", case.display());
        let unstretched = load_model(plain.path());
        let logits = logits_of(&unstretched, &expected.tokens, expected.tokens.len());
        assert!(expected.largest_difference(&logits, model.config.vocab_size) > 10.0 * TOLERANCE);
    }
}

#[test]
fn a_stretching_takes_the_place_of_the_one_in_the_file() {
    let file = vectors().join("gguf/llama-1.gguf");
    let tokens: Vec<u32> = (0..90).map(|i| i * 7 % 31).collect();
    let own = logits_of(&load_model(&file), &tokens, tokens.len());
    let with = |text: &str| {
        let model = Arc::new(load_scaled(&file, scaling(text)).unwrap().model);
        (logits_of(&model, &tokens, tokens.len()), model.config.max_position)
    };
    // The same words as the file's. Without a length the trained length of the file stays.
    assert_eq!(with("yarn:factor=4"), (own.clone(), 1024));
    assert_eq!(with("yarn:factor=4,original=256"), (own.clone(), 1024));
    // The file's own angles, up to later positions.
    assert_eq!(with("own:factor=8"), (own.clone(), 8192));
    let (linear, positions) = with("linear:factor=3,original=100");
    assert_eq!(positions, 300);
    assert_ne!(linear, own);
}

#[test]
fn a_longer_context_changes_no_angle_of_a_stretching_that_follows_from_it() {
    let case = vectors().join("llama-1");
    let implied = copy_of(&case, |config| {
        config["rope_parameters"].as_object_mut().unwrap().remove("factor");
    });
    let tokens: Vec<u32> = (0..40).map(|i| i * 5 % 31).collect();
    let own = logits_of(&load_model(&case), &tokens, tokens.len());
    let longer = Arc::new(load_scaled(implied.path(), scaling("own:factor=2")).unwrap().model);
    assert_eq!(longer.config.max_position, 2048);
    assert_eq!(logits_of(&longer, &tokens, tokens.len()), own);
}

#[test]
fn a_text_that_is_no_stretching_is_refused_with_what_there_is() {
    for (text, words) in [
        ("dynamic:factor=2", "yarn, linear and own"),
        ("yarn", "a factor is missing"),
        ("yarn:factor=0.5", "from 1 to"),
        ("yarn:factor=many", "from 1 to"),
        ("yarn:factor=NaN", "from 1 to"),
        ("linear:factor=2,original=0", "number of tokens"),
        ("linear:factor=2,theta=3", "factor=F and original=TOKENS"),
    ] {
        let error = text.parse::<RopeScaling>().unwrap_err().to_string();
        assert!(error.contains("`rope_scaling=") && error.contains(words), "{error}");
    }
    assert_eq!(
        scaling("yarn:factor=2.5,original=100").to_string(),
        "yarn:factor=2.5,original=100"
    );
}

#[test]
fn layers_that_turn_in_two_ways_are_not_stretched_as_one() {
    let error = inspect_with(
        vectors().join("gemma3-0"),
        &LoadOptions::default().with_rope_scaling(Some(scaling("linear:factor=2"))),
    )
    .unwrap_err();
    assert!(error.to_string().contains("two ways"), "{error}");
}
