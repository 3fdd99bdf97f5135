//! Logits against `transformers`, and their independence of batch size.

mod testing;

use std::path::Path;

use riffle_model::load;
use testing::{Expected, cases, fixtures, largest_difference, logits_of, vectors};

/// Largest difference to the reference, over all positions and kept columns.
const TOLERANCE: f32 = 2e-4;

fn check(case: &Path) {
    check_against(case, case);
}

fn check_against(model: &Path, case: &Path) {
    let model = load(model)
        .unwrap_or_else(|error| panic!("{}: {error}", case.display()))
        .model;
    let expected = Expected::read(&case.join("expected.safetensors"));
    let whole = logits_of(model.as_ref(), &expected.tokens, expected.tokens.len());
    let difference = expected.largest_difference(&whole, model.config().vocab_size);
    println!("{}: largest difference {difference:e}", case.display());
    assert!(
        difference <= TOLERANCE,
        "{}: largest difference {difference:e}",
        case.display()
    );
    for batch_tokens in [1, 7, 64] {
        let split = logits_of(model.as_ref(), &expected.tokens, batch_tokens);
        let difference = largest_difference(split.into_iter(), whole.iter().copied());
        assert!(
            difference == 0.0,
            "{}: batches of {batch_tokens} differ by {difference:e}",
            case.display()
        );
    }
}

fn check_all(prefix: &str) {
    let cases = cases(&vectors(), prefix);
    assert!(!cases.is_empty(), "no vectors of {prefix}");
    cases.iter().for_each(|case| check(case));
}

#[test]
fn llama_logits_equal_the_reference_for_every_batch_size() {
    check_all("llama-");
}

#[test]
fn mistral_logits_equal_the_reference_for_every_batch_size() {
    check_all("mistral-");
}

#[test]
fn qwen2_logits_equal_the_reference_for_every_batch_size() {
    check_all("qwen2-");
}

#[test]
fn qwen3_logits_equal_the_reference_for_every_batch_size() {
    check_all("qwen3-");
}

#[test]
fn phi3_logits_equal_the_reference_for_every_batch_size() {
    check_all("phi3-");
}

#[test]
fn phi2_logits_equal_the_reference_for_every_batch_size() {
    check_all("phi-");
}

#[test]
fn gemma2_logits_equal_the_reference_for_every_batch_size() {
    check_all("gemma2-");
}

#[test]
fn gemma3_logits_equal_the_reference_for_every_batch_size() {
    check_all("gemma3-");
}

#[test]
fn random_llama_logits_equal_the_reference_for_every_batch_size() {
    let cases = cases(&fixtures().join("vectors"), "");
    assert!(!cases.is_empty(), "no vectors among the fixtures");
    cases.iter().for_each(|case| check(case));
}

#[test]
fn shipped_model_logits_equal_the_reference_for_every_batch_size() {
    check_against(&fixtures().join("model"), &fixtures().join("vectors/shipped"));
}

#[test]
fn logits_are_the_same_bits_for_every_number_of_threads() {
    let model = load(fixtures().join("model")).unwrap().model;
    let expected = Expected::read(&fixtures().join("vectors/shipped/expected.safetensors"));
    let logits_with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| logits_of(model.as_ref(), &expected.tokens, 512))
    };
    let alone = logits_with(1);
    for threads in [2, 5] {
        assert!(logits_with(threads) == alone, "{threads} threads");
    }
}

#[test]
fn gguf_logits_equal_those_of_the_directory_the_file_was_made_from() {
    let directory = vectors().join("gguf");
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 9, "one file for each family and each kind of weights");
    for file in files {
        check_against(&file, &vectors().join(file.file_stem().unwrap()));
        let loaded = load(&file).unwrap();
        assert!(
            loaded.info.unused_tensors.is_empty(),
            "{}: {:?}",
            file.display(),
            loaded.info.unused_tensors
        );
    }
}
