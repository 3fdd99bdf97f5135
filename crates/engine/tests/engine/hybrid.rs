//! Sessions of models with recurrent layers: state moves with tokens and pages.

use std::ops::ControlFlow;
use std::time::Instant;

use crate::testing::{go_on, hybrid_engine, hybrid_prompt, largest_difference, logits_after};
use riffle_engine::{
    Engine, EngineError, EngineOptions, PrefillProgress, Session, fill_prefix, prefix_cuts, share_prefix, store_prefix,
};
use riffle_kv::PrefixCache;

/// Largest difference between two ways to cut a text. Logits reach 5.
const ROUNDING: f32 = 5e-5;

fn batches(batch_tokens: usize, chunk_tokens: usize) -> EngineOptions {
    EngineOptions::default()
        .with_batch_tokens(batch_tokens)
        .with_chunk_tokens(chunk_tokens)
}

#[track_caller]
fn same(session: &Session, expected: &[f32]) {
    let difference = largest_difference(session.logits(), expected);
    assert!(difference <= ROUNDING, "{difference}");
}

#[test]
fn logits_do_not_depend_on_how_the_prompt_is_cut() {
    let tokens = hybrid_prompt(300);
    let expected = logits_after(&hybrid_engine(EngineOptions::default()), &tokens);
    for (batch_tokens, chunk_tokens) in [(4096, 7), (64, 64), (128, 33), (100, 33), (1, 1)] {
        let engine = hybrid_engine(batches(batch_tokens, chunk_tokens));
        let mut session = Session::new(&engine).unwrap();
        session.prefill(&tokens, &mut go_on).unwrap();
        same(&session, &expected);
    }
}

#[test]
fn pages_are_held_for_attention_layers_alone_and_the_plan_counts_the_state() {
    let engine = hybrid_engine(EngineOptions::default());
    let (config, plan) = (engine.model().config(), engine.plan());
    assert_eq!((config.layers, config.attention_layers()), (4, 1));
    assert_eq!(
        plan.kv_bytes_per_token,
        2 * 4 * (config.kv_heads * config.head_dim) as u64
    );
    assert_eq!(
        plan.recurrent_bytes,
        4 * config.recurrent_bytes() + config.recorded_bytes()
    );
    assert_eq!(
        plan.total_bytes,
        plan.weights_bytes + plan.kv_bytes + plan.recurrent_bytes + plan.scratch_bytes + plan.process.total_bytes()
    );
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&hybrid_prompt(40), &mut go_on).unwrap();
    assert_eq!(session.sequence().usage().pages, config.kv_heads);
}

#[test]
fn a_truncated_session_continues_as_if_the_rest_had_never_been_read() {
    let tokens = hybrid_prompt(400);
    let engine = hybrid_engine(batches(128, 64));
    // Lengths within and at the end of the first prompt, within the answer, and before, within and at the end of the
    // second prompt.
    for kept in [0, 90, 128, 200, 207, 210, 300, 330] {
        let mut session = Session::new(&engine).unwrap();
        session.prefill(&tokens[..200], &mut go_on).unwrap();
        for &token in &tokens[200..210] {
            session.advance(token).unwrap();
        }
        session.prefill(&tokens[210..330], &mut go_on).unwrap();
        session.truncate(kept).unwrap();
        assert_eq!(
            (session.tokens(), session.sequence().usage().tokens),
            (&tokens[..kept], kept)
        );
        // Reads other tokens at the same positions and truncates again: no copy of forgotten tokens may be used.
        let other: Vec<u32> = tokens[..150].iter().map(|token| 30 - token).collect();
        session.prefill(&other, &mut go_on).unwrap();
        session.truncate(kept + 20).unwrap();
        session.prefill(&tokens[350..], &mut go_on).unwrap();
        let expected = [&tokens[..kept], &other[..20], &tokens[350..]].concat();
        assert_eq!(session.tokens(), expected);
        same(&session, &logits_after(&engine, &expected));
    }
}

#[test]
fn going_back_to_before_a_prompt_gives_the_bits_from_before() {
    let tokens = hybrid_prompt(300);
    let engine = hybrid_engine(batches(64, 64));
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&tokens[..101], &mut go_on).unwrap();
    session.advance(tokens[101]).unwrap();
    session.prefill(&tokens[102..], &mut go_on).unwrap();
    let expected = session.logits().to_vec();
    session.truncate(102).unwrap();
    session.prefill(&tokens[102..], &mut go_on).unwrap();
    assert_eq!(session.logits(), expected);
}

#[test]
fn an_interrupted_prefill_keeps_whole_batches_and_can_go_on() {
    let tokens = hybrid_prompt(200);
    let engine = hybrid_engine(batches(64, 16));
    let whole = logits_after(&engine, &tokens);
    // Stops between layers of every kind. A batch of 64 tokens passes the layers in chunks of 16.
    for stop_after in [0.0, 70.0, 85.0, 101.0, 113.0, 127.0] {
        let mut session = Session::new(&engine).unwrap();
        let stopped = session.prefill(&tokens, &mut |progress: PrefillProgress| {
            if progress.tokens_done > stop_after {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        let kept = if stop_after < 64.0 { 0 } else { 64 };
        assert!(
            matches!(stopped, Err(EngineError::Interrupted { tokens, total: 200 }) if tokens == kept),
            "{stopped:?}"
        );
        assert_eq!(
            (session.tokens(), session.sequence().usage().tokens),
            (&tokens[..kept], kept)
        );
        session.prefill(&tokens[kept..], &mut go_on).unwrap();
        assert_eq!(session.logits(), whole);
    }
}

#[test]
fn a_token_the_model_does_not_know_leaves_the_session_as_it_was() {
    let engine = hybrid_engine(EngineOptions::default());
    let tokens = hybrid_prompt(60);
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&tokens[..20], &mut go_on).unwrap();
    session.advance(tokens[20]).unwrap();
    assert!(session.advance(1_000_000).is_err());
    assert!(session.prefill(&[1, 1_000_000], &mut go_on).is_err());
    assert_eq!(
        (session.tokens(), session.sequence().usage().tokens),
        (&tokens[..21], 21)
    );
    session.prefill(&tokens[21..], &mut go_on).unwrap();
    same(&session, &logits_after(&engine, &tokens));
}

#[test]
fn a_restored_session_goes_on_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let tokens = hybrid_prompt(200);
    let engine = hybrid_engine(EngineOptions::default());
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&tokens[..150], &mut go_on).unwrap();
    session.sequence().save(&path).unwrap();
    let mut restored = Session::restore(&engine, &path).unwrap();
    for session in [&mut session, &mut restored] {
        session.advance(tokens[150]).unwrap();
        session.prefill(&tokens[151..], &mut go_on).unwrap();
    }
    assert_eq!(session.logits(), restored.logits());
    restored.truncate(120).unwrap();
    restored.prefill(&tokens[120..], &mut go_on).unwrap();
    same(&restored, session.logits());
}

#[test]
fn a_prefix_cache_keeps_states_with_the_pages() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PrefixCache::open(folder.path(), u64::MAX).unwrap();
    let engine = hybrid_engine(batches(128, 64).with_page_tokens(32));
    let tokens = hybrid_prompt(300);
    let mut session = Session::new(&engine).unwrap();
    let cuts = prefix_cuts(session.sequence(), tokens.len());
    assert_eq!(cuts, [64, 192, 256]);
    for end in cuts.into_iter().chain([300]) {
        session
            .prefill(&tokens[session.tokens().len()..end], &mut go_on)
            .unwrap();
        store_prefix(session.sequence(), &cache).unwrap();
    }
    // A cut there gives the bits of the whole text.
    assert_eq!(session.logits(), logits_after(&engine, &tokens));
    for (shared, expected) in [(300, 256), (256, 256), (250, 192), (130, 64), (40, 0)] {
        let other = [&tokens[..shared], &[3, 1, 4, 1, 5]].concat();
        let mut found = Session::new(&engine).unwrap();
        assert_eq!(fill_prefix(found.sequence_mut(), &cache, &other).unwrap(), 0);
        assert_eq!(found.tokens().len(), expected, "{shared} shared");
        found.prefill(&other[expected..], &mut go_on).unwrap();
        assert_eq!(found.logits(), logits_after(&engine, &other), "{shared} shared");
    }
    // A changed state or page is never used.
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "block") {
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let mut found = Session::new(&engine).unwrap();
    assert!(fill_prefix(found.sequence_mut(), &cache, &tokens).unwrap() > 0);
    assert_eq!(found.tokens().len(), 0);
    found.prefill(&tokens, &mut go_on).unwrap();
    assert_eq!(found.logits(), session.logits());
}

#[test]
fn pages_alone_are_not_shared_in_memory() {
    let mut session = Session::new(&hybrid_engine(EngineOptions::default())).unwrap();
    session.prefill(&hybrid_prompt(100), &mut go_on).unwrap();
    let refused = share_prefix(session.sequence_mut());
    assert!(matches!(refused, Err(EngineError::PrefixRecurrent)), "{refused:?}");
}

#[test]
fn a_state_that_does_not_fit_is_refused_by_name() {
    let path = engine_path();
    let refused = Engine::load(
        path,
        EngineOptions::default()
            .with_memory_budget_bytes(Some(1 << 16))
            .with_context_tokens(Some(64)),
    );
    let message = refused.err().expect("too little memory").to_string();
    assert!(message.contains("recurrent state"), "{message}");
}

fn engine_path() -> std::path::PathBuf {
    hybrid_engine(EngineOptions::default()).path().to_owned()
}

/// Prints seconds. Run it alone: `cargo test --release -p riffle-engine --test engine hybrid:: -- --ignored
/// --nocapture`.
#[test]
#[ignore = "reads a hundred thousand tokens"]
fn restoring_a_hundred_thousand_tokens_takes_the_time_of_reading_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(engine_path().join(name), model.join(name)).unwrap();
    }
    let config = std::fs::read_to_string(model.join("config.json")).unwrap();
    let longer = config.replace(
        "\"max_position_embeddings\": 1024",
        "\"max_position_embeddings\": 131072",
    );
    assert_ne!(longer, config);
    std::fs::write(model.join("config.json"), longer).unwrap();
    let engine = Engine::load(&model, EngineOptions::default()).unwrap();
    let path = folder.path().join("session");
    let mut session = Session::new(&engine).unwrap();
    let start = Instant::now();
    session.prefill(&hybrid_prompt(100_000), &mut go_on).unwrap();
    let prefill_s = start.elapsed().as_secs_f64();
    engine.fingerprint().unwrap();
    session.sequence().save(&path).unwrap();
    let start = Instant::now();
    let mut restored = Session::restore(&engine, &path).unwrap();
    let restore_s = start.elapsed().as_secs_f64();
    println!(
        "prefill {prefill_s:.2} s, restore {restore_s:.3} s: {:.2}%",
        100.0 * restore_s / prefill_s
    );
    session.advance(3).unwrap();
    restored.advance(3).unwrap();
    assert_eq!(restored.logits(), session.logits());
}
