//! Layers with a sliding window hold only their window, and answers do not change.

use std::fs;
use std::sync::Arc;

use crate::testing::{bits, fixture, go_on, prompt, write};
use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, MemoryPlan, Session, fill_prefix, store_prefix};
use riffle_kv::{DiskTier, KvTiers, PrefixCache};
use tempfile::TempDir;

const WINDOW: usize = 40;

/// A random model with a first layer whose window is 40 tokens, and a second layer with full attention.
pub(crate) fn sliding_model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = fixture("vectors/group2-dim64-linear-bf16");
    for entry in fs::read_dir(source).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["architectures"] = serde_json::json!(["MinistralForCausalLM"]);
    config["model_type"] = "ministral".into();
    config["sliding_window"] = WINDOW.into();
    config["layer_types"] = serde_json::json!(["sliding_attention", "full_attention"]);
    config["max_position_embeddings"] = 4096.into();
    fs::write(path, config.to_string()).unwrap();
    folder
}

fn options(format: Format, page_tokens: usize) -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(2048))
        .with_batch_tokens(128)
        .with_chunk_tokens(48)
        .with_page_tokens(page_tokens)
        .with_key_format(format)
        .with_value_format(format)
}

fn engine(model: &TempDir, options: EngineOptions) -> Arc<Engine> {
    Engine::load(model.path(), options).unwrap()
}

/// The same run with every page kept.
fn keeping(model: &TempDir, options: &EngineOptions) -> Arc<Engine> {
    let options = options.clone().with_keeps_beginnings(true);
    engine(model, options)
}

/// Bits of the logits after a prompt in two parts and after each further token.
fn read(session: &mut Session, length: usize) -> Vec<Vec<u32>> {
    let tokens = prompt(length);
    let mut found = Vec::new();
    for part in [&tokens[..length / 3], &tokens[length / 3..]] {
        session.prefill(part, &mut go_on).unwrap();
        found.push(bits(session.logits()));
    }
    found.extend(write(session, 0..40));
    found
}

#[test]
fn answers_are_to_the_bit_those_of_a_session_that_keeps_every_page() {
    let model = sliding_model();
    for (format, page_tokens) in [(Format::F16, 16), (Format::Q8_0, 48), (Format::F32, 64)] {
        let options = options(format, page_tokens);
        let (sliding, whole) = (engine(&model, options.clone()), keeping(&model, &options));
        let (mut here, mut there) = (Session::new(&sliding).unwrap(), Session::new(&whole).unwrap());
        assert!(
            read(&mut here, 1500) == read(&mut there, 1500),
            "{format:?} {page_tokens}"
        );
        assert!(here.sequence().usage().pages < there.sequence().usage().pages * 3 / 4);
        assert_eq!(
            here.sequence().counts().pairs.density(),
            there.sequence().counts().pairs.density()
        );
    }
}

#[test]
fn the_plan_counts_windows_and_is_never_exceeded() {
    let model = sliding_model();
    let options = options(Format::F16, 16);
    let info = riffle_model::inspect(model.path()).unwrap();
    let whole = options.clone().with_keeps_beginnings(true);
    let bytes = |options: &EngineOptions| riffle_engine::plan(&info, options).unwrap().kv_bytes;
    let token = 3 * 64 * 2 * 2;
    assert_eq!(bytes(&whole), 2 * 2048 * token);
    // The window, 512 tokens before it, a batch, and the page that is freed next.
    assert_eq!(bytes(&options), (2048 + 704) * token);
    let engine = engine(&model, options);
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&prompt(1900), &mut go_on).unwrap();
    for token in 0..100 {
        session.advance(token % 61).unwrap();
        assert!(session.sequence().usage().bytes_by_tier.total() <= engine.plan().kv_bytes);
    }
    // At most a window, the tokens kept before it and a page, of 2000 tokens.
    let pages = session.sequence().usage().pages;
    assert!(pages <= 3 * ((WINDOW + 512 + 16).div_ceil(16) + 2000 / 16), "{pages}");
}

#[test]
fn windows_in_farther_tiers_give_the_same_bits() {
    let model = sliding_model();
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(Format::F16, 32);
    let mut expected = Session::new(&keeping(&model, &options)).unwrap();
    let expected = read(&mut expected, 1200);
    options.cache.kv_tiers = KvTiers {
        disk: Some(DiskTier {
            folder: folder.path().to_owned(),
            budget_bytes: None,
        }),
        ram_budget_bytes: Some(0),
        slots: 3,
        ..options.cache.kv_tiers
    };
    let info = riffle_model::inspect(model.path()).unwrap();
    let plan: MemoryPlan = riffle_engine::plan(&info, &options).unwrap();
    options.cache.kv_tiers.ram_budget_bytes = Some(plan.kv_tiers.least_near_bytes);
    let engine = engine(&model, options);
    let mut session = Session::new(&engine).unwrap();
    assert!(read(&mut session, 1200) == expected);
    assert!(session.sequence().usage().bytes_by_tier.disk > 0);
    assert!(session.sequence().usage().bytes_by_tier.total() <= engine.plan().kv_bytes);
}

#[test]
fn a_session_goes_back_within_what_is_kept_and_reads_again_beyond_it() {
    let model = sliding_model();
    let engine = engine(&model, options(Format::F16, 16));
    for back in [0, 1, 300, 512, 700, 1499] {
        let mut session = Session::new(&engine).unwrap();
        session.prefill(&prompt(1500), &mut go_on).unwrap();
        session.truncate(1500 - back).unwrap();
        assert_eq!(session.tokens(), &prompt(1500)[..1500 - back]);
        let mut alone = Session::new(&engine).unwrap();
        alone.prefill(&prompt(1500)[..1500 - back], &mut go_on).unwrap();
        assert!(
            write(&mut session, 0..20) == write(&mut alone, 0..20),
            "{back} tokens back"
        );
    }
    // For a text that differs early, the caller reads the lost tokens again.
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&prompt(1500), &mut go_on).unwrap();
    let mut other = prompt(1500);
    other[200] += 1;
    assert_eq!(session.keep_shared(&other).unwrap(), 0);
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&prompt(1500), &mut go_on).unwrap();
    other = prompt(1500);
    other[1300] += 1;
    assert_eq!(session.keep_shared(&other).unwrap(), 1300);
}

#[test]
fn saved_sessions_and_forks_carry_their_windows() {
    let model = sliding_model();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let options = options(Format::Q8_0, 32).with_sequences(2);
    let engine = engine(&model, options);
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&prompt(1300), &mut go_on).unwrap();
    session.sequence().save(&path).unwrap();
    let forked = read(&mut session.fork().unwrap(), 600);
    let mut restored = Session::restore(&engine, &path).unwrap();
    let expected = read(&mut session, 600);
    assert!(forked == expected);
    assert!(read(&mut restored, 600) == expected);
}

#[test]
fn a_prefix_cache_keeps_beginnings_whole_where_it_is_planned_for_and_short_ones_elsewhere() {
    let model = sliding_model();
    let options = options(Format::F16, 16);
    let folder = tempfile::tempdir().unwrap();
    let cache = PrefixCache::open(folder.path(), 1 << 30).unwrap();
    let tokens = prompt(1200);
    let (whole, sliding) = (keeping(&model, &options), engine(&model, options));
    let mut alone = Session::new(&whole).unwrap();
    alone.prefill(&tokens, &mut go_on).unwrap();

    let mut moved = Session::new(&sliding).unwrap();
    moved.prefill(&tokens, &mut go_on).unwrap();
    assert_eq!(store_prefix(moved.sequence(), &cache).unwrap().0, 0);
    assert_eq!(store_prefix(alone.sequence(), &cache).unwrap().0, 1200);
    for (engine, found) in [(&whole, 1199), (&sliding, 560)] {
        let mut session = Session::new(engine).unwrap();
        fill_prefix(session.sequence_mut(), &cache, &tokens).unwrap();
        assert_eq!(session.tokens().len(), found);
        session.prefill(&tokens[found..], &mut go_on).unwrap();
        assert!(bits(session.logits()) == bits(alone.logits()));
    }
}

#[test]
fn shares_of_pairs_are_counted_where_a_policy_may_choose() {
    let model = sliding_model();
    let tokens = 300;
    let pairs = |policy: &str| {
        let options = options(Format::F16, 16).with_prefill(policy.parse().unwrap());
        let mut session = Session::new(&engine(&model, options)).unwrap();
        session.prefill(&prompt(tokens), &mut go_on).unwrap();
        session.sequence().counts().pairs
    };
    let (full, narrow) = (pairs("full"), pairs("streaming:sinks=4,window=16"));
    assert_eq!((full.density(), full.causal), (1.0, narrow.causal));
    let kept = |query: usize| (0..=query).filter(|key| *key < 4 || query - key < 16).count();
    let kept: usize = (0..tokens).map(kept).sum();
    let share = kept as f64 / (tokens * (tokens + 1) / 2) as f64;
    assert!((narrow.density() - share).abs() < 1e-12, "{narrow:?} {share}");
}
