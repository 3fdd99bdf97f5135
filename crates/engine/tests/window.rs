//! Endless sequences: constant memory, positions within the cache, and sessions that continue.

mod testing;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use riffle_attention::Format;
use riffle_engine::{
    Engine, EngineError, EngineOptions, GenerateOptions, Session, StreamWindow, share_prefix, store_prefix,
};
use testing::{fixture, go_on, largest_difference, logits_after, prompt};

const WINDOW: StreamWindow = StreamWindow {
    window_tokens: 60,
    sink_tokens: 5,
};

/// The shipped model with fewer layers, made for fewer positions.
fn model(folder: &Path, layers: usize, positions: usize) {
    let weights = fs::read(fixture("model/model.safetensors")).unwrap();
    fs::write(folder.join("model.safetensors"), first_layers(&weights, layers)).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(fixture("model").join(file), folder.join(file)).unwrap();
    }
    let config = fs::read_to_string(fixture("model/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["num_hidden_layers"] = layers.into();
    config["max_position_embeddings"] = positions.into();
    let config = config.to_string();
    fs::write(folder.join("config.json"), config).unwrap();
}

/// A safetensors file with only the first `layers` layers.
fn first_layers(file: &[u8], layers: usize) -> Vec<u8> {
    let header_bytes = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let (header, data) = file[8..].split_at(header_bytes);
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).unwrap();
    let (mut kept, mut bytes) = (serde_json::Map::new(), Vec::new());
    for (name, mut entry) in header {
        let below = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let beyond = below.is_some_and(|(layer, _)| layer.parse::<usize>().unwrap() >= layers);
        if beyond || name == "__metadata__" {
            continue;
        }
        let [begin, end]: [usize; 2] = serde_json::from_value(entry["data_offsets"].take()).unwrap();
        let start = bytes.len();
        bytes.extend_from_slice(&data[begin..end]);
        entry["data_offsets"] = serde_json::json!([start, bytes.len()]);
        kept.insert(name, entry);
    }
    let header = serde_json::Value::Object(kept).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat()
}

fn options(format: Format) -> EngineOptions {
    EngineOptions::default()
        .with_page_tokens(16)
        .with_chunk_tokens(16)
        .with_batch_tokens(16)
        .with_key_format(format)
        .with_value_format(format)
}

fn endless(model: &Path, format: Format) -> Arc<Engine> {
    Engine::load(model, options(format).with_window(WINDOW).unwrap()).unwrap()
}

/// Tokens in the window's cache: the sinks' page, then whole pages up to the latest token.
fn held(tokens: &[u32], in_cache: usize) -> Vec<u32> {
    [&tokens[..16], &tokens[tokens.len() - (in_cache - 16)..]].concat()
}

#[test]
fn a_window_that_moved_on_sees_its_tokens_as_if_they_were_all_there_had_been() {
    // In a model of one layer a key depends only on its token and position. Reading the cached tokens again at their
    // slots is therefore an oracle. With few positions the window is rotated back several times.
    for (positions, format, tolerance) in [
        (131_072, Format::F32, 2e-4),
        (176, Format::F32, 2e-4),
        (176, Format::F16, 2e-2),
        (176, Format::Q8_0, 2e-1),
    ] {
        let folder = tempfile::tempdir().unwrap();
        model(folder.path(), 1, positions);
        let rules = "streaming:sinks=5,window=60,from=0";
        let plain = options(format)
            .with_prefill(rules.parse().unwrap())
            .with_decode(rules.parse().unwrap())
            .with_context_tokens(Some(176));
        let plain = Engine::load(folder.path(), plain).unwrap();
        let mut session = Session::new(&endless(folder.path(), format)).unwrap();
        let tokens = prompt(700);
        session.prefill(&tokens[..333], &mut go_on).unwrap();
        for length in 333..tokens.len() {
            if length % 29 == 0 || length == 333 {
                let in_cache = session.sequence().usage().tokens;
                assert!((60..=16 + 60 + 32).contains(&in_cache), "{in_cache} at {length}");
                let expected = logits_after(&plain, &held(&tokens[..length], in_cache));
                let difference = largest_difference(session.logits(), &expected);
                assert!(difference < tolerance, "{positions} {format:?} {length}: {difference}");
            }
            session.advance(tokens[length]).unwrap();
        }
    }
}

#[test]
fn memory_stays_constant_however_long_the_sequence() {
    let engine = endless(&fixture("model"), Format::F16);
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&prompt(500), &mut go_on).unwrap();
    let mut most = 0;
    for token in prompt(2500) {
        session.advance(token).unwrap();
        most = most.max(session.sequence().usage().bytes_by_tier.total());
    }
    assert_eq!(session.tokens().len(), 3000);
    assert!(most <= engine.plan().kv_bytes, "{most} of {}", engine.plan().kv_bytes);
    assert!(session.sequence().usage().tokens <= 16 + 60 + 32);
}

#[test]
fn a_saved_window_goes_on_to_the_bit() {
    for format in [Format::F16, Format::Q4_0] {
        let folder = tempfile::tempdir().unwrap();
        model(folder.path(), 4, 200);
        let engine = endless(folder.path(), format);
        let path = folder.path().join("session");
        let options = |max_tokens| GenerateOptions {
            max_tokens,
            ..Default::default()
        };
        let write = |session: &mut Session, tokens| {
            let generation = session.generate(&options(tokens), &mut |_| ControlFlow::Continue(()));
            generation.unwrap().tokens
        };
        let mut whole = Session::new(&engine).unwrap();
        whole.prefill(&prompt(150), &mut go_on).unwrap();
        let expected = write(&mut whole, 400);
        let mut session = Session::new(&engine).unwrap();
        session.prefill(&prompt(150), &mut go_on).unwrap();
        let mut written = Vec::new();
        for part in [1, 150, 3, 246] {
            session.sequence().save(&path).unwrap();
            session = Session::restore(&engine, &path).unwrap();
            written.extend(write(&mut session, part));
        }
        assert_eq!(written, expected);
        assert_eq!(session.logits(), whole.logits());
    }
}

#[test]
fn a_window_goes_back_as_far_as_it_can_and_says_what_it_cannot() {
    let engine = endless(&fixture("model"), Format::F32);
    let tokens = prompt(400);
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&tokens, &mut go_on).unwrap();
    // Pages since token 100 were freed, so everything is read again.
    assert_eq!(session.keep_shared(&tokens[..100]).unwrap(), 0);
    assert_eq!((session.tokens().len(), session.sequence().usage().pages), (0, 0));
    session.prefill(&tokens[..100], &mut go_on).unwrap();
    assert_eq!(session.logits(), logits_after(&engine, &tokens[..100]));

    let folder = tempfile::tempdir().unwrap();
    let cache = riffle_kv::PrefixCache::open(folder.path(), 1 << 30).unwrap();
    // The window has freed the first pages. So the text cannot be stored, and a fork cannot share it.
    assert_eq!(store_prefix(session.sequence(), &cache).unwrap().0, 0);
    let message = share_prefix(session.sequence_mut()).unwrap_err().to_string();
    assert!(
        message.contains("`window`") && message.contains("leave it out"),
        "{message}"
    );
    let small = tempfile::tempdir().unwrap();
    model(small.path(), 1, 64);
    let refused = Engine::load(small.path(), options(Format::F32).with_window(WINDOW).unwrap());
    assert!(matches!(
        refused.err(),
        Some(EngineError::Option {
            name: "window_tokens",
            ..
        })
    ));
}

/// Takes minutes: `cargo test --release -p riffle-engine --test window -- --ignored --nocapture`.
#[test]
#[ignore = "a million positions take minutes"]
fn a_million_positions_take_constant_memory() {
    let resident_kib = || -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    model(folder.path(), 2, 4096);
    let window = StreamWindow {
        window_tokens: 256,
        sink_tokens: 4,
    };
    let engine = Engine::load(folder.path(), options(Format::F16).with_window(window).unwrap()).unwrap();
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&prompt(600), &mut go_on).unwrap();
    let before = resident_kib();
    for position in 600..1_000_600u32 {
        session.advance(position % 61).unwrap();
        if position % 100_000 == 0 {
            eprintln!(
                "{position} positions: {} KiB resident, {:?}",
                resident_kib(),
                session.sequence().usage()
            );
        }
    }
    // Only the token ids grow, four bytes each.
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 12 << 10, "{grown} KiB");
    assert!(session.logits().iter().all(|logit| logit.is_finite()));
}
