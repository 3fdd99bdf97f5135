//! Drafts by the model's layer for further tokens: gain, memory and refusals. `draft.rs` compares every byte.

use std::ops::ControlFlow;
use std::sync::Arc;

use riffle_engine::{Engine, EngineError, EngineOptions, GenerateOptions, Generation, Session};

use crate::testing::{fixture, go_on, hybrid_with_predictor};

fn predicting(context_tokens: usize) -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(context_tokens))
        .with_draft_predictor(true)
}

/// Options of a greedy answer of this length.
fn wish(max_tokens: usize, draft: &str) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ignores_end: true,
        draft: draft.parse().unwrap(),
        ..GenerateOptions::default()
    }
}

fn generate(session: &mut Session, options: &GenerateOptions) -> Result<Generation, EngineError> {
    session.generate(options, &mut |_| ControlFlow::Continue(()))
}

/// Greedy answers of 200 tokens to a text of the hybrid model with its predictor, under each of `drafts`.
fn predicted_answers(engine: &Arc<Engine>, drafts: &[&str]) -> Vec<Generation> {
    let text = "And it came to pass in those days, that he went out into the gate, and said unto them, The number of the gate is";
    let prompt = engine.tokenizer().unwrap().encode(text, true).unwrap();
    let answers = drafts.iter().map(|draft| {
        let mut session = Session::new(engine).unwrap();
        session.prefill(&prompt, &mut go_on).unwrap();
        generate(&mut session, &wish(200, draft)).unwrap()
    });
    answers.collect()
}

#[test]
fn the_layer_for_further_tokens_drafts_tokens_that_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::load(hybrid_with_predictor(folder.path()), predicting(512)).unwrap();
    let answers = predicted_answers(&engine, &["none", "mtp@1", "mtp@4", "mtp"]);
    let [plain, drafted @ ..] = &answers[..] else {
        unreachable!("four answers")
    };
    for found in drafted {
        println!("{:?}", found.drafts);
        assert_eq!(found.tokens, plain.tokens);
    }
    let [one, four, _] = [0, 1, 2].map(|place| drafted[place].drafts);
    // The layer is trained to be right about half of the time. The second token of a draft is right less often.
    assert!(one.accepted * 10 > one.drafted * 3, "{one:?}");
    assert!(four.accepted > one.accepted, "{four:?}");
}

#[test]
fn the_layer_for_further_tokens_is_planned_and_refused_where_it_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = hybrid_with_predictor(folder.path());
    let engine = Engine::load(&path, predicting(512)).unwrap();
    let plain = predicting(512).with_draft_predictor(false);
    let without = Engine::load(&path, plain.clone()).unwrap();
    let (config, [with, plan]) = (engine.model().config(), [engine.plan(), without.plan()]);
    let info = riffle_model::inspect_with(&path, &predicting(512).model.load_options()).unwrap();
    assert_eq!(with.weights_bytes, plan.weights_bytes + info.config.predictor_bytes);
    // At least the f16 rows of the context.
    let rows = (2 * 2 * config.kv_width() * 512) as u64;
    assert!(with.scratch_bytes >= plan.scratch_bytes + rows);
    let budget = predicting(512).with_memory_budget_bytes(Some(plan.total_bytes));
    assert!(matches!(
        Engine::load(&path, budget),
        Err(EngineError::OutOfMemory { .. })
    ));

    let said = |error: EngineError, words: &[&str]| {
        let error = error.to_string();
        for word in [&["`draft", "mtp"], words].concat() {
            assert!(error.contains(word), "{word:?} is not in: {error}");
        }
        assert!(!error.contains('\n'), "{error}");
    };
    let error = Engine::load(fixture("model-hybrid"), predicting(512)).err().unwrap();
    said(
        error,
        &["model-hybrid", "no layer", "`draft=ngram`, sparse or model:PATH"],
    );
    said(without.with_options(predicting(512)).err().unwrap(), &["load it anew"]);
    let mut session = Session::new(&without).unwrap();
    session.prefill(&[5, 6, 7], &mut go_on).unwrap();
    said(
        generate(&mut session, &wish(10, "ngram+mtp")).unwrap_err(),
        &["was not loaded"],
    );
    // With these options the loaded layer stays unused.
    let unused = engine.with_options(plain).unwrap();
    assert_eq!(
        predicted_answers(&unused, &["auto"])[0].tokens,
        predicted_answers(&engine, &["auto"])[0].tokens
    );
}

#[test]
fn a_restored_session_drafts_with_the_layer_again() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::load(hybrid_with_predictor(folder.path()), predicting(512)).unwrap();
    let prompt = engine
        .tokenizer()
        .unwrap()
        .encode("In the beginning was the word.", true)
        .unwrap();
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&prompt, &mut go_on).unwrap();
    let options = wish(60, "mtp@2");
    generate(&mut session, &options).unwrap();
    let path = folder.path().join("session");
    session.sequence().save(&path).unwrap();
    let mut restored = Session::restore(&engine, &path).unwrap();
    let [expected, found] = [&mut session, &mut restored].map(|session| generate(session, &options).unwrap());
    assert_eq!(found.tokens, expected.tokens);
    assert!(found.drafts.accepted > 0, "{:?}", found.drafts);
}
