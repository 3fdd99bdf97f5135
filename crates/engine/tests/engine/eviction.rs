//! Memory of tokens evicted by `h2o` and `snapkv` is freed by head, and the answer does not change.

use std::sync::Arc;

use crate::testing::{fixture, go_on, largest_difference, prompt};
use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, Session};
use riffle_kv::{DiskTier, KvTiers};

fn options(decode: &str, page_tokens: usize) -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(512))
        .with_batch_tokens(128)
        .with_chunk_tokens(64)
        .with_page_tokens(page_tokens)
        .with_key_format(Format::F32)
        .with_value_format(Format::F32)
        .with_decode(decode.parse().unwrap())
}

fn load(options: EngineOptions) -> Arc<Engine> {
    Engine::load(fixture("vectors/group2-dim64-linear-bf16"), options).unwrap()
}

/// Logits after a prompt and after each of `answer` tokens, and the pages held at the end.
fn run(engine: &Arc<Engine>, answer: u32) -> (Vec<Vec<f32>>, usize) {
    let mut session = Session::new(engine).unwrap();
    session.prefill(&prompt(400), &mut go_on).unwrap();
    let mut logits = vec![session.logits().to_vec()];
    for token in 0..answer {
        session.advance(token % 61).unwrap();
        logits.push(session.logits().to_vec());
    }
    (logits, session.sequence().usage().pages)
}

#[test]
fn pages_that_no_head_reads_any_more_are_freed_and_the_answer_stays() {
    for decode in ["h2o:budget=100,recent=32,observed=16", "snapkv:budget=100,window=16"] {
        // A page larger than the sequence never becomes empty, so no token moves.
        let (expected, pages) = run(&load(options(decode, 512)), 80);
        let one_each = pages;
        for page_tokens in [16, 64] {
            let (found, pages) = run(&load(options(decode, page_tokens)), 80);
            let whole = one_each * 480usize.div_ceil(page_tokens);
            assert!(pages < whole / 2, "{decode} {page_tokens}: {pages} of {whole}");
            for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let difference = largest_difference(found, expected);
                assert!(difference < 2e-4, "{decode} {page_tokens}, step {step}: {difference}");
            }
        }
    }
}

#[test]
fn eviction_gives_the_same_bits_wherever_pages_lie_and_after_a_session_was_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    for decode in ["h2o:budget=100,recent=32,observed=16", "snapkv:budget=100,window=16"] {
        let plain = options(decode, 32);
        let (expected, _) = run(&load(plain.clone()), 60);
        let mut far = plain.clone();
        far.cache.kv_tiers = KvTiers {
            disk: Some(DiskTier {
                folder: folder.path().to_owned(),
                budget_bytes: None,
            }),
            slots: 2,
            ram_budget_bytes: Some(0),
            ..far.cache.kv_tiers
        };
        let info = riffle_model::inspect(fixture("vectors/group2-dim64-linear-bf16")).unwrap();
        let least = riffle_engine::plan(&info, &far).unwrap().kv_tiers.least_near_bytes;
        far.cache.kv_tiers.ram_budget_bytes = Some(least);
        let (found, _) = run(&load(far), 60);
        assert!(found == expected, "{decode}");

        let engine = load(plain);
        let mut session = Session::new(&engine).unwrap();
        session.prefill(&prompt(400), &mut go_on).unwrap();
        for token in 0..30 {
            session.advance(token).unwrap();
        }
        session.sequence().save(&path).unwrap();
        let mut restored = Session::restore(&engine, &path).unwrap();
        assert_eq!(restored.sequence().usage().pages, session.sequence().usage().pages);
        for token in 30..60 {
            restored.advance(token).unwrap();
            assert!(restored.logits() == expected[token as usize + 1], "{decode} {token}");
        }
    }
}

#[test]
fn a_session_goes_on_after_an_eviction_and_goes_back_before_it_by_reading_again() {
    let engine = load(options("snapkv:budget=100,window=16", 32));
    let fresh = |parts: &[&[u32]]| {
        let mut session = Session::new(&engine).unwrap();
        for part in parts {
            session.prefill(part, &mut go_on).unwrap();
        }
        session
    };
    let mut session = fresh(&[&prompt(350)]);
    for token in 0..5 {
        session.advance(token).unwrap();
    }
    let held = session.sequence().usage().pages;
    // A second prompt reads the remaining tokens under every prefill policy.
    session.prefill(&prompt(90), &mut go_on).unwrap();
    assert_eq!(session.tokens().len(), 445);
    assert!(session.sequence().usage().pages < held + 4 * 90usize.div_ceil(32) + 4 * 4);
    session.advance(1).unwrap();
    // Truncation within later tokens loses nothing.
    session.truncate(370).unwrap();
    session.prefill(&prompt(3), &mut go_on).unwrap();
    // A truncation before the first eviction loses everything, because evicted tokens cannot be read again.
    session.truncate(300).unwrap();
    assert_eq!(session.tokens().len(), 0);
    session.prefill(&prompt(350), &mut go_on).unwrap();
    assert_eq!(session.logits(), fresh(&[&prompt(350)]).logits());
}

#[test]
fn policies_of_the_prompt_read_what_an_eviction_has_left() {
    for prefill in [
        "streaming:sinks=4,window=40",
        "vertical-slash:from=0,budget=0.3,sinks=4,recent=16,last=16",
        "flex:from=0,min_budget=32,block=16",
        "xattention:from=0,block=16,stride=4,tail=16",
        "h2o-chunk:from=0,local=4,heavy=8",
        "log-stride:window=16,landmarks=1,block=24",
        "tri-shape:sinks=8,window=40,tail=16",
        "blasst:factor=4,block=16",
    ] {
        let run = |page_tokens: usize| {
            let mut options = options("h2o:budget=100,recent=32,observed=16", page_tokens);
            options.sequence.prefill = prefill.parse().unwrap();
            let engine = load(options);
            let mut session = Session::new(&engine).unwrap();
            session.prefill(&prompt(250), &mut go_on).unwrap();
            for token in 0..40 {
                session.advance(token).unwrap();
            }
            session.prefill(&prompt(150), &mut go_on).unwrap();
            session.advance(7).unwrap();
            assert!(session.logits().iter().all(|logit| logit.is_finite()));
            session.sequence().usage().pages
        };
        assert!(run(16) > 0, "{prefill}");
    }
}
