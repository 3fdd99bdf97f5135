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
fn random_llama_logits_equal_the_reference_for_every_batch_size() {
    let cases = cases(&fixtures().join("vectors"), "");
    assert!(!cases.is_empty(), "no vectors among the fixtures");
    cases.iter().for_each(|case| check(case));
}

#[test]
fn shipped_model_logits_equal_the_reference_for_every_batch_size() {
    check_against(&fixtures().join("model"), &fixtures().join("vectors/shipped"));
}
