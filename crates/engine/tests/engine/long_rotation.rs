//! Models with another rotation for long sequences (LongRoPE): the length of each sequence decides, not the context.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::testing::{fixture, go_on, largest_difference, read};
use riffle_attention::Format;
use riffle_engine::{
    Engine, EngineOptions, Event, GenerateOptions, Generation, Request, SamplingOptions, Scheduler, SchedulerOptions,
    Session, fill_prefix, store_prefix,
};
use riffle_kv::PrefixCache;
use safetensors::SafeTensors;

/// The length above which the model of [`long_model`] uses its long rotation.
const BOUNDARY: usize = 60;

/// A model of `riffle-model`'s vectors, the tokens of its text, and the logits after the last by transformers.
fn vectors(name: &str) -> (PathBuf, Vec<u32>, Vec<f32>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../model/tests/vectors")
        .join(name);
    let file = fs::read(path.join("expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&file).unwrap();
    let tokens = expected.tensor("tokens").unwrap().data().to_vec();
    let tokens = tokens
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    let logits = expected.tensor("logits").unwrap();
    let vocab_size = logits.shape()[1];
    let logits = logits
        .data()
        .chunks_exact(4)
        .map(|word| f32::from_le_bytes(word.try_into().unwrap()));
    let logits: Vec<f32> = logits.collect();
    (path, tokens.collect(), logits[logits.len() - vocab_size..].to_vec())
}

fn options() -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(1024))
        .with_batch_tokens(128)
        .with_chunk_tokens(64)
        .with_page_tokens(32)
        .with_key_format(Format::F32)
        .with_value_format(Format::F32)
}

/// The shipped model with LongRoPE, and a text for it.
fn long_model(folder: &Path) -> (Arc<Engine>, Vec<u32>) {
    let options = options()
        .with_context_tokens(Some(512))
        .with_sequences(4)
        .with_pool_tokens(Some(2048));
    long_model_under(folder, options)
}

fn long_model_under(folder: &Path, options: EngineOptions) -> (Arc<Engine>, Vec<u32>) {
    let (model, path) = (fixture("model"), folder.join("model"));
    fs::create_dir_all(&path).unwrap();
    for file in fs::read_dir(&model).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), path.join(file.file_name())).unwrap();
    }
    let config = fs::read_to_string(model.join("config.json")).unwrap();
    let factors = |factor: f64| vec![factor.to_string(); 32].join(",");
    let scaling = format!(
        r#""rope_scaling": {{"rope_type": "longrope", "short_factor": [{}], "long_factor": [{}], "original_max_position_embeddings": {BOUNDARY}}}"#,
        factors(1.0),
        factors(1.5),
    );
    fs::write(
        path.join("config.json"),
        config.replace(r#""rope_scaling": null"#, &scaling),
    )
    .unwrap();
    let engine = Engine::load(&path, options).unwrap();
    let text = "The keeper of the light wrote down what he saw. ".repeat(20);
    let tokens = engine.tokenizer().unwrap().encode(&text, true).unwrap();
    (engine, tokens)
}

#[test]
fn logits_are_those_of_transformers_on_both_sides_of_the_boundary_in_any_context() {
    // The rotation changes at 600 tokens in phi3-0, and at 256 in phi3-1. Both texts have 512 tokens.
    for name in ["phi3-0", "phi3-1"] {
        let (path, tokens, expected) = vectors(name);
        let engine = Engine::load(&path, options()).unwrap();
        let whole = read(&engine, &tokens);
        let found = largest_difference(whole.logits(), &expected);
        assert!(found < 1e-4, "{name}: {found}");
        // A text that crosses the boundary by prompts or by single tokens.
        for parts in [vec![200, 512], vec![250, 260, 512], vec![511, 512]] {
            let mut session = Session::new(&engine).unwrap();
            let mut start = 0;
            for end in parts {
                session.prefill(&tokens[start..end], &mut go_on).unwrap();
                start = end;
            }
            let found = largest_difference(session.logits(), &expected);
            assert!(found < 1e-4, "{name}: {found}");
        }
        let mut session = read(&engine, &tokens[..250]);
        for token in &tokens[250..] {
            session.advance(*token).unwrap();
        }
        let found = largest_difference(session.logits(), &expected);
        assert!(found < 1e-3, "{name}: {found}");
        let again = if name == "phi3-1" { 256 } else { 0 };
        assert_eq!(session.sequence().counts().turned_tokens, again);
    }
}

#[test]
fn a_sequence_that_is_cut_below_the_boundary_reads_its_next_prompt_as_a_short_one() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, tokens) = long_model(folder.path());
    let mut session = read(&engine, &tokens[..100]);
    session.truncate(30).unwrap();
    session.prefill(&tokens[30..50], &mut go_on).unwrap();
    assert_eq!(session.logits(), read(&engine, &tokens[..50]).logits());
}

#[test]
fn a_saved_session_grows_beyond_the_boundary_as_the_one_it_was_saved_from() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, tokens) = long_model(folder.path());
    let path = folder.path().join("session");
    for held in [40, 80] {
        let mut session = read(&engine, &tokens[..held]);
        session.sequence().save(&path).unwrap();
        let mut restored = Session::restore(&engine, &path).unwrap();
        for session in [&mut session, &mut restored] {
            session.prefill(&tokens[held..120], &mut go_on).unwrap();
        }
        assert_eq!(restored.logits(), session.logits());
        let found = largest_difference(session.logits(), read(&engine, &tokens[..120]).logits());
        assert!(found < 1e-3, "{held}: {found}");
    }
}

#[test]
fn pages_of_short_texts_serve_no_long_one() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, tokens) = long_model(folder.path());
    let cache = PrefixCache::open(folder.path().join("cache"), u64::MAX).unwrap();
    store_prefix(read(&engine, &tokens[..50]).sequence(), &cache).unwrap();
    let found = |length: usize| {
        let mut session = Session::new(&engine).unwrap();
        fill_prefix(session.sequence_mut(), &cache, &tokens[..length]).unwrap();
        let held = session.tokens().len();
        session.prefill(&tokens[held..length], &mut go_on).unwrap();
        assert_eq!(session.logits(), read(&engine, &tokens[..length]).logits(), "{length}");
        held
    };
    assert_eq!((found(55), found(100)), (50, 0));
    store_prefix(read(&engine, &tokens[..100]).sequence(), &cache).unwrap();
    assert_eq!((found(55), found(120)), (50, 100));
}

#[test]
fn answers_of_many_requests_grow_beyond_the_boundary_as_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, tokens) = long_model(folder.path());
    let generate = GenerateOptions {
        max_tokens: 30,
        ignores_end: true,
        ..GenerateOptions::default()
    };
    let alone: Vec<Generation> = [20, 45, 58, 90]
        .map(|length| {
            read(&engine, &tokens[..length])
                .generate(&generate, &mut go_on_text)
                .unwrap()
        })
        .into();
    let mut scheduler = Scheduler::new(&engine, SchedulerOptions::for_engine(engine.options())).unwrap();
    let ids = [20, 45, 58, 90].map(|length| {
        let request = Request {
            tokens: tokens[..length].to_vec(),
            generate: generate.clone(),
            ..Request::default()
        };
        scheduler.submit(request).unwrap()
    });
    let mut reports = Vec::new();
    scheduler
        .run(&mut |event| match event {
            Event::Finished(id, report, _) => reports.push((id, report)),
            Event::Failed(id, error) => panic!("{id:?}: {error}"),
            _ => {}
        })
        .unwrap();
    reports.sort_by_key(|(id, _)| *id);
    for (((id, report), expected), length) in reports.iter().zip(&alone).zip([20, 45, 58, 90]) {
        assert!(ids.contains(id));
        assert_eq!(report.generation.tokens, expected.tokens, "{length}");
        let crosses = length < BOUNDARY && length + 29 > BOUNDARY;
        assert_eq!(report.turned_tokens, if crosses { BOUNDARY } else { 0 }, "{length}");
        assert_eq!(report.prompt_tokens, length);
    }
}

#[test]
fn an_answer_that_gave_up_its_pages_takes_none_of_a_shorter_text() {
    let folder = tempfile::tempdir().unwrap();
    let options = options().with_context_tokens(Some(256)).with_sequences(4);
    let (engine, tokens) = long_model_under(folder.path(), options);
    let request = |tokens: &[u32], max_tokens: usize, priority: i32| Request {
        tokens: tokens.to_vec(),
        generate: GenerateOptions {
            max_tokens,
            ignores_end: true,
            sampling: SamplingOptions {
                temperature: 1.0,
                seed: 5,
                ..SamplingOptions::default()
            },
            ..GenerateOptions::default()
        },
        priority,
        ..Request::default()
    };
    // The second crosses the boundary with its first token. The third has the same prompt and stays short, and others
    // use its pages.
    let requests = [
        request(&tokens[100..120], 130, 0),
        request(&tokens[..BOUNDARY], 120, 0),
        request(&tokens[..BOUNDARY], 1, 1),
    ];
    let mut scheduler = Scheduler::new(&engine, SchedulerOptions::for_engine(engine.options())).unwrap();
    let mut ids: Vec<_> = requests[..2]
        .iter()
        .map(|request| scheduler.submit(request.clone()).unwrap())
        .collect();
    let mut found = BTreeMap::new();
    let mut begun = 0;
    loop {
        let more = scheduler.step(&mut |event| match event {
            Event::Finished(id, report, _) => drop(found.insert(id, report)),
            Event::Failed(id, error) => panic!("{id:?}: {error}"),
            _ => {}
        });
        if !more.unwrap() {
            break;
        }
        let held = scheduler.sequence(ids[1]).map_or(0, |sequence| sequence.tokens().len());
        begun = begun.max(held);
        if begun > BOUNDARY && held == 0 && ids.len() == 2 {
            ids.push(scheduler.submit(requests[2].clone()).unwrap());
        }
    }
    assert_eq!(ids.len(), 3, "the second gave up its pages");
    for (id, request) in ids.iter().zip(&requests) {
        let mut alone = read(&engine, &request.tokens);
        let alone = alone.generate(&request.generate, &mut go_on_text).unwrap();
        assert_eq!(found[id].generation.tokens, alone.tokens, "{id:?}");
    }
    assert_eq!(
        found[&ids[1]].turned_tokens, BOUNDARY,
        "no text of its own but the prompt was read in the short way"
    );
}

fn go_on_text(_: &str) -> std::ops::ControlFlow<()> {
    std::ops::ControlFlow::Continue(())
}
