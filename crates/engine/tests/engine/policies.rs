//! The engine's duties to policies: two phases, masses, summaries, guards and audits, without influence of threads.

use crate::testing::{go_on, largest_difference, prompt, small_engine};
use riffle_engine::{Engine, EngineOptions, Session, with_threads};

fn options(prefill: &str, decode: &str) -> EngineOptions {
    EngineOptions::default()
        .with_prefill(prefill.parse().unwrap())
        .with_decode(decode.parse().unwrap())
        .with_chunk_tokens(64)
        .with_page_tokens(32)
}

/// A session that has read `read` tokens and then written the next `written` of the same text.
fn session_of(options: EngineOptions, read: usize, written: usize) -> Session {
    let tokens = prompt(read + written);
    let mut session = Session::new(&small_engine(options)).unwrap();
    session.prefill(&tokens[..read], &mut go_on).unwrap();
    for token in &tokens[read..] {
        session.advance(*token).unwrap();
    }
    session
}

#[test]
fn two_phase_chunks_read_themselves_and_their_memory() {
    let spec = "h2o-chunk:local=8,heavy=9,sinks=2,from=0";
    let session = session_of(options(spec, "full"), 300, 0);
    let (chunk, memory) = (64, 17);
    let read: usize = (0..300usize)
        .map(|query| query % chunk + 1 + if query >= chunk { memory } else { 0 })
        .sum();
    assert!((session.sequence().counts().pairs.density() - read as f64 / (300.0 * 301.0 / 2.0)).abs() < 1e-12);
    // The logical batch changes the order of phases, not the keys that they read.
    let batches = options(spec, "full").with_batch_tokens(128);
    let batches = session_of(batches, 300, 0);
    assert!((batches.sequence().counts().pairs.density() - session.sequence().counts().pairs.density()).abs() < 1e-12);
    assert!(largest_difference(batches.logits(), session.logits()) <= 1e-5);
    // In a prompt of a single chunk, the policy reads everything.
    let full = session_of(options("full", "full"), 60, 5);
    let one = session_of(options(spec, "full"), 60, 5);
    assert!(largest_difference(one.logits(), full.logits()) <= 1e-5);
}

#[test]
fn evicting_policies_see_the_masses_and_keep_to_their_budget() {
    let full = session_of(options("full", "full"), 150, 40);
    for spec in ["h2o:budget=400,recent=8", "snapkv:budget=400,window=8"] {
        let roomy = session_of(options("full", spec), 150, 40);
        assert!(largest_difference(roomy.logits(), full.logits()) <= 1e-5, "{spec}");
    }
    for (spec, most) in [("h2o:budget=50,recent=8", 50), ("snapkv:budget=50,window=8", 90)] {
        let tight = session_of(options("full", spec), 150, 40);
        assert!(largest_difference(tight.logits(), full.logits()) > 1e-3, "{spec}");
        let (prompt_pairs, causal) = (150.0 * 151.0 / 2.0, 190.0 * 191.0 / 2.0);
        let read = tight.sequence().counts().pairs.density() * causal - prompt_pairs;
        assert!(
            read <= 40.0 * f64::from(most) + 1e-6,
            "{spec}: {read} pairs read by 40 tokens"
        );
    }
}

#[test]
fn landmarks_count_where_nothing_else_of_their_block_is_read() {
    let logits = |spec: &str| session_of(options(spec, spec), 200, 10).logits().to_vec();
    let full = session_of(options("full", "full"), 200, 10).logits().to_vec();
    let without = logits("log-stride:window=16,landmarks=0");
    let with = logits("log-stride:window=16,block=8");
    assert!(largest_difference(&with, &without) > 1e-3);
    assert!(largest_difference(&with, &full) < largest_difference(&without, &full));
    // A block of one token equals its mean, so everything is read.
    let each = logits("log-stride:window=16,block=1");
    assert!(largest_difference(&each, &full) <= 1e-4);
    // Without a whole block nothing changes.
    let none = logits("log-stride:window=16,block=500");
    assert_eq!(largest_difference(&none, &without), 0.0);
}

#[test]
fn landmarks_follow_a_rollback() {
    let spec = "log-stride:window=16,block=8";
    let tokens = prompt(150);
    let mut session = Session::new(&small_engine(options(spec, spec))).unwrap();
    let other: Vec<u32> = tokens[..130].iter().map(|token| (token + 7) % 61).collect();
    session.prefill(&tokens[..45], &mut go_on).unwrap();
    session.prefill(&other[45..], &mut go_on).unwrap();
    session.truncate(45).unwrap();
    session.prefill(&tokens[45..], &mut go_on).unwrap();
    let mut expected = Session::new(&small_engine(options(spec, spec))).unwrap();
    expected.prefill(&tokens[..45], &mut go_on).unwrap();
    expected.prefill(&tokens[45..], &mut go_on).unwrap();
    assert!(largest_difference(session.logits(), expected.logits()) <= 1e-5);
}

#[test]
fn an_audit_finds_full_attention_whole_and_says_what_others_drop() {
    let audited = |prefill: &str, decode: &str| {
        let options = options(prefill, decode).with_audit(true);
        session_of(options, 300, 6).sequence().audit().expect("an audit")
    };
    let full = audited("full", "full");
    assert!(
        full.mean_mass > 0.9999 && full.first_percentile_mass > 0.998,
        "{full:?}"
    );
    assert!(full.largest_output_error < 1e-3 && full.density == 1.0);
    let engine = small_engine(EngineOptions::default());
    let config = engine.model().config();
    // 4 chunks of 64, one of 44, 6 single tokens.
    assert_eq!(full.samples as usize, (4 * 64 + 44 + 6) * config.layers * config.heads);
    assert_eq!(full.heads.len(), config.layers * config.heads);
    let narrow = audited("streaming:sinks=2,window=16", "streaming:sinks=2,window=16");
    assert!(narrow.mean_mass < 0.9 && narrow.first_percentile_mass < narrow.mean_mass);
    assert!(narrow.mean_output_error > 0.01 && narrow.density < 0.2);
    let wide = audited("streaming:sinks=2,window=100", "streaming:sinks=2,window=100");
    assert!(wide.mean_mass > narrow.mean_mass && wide.mean_output_error < narrow.mean_output_error);
    assert!(session_of(options("full", "full"), 20, 1).sequence().audit().is_none());
}

#[test]
fn an_observed_query_keeps_the_exact_mass_of_what_was_read() {
    for (prefill, chunk_tokens) in [
        ("streaming:sinks=2,window=16,from=0", 64),
        ("h2o-chunk:local=8,heavy=8,from=0", 64),
    ] {
        let options = options(prefill, "full")
            .with_audit(true)
            .with_chunk_tokens(chunk_tokens);
        let engine = small_engine(options);
        let mut session = Session::new(&engine).unwrap();
        let (sender, receiver) = std::sync::mpsc::sync_channel(1 << 16);
        session
            .sequence_mut()
            .observers()
            .audit(move |query| {
                let read = query
                    .read
                    .iter()
                    .flat_map(|span| &query.mass[span.range()])
                    .sum::<f32>();
                let whole = query.mass.iter().sum::<f32>();
                let tokens: usize = query.read.iter().map(|span| span.len()).sum();
                sender
                    .send((query.position, query.kept_mass, read, whole, tokens))
                    .unwrap();
            })
            .unwrap();
        session.prefill(&prompt(200), &mut go_on).unwrap();
        let samples = session.sequence().audit().unwrap().samples as usize;
        drop(session);
        let seen: Vec<_> = receiver.iter().collect();
        assert_eq!(seen.len(), samples);
        for (position, kept, read, whole, tokens) in seen {
            assert!((whole - 1.0).abs() < 1e-4, "{prefill} {position}: {whole}");
            assert!(
                (kept - f64::from(read)).abs() < 1e-4,
                "{prefill} {position}: {kept} {read}"
            );
            if prefill.starts_with("streaming") {
                assert_eq!(tokens, (position + 1).min(18), "{position}");
            }
        }
    }
    let mut unaudited = Session::new(&small_engine(options("full", "full"))).unwrap();
    assert!(unaudited.sequence_mut().observers().audit(|_| ()).is_err());
}

#[test]
fn logits_are_the_same_bits_for_any_number_of_threads() {
    let prefill = [
        "vertical-slash:from=0,delta=16",
        "flex:block=16,min_budget=32,from=0",
        "xattention:block=16,tail=0,from=0",
        "h2o-chunk:local=8,heavy=8,from=0",
        "tri-shape:window=40",
        "log-stride:window=16,block=8",
        "peaks:block=16,tail=0,from=0",
        "signs:peak=0.3,tail=0,from=0",
    ];
    let decode = [
        "quest:block=16,topk=2,dense_layers=0,from=0",
        "twilight:block=16,least=2,dense_layers=0,from=0",
        "certified:from=0",
        "h2o:budget=50,recent=8",
        "snapkv:budget=50,window=8",
        "log-stride:window=16,block=8",
        "streaming:window=20",
        "signs:peak=1,block=1,from=0",
    ];
    for (prefill, decode) in prefill.iter().zip(decode) {
        let logits = |threads: usize| {
            with_threads(Some(threads), || {
                session_of(options(prefill, decode), 200, 8).logits().to_vec()
            })
            .unwrap()
        };
        assert_eq!(logits(1), logits(3), "{prefill} {decode}");
    }
}

#[test]
fn policies_without_the_phase_and_chunks_too_short_are_refused_before_a_model_is_read() {
    for (prefill, decode, parts) in [
        ("quest", "full", "does not support prefill"),
        ("full", "xattention", "does not support decode"),
        ("full", "streaming:delta=64", "delta corrects what a prompt reads"),
        ("h2o-chunk", "full", "`chunk_tokens=1024`"),
    ] {
        let refused = Engine::load("no such model", options(prefill, decode));
        let message = refused.err().expect("a refusal").to_string();
        assert!(message.contains(parts), "{message}");
    }
}
