//! Rounded prompt attention: it is close to exact attention, does not depend on cuts, and an audit sees it.

use std::sync::Arc;

use crate::testing::{fixture, go_on, largest_difference, prompt};
use riffle_attention::Format;
use riffle_engine::{AttentionPrecision, Engine, EngineOptions, Session};

fn engine(attention: AttentionPrecision, change: impl FnOnce(&mut EngineOptions)) -> Arc<Engine> {
    let mut options = EngineOptions::default()
        .with_context_tokens(Some(2048))
        .with_page_tokens(32)
        .with_batch_tokens(192)
        .with_chunk_tokens(48)
        .with_attention(attention);
    change(&mut options);
    Engine::load(fixture("model"), options).expect("the shipped model")
}

/// Logits after a prompt and three more tokens.
fn logits(engine: &Arc<Engine>) -> [Vec<f32>; 2] {
    let mut session = Session::new(engine).unwrap();
    session.prefill(&prompt(700), &mut go_on).unwrap();
    let first = session.logits().to_vec();
    for token in [5, 7, 11] {
        session.advance(token).unwrap();
    }
    [first, session.logits().to_vec()]
}

#[test]
fn rounded_prompts_are_near_exact_ones_and_do_not_depend_on_how_they_are_cut() {
    for format in [Format::F16, Format::Q8_0] {
        let formats =
            |options: &mut EngineOptions| (options.cache.key_format, options.cache.value_format) = (format, format);
        let exact = logits(&engine(AttentionPrecision::Exact, formats));
        let rounded = logits(&engine(AttentionPrecision::Rounded, formats));
        for (exact, rounded) in exact.iter().zip(&rounded) {
            let difference = largest_difference(exact, rounded);
            assert!(difference > 0.0 && difference < 0.05, "{format:?}: {difference}");
        }
        let cut = engine(AttentionPrecision::Rounded, |options| {
            formats(options);
            (options.machine.batch_tokens, options.machine.chunk_tokens) = (500, 77);
        });
        assert_eq!(logits(&cut), rounded, "{format:?}");
    }
}

#[test]
fn an_audit_compares_rounded_attention_with_exact_attention() {
    let errors = AttentionPrecision::ALL.map(|attention| {
        let engine = engine(attention, |options| options.sequence.audit = true);
        let mut session = Session::new(&engine).unwrap();
        session.prefill(&prompt(700), &mut go_on).unwrap();
        session.sequence().audit().expect("an audit").mean_output_error
    });
    assert!(errors[0] < 1e-6, "{errors:?}");
    assert!(errors[1] > 1e-5 && errors[1] < 3e-3, "{errors:?}");
}

#[test]
fn layers_of_a_loaded_model_are_read_with_either_precision() {
    let exact = engine(AttentionPrecision::Exact, |_| ());
    let rounded = exact
        .with_options(exact.options().clone().with_attention(AttentionPrecision::Rounded))
        .unwrap();
    assert_eq!(logits(&rounded), logits(&engine(AttentionPrecision::Rounded, |_| ())));
}
