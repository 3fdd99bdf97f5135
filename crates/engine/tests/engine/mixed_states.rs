//! A model with every kind of recurrent state, one of them beside attention: states move with tokens and pages.

use std::ops::ControlFlow;
use std::sync::Arc;

use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, Session, fill_prefix, prefix_cuts, store_prefix};
use riffle_kv::{DiskTier, KvTiers, PrefixCache};
use tempfile::TempDir;

#[cfg(unix)]
use crate::testing::device;
use crate::testing::{bits, go_on, made, prompt, read, write};

fn options(format: Format) -> EngineOptions {
    EngineOptions::default()
        .with_families(&made::FAMILIES)
        .with_context_tokens(Some(512))
        .with_batch_tokens(128)
        .with_chunk_tokens(32)
        .with_page_tokens(16)
        .with_key_format(format)
        .with_value_format(format)
}

fn model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    made::write_with_states(folder.path());
    folder
}

fn engine(model: &TempDir, options: EngineOptions) -> Arc<Engine> {
    Engine::load(model.path(), options).unwrap()
}

#[test]
fn logits_are_those_of_the_reference_whole_in_parts_and_token_by_token() {
    let model = model();
    let tokens = prompt(250);
    let expected = made::logits_with_states(&tokens);
    let engine = engine(&model, options(Format::F32));
    let (mut found, all) = (Vec::new(), 0..tokens.len());
    Session::new(&engine)
        .unwrap()
        .prefill_with_logits_at(&tokens, std::slice::from_ref(&all), &mut go_on, &mut |_, logits| {
            found.extend(logits);
            ControlFlow::Continue(())
        })
        .unwrap();
    let near = |found: &[f32], expected: &[f64]| {
        let worst = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs());
        worst.fold(0.0, f64::max)
    };
    for (row, expected) in expected.iter().enumerate() {
        let worst = near(&found[row * expected.len()..][..expected.len()], expected);
        assert!(worst < 2e-4, "token {row}: {worst:e}");
    }
    let mut session = read(&engine, &tokens[..200]);
    for (row, token) in tokens.iter().enumerate().skip(200) {
        session.advance(*token).unwrap();
        let worst = near(session.logits(), &expected[row]);
        assert!(worst < 1e-3, "token {row}: {worst:e}");
    }
}

#[test]
fn the_plan_counts_states_of_every_kind_beside_pages() {
    let model = model();
    let engine = engine(&model, options(Format::F16));
    let (config, plan) = (engine.model().config(), engine.plan());
    let kinds: Vec<&str> = config.state_layers().map(|(_, shape)| shape.kind()).collect();
    assert_eq!(kinds, ["Gated DeltaNet", "short convolution", "Mamba2"]);
    // The count of tokens read, inputs of the convolution, and 64 values for each row of a head's memory.
    let bytes = |tail: usize, rows: usize| (8 + 4 * (tail + 64 * rows)) as u64;
    let expected = bytes(3 * (2 * 8 + 24), 2 * 8) + bytes(2 * 40, 0) + bytes(3 * (40 + 2 * 12), 4 * 6);
    assert_eq!(config.recurrent_bytes(), expected);
    assert_eq!(plan.recurrent_bytes, 4 * expected + config.recorded_bytes());
    let session = read(&engine, &prompt(300));
    assert!(session.sequence().usage().bytes_by_tier.total() <= plan.kv_bytes);
}

#[cfg(unix)]
#[test]
fn a_device_refuses_states_that_it_does_not_compute() {
    let model = model();
    let gpu = device::gpu(riffle_cuda::EmulatedOptions::default());
    let options = options(Format::F16).with_page_tokens(64);
    let options = options.with_device(Some(Arc::new(gpu)));
    let refused = Engine::load(model.path(), options).err().unwrap().to_string();
    assert!(
        refused.contains("Gated DeltaNet") && refused.contains("device=cpu"),
        "{refused}"
    );
}

#[test]
fn a_session_in_a_file_a_fork_and_pages_on_disk_go_on_to_the_bit() {
    let (model, folder) = (model(), tempfile::tempdir().unwrap());
    let mut tiers = KvTiers::memory(Some(60_000));
    tiers.slots = 2;
    tiers.disk = Some(DiskTier {
        folder: folder.path().to_owned(),
        budget_bytes: None,
    });
    let here = engine(&model, options(Format::Q8_0));
    let there = engine(&model, options(Format::Q8_0).with_kv_tiers(tiers));
    let tokens = prompt(300);
    let (mut session, mut far) = (read(&here, &tokens), read(&there, &tokens));
    assert!(far.sequence().usage().bytes_by_tier.disk > 0);
    let path = folder.path().join("made.session");
    session.sequence().save(&path).unwrap();
    let mut restored = Session::restore(&here, &path).unwrap();
    let mut fork = session.fork().unwrap();
    let expected = write(&mut session, 0..10);
    assert!(
        write(&mut restored, 0..10) == expected
            && write(&mut fork, 0..10) == expected
            && write(&mut far, 0..10) == expected
    );
}

#[test]
fn going_back_gives_the_bits_from_before() {
    let model = model();
    let engine = engine(&model, options(Format::F16));
    let tokens = prompt(330);
    let mut session = read(&engine, &tokens[..192]);
    session.prefill(&tokens[192..], &mut go_on).unwrap();
    let before = bits(session.logits());
    // Some drafts are refused. The rollback replays the inputs of the accepted ones.
    let checkpoint = session.sequence_mut().checkpoint().unwrap();
    let steps = write(&mut session, 0..10);
    let missing = session.sequence_mut().roll_back(&checkpoint, 4).unwrap();
    assert!(missing.is_empty());
    for (token, expected) in (4..10).zip(&steps[4..]) {
        session.advance(token).unwrap();
        assert!(bits(session.logits()) == *expected, "token {token}");
    }
    // Truncates to before the latest prompt, where the state is known, and to a place without a known state.
    for kept in [192, 100] {
        session.truncate(kept).unwrap();
        session.prefill(&tokens[kept..], &mut go_on).unwrap();
        if kept == 192 {
            assert!(bits(session.logits()) == before);
        }
    }
    let whole = read(&engine, &tokens);
    let differences = session.logits().iter().zip(whole.logits()).map(|(a, b)| (a - b).abs());
    assert!(differences.fold(0.0, f32::max) < 1e-2);
}

#[test]
fn beginnings_are_found_again_with_their_states() {
    let (model, folder) = (model(), tempfile::tempdir().unwrap());
    let engine = engine(&model, options(Format::F16).with_keeps_beginnings(true));
    let tokens = prompt(300);
    let cache = PrefixCache::open(folder.path(), u64::MAX).unwrap();
    let mut session = Session::new(&engine).unwrap();
    let cuts = prefix_cuts(session.sequence(), tokens.len());
    for end in cuts.into_iter().chain([tokens.len()]) {
        let first = session.tokens().len();
        session.prefill(&tokens[first..end], &mut go_on).unwrap();
        store_prefix(session.sequence(), &cache).unwrap();
    }
    let mut filled = Session::new(&engine).unwrap();
    fill_prefix(filled.sequence_mut(), &cache, &tokens).unwrap();
    let found = filled.tokens().len();
    assert!(found >= 192, "{found}");
    filled.prefill(&tokens[found..], &mut go_on).unwrap();
    assert!(bits(filled.logits()) == bits(session.logits()) && write(&mut filled, 0..10) == write(&mut session, 0..10));
}
