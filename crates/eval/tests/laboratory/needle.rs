//! The shipped models find facts that full attention sees, and lose facts that streaming attention drops.

use std::ops::ControlFlow;
use std::sync::Arc;

use riffle_engine::{Engine, EngineOptions};
use riffle_eval::{AskPlace, Corpus, Journal, NeedleKind, NeedleOptions, NeedleSample, Wording, needle};

fn engine(model: &str, prefill: &str, decode: &str) -> Arc<Engine> {
    let options = EngineOptions::default()
        .with_prefill(prefill.parse().unwrap())
        .with_decode(decode.parse().unwrap());
    Engine::load(riffle_testing::fixture(model), options).unwrap()
}

/// Ten needles at even depths in each of `documents` documents, asked of the shipped model.
fn samples(
    prefill: &str,
    decode: &str,
    kind: NeedleKind,
    place: AskPlace,
    context_tokens: usize,
    documents: u64,
) -> Vec<NeedleSample> {
    samples_of(
        &engine("model", prefill, decode),
        kind,
        place,
        context_tokens,
        documents,
    )
}

fn samples_of(
    engine: &Arc<Engine>,
    kind: NeedleKind,
    place: AskPlace,
    context_tokens: usize,
    documents: u64,
) -> Vec<NeedleSample> {
    let options = NeedleOptions {
        lengths: vec![context_tokens],
        depths: 10,
        kinds: vec![kind],
        places: vec![place],
        documents,
        seed: 1,
        compress: None,
    };
    found(engine, &options)
}

fn found(engine: &Arc<Engine>, options: &NeedleOptions) -> Vec<NeedleSample> {
    let corpus = Corpus::new(engine, &riffle_testing::book(), Wording::plain(), Vec::new()).unwrap();
    let mut watch = |_: &riffle_eval::CellStep<'_>| ControlFlow::Continue(());
    needle(engine, &corpus, options, &mut Journal::none(), &mut watch)
        .unwrap()
        .samples
}

fn share(samples: &[NeedleSample]) -> f64 {
    samples.iter().map(NeedleSample::score).sum::<f64>() / samples.len() as f64
}

#[test]
fn full_attention_finds_needles_at_4k_however_late_they_are_asked_for() {
    for place in AskPlace::ALL {
        let samples = samples("full", "full", NeedleKind::MultiKey, place, 4096, 1);
        assert_eq!(samples.len(), 10);
        assert!(share(&samples) >= 0.9, "{place}: {samples:?}");
    }
}

#[test]
fn full_attention_finds_needles_at_16k() {
    let samples = samples("full", "full", NeedleKind::MultiKey, AskPlace::Late, 16384, 1);
    assert_eq!(samples.len(), 10);
    assert!(share(&samples) >= 0.95, "{samples:?}");
}

#[test]
fn a_needle_alone_and_several_asked_for_at_once_are_found() {
    let alone = samples("full", "full", NeedleKind::Single, AskPlace::End, 2048, 1);
    assert_eq!(alone.len(), 10);
    assert!(share(&alone) >= 0.9, "{alone:?}");
    let several = samples("full", "full", NeedleKind::MultiQuery, AskPlace::Late, 2048, 1);
    assert!(several.iter().all(|sample| sample.expected.len() == 3));
    assert!(share(&several) >= 0.8, "{several:?}");
}

#[test]
fn a_package_of_source_files_is_the_same_each_time_and_asks_for_one_constructor_at_each_depth() {
    let engine = engine("model", "full", "full");
    let options = |places: &[AskPlace], seed| NeedleOptions {
        lengths: vec![4096],
        depths: 5,
        kinds: vec![NeedleKind::CrossFile],
        places: places.to_vec(),
        documents: 1,
        seed,
        compress: None,
    };
    let places = [AskPlace::Late, AskPlace::End, AskPlace::Middle];
    let samples = found(&engine, &options(&places, 1));
    assert_eq!(samples.len(), 15);
    for (number, sample) in samples.iter().enumerate() {
        assert_eq!(
            (sample.expected.len(), sample.depth_index),
            (1, number % 5),
            "{sample:?}"
        );
        assert!(
            (sample.depth - (sample.depth_index + 1) as f64 / 6.0).abs() < 0.06,
            "{sample:?}"
        );
        let expected: Vec<&str> = sample.expected[0].split('_').collect();
        assert!(
            expected.len() == 2 && expected.iter().all(|word| word.len() >= 4),
            "{sample:?}"
        );
        let names = (sample.names.clone(), sample.expected.clone());
        assert_eq!(
            names,
            (samples[number % 5].names.clone(), samples[number % 5].expected.clone())
        );
    }
    assert_eq!(samples[..5], found(&engine, &options(&places[..1], 1)));
    let other = found(&engine, &options(&places[..1], 2));
    assert!(
        other.iter().zip(&samples).all(|(a, b)| a.expected != b.expected),
        "{other:?}"
    );
}

#[test]
fn the_hybrid_model_finds_with_its_attention_layers_what_lies_far_back() {
    let full = engine("model-hybrid", "full", "full");
    for (place, context_tokens) in [
        (AskPlace::Late, 4096),
        (AskPlace::Middle, 4096),
        (AskPlace::Late, 16384),
    ] {
        let samples = samples_of(&full, NeedleKind::MultiKey, place, context_tokens, 1);
        assert_eq!(samples.len(), 10);
        assert!(share(&samples) >= 0.9, "{place} {context_tokens}: {samples:?}");
    }
    // The model's recurrent layers do not carry the facts, so facts outside attention are lost.
    let policy = "streaming:sinks=64,window=1024";
    let streaming = engine("model-hybrid", policy, policy);
    let samples = samples_of(&streaming, NeedleKind::MultiKey, AskPlace::Late, 4096, 2);
    let outside: Vec<_> = samples
        .into_iter()
        .filter(|sample| sample.distance_tokens > 1100)
        .collect();
    assert!(outside.len() >= 10 && share(&outside) <= 0.1, "{outside:?}");
}

#[test]
fn streaming_attention_loses_needles_outside_its_window_and_keeps_those_inside() {
    for place in [AskPlace::Late, AskPlace::Middle] {
        let policy = "streaming:sinks=64,window=1024";
        let samples = samples(policy, policy, NeedleKind::MultiKey, place, 4096, 3);
        // The question takes a few dozen tokens of the window.
        let (inside, outside): (Vec<_>, Vec<_>) = samples.into_iter().partition(|sample| sample.distance_tokens < 900);
        assert!(inside.len() >= 3 && outside.len() >= 10);
        assert!(share(&inside) >= 0.6, "{place}: {inside:?}");
        let outside: Vec<_> = outside
            .into_iter()
            .filter(|sample| sample.distance_tokens > 1100)
            .collect();
        assert!(share(&outside) <= 0.05, "{place}: {outside:?}");
    }
}

#[test]
fn a_policy_that_lets_go_of_tokens_is_asked_every_question_with_the_document_as_it_was_read() {
    // With a budget for all tokens, h2o evicts nothing and equals full attention for every question.
    let all = samples(
        "full",
        "h2o:budget=4096,from=0",
        NeedleKind::MultiKey,
        AskPlace::Late,
        1024,
        1,
    );
    assert!(share(&all) >= 0.8, "{all:?}");
    // With a small budget the last question still finds the latest facts: earlier questions evicted none of them.
    let little = samples(
        "full",
        "h2o:budget=600,from=0",
        NeedleKind::MultiKey,
        AskPlace::Late,
        1024,
        1,
    );
    let near: Vec<_> = little
        .iter()
        .filter(|sample| sample.distance_tokens < 200)
        .cloned()
        .collect();
    assert!(!near.is_empty() && share(&near) >= 0.5, "{little:?}");
}

#[test]
fn a_document_compressed_before_the_question_keeps_the_facts_that_an_eviction_of_the_same_size_loses() {
    let options = |compress: Option<&str>| NeedleOptions {
        lengths: vec![2048],
        depths: 10,
        kinds: vec![NeedleKind::MultiKey],
        places: vec![AskPlace::Late],
        documents: 1,
        seed: 1,
        compress: compress.map(|compress| compress.parse().unwrap()),
    };
    let full = engine("model", "full", "full");
    let dense = share(&found(&full, &options(None)));
    let kept = found(&full, &options(Some("kvzip:0.3")));
    assert!(share(&kept) >= 0.95 * dense, "{kept:?}");
    let evicting = engine("model", "full", "snapkv:budget=614,from=0");
    let lost = found(&evicting, &options(None));
    assert!(share(&lost) <= 0.5, "{lost:?}");
}
