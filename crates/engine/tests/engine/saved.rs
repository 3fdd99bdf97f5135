//! Sessions in files: a restored session has the same bits, and a file of another model is refused.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::testing::{fixture, go_on, prompt};
use riffle_attention::Format;
use riffle_engine::{
    AttentionPrecision, Engine, EngineError, EngineOptions, GenerateOptions, SamplingOptions, Session,
};
use riffle_kv::KvError;

fn engine(options: EngineOptions) -> Arc<Engine> {
    let options = options
        .with_context_tokens(Some(4096))
        .with_page_tokens(32)
        .with_batch_tokens(256)
        .with_chunk_tokens(64);
    Engine::load(fixture("model"), options).expect("the shipped model")
}

fn sampled(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        sampling: SamplingOptions {
            temperature: 1.3,
            repeat_penalty: 1.2,
            seed: 11,
            ..Default::default()
        },
        ..Default::default()
    }
}

/// Policies of prompts and answers, formats of keys and values.
const POLICIES_AND_FORMATS: [(&str, &str, Format, Format); 11] = [
    ("full", "full", Format::F16, Format::F16),
    (
        "streaming:sinks=16,window=128",
        "streaming:sinks=16,window=128",
        Format::F32,
        Format::F32,
    ),
    (
        "xattention:block=64,delta=48,from=0",
        "quest:block=32,topk=3,threshold=0,from=0",
        Format::Q8_0,
        Format::Q4_0,
    ),
    (
        "flex:min_budget=64,block=64,from=0",
        "certified:from=0",
        Format::Bf16,
        Format::Q8_0,
    ),
    (
        "vertical-slash:from=0",
        "quest:block=64,topk=2,threshold=0,from=0",
        Format::Q4_0,
        Format::Q4_0,
    ),
    // Policies that carry votes, masses, bounds or block means to the next prompt.
    (
        "h2o-chunk:from=0,local=16,heavy=32",
        "h2o:budget=200,recent=32,observed=16",
        Format::F16,
        Format::F16,
    ),
    ("full", "snapkv:budget=200,window=16", Format::Q8_0, Format::Q8_0),
    (
        "log-stride:window=64,landmarks=1,block=48",
        "log-stride:window=64,landmarks=1,block=48",
        Format::F16,
        Format::F16,
    ),
    (
        "tri-shape:sinks=8,window=64,tail=32",
        "twilight:from=0,least=2,block=16,dense_layers=0",
        Format::F16,
        Format::Q4_0,
    ),
    (
        "signs:from=0,peak=0.3,tail=32",
        "signs:from=0,peak=2,means=24",
        Format::F16,
        Format::F16,
    ),
    (
        "blasst:factor=4,block=16",
        "blasst:factor=4,block=16",
        Format::F32,
        Format::F32,
    ),
];

fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ..Default::default()
    }
}

fn generate(session: &mut Session, options: &GenerateOptions) -> (Vec<u32>, String) {
    let generation = session.generate(options, &mut |_| ControlFlow::Continue(())).unwrap();
    (generation.tokens, generation.text)
}

fn through_file(session: Session, path: &Path) -> Session {
    let engine = Arc::clone(session.engine());
    session.sequence().save(path).unwrap();
    drop(session);
    Session::restore(&engine, path).unwrap()
}

/// The observable state: tokens, bits of logits, density.
fn state(session: &Session) -> (Vec<u32>, Vec<u32>, f64) {
    let logits = session.logits().iter().map(|logit| logit.to_bits()).collect();
    (
        session.tokens().to_vec(),
        logits,
        session.sequence().counts().pairs.density(),
    )
}

#[test]
fn a_restored_session_goes_on_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let tokens = prompt(700);
    for (prefill, decode, key_format, value_format) in POLICIES_AND_FORMATS {
        let engine = engine(
            EngineOptions::default()
                .with_prefill(prefill.parse().unwrap())
                .with_decode(decode.parse().unwrap())
                .with_key_format(key_format)
                .with_value_format(value_format),
        );
        for options in [greedy, sampled] {
            let mut whole = Session::new(&engine).unwrap();
            whole.prefill(&tokens[..512], &mut go_on).unwrap();
            whole.prefill(&tokens[512..], &mut go_on).unwrap();
            let expected = generate(&mut whole, &options(40));

            // Saves within the prompt, then before, within and after the answer.
            let mut session = Session::new(&engine).unwrap();
            session.prefill(&tokens[..512], &mut go_on).unwrap();
            let mut session = through_file(session, &path);
            session.prefill(&tokens[512..], &mut go_on).unwrap();
            let mut session = through_file(session, &path);
            let first = generate(&mut session, &options(1));
            let mut session = through_file(session, &path);
            let second = generate(&mut session, &options(20));
            let mut session = through_file(session, &path);
            let third = generate(&mut session, &options(19));
            let session = through_file(session, &path);

            let what = format!("{prefill} {decode} {key_format:?}:{value_format:?}");
            assert_eq!([first.0, second.0, third.0].concat(), expected.0, "{what}");
            assert_eq!(first.1 + &second.1 + &third.1, expected.1, "{what}");
            assert_eq!(state(&session), state(&whole), "{what}");
        }
    }
}

#[test]
fn heads_that_auto_has_moved_stay_where_they_stood() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let engine = engine(EngineOptions::default().with_auto_target(Some(0.9)));
    let tokens = prompt(1400);
    let mut whole = Session::new(&engine).unwrap();
    let mut session = Session::new(&engine).unwrap();
    for part in tokens.chunks(512) {
        whole.prefill(part, &mut go_on).unwrap();
        session.prefill(part, &mut go_on).unwrap();
        session = through_file(session, &path);
        assert_eq!(
            (state(&session), session.sequence().audit()),
            (state(&whole), whole.sequence().audit())
        );
    }
    let [read, causal] = [
        whole.sequence().counts().pairs.read,
        whole.sequence().counts().pairs.causal,
    ];
    assert!(read < causal, "no head has moved");
    let mut fork = session.fork().unwrap();
    let expected = generate(&mut whole, &sampled(30));
    for session in [&mut session, &mut fork] {
        assert_eq!(generate(session, &sampled(30)), expected);
        session.prefill(&tokens[..512], &mut go_on).unwrap();
    }
    whole.prefill(&tokens[..512], &mut go_on).unwrap();
    assert_eq!(
        (state(&session), session.sequence().audit()),
        (state(&whole), whole.sequence().audit())
    );
    assert_eq!(
        (state(&fork), fork.sequence().audit()),
        (state(&whole), whole.sequence().audit())
    );
}

#[test]
fn a_new_prompt_begins_its_seed_anew_and_keeps_what_it_shares() {
    let engine = engine(EngineOptions::default());
    let tokens = prompt(300);
    let mut fresh = Session::new(&engine).unwrap();
    fresh.prefill(&tokens, &mut go_on).unwrap();
    let expected = generate(&mut fresh, &sampled(10));

    // The same prompt needs only its last token.
    assert_eq!(fresh.keep_shared(&tokens).unwrap(), 299);
    fresh.prefill(&tokens[299..], &mut go_on).unwrap();
    assert_eq!(generate(&mut fresh, &sampled(10)), expected);

    // A prompt that continues the answer, and one that replaces it.
    let longer = [fresh.tokens(), &tokens[..5]].concat();
    assert_eq!(fresh.keep_shared(&longer).unwrap(), 309);
    fresh.prefill(&longer[309..], &mut go_on).unwrap();
    assert_eq!(fresh.keep_shared(&longer).unwrap(), longer.len());
    let other = [&tokens[..123], &[7, 8, 9]].concat();
    assert_eq!(
        (fresh.sequence().shared_with(&other), fresh.keep_shared(&other).unwrap()),
        (123, 123)
    );
    assert_eq!(fresh.tokens(), &tokens[..123]);
}

#[test]
fn another_model_or_other_options_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let mut session = Session::new(&engine(EngineOptions::default())).unwrap();
    session.prefill(&prompt(100), &mut go_on).unwrap();
    session.sequence().save(&path).unwrap();
    let refused = |engine: &Arc<Engine>| Session::restore(engine, &path).err().expect("refused").to_string();

    let message = refused(&engine(EngineOptions::default().with_key_format(Format::Q8_0)));
    assert!(
        message.contains("`kv_type` f16:f16, this run has q8_0:f16"),
        "{message}"
    );
    for (prefill, decode, what) in [
        ("tri-shape", "full", "`prefill` full"),
        ("full", "quest", "`decode` full"),
    ] {
        let message = refused(&engine(
            EngineOptions::default()
                .with_prefill(prefill.parse().unwrap())
                .with_decode(decode.parse().unwrap()),
        ));
        assert!(message.contains(what), "{message}");
    }
    let message = refused(&engine(
        EngineOptions::default().with_attention(AttentionPrecision::Rounded),
    ));
    assert!(
        message.contains("`attention` not set, this run has rounded"),
        "{message}"
    );
    let other_pages = EngineOptions::default().with_page_tokens(64);
    let message = refused(&Engine::load(fixture("model"), other_pages).unwrap());
    assert!(message.contains("`page_tokens` 32, this run has 64"), "{message}");
    let message = refused(&crate::testing::small_engine(EngineOptions::default()));
    assert!(message.contains("saved with model"), "{message}");
    let short = EngineOptions::default()
        .with_context_tokens(Some(90))
        .with_page_tokens(32);
    let message = refused(&Engine::load(fixture("model"), short).unwrap());
    assert!(message.contains("raise `context_tokens` to at least 100"), "{message}");
}

#[test]
fn a_damaged_session_is_refused_and_a_failed_save_keeps_the_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let engine = engine(EngineOptions::default());
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&prompt(100), &mut go_on).unwrap();
    session.sequence().save(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        assert!(Session::restore(&engine, &path).is_err(), "byte {at}");
        fs::write(&path, &whole[..at]).unwrap();
        assert!(Session::restore(&engine, &path).is_err(), "cut at {at}");
    }
    fs::write(&path, &whole).unwrap();
    let gone = folder.path().join("gone/session");
    assert!(matches!(
        session.sequence().save(&gone),
        Err(EngineError::Kv(KvError::Output(_)))
    ));
    assert_eq!(state(&Session::restore(&engine, &path).unwrap()), state(&session));
}
