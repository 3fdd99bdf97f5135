//! Adapters (LoRA): each sequence has its own, and no other adapter uses its pages.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::testing::{fixture, go_on, prompt};
use riffle_engine::{
    DraftSpec, Engine, EngineOptions, Event, GenerateOptions, Request, RequestId, Scheduler, SchedulerOptions,
    SequenceOptions, Session, fill_prefix, store_prefix,
};
use riffle_kv::PrefixCache;
use riffle_model::{AdapterScales, AdapterSpec};
use riffle_testing::write_shipped_adapter;

fn options() -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(1024))
        .with_batch_tokens(256)
        .with_chunk_tokens(64)
        .with_page_tokens(32)
        .with_sequences(8)
        .with_pool_tokens(Some(4096))
}

/// Two adapters in a folder.
fn adapters(folder: &Path, scales: [f32; 2]) -> Vec<AdapterSpec> {
    let write = |name: &str, seed, scale| {
        let path = folder.join(name);
        write_shipped_adapter(&path, seed);
        AdapterSpec { path, scale }
    };
    vec![write("first", 3, scales[0]), write("second", 4, scales[1])]
}

fn engine(folder: &Path, scales: [f32; 2]) -> Arc<Engine> {
    let options = options().with_adapters(adapters(folder, scales));
    Engine::load(fixture("model"), options).expect("the shipped model")
}

fn generate(draft: &str) -> GenerateOptions {
    GenerateOptions {
        max_tokens: 24,
        draft: draft.parse::<DraftSpec>().unwrap(),
        ignores_end: true,
        ..GenerateOptions::default()
    }
}

/// The answer of a separate session on an engine.
fn alone(engine: &Arc<Engine>, tokens: &[u32], draft: &str) -> Vec<u32> {
    let mut session = Session::new(engine).unwrap();
    session.prefill(tokens, &mut go_on).unwrap();
    let generation = session.generate(&generate(draft), &mut |_| ControlFlow::Continue(()));
    generation.unwrap().tokens
}

fn request(engine: &Engine, tokens: &[u32], scales: [f32; 2]) -> Request {
    Request {
        tokens: tokens.to_vec(),
        generate: generate("none"),
        sequence: Some(SequenceOptions {
            adapters: AdapterScales::new(&scales),
            ..engine.options().sequence.clone()
        }),
        ..Request::default()
    }
}

/// Steps until all requests end. Returns the answers' tokens and the number of reused prompt tokens.
fn finish(scheduler: &mut Scheduler) -> BTreeMap<RequestId, (Vec<u32>, usize)> {
    let mut ended = BTreeMap::new();
    let run = scheduler.run(&mut |event| match event {
        Event::Finished(id, report, _) => {
            ended.insert(id, (report.generation.tokens, report.reused_tokens));
        }
        Event::Failed(id, error) => panic!("{id:?}: {error}"),
        _ => {}
    });
    run.unwrap();
    ended
}

const SCALES: [[f32; 2]; 4] = [[0.0, 0.0], [8.0, 0.0], [0.0, 8.0], [6.0, -6.0]];

#[test]
fn requests_under_different_adapters_have_together_the_answers_that_each_has_alone() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = prompt(200);
    let expected = SCALES.map(|scales| alone(&engine(folder.path(), scales), &tokens, "none"));
    for (at, answer) in expected.iter().enumerate() {
        assert!(!expected[..at].contains(answer), "adapters change the answer");
    }
    let plain = Engine::load(fixture("model"), options()).unwrap();
    assert_eq!(alone(&plain, &tokens, "none"), expected[0], "without adapters");
    let engine = engine(folder.path(), [0.0, 0.0]);
    let options = SchedulerOptions {
        most_running: 4,
        ..SchedulerOptions::for_engine(engine.options())
    };
    let mut scheduler = Scheduler::new(&engine, options).unwrap();
    for _ in 0..2 {
        let ids = SCALES.map(|scales| scheduler.submit(request(&engine, &tokens, scales)).unwrap());
        let ended = finish(&mut scheduler);
        for (id, expected) in ids.iter().zip(&expected) {
            assert_eq!(&ended[id].0, expected);
        }
    }
}

#[test]
fn a_prompt_that_was_read_under_one_adapter_serves_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), [0.0, 0.0]);
    let mut scheduler = Scheduler::new(&engine, SchedulerOptions::for_engine(engine.options())).unwrap();
    let tokens = prompt(200);
    let mut reused = |scales| {
        let id = scheduler.submit(request(&engine, &tokens, scales)).unwrap();
        finish(&mut scheduler)[&id].1
    };
    for scales in SCALES {
        assert_eq!(reused(scales), 0, "{scales:?} for the first time");
    }
    for scales in SCALES {
        assert!(reused(scales) >= 190, "{scales:?} again");
    }
    assert_eq!(reused([8.0, 0.5]), 0, "another scale");
}

#[test]
fn sessions_and_prefix_caches_belong_to_their_adapters_and_scales() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (engine(folder.path(), [1.0, 0.0]), engine(folder.path(), [0.5, 0.0]));
    let plain = Engine::load(fixture("model"), options()).unwrap();
    let tokens = prompt(200);
    let cache = PrefixCache::open(folder.path().join("cache"), u64::MAX).unwrap();
    let file = folder.path().join("session");
    let mut session = Session::new(&own).unwrap();
    session.prefill(&tokens, &mut go_on).unwrap();
    store_prefix(session.sequence(), &cache).unwrap();
    session.sequence().save(&file).unwrap();
    for (engine, is_found) in [(&own, true), (&other, false), (&plain, false)] {
        let mut session = Session::new(engine).unwrap();
        fill_prefix(session.sequence_mut(), &cache, &tokens).unwrap();
        assert_eq!(session.tokens().len() > 100, is_found);
        let restored = Session::restore(engine, &file);
        assert_eq!(restored.is_ok(), is_found);
        if let Err(error) = restored {
            assert!(error.to_string().contains("`adapters`"), "{error}");
        }
    }
}

#[test]
fn drafts_are_verified_under_the_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), [1.0, 0.5]);
    let tokens = prompt(200);
    let expected = alone(&engine, &tokens, "none");
    for draft in ["ngram", "sparse"] {
        assert_eq!(alone(&engine, &tokens, draft), expected, "{draft}");
    }
}

#[test]
fn other_adapters_than_those_in_memory_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), [1.0, 0.0]);
    let error = engine.with_options(options()).err().expect("refused").to_string();
    assert!(
        error.contains("adapters") && error.contains("load the model again"),
        "{error}"
    );
    let scaled = options().with_adapters(vec![AdapterSpec {
        path: folder.path().join("first"),
        scale: f32::NAN,
    }]);
    let error = Engine::load(fixture("model"), scaled)
        .err()
        .expect("refused")
        .to_string();
    assert!(error.contains("the scale must be a number"), "{error}");
    let plan = engine.plan().weights_bytes - Engine::load(fixture("model"), options()).unwrap().plan().weights_bytes;
    let bytes: u64 = engine.adapters().iter().map(|adapter| adapter.bytes).sum();
    assert_eq!(plan, bytes);
}
