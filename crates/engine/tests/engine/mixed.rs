//! A model whose layers differ in heads, widths, windows, sinks and shared keys: the guarantees of other models hold.

use std::ops::ControlFlow;
use std::sync::Arc;

use riffle_attention::Format;
use riffle_engine::{
    CompressMethod, CompressOptions, Engine, EngineOptions, RepeatPrompt, Session, fill_prefix, store_prefix,
};
use riffle_kv::{DiskTier, KvTiers, PrefixCache};
use riffle_policy::PolicySpec;
use tempfile::TempDir;

use crate::testing::{bits, go_on, made, prompt, write};

fn options(format: Format) -> EngineOptions {
    EngineOptions::default()
        .with_families(&made::FAMILIES)
        .with_context_tokens(Some(1024))
        .with_batch_tokens(96)
        .with_chunk_tokens(32)
        .with_page_tokens(16)
        .with_key_format(format)
        .with_value_format(format)
}

fn model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    made::write(folder.path());
    folder
}

fn engine(model: &TempDir, options: EngineOptions) -> Arc<Engine> {
    Engine::load(model.path(), options).unwrap()
}

/// Bits of the logits after a prompt in parts and after each token that follows.
fn read(session: &mut Session, tokens: &[u32], written: u32) -> Vec<Vec<u32>> {
    let mut found = Vec::new();
    for part in tokens.chunks(tokens.len().div_ceil(3)) {
        session.prefill(part, &mut go_on).unwrap();
        found.push(bits(session.logits()));
    }
    for token in 0..written {
        session.advance(token).unwrap();
        found.push(bits(session.logits()));
    }
    found
}

/// Options with pages on disk.
fn on_disk(folder: &TempDir, options: EngineOptions) -> EngineOptions {
    let mut tiers = KvTiers::memory(Some(160_000));
    tiers.slots = 2;
    tiers.disk = Some(DiskTier {
        folder: folder.path().to_owned(),
        budget_bytes: None,
    });
    options.with_kv_tiers(tiers)
}

#[test]
fn logits_are_those_of_the_reference_whole_in_parts_and_token_by_token() {
    let model = model();
    let tokens = prompt(250);
    let expected = made::logits(&tokens);
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
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&tokens[..100], &mut go_on).unwrap();
    session.prefill(&tokens[100..200], &mut go_on).unwrap();
    for (row, token) in tokens.iter().enumerate().skip(200) {
        session.advance(*token).unwrap();
        let worst = near(session.logits(), &expected[row]);
        assert!(worst < 1e-3, "token {row}: {worst:e}");
    }
}

#[test]
fn answers_are_the_same_to_the_bit_wherever_pages_lie_and_within_the_plan() {
    let (model, folder) = (model(), tempfile::tempdir().unwrap());
    for (format, prefill, decode) in [
        (Format::F16, "full", "full"),
        (
            Format::Q8_0,
            "xattention:block=32,from=0",
            "quest:block=16,topk=3,from=0",
        ),
        (Format::Q4_0, "full", "streaming:sinks=16,window=64,from=0"),
    ] {
        let options = options(format)
            .with_prefill(prefill.parse::<PolicySpec>().unwrap().into())
            .with_decode(decode.parse::<PolicySpec>().unwrap().into());
        let (resident, offloaded) = (
            engine(&model, options.clone()),
            engine(&model, on_disk(&folder, options)),
        );
        let (mut here, mut there) = (Session::new(&resident).unwrap(), Session::new(&offloaded).unwrap());
        let tokens = prompt(700);
        assert!(
            read(&mut here, &tokens, 20) == read(&mut there, &tokens, 20),
            "{prefill} {decode}"
        );
        assert!(there.sequence().usage().bytes_by_tier.disk > 0);
        assert!(here.sequence().usage().bytes_by_tier.total() <= resident.plan().kv_bytes);
    }
}

#[test]
fn a_session_in_a_file_a_fork_and_a_shorter_text_go_on_to_the_bit() {
    let (model, folder) = (model(), tempfile::tempdir().unwrap());
    let engine = engine(&model, options(Format::F16));
    let tokens = prompt(300);
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&tokens, &mut go_on).unwrap();
    let path = folder.path().join("made.session");
    session.sequence().save(&path).unwrap();
    let mut restored = Session::restore(&engine, &path).unwrap();
    let mut fork = session.fork().unwrap();
    let expected = write(&mut session, 0..10);
    assert!(write(&mut restored, 0..10) == expected && write(&mut fork, 0..10) == expected);
    // Layers with a window keep enough earlier tokens for a short truncation.
    fork.truncate(290).unwrap();
    let mut short = Session::new(&engine).unwrap();
    short.prefill(&tokens[..290], &mut go_on).unwrap();
    assert!(write(&mut fork, 0..10) == write(&mut short, 0..10));
}

#[test]
fn beginnings_are_found_again_in_memory_and_on_disk() {
    let model = model();
    for format in [Format::F16, Format::Q8_0, Format::Q4_0] {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(&model, options(format).with_keeps_beginnings(true));
        let tokens = prompt(300);
        let cache = PrefixCache::open(folder.path(), u64::MAX).unwrap();
        let mut session = Session::new(&engine).unwrap();
        session.prefill(&tokens, &mut go_on).unwrap();
        assert_eq!(store_prefix(session.sequence(), &cache).unwrap().0, 300);
        let mut filled = Session::new(&engine).unwrap();
        fill_prefix(filled.sequence_mut(), &cache, &tokens).unwrap();
        assert_eq!(filled.sequence().tokens().len(), 299);
        filled.prefill(&tokens[299..], &mut go_on).unwrap();
        assert!(write(&mut filled, 0..10) == write(&mut session, 0..10), "{format:?}");
    }
}

#[test]
fn every_method_makes_a_session_smaller_that_goes_on() {
    let model = model();
    // A second sequence reads parts of the text again.
    let options = options(Format::F32).with_sequences(2);
    let scoring = engine(&model, options.clone().with_score_pairs(true));
    let engine = engine(&model, options);
    let kvzip = {
        let words = RepeatPrompt {
            first: vec![1, 2, 3],
            later: vec![4, 5],
            behind: vec![6],
        };
        CompressMethod::KvZip {
            chunk_tokens: 64,
            prompt: Some(words),
        }
    };
    let runs = [
        (&engine, CompressMethod::EXPECTED),
        (&engine, kvzip),
        (&engine, CompressMethod::ECHO),
        (&scoring, CompressMethod::ECHO),
    ];
    for (engine, method) in runs {
        let mut session = Session::new(engine).unwrap();
        session.prefill(&prompt(400), &mut go_on).unwrap();
        let found = session
            .compress(&CompressOptions::new(method, 0.5), &mut go_on)
            .unwrap();
        // The three layers without a window and with their own keys have 5 KV heads.
        assert_eq!((found.pairs_before, found.pairs), (5 * 400, 5 * 200));
        session.advance(1).unwrap();
        assert!(session.logits().iter().all(|logit| logit.is_finite()));
    }
}
