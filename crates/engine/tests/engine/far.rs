//! Sequences with pages on disk: a step loads their shared pages once for all of them.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::testing::{bits, fixture, go_on, prompt};
use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, FinishedRows, Runner, Sequence, Session, Work};
use riffle_kv::{CpuDevice, DiskTier, KvTiers, PagePool};
use riffle_policy::Phase;
use riffle_testing::Counted;

const READERS: usize = 8;
const DOCUMENT_TOKENS: usize = 400;

fn options(decode: &str, format: Format) -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(512))
        .with_sequences(READERS)
        .with_pool_tokens(Some(READERS * 512))
        .with_batch_tokens(64)
        .with_chunk_tokens(32)
        .with_page_tokens(16)
        .with_key_format(format)
        .with_value_format(format)
        .with_decode(decode.parse().unwrap())
}

/// An engine that keeps pages on disk. Only pages that a pass needs at once are in memory.
fn far_engine(options: &EngineOptions, model: &Path, folder: &Path, device: &Arc<Counted>) -> Arc<Engine> {
    let mut options = options.clone();
    options.cache.kv_tiers = KvTiers {
        device: device.clone(),
        disk: Some(DiskTier {
            folder: folder.to_owned(),
            budget_bytes: None,
        }),
        slots: 8,
        ..KvTiers::memory(Some(0))
    };
    let info = riffle_model::inspect(model).unwrap();
    let plan = riffle_engine::plan(&info, &options).unwrap();
    options.cache.kv_tiers.ram_budget_bytes = Some(plan.kv_tiers.least_near_bytes);
    Engine::load(model, options).unwrap()
}

/// Sequences that share a document and have each read another question.
fn readers(engine: &Arc<Engine>, pool: &PagePool, runner: &mut Runner, questions: &[Vec<u32>]) -> Vec<Sequence> {
    let mut document = Sequence::new(engine, pool, engine.options().sequence.clone()).unwrap();
    read_prompt(runner, &mut document, &prompt(DOCUMENT_TOKENS));
    let mut readers: Vec<Sequence> = questions.iter().map(|_| document.fork().unwrap()).collect();
    drop(document);
    for (reader, question) in readers.iter_mut().zip(questions) {
        read_prompt(runner, reader, question);
    }
    readers
}

fn read_prompt(runner: &mut Runner, sequence: &mut Sequence, tokens: &[u32]) {
    assert!(sequence.begin_prompt(tokens, 0).unwrap().is_empty());
    let goal = sequence.tokens().len() + tokens.len();
    for tokens in tokens.chunks(sequence.batch_tokens()) {
        let work = Work {
            sequence,
            tokens,
            phase: Phase::Prefill,
            goal,
            finished_rows: FinishedRows::All,
        };
        let outcomes = runner.pass(&mut [work], &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(outcomes[0].is_none(), "{outcomes:?}");
    }
}

/// Reads one token in every sequence, in one pass. Returns their logits.
fn step(runner: &mut Runner, readers: &mut [Sequence], token: u32) -> Vec<Vec<f32>> {
    let tokens = [token];
    let mut work: Vec<Work<'_>> = readers
        .iter_mut()
        .map(|sequence| Work {
            goal: sequence.tokens().len() + 1,
            sequence,
            tokens: &tokens,
            phase: Phase::Decode,
            finished_rows: FinishedRows::All,
        })
        .collect();
    let outcomes = runner.pass(&mut work, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(outcomes.iter().all(Option::is_none), "{outcomes:?}");
    let mut logits = Vec::new();
    runner.logits(0..runner.rows(), &mut logits).unwrap();
    logits
        .chunks(logits.len() / readers.len())
        .map(<[f32]>::to_vec)
        .collect()
}

#[test]
fn a_document_on_disk_is_loaded_once_a_step_for_all_who_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("vectors/group2-dim64-linear-bf16");
    // Tokens of the text, of the document's partial page, and of a page that begins in the third step.
    let questions: Vec<Vec<u32>> = (0..READERS).map(|who| prompt(9 + who)[who..].to_vec()).collect();
    for (decode, reads_all) in [
        ("full", true),
        ("quest:from=0,topk=2,threshold=2,block=16,dense_layers=0", false),
    ] {
        for format in [Format::F16, Format::Q8_0] {
            let options = options(decode, format);
            let device = Counted::over(CpuDevice::new());
            let engine = far_engine(&options, &model, folder.path(), &device);
            let (pool, mut runner) = (engine.page_pool().unwrap(), Runner::new(&engine));
            let mut readers = readers(&engine, &pool, &mut runner, &questions);
            let mut found = vec![step(&mut runner, &mut readers, 5)];
            let (before, steps) = (device.bytes(), [6, 7, 8]);
            let mut on_disk = 0;
            for token in steps {
                found.push(step(&mut runner, &mut readers, token));
                on_disk += pool.file_bytes();
            }
            let loaded = device.bytes() - before;
            // The pages guessed for the next layer are either loaded or still unread.
            let ring = 8 * pool.shape().page_bytes(0);
            println!("{decode} {}: {loaded} bytes loaded, {on_disk} on disk", format.name());
            assert!(on_disk > 20 * ring, "{on_disk} on disk");
            if reads_all {
                assert!(loaded.abs_diff(on_disk) <= ring, "{loaded} of {on_disk}")
            } else {
                // Wrong guesses load at most one ring for each layer of a step.
                let guessed = ring * (steps.len() * pool.shape().layers.count()) as u64;
                assert!(loaded < on_disk + guessed, "{loaded} of {on_disk}");
            }

            let alone = Engine::load(&model, options).unwrap();
            for (who, question) in questions.iter().enumerate() {
                let mut session = Session::new(&alone).unwrap();
                session.prefill(&prompt(DOCUMENT_TOKENS), &mut go_on).unwrap();
                session.prefill(question, &mut go_on).unwrap();
                for (token, found) in [5, 6, 7, 8].into_iter().zip(&found) {
                    session.advance(token).unwrap();
                    assert_eq!(
                        bits(session.logits()),
                        bits(&found[who]),
                        "{decode}: reader {who}, token {token}"
                    );
                }
            }
        }
    }
}

#[test]
fn sequences_of_two_pools_go_through_the_layers_together() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("vectors/group2-dim64-linear-bf16");
    let options = options("full", Format::F16);
    let device = Counted::over(CpuDevice::new());
    let engine = far_engine(&options, &model, folder.path(), &device);
    let mut runner = Runner::new(&engine);
    let pools = [engine.page_pool().unwrap(), engine.page_pool().unwrap()];
    let mut all: Vec<Sequence> = Vec::new();
    for (who, pool) in [0, 1, 0, 1].into_iter().enumerate() {
        let mut sequence = Sequence::new(&engine, &pools[pool], engine.options().sequence.clone()).unwrap();
        read_prompt(&mut runner, &mut sequence, &prompt(100 + 30 * who));
        all.push(sequence);
    }
    let found = step(&mut runner, &mut all, 9);
    for (sequence, found) in all.iter_mut().zip(&found) {
        let mut alone = sequence.fork().unwrap();
        assert!(alone.truncate(sequence.tokens().len() - 1).unwrap().is_empty());
        let expected = step(&mut runner, std::slice::from_mut(&mut alone), 9);
        assert_eq!(bits(&expected[0]), bits(found));
    }
}
