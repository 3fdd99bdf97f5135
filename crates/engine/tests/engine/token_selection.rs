//! Upper layers that read only selected tokens.

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use riffle_attention::Format;
use riffle_engine::{
    CompressMethod, CompressOptions, Engine, EngineError, EngineOptions, Scheduler, SchedulerOptions, Session,
    StreamWindow, TokenSelection, share_prefix,
};
use riffle_kv::DiskTier;
use safetensors::SafeTensors;

use crate::testing::{fixture, go_on, largest_difference, prompt, read};

const CASES: [&str; 3] = [
    "group2-dim64-linear-bf16",
    "group4-dim80-llama3-f16",
    "group2-dim32-rope-parameters-f32",
];

/// The selection of `fixtures/vectors/token_selection.py`.
fn selection() -> TokenSelection {
    "0.3,layers=1,observed=12,pooled=5".parse().unwrap()
}

fn options(selection: TokenSelection) -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(512))
        .with_batch_tokens(512)
        .with_chunk_tokens(64)
        .with_page_tokens(16)
        .with_key_format(Format::F32)
        .with_value_format(Format::F32)
        .with_token_selection(Some(selection))
}

fn model(case: &str) -> PathBuf {
    fixture("vectors").join(case)
}

fn small_engine(options: EngineOptions) -> Arc<Engine> {
    Engine::load(model(CASES[0]), options).unwrap()
}

/// Logits after each of some generated tokens.
fn answer(session: &mut Session) -> Vec<Vec<f32>> {
    let tokens = prompt(20).into_iter();
    let advance = |token| {
        session.advance(token).unwrap();
        session.logits().to_vec()
    };
    tokens.map(advance).collect()
}

#[test]
fn logits_are_those_of_transformers_on_the_same_tokens() {
    for case in CASES {
        let path = fixture("vectors/token_selection").join(format!("{case}.safetensors"));
        let bytes = fs::read(path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let words = |name| tensors.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
        let tokens: Vec<u32> = words("tokens").into_iter().map(u32::from_le_bytes).collect();
        let expected: Vec<f32> = words("logits").into_iter().map(f32::from_le_bytes).collect();
        let selected = words("selected").len();
        // Batches and chunks of several sizes, so that selected tokens also span several batches.
        for (batch_tokens, chunk_tokens) in [(512, 512), (512, 64), (100, 24), (17, 16)] {
            let engine = Engine::load(
                model(case),
                options(selection())
                    .with_batch_tokens(batch_tokens)
                    .with_chunk_tokens(chunk_tokens),
            )
            .unwrap();
            let session = read(&engine, &tokens);
            let difference = largest_difference(session.logits(), &expected);
            assert!(difference < 2e-4, "{case}, -b {batch_tokens}: {difference}");
            let causal = |tokens: usize| (tokens * (tokens + 1) / 2) as f64;
            let density = (causal(tokens.len()) + causal(selected)) / (2.0 * causal(tokens.len()));
            assert!(
                (session.sequence().counts().pairs.density() - density).abs() < 1e-9,
                "{} {density}",
                session.sequence().counts().pairs.density()
            );
        }
    }
}

#[test]
fn all_tokens_selected_is_a_plain_reading_to_the_bit() {
    let tokens = prompt(300);
    let selected = read(&small_engine(options("1,layers=1".parse().unwrap())), &tokens);
    let plain = read(&small_engine(options(selection()).with_token_selection(None)), &tokens);
    assert_eq!(selected.logits(), plain.logits());
    assert_eq!(selected.sequence().usage().pages, plain.sequence().usage().pages);
}

#[test]
fn upper_layers_hold_pages_of_the_selected_tokens_alone() {
    let tokens = prompt(400);
    let session = read(&small_engine(options(selection())), &tokens);
    // Layer 0 holds 400 tokens in 25 pages, layer 1 120 tokens in 8, each in 3 KV heads.
    assert_eq!(session.sequence().usage().pages, 3 * (25 + 8));
    assert_eq!(session.tokens(), tokens);
}

#[test]
fn pages_on_disk_saved_sessions_and_forks_go_on_with_the_same_bits() {
    let tokens = prompt(400);
    let engine = small_engine(options(selection()));
    let mut resident = read(&engine, &tokens);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    resident.sequence().save(&path).unwrap();
    let mut fork = resident.fork().unwrap();
    let mut restored = Session::restore(&engine, &path).unwrap();
    let mut far = options(selection());
    far.cache.kv_tiers.ram_budget_bytes = Some(480 << 10);
    far.cache.kv_tiers.disk = Some(DiskTier {
        folder: folder.path().to_owned(),
        budget_bytes: None,
    });
    let mut far = read(&small_engine(far), &tokens);
    assert!(far.sequence().usage().bytes_by_tier.disk > 0);
    assert_eq!(far.logits(), resident.logits());
    let next = prompt(40);
    let mut answers = Vec::new();
    for session in [&mut resident, &mut fork, &mut restored, &mut far] {
        let first = answer(session);
        // Every layer reads the second prompt.
        session.prefill(&next, &mut go_on).unwrap();
        answers.push((first, session.logits().to_vec(), session.sequence().usage().pages));
    }
    for other in &answers[1..] {
        assert_eq!(other, &answers[0]);
    }
}

#[test]
fn an_interrupted_reading_leaves_an_empty_session_that_reads_again() {
    let tokens = prompt(400);
    let engine = small_engine(options(selection()));
    let whole = read(&engine, &tokens);
    for stop_at in [10.0, 200.0, 390.0] {
        let mut session = Session::new(&engine).unwrap();
        let mut latest = 0.0;
        let stopped = session.prefill(&tokens, &mut |progress| {
            assert!(progress.tokens_done >= latest && progress.tokens == 400);
            latest = progress.tokens_done;
            if progress.tokens_done < stop_at {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        assert!(matches!(stopped, Err(EngineError::Interrupted { .. })), "{stopped:?}");
        assert_eq!((session.tokens().len(), session.sequence().usage().pages), (0, 0));
        session.prefill(&tokens, &mut go_on).unwrap();
        assert_eq!(session.logits(), whole.logits());
    }
}

#[test]
fn going_back_into_the_prompt_reads_it_again() {
    let tokens = prompt(400);
    let engine = small_engine(options(selection()));
    let mut session = read(&engine, &tokens);
    let end = session.logits().to_vec();
    session.advance(3).unwrap();
    session.truncate(400).unwrap();
    assert_eq!(session.tokens().len(), 400);
    session.truncate(100).unwrap();
    assert!(session.tokens().is_empty());
    session.prefill(&tokens, &mut go_on).unwrap();
    assert_eq!(session.logits(), end);
}

#[test]
fn what_needs_every_token_in_every_layer_is_refused_in_one_line() {
    let refused = |result: Result<(), EngineError>| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("`token_selection`") && !error.contains('\n'), "{error}");
    };
    let load = |path: PathBuf, options| Engine::load(path, options).map(drop);
    refused(load(fixture("model-hybrid"), options(selection()).with_page_tokens(64)));
    refused(load(model(CASES[0]), options("0.3,layers=2".parse().unwrap())));
    refused(load(model(CASES[0]), options(selection()).with_audit(true)));
    let window = StreamWindow {
        window_tokens: 100,
        sink_tokens: 4,
    };
    let endless = options(selection()).with_context_tokens(None);
    refused(
        endless
            .with_window(window)
            .and_then(|options| load(model(CASES[0]), options)),
    );
    let engine = small_engine(options(selection()));
    refused(Scheduler::new(&engine, SchedulerOptions::for_engine(engine.options())).map(drop));
    let mut session = Session::new(&engine).unwrap();
    refused(session.prefill_with_logits(&prompt(50), &mut |_, _| ControlFlow::Continue(())));
    refused(share_prefix(session.sequence_mut()).map(drop));
    session.prefill(&prompt(50), &mut go_on).unwrap();
    let compress = CompressOptions::new(CompressMethod::KVZIP, 0.5);
    refused(session.compress(&compress, &mut go_on).map(drop));
}
