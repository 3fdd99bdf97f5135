//! Guarantees of a session, for every policy and model.

use std::ops::ControlFlow;

use crate::testing::{go_on, largest_difference, logits_after, prompt, small_engine};
use riffle_engine::{EngineError, EngineOptions, PrefillProgress, Session};

#[test]
fn logits_do_not_depend_on_how_the_prompt_is_cut() {
    let tokens = prompt(200);
    let expected = logits_after(&small_engine(EngineOptions::default()), &tokens);
    for (batch_tokens, chunk_tokens) in [(4096, 1), (4096, 7), (64, 64), (100, 33), (1, 1)] {
        let engine = small_engine(
            EngineOptions::default()
                .with_batch_tokens(batch_tokens)
                .with_chunk_tokens(chunk_tokens),
        );
        let difference = largest_difference(logits_after(&engine, &tokens), &expected);
        assert!(difference <= 1e-5, "-b {batch_tokens} -ub {chunk_tokens}: {difference}");
    }
}

#[test]
fn the_last_token_has_the_same_bits_where_all_tokens_have_logits() {
    let tokens = prompt(200);
    for batch_tokens in [4096, 64] {
        let options = EngineOptions::default()
            .with_batch_tokens(batch_tokens)
            .with_chunk_tokens(32);
        let engine = small_engine(options);
        let (mut session, mut last) = (Session::new(&engine).unwrap(), Vec::new());
        let mut take = |_, logits: &[f32]| {
            last = logits[logits.len() - engine.model().config().vocab_size..].to_vec();
            ControlFlow::Continue(())
        };
        session.prefill_with_logits(&tokens, &mut take).unwrap();
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&logits_after(&engine, &tokens)), bits(&last), "-b {batch_tokens}");
    }
}

#[test]
fn decoding_token_by_token_equals_reading_at_once() {
    let tokens = prompt(90);
    let engine = small_engine(EngineOptions::default());
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&tokens[..40], &mut go_on).unwrap();
    for &token in &tokens[40..] {
        session.advance(token).unwrap();
    }
    assert_eq!(session.tokens(), tokens);
    let difference = largest_difference(session.logits(), logits_after(&engine, &tokens));
    assert!(difference <= 1e-5, "{difference}");
}

#[test]
fn a_truncated_session_continues_as_if_the_rest_had_never_been_read() {
    let tokens = prompt(120);
    let engine = small_engine(EngineOptions::default().with_page_tokens(16));
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&tokens, &mut go_on).unwrap();
    session.truncate(37).unwrap();
    assert_eq!(session.sequence().usage().tokens, 37);
    session.prefill(&tokens[37..80], &mut go_on).unwrap();
    let difference = largest_difference(session.logits(), logits_after(&engine, &tokens[..80]));
    assert!(difference <= 1e-5, "{difference}");
}

#[test]
fn an_interrupted_prefill_keeps_whole_batches_and_can_go_on() {
    let tokens = prompt(150);
    let options = EngineOptions::default().with_batch_tokens(64).with_chunk_tokens(16);
    let engine = small_engine(options);
    let mut session = Session::new(&engine).unwrap();
    let stopped = session.prefill(&tokens, &mut |progress: PrefillProgress| {
        if progress.tokens_done > 80.0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert!(
        matches!(stopped, Err(EngineError::Interrupted { tokens: 64, total: 150 })),
        "{stopped:?}"
    );
    assert_eq!(session.tokens(), &tokens[..64]);
    assert_eq!(session.sequence().usage().tokens, 64);
    session.prefill(&tokens[64..], &mut go_on).unwrap();
    let difference = largest_difference(session.logits(), logits_after(&engine, &tokens));
    assert!(difference <= 1e-5, "{difference}");
}

#[test]
fn progress_grows_to_the_number_of_tokens() {
    let engine = small_engine(EngineOptions::default().with_batch_tokens(50).with_chunk_tokens(20));
    let mut seen = Vec::new();
    let mut session = Session::new(&engine).unwrap();
    session
        .prefill(&prompt(130), &mut |progress: PrefillProgress| {
            assert_eq!(progress.tokens, 130);
            seen.push(progress.tokens_done);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(seen.is_sorted());
    assert!((seen.last().unwrap() - 130.0).abs() < 1e-9);
}

#[test]
fn what_does_not_fit_the_context_is_refused_before_anything_is_read() {
    let engine = small_engine(EngineOptions::default().with_context_tokens(Some(100)));
    let mut session = Session::new(&engine).unwrap();
    let refused = session.prefill(&prompt(101), &mut go_on);
    assert!(
        matches!(
            refused,
            Err(EngineError::ContextExceeded {
                needed: 101,
                context: 100,
                ..
            })
        ),
        "{refused:?}"
    );
    assert_eq!(session.sequence().usage().pages, 0);
    session.prefill(&prompt(100), &mut go_on).unwrap();
    assert!(matches!(
        session.advance(1),
        Err(EngineError::ContextExceeded { needed: 101, .. })
    ));
    assert!(matches!(
        session.prefill(&[], &mut go_on),
        Err(EngineError::EmptyPrompt)
    ));
}

#[test]
fn a_token_the_model_does_not_know_leaves_the_session_as_it_was() {
    let engine = small_engine(EngineOptions::default());
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&prompt(20), &mut go_on).unwrap();
    let before = session.logits().to_vec();
    assert!(session.prefill(&[1, 1_000_000], &mut go_on).is_err());
    assert_eq!(session.tokens(), prompt(20));
    assert_eq!(session.sequence().usage().tokens, 20);
    assert_eq!(session.logits(), before);
}

#[test]
fn pages_follow_the_tokens_that_are_there() {
    let options = EngineOptions::default().with_page_tokens(64);
    let engine = small_engine(options);
    let config = engine.model().config();
    let mut session = Session::new(&engine).unwrap();
    for (tokens, pages) in [(64, 1), (1, 2), (63, 2), (1, 3)] {
        session.prefill(&prompt(tokens), &mut go_on).unwrap();
        assert_eq!(
            session.sequence().usage().pages,
            pages * config.layers * config.kv_heads
        );
    }
}

#[test]
fn a_window_that_covers_everything_equals_full_attention_and_a_small_one_does_not() {
    let tokens = prompt(150);
    let full = logits_after(&small_engine(EngineOptions::default()), &tokens);
    let streaming = |spec: &str| {
        let options = EngineOptions::default().with_prefill(spec.parse().unwrap());
        logits_after(&small_engine(options), &tokens)
    };
    assert!(largest_difference(streaming("streaming:sinks=0,window=150"), &full) <= 1e-5);
    assert!(largest_difference(streaming("streaming:sinks=4,window=16"), &full) > 1e-2);
}

#[test]
fn density_counts_the_pairs_that_were_read() {
    let options = EngineOptions::default().with_prefill("streaming:sinks=4,window=16".parse().unwrap());
    let engine = small_engine(options);
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&prompt(200), &mut go_on).unwrap();
    let read: usize = (0..200usize)
        .map(|query| (0..=query).filter(|&key| key < 4 || query - key < 16).count())
        .sum();
    let causal = 200 * 201 / 2;
    assert!((session.sequence().counts().pairs.density() - read as f64 / causal as f64).abs() < 1e-12);
}
