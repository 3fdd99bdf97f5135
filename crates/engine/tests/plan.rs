//! The memory plan: refused before allocation, exact about what would fit.

mod testing;

use riffle_engine::{Engine, EngineError, EngineOptions};
use testing::fixture;

#[test]
fn the_largest_context_it_names_fits_and_one_page_more_does_not() {
    let info = riffle_model::inspect(fixture("model")).unwrap();
    let plan = |context_tokens, memory_budget_bytes| {
        let options = EngineOptions {
            context_tokens,
            memory_budget_bytes,
            ..Default::default()
        };
        riffle_engine::plan(&info, &options).unwrap()
    };
    let whole = plan(None, None);
    let tight = plan(None, Some(whole.total_bytes / 2));
    assert!(!tight.fits());
    let largest = tight.largest_context_tokens;
    assert!(largest > 0 && largest < tight.context_tokens);
    assert!(plan(Some(largest), Some(whole.total_bytes / 2)).fits());
    assert!(!plan(Some(largest + 1), Some(whole.total_bytes / 2)).fits());
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_what_would() {
    let options = EngineOptions {
        memory_budget_bytes: Some(40 << 20),
        ..Default::default()
    };
    let message = match Engine::load(fixture("model"), options) {
        Err(error @ EngineError::OutOfMemory { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it fits"),
    };
    let advised = message
        .split("--ctx ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .unwrap();
    let options = EngineOptions {
        memory_budget_bytes: Some(40 << 20),
        context_tokens: Some(advised.parse().unwrap()),
        ..Default::default()
    };
    assert!(Engine::load(fixture("model"), options).is_ok(), "{message}");
}
