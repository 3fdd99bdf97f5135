//! Models whose feed-forward parts are mixtures of experts: sessions hold, move and give back what those of other models do.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, Session};
use riffle_kv::{DiskTier, KvTiers};

use crate::testing::{bits, go_on, prompt};

/// A plain one, one with recurrent layers, and one with windows and sinks.
const MODELS: [&str; 3] = ["mixtral", "qwen3_5_moe_text", "gpt_oss"];

fn path(model: &str) -> PathBuf {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors/experts");
    vectors.join(model)
}

fn options() -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(512))
        .with_batch_tokens(128)
        .with_chunk_tokens(64)
        .with_page_tokens(16)
        .with_key_format(Format::F16)
        .with_value_format(Format::F16)
}

/// Tokens that every model knows.
fn text(length: usize) -> Vec<u32> {
    prompt(length).into_iter().map(|token| token % 31).collect()
}

fn engine(model: &str, options: EngineOptions) -> Arc<Engine> {
    Engine::load(path(model), options).unwrap()
}

/// Bits of the logits after a prompt and after each of some more tokens.
fn read(session: &mut Session, tokens: &[u32], written: u32) -> Vec<Vec<u32>> {
    let mut found = Vec::new();
    if !tokens.is_empty() {
        session.prefill(tokens, &mut go_on).unwrap();
        found.push(bits(session.logits()));
    }
    for token in 0..written {
        session.advance(token).unwrap();
        found.push(bits(session.logits()));
    }
    found
}

#[test]
fn answers_are_the_same_to_the_bit_with_pages_on_disk_in_other_batches_and_after_a_restart() {
    for model in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let resident = engine(model, options());
        let tokens = text(300);
        let mut session = Session::new(&resident).unwrap();
        let expected = read(&mut session, &tokens, 12);
        let mut tiers = KvTiers {
            disk: Some(DiskTier {
                folder: folder.path().to_owned(),
                budget_bytes: None,
            }),
            ..KvTiers::memory(Some(0))
        };
        let info = riffle_model::inspect(path(model)).unwrap();
        let least = riffle_engine::plan(&info, &options().with_kv_tiers(tiers.clone())).unwrap();
        tiers.ram_budget_bytes = Some(least.kv_tiers.least_near_bytes);
        for other in [options().with_kv_tiers(tiers), options().with_batch_tokens(64)] {
            let other = engine(model, other);
            let mut session = Session::new(&other).unwrap();
            assert!(read(&mut session, &tokens, 12) == expected, "{model}");
        }
        let mut first = Session::new(&resident).unwrap();
        read(&mut first, &tokens, 5);
        let file = folder.path().join("experts.session");
        first.sequence().save(&file).unwrap();
        let mut restored = Session::restore(&resident, &file).unwrap();
        let mut fork = first.fork().unwrap();
        for session in [&mut restored, &mut fork] {
            for (token, expected) in (5..12).zip(&expected[6..]) {
                session.advance(token).unwrap();
                let found: Vec<u32> = session.logits().iter().map(|logit| logit.to_bits()).collect();
                assert!(found == *expected, "{model}: token {token}");
            }
        }
    }
}

#[test]
fn a_plan_counts_all_experts_and_their_scratch() {
    for model in MODELS {
        let info = riffle_model::inspect(path(model)).unwrap();
        assert!(info.config.experts.is_some(), "{model}");
        let loaded = riffle_model::load(path(model)).unwrap();
        assert!(loaded.model.config.weight_bytes >= info.config.weight_bytes, "{model}");
        let mut dense = info.config.clone();
        dense.experts = None;
        assert!(
            riffle_model::scratch_bytes(&info.config, 64) > riffle_model::scratch_bytes(&dense, 64),
            "{model}"
        );
    }
}
