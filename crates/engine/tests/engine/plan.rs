//! The memory plan refuses before allocation, and its advice is exact.

use crate::testing::fixture;
use riffle_engine::{Engine, EngineError, EngineOptions, MemoryPlan};

fn plan(context_tokens: Option<usize>, memory_budget_bytes: Option<u64>) -> MemoryPlan {
    let info = riffle_model::inspect(fixture("model")).unwrap();
    let options = EngineOptions::default()
        .with_context_tokens(context_tokens)
        .with_memory_budget_bytes(memory_budget_bytes);
    riffle_engine::plan(&info, &options).unwrap()
}

#[test]
fn the_largest_context_it_names_fits_and_one_token_more_does_not() {
    let whole = plan(Some(131_072), None);
    let half = Some(whole.total_bytes / 2);
    let tight = plan(Some(131_072), half);
    assert!(whole.fits() && !tight.fits());
    let largest = tight.largest_context_tokens;
    assert!(largest > 0 && largest < tight.context_tokens);
    assert!(plan(Some(largest), half).fits());
    assert!(!plan(Some(largest + 1), half).fits());
}

#[test]
fn what_policies_keep_of_the_sequence_is_planned() {
    let info = riffle_model::inspect(fixture("model")).unwrap();
    let scratch = |decode: &str| {
        let options = EngineOptions::default()
            .with_context_tokens(Some(65_536))
            .with_decode(decode.parse().unwrap());
        riffle_engine::plan(&info, &options).unwrap().scratch_bytes
    };
    let config = &info.config;
    // Smallest and largest value of each channel, for every block of 64 tokens.
    let bounds = config.layers * config.kv_heads * 65_536 / 64 * config.head_dim * 2 * 4;
    assert_eq!(scratch("quest") - scratch("full"), bounds as u64);
}

#[test]
fn without_a_context_it_takes_what_the_model_supports_or_what_fits() {
    let whole = plan(None, None);
    assert_eq!(whole.context_tokens, 131_072);
    let tight = plan(None, Some(whole.total_bytes / 2));
    assert!(tight.fits());
    assert_eq!(tight.context_tokens, tight.largest_context_tokens);
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_what_would() {
    let options = EngineOptions::default()
        .with_memory_budget_bytes(Some(40 << 20))
        .with_context_tokens(Some(131_072));
    let message = match Engine::load(fixture("model"), options) {
        Err(error @ EngineError::OutOfMemory { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it fits"),
    };
    let advised = message
        .split("`context_tokens=")
        .nth(1)
        .and_then(|rest| rest.split('`').next())
        .unwrap();
    let options = EngineOptions::default()
        .with_memory_budget_bytes(Some(40 << 20))
        .with_context_tokens(Some(advised.parse().unwrap()));
    assert!(Engine::load(fixture("model"), options).is_ok(), "{message}");
}
