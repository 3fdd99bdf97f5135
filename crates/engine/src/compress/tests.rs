//! Compares scores and choices with `kvpress` (`fixtures/vectors/compress.py`) and, for echo, with the heads of
//! `transformers` (`fixtures/vectors/echo.py`).

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_attention::Format;
use safetensors::SafeTensors;

use super::*;
use crate::{Engine, EngineOptions, Session, with_threads};

const CASES: [&str; 3] = [
    "group2-dim64-linear-bf16",
    "group2-dim32-rope-parameters-f32",
    "group4-dim80-llama3-f16",
];

/// The results of kvpress for a model: tokens of the text, scores `[layers, kv_heads, tokens]` and the kept pairs.
struct Oracle {
    tokens: Vec<u32>,
    scores: Vec<f32>,
    kept: Vec<bool>,
}

fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/vectors")
        .join(case)
}

fn oracle(case: &str, method: &str) -> Oracle {
    let read = |name: &str| std::fs::read(folder(case).join(name)).unwrap();
    let (expected, found) = (read("expected.safetensors"), read("compress.safetensors"));
    let (expected, found) = (
        SafeTensors::deserialize(&expected).unwrap(),
        SafeTensors::deserialize(&found).unwrap(),
    );
    let scores = found.tensor(method).unwrap();
    let text_tokens = *scores.shape().last().unwrap();
    let tokens = expected.tensor("tokens").unwrap().data().as_chunks::<8>().0.to_vec();
    let kept = found.tensor(&format!("{method}_kept")).unwrap();
    Oracle {
        tokens: tokens[..text_tokens]
            .iter()
            .map(|token| i64::from_le_bytes(*token) as u32)
            .collect(),
        scores: scores
            .data()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|score| f32::from_le_bytes(*score))
            .collect(),
        kept: kept.data().iter().map(|kept| *kept == 1).collect(),
    }
}

fn options() -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(400))
        .with_batch_tokens(96)
        .with_chunk_tokens(40)
        .with_page_tokens(32)
        .with_key_format(Format::F32)
        .with_value_format(Format::F32)
}

/// The oracle's settings: half of the pairs, in chunks of 64 tokens, with these prompts.
fn asked(method: &str) -> CompressOptions {
    let method = match method {
        "kvzip" => CompressMethod::KvZip {
            chunk_tokens: 64,
            prompt: Some(RepeatPrompt {
                first: vec![5, 9, 2],
                later: vec![7, 3],
                behind: vec![11],
            }),
        },
        _ => CompressMethod::EXPECTED,
    };
    CompressOptions {
        recent_tokens: 0,
        ..CompressOptions::new(method, 0.5)
    }
}

fn scores(engine: &Arc<Engine>, tokens: &[u32], asked: &CompressOptions) -> Vec<HeadScores> {
    let mut session = Session::new(engine).unwrap();
    session.prefill(tokens, &mut |_| ControlFlow::Continue(())).unwrap();
    let compression = Compression::begin(session.sequence(), asked).unwrap();
    scored(engine, &mut session, compression)
}

/// Runs a compression until all scores are known.
fn scored(engine: &Arc<Engine>, session: &mut Session, mut compression: Compression) -> Vec<HeadScores> {
    let mut runner = Runner::new(engine);
    let mut go_on = |_| ControlFlow::Continue(());
    while let CompressStep::Read(scratch, tokens) = compression.advance(session.sequence_mut()).unwrap() {
        let scratch = read(*scratch, &mut runner, &tokens, &mut go_on).unwrap();
        compression.take_back(scratch, tokens.len());
    }
    compression.into_scores().unwrap()
}

/// The largest difference without the sinks, whose scores are arbitrary in the oracle.
fn largest_difference(found: &[HeadScores], expected: &[f32], sinks: usize) -> f32 {
    let heads = found.iter().zip(expected.chunks_exact(found[0].scores.len()));
    let pairs = heads.flat_map(|(found, expected)| found.scores[sinks..].iter().zip(&expected[sinks..]));
    pairs
        .map(|(found, expected)| (found - expected).abs())
        .fold(0.0, f32::max)
}

#[test]
fn scores_and_kept_pairs_are_those_of_kvpress() {
    for case in CASES {
        for method in ["kvzip", "expected"] {
            let oracle = oracle(case, method);
            let asked = asked(method);
            let engine = Engine::load(folder(case), options()).unwrap();
            let mut found = scores(&engine, &oracle.tokens, &asked);
            assert_eq!(found.len() * found[0].scores.len(), oracle.scores.len());
            let difference = largest_difference(&found, &oracle.scores, 4);
            assert!(difference < 2e-5, "{case} {method}: {difference}");
            budget::protect(&mut found, &asked);
            for (head, kept) in budget::kept(&found, &asked).into_iter().enumerate() {
                let text_tokens = oracle.tokens.len();
                let expected = &oracle.kept[head * text_tokens..(head + 1) * text_tokens];
                let expected: Vec<usize> = (0..text_tokens).filter(|place| expected[*place]).collect();
                assert_eq!(kept, expected, "{case} {method}, head {head}");
            }
        }
    }
}

#[test]
fn scores_do_not_depend_on_threads_or_on_where_pages_lie() {
    let folder_of_pages = tempfile::tempdir().unwrap();
    for method in ["kvzip", "expected"] {
        let oracle = oracle(CASES[0], method);
        let bits = |options: EngineOptions, threads: usize| {
            let found = with_threads(Some(threads), || {
                let engine = Engine::load(folder(CASES[0]), options).unwrap();
                scores(&engine, &oracle.tokens, &asked(method))
            });
            let scores = found.unwrap().into_iter().flat_map(|head| head.scores);
            scores.map(f32::to_bits).collect::<Vec<u32>>()
        };
        let expected = bits(options(), 1);
        assert!(bits(options(), 3) == expected, "{method}: threads");
        let mut far = options();
        far.machine.sequences = 2;
        far.cache.kv_tiers.disk = Some(riffle_kv::DiskTier {
            folder: folder_of_pages.path().to_owned(),
            budget_bytes: None,
        });
        far.cache.kv_tiers.slots = 2;
        far.cache.kv_tiers.ram_budget_bytes = Some(0);
        let info = riffle_model::inspect(folder(CASES[0])).unwrap();
        let least = crate::plan(&info, &far).unwrap().kv_tiers.least_near_bytes;
        far.cache.kv_tiers.ram_budget_bytes = Some(least);
        assert!(bits(far, 2) == expected, "{method}: disk");
    }
}

#[test]
fn rotated_caches_and_other_pages_give_the_same_scores() {
    for method in ["kvzip", "expected"] {
        let oracle = oracle(CASES[0], method);
        let rotated = options()
            .with_rotate(Some(true))
            .with_page_tokens(16)
            .with_chunk_tokens(17);
        let engine = Engine::load(folder(CASES[0]), rotated).unwrap();
        let found = scores(&engine, &oracle.tokens, &asked(method));
        let difference = largest_difference(&found, &oracle.scores, 4);
        assert!(difference < 2e-5, "{method}: {difference}");
    }
}

#[test]
fn a_text_compressed_by_parts_keeps_what_it_kept_and_scores_the_next_part_as_of_the_whole_text() {
    let engine = Engine::load(folder(CASES[0]), options()).unwrap();
    let tokens = oracle(CASES[0], "kvzip").tokens;
    let first = tokens.len() / 2;
    let mut by_halves = asked("kvzip");
    if let CompressMethod::KvZip { chunk_tokens, .. } = &mut by_halves.method {
        *chunk_tokens = first;
    }
    let whole = scores(&engine, &tokens, &by_halves);
    let mut go_on = |_| ControlFlow::Continue(());
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&tokens[..first], &mut go_on).unwrap();
    let half = session.compress(&by_halves, &mut go_on).unwrap();
    session.prefill(&tokens[first..], &mut go_on).unwrap();
    let compression = Compression::begin(session.sequence(), &by_halves).unwrap();
    let found = scored(&engine, &mut session, compression);
    let before: usize = found.iter().map(|head| head.before).sum();
    assert_eq!(before, half.pairs);
    assert!(
        found.iter().any(|head| head.before != found[0].before),
        "heads keep different numbers"
    );
    // Queries and keys of the first layer do not depend on what was evicted.
    for (found, whole) in found.iter().zip(&whole).filter(|(head, _)| head.layer == 0) {
        let expected = whole.scores[first..].iter().map(|score| score.to_bits());
        assert!(
            expected.eq(found.scores.iter().map(|score| score.to_bits())),
            "head {}",
            found.kv_head
        );
    }
    let all = session.compress(&by_halves, &mut go_on).unwrap();
    let later = (tokens.len() - first) * found.len();
    assert_eq!(all.pairs, half.pairs + later.div_ceil(2));
}

#[test]
fn a_sample_of_the_text_expects_nearly_what_the_whole_text_does() {
    let oracle = oracle(CASES[0], "expected");
    let engine = Engine::load(folder(CASES[0]), options()).unwrap();
    let sampled = CompressOptions {
        method: CompressMethod::Expected {
            sample_tokens: 75,
            future_tokens: 512,
        },
        ..asked("expected")
    };
    let found = scores(&engine, &oracle.tokens, &sampled);
    let largest = oracle.scores.chunks_exact(oracle.tokens.len());
    let largest = largest.flat_map(|head| &head[4..]).copied().fold(0.0, f32::max);
    let difference = largest_difference(&found, &oracle.scores, 4);
    assert!(difference > 0.0 && difference < largest, "{difference} of {largest}");
}

/// Scores by echo, in chunks of 64 tokens, made while a prompt is read.
fn echoed(options: EngineOptions, threads: usize) -> Vec<f32> {
    let found = with_threads(Some(threads), || {
        let tokens = oracle(CASES[0], "kvzip").tokens;
        echoed_by(folder(CASES[0]), options, &tokens)
    });
    found.unwrap()
}

fn echoed_by(model: PathBuf, options: EngineOptions, tokens: &[u32]) -> Vec<f32> {
    let engine = Engine::load(model, options.with_score_pairs(true)).unwrap();
    let mut session = Session::new(&engine).unwrap();
    let attention = session.sequence_mut().attention_mut();
    attention.scorer.as_mut().unwrap().chunk_tokens = 64;
    session.prefill(tokens, &mut |_| ControlFlow::Continue(())).unwrap();
    let heads = session.sequence().attention().pair_scores.iter();
    heads.flat_map(|(_, scores)| scores.by_slot().to_vec()).collect()
}

#[test]
fn scores_made_while_reading_are_those_of_queries_that_transformers_turns_forward() {
    for case in CASES {
        let found = std::fs::read(folder(case).join("echo.safetensors")).unwrap();
        let found = SafeTensors::deserialize(&found).unwrap();
        let expected = found.tensor("echo").unwrap();
        let expected = expected.data().as_chunks::<4>().0.iter();
        let expected: Vec<f32> = expected.map(|score| f32::from_le_bytes(*score)).collect();
        let tokens = oracle(case, "kvzip").tokens;
        for rotate in [false, true] {
            let scores = echoed_by(folder(case), options().with_rotate(Some(rotate)), &tokens);
            assert_eq!(scores.len(), expected.len());
            let differences = scores.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let difference = differences.fold(0.0, f32::max);
            assert!(difference < 2e-5, "{case}, rotated {rotate}: {difference}");
        }
    }
}

#[test]
fn scores_made_while_reading_do_not_depend_on_threads_or_batches() {
    let expected: Vec<u32> = echoed(options(), 1).into_iter().map(f32::to_bits).collect();
    let others = [
        (options(), 3),
        (options().with_batch_tokens(40).with_chunk_tokens(40), 2),
        (options().with_batch_tokens(150).with_chunk_tokens(7), 2),
    ];
    for (options, threads) in others {
        let found = echoed(options.clone(), threads).into_iter().map(f32::to_bits);
        assert!(found.eq(expected.iter().copied()), "{options:?}");
    }
}
