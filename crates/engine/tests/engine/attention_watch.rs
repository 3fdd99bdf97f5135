//! Watching attention changes nothing, and agrees with an audit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use riffle_engine::{AttentionWatch, Engine, EngineOptions, Session};

use crate::testing::device::{MODEL, any_device, options};
use crate::testing::{fixture, go_on, largest_difference, prompt, small_engine};

fn small(audit: bool) -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(256))
        .with_batch_tokens(64)
        .with_chunk_tokens(32)
        .with_page_tokens(16)
        .with_audit(audit)
}

/// Reads a text, a question and an answer of given tokens under watch. Returns the logits after each step, and the
/// watched masses.
fn read(engine: &Arc<Engine>, watches: bool) -> (Vec<f32>, Option<AttentionWatch>) {
    let mut session = Session::new(engine).unwrap();
    session.prefill(&prompt(70), &mut go_on).unwrap();
    if watches {
        session
            .sequence_mut()
            .observers()
            .watch(0..engine.model().config().layers);
    }
    session.prefill(&prompt(37), &mut go_on).unwrap();
    let mut logits = session.logits().to_vec();
    for token in [3, 5, 8, 13] {
        session.advance(token).unwrap();
        logits.extend_from_slice(session.logits());
    }
    let seen = session.sequence_mut().observers().take_watch();
    assert!(session.sequence_mut().observers().take_watch().is_none());
    (logits, seen)
}

#[test]
fn a_watch_changes_no_bit_and_holds_all_mass() {
    for policy in ["full", "streaming:sinks=8,window=24"] {
        let options = small(false)
            .with_prefill(policy.parse().unwrap())
            .with_decode(policy.parse().unwrap());
        let engine = small_engine(options);
        let (plain, nothing) = read(&engine, false);
        let (watched, seen) = read(&engine, true);
        assert!(nothing.is_none() && plain == watched, "{policy}");
        let seen = seen.unwrap();
        assert_eq!(seen.queries(), 41);
        let config = engine.model().config();
        assert_eq!(seen.heads().len(), config.layers * config.kv_heads);
        let all = (seen.queries() * config.heads / config.kv_heads) as f32;
        for head in seen.heads() {
            let total: f32 = head.mass.iter().sum();
            assert!(
                head.mass.len() == 111 && (total - all).abs() < 1e-3 * all,
                "{policy}: {total} of {all}"
            );
        }
    }
}

/// Attention mass by token, by layer and KV head.
type MassByHead = BTreeMap<(usize, usize), Vec<f32>>;

#[test]
fn a_watch_of_an_answer_says_what_an_audit_of_every_query_says() {
    let engine = small_engine(small(true));
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&prompt(90), &mut go_on).unwrap();
    let audited: Arc<Mutex<MassByHead>> = Arc::default();
    let sums = Arc::clone(&audited);
    session
        .sequence_mut()
        .observers()
        .audit(move |query| {
            let mut sums = sums.lock().unwrap();
            let sum = sums
                .entry((query.layer, query.kv_head))
                .or_insert_with(|| vec![0.0; 96]);
            sum.iter_mut().zip(query.mass).for_each(|(sum, mass)| *sum += mass);
        })
        .unwrap();
    session
        .sequence_mut()
        .observers()
        .watch(0..engine.model().config().layers);
    for token in [3, 5, 8, 13, 21, 34] {
        session.advance(token).unwrap();
    }
    let seen = session.sequence_mut().observers().take_watch().unwrap();
    let audited = audited.lock().unwrap();
    assert_eq!(seen.heads().len(), audited.len());
    for head in seen.heads() {
        let expected = &audited[&(head.layer, head.kv_head)];
        assert!(largest_difference(&head.mass, expected) < 1e-4, "layer {}", head.layer);
    }
}

#[test]
fn layers_that_are_not_watched_are_not_seen() {
    let engine = small_engine(small(false));
    let mut session = Session::new(&engine).unwrap();
    session.sequence_mut().observers().watch(1..2);
    session.prefill(&prompt(20), &mut go_on).unwrap();
    let seen = session.sequence_mut().observers().take_watch().unwrap();
    assert!(!seen.heads().is_empty() && seen.heads().iter().all(|head| head.layer == 1));
}

#[test]
#[cfg_attr(not(unix), ignore = "an emulated device compiles its kernels with g++")]
fn a_device_sees_what_the_cpu_sees() {
    let path = fixture(MODEL);
    let seen = [None, Some(any_device())].map(|device| {
        let engine = Engine::load(&path, options(device)).unwrap();
        read(&engine, true).1.unwrap()
    });
    assert_eq!(seen[0].queries(), seen[1].queries());
    for (cpu, device) in seen[0].heads().iter().zip(seen[1].heads()) {
        assert_eq!((cpu.layer, cpu.kv_head), (device.layer, device.kv_head));
        assert!(
            largest_difference(&cpu.mass, &device.mass) < 0.05,
            "layer {}",
            cpu.layer
        );
    }
}
