//! A tiny Gemma 4: layers of two widths, layers with other layers' keys, and a per-layer input by token.

use std::path::PathBuf;
use std::sync::Arc;

use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, Session, fill_prefix, store_prefix};
use riffle_kv::{DiskTier, KvTiers, PrefixCache};

use crate::testing::{bits, go_on, write};

fn engine(options: EngineOptions) -> Arc<Engine> {
    let model = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors/dense/gemma4_text");
    Engine::load(&model, options).unwrap()
}

fn options() -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(480))
        .with_batch_tokens(96)
        .with_chunk_tokens(32)
        .with_page_tokens(16)
        .with_key_format(Format::F16)
        .with_value_format(Format::F16)
}

fn prompt(length: usize) -> Vec<u32> {
    (0..length).map(|i| ((i * 17 + i / 7) % 31) as u32).collect()
}

#[test]
fn answers_are_the_same_to_the_bit_wherever_pages_lie_and_however_tokens_come() {
    let folder = tempfile::tempdir().unwrap();
    let mut tiers = KvTiers::memory(Some(60_000));
    tiers.slots = 2;
    tiers.disk = Some(DiskTier {
        folder: folder.path().to_owned(),
        budget_bytes: None,
    });
    let tokens = prompt(400);
    let resident = engine(options());
    let mut here = Session::new(&resident).unwrap();
    here.prefill(&tokens, &mut go_on).unwrap();
    let expected = write(&mut here, 0..24);

    let offloaded = engine(options().with_kv_tiers(tiers));
    let mut there = Session::new(&offloaded).unwrap();
    for part in tokens.chunks(150) {
        there.prefill(part, &mut go_on).unwrap();
    }
    assert!(write(&mut there, 0..24) == expected, "pages on disk");
    assert!(there.sequence().usage().bytes_by_tier.disk > 0);

    // Verified drafts have the bits of single steps.
    let mut verified = Session::new(&resident).unwrap();
    verified.prefill(&tokens, &mut go_on).unwrap();
    let (drafted, mut logits) = ((0..8).collect::<Vec<u32>>(), Vec::new());
    verified.verify(&drafted, &mut logits).unwrap();
    let rows: Vec<Vec<u32>> = logits.chunks(31).map(bits).collect();
    assert!(rows == expected[..8], "verified together");
}

#[test]
fn a_session_in_a_file_a_fork_and_a_beginning_on_disk_go_on_to_the_bit() {
    let (folder, stored) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = engine(options().with_keeps_beginnings(true));
    let tokens = prompt(300);
    let cache = PrefixCache::open(stored.path(), u64::MAX).unwrap();
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&tokens, &mut go_on).unwrap();
    store_prefix(session.sequence(), &cache).unwrap();
    let path = folder.path().join("gemma4.session");
    session.sequence().save(&path).unwrap();
    let mut restored = Session::restore(&engine, &path).unwrap();
    let mut fork = session.fork().unwrap();
    let mut filled = Session::new(&engine).unwrap();
    fill_prefix(filled.sequence_mut(), &cache, &tokens).unwrap();
    assert_eq!(filled.sequence().tokens().len(), 299);
    filled.prefill(&tokens[299..], &mut go_on).unwrap();
    let expected = write(&mut session, 0..10);
    for (name, other) in [
        ("restored", &mut restored),
        ("forked", &mut fork),
        ("filled", &mut filled),
    ] {
        assert!(write(other, 0..10) == expected, "{name}");
    }
}
