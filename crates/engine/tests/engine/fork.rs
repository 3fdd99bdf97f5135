//! Sessions with shared pages answer as if each had read everything itself.

use std::sync::Arc;

use crate::testing::{fixture, go_on, hybrid_engine, hybrid_prompt, prompt};
use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, Session, adopt_prefix, share_prefix};

fn engine(prefill: &str, decode: &str, format: Format) -> Arc<Engine> {
    let options = EngineOptions::default()
        .with_context_tokens(Some(512))
        .with_batch_tokens(64)
        .with_chunk_tokens(32)
        .with_page_tokens(32)
        .with_key_format(format)
        .with_value_format(format)
        .with_prefill(prefill.parse().unwrap())
        .with_decode(decode.parse().unwrap());
    Engine::load(fixture("vectors/group2-dim64-linear-bf16"), options).unwrap()
}

/// Bits of the logits after a question and after each of some tokens.
fn ask(session: &mut Session, question: &[u32]) -> Vec<Vec<u32>> {
    let bits = |session: &Session| session.logits().iter().map(|x| x.to_bits()).collect();
    session.prefill(question, &mut go_on).unwrap();
    let mut found = vec![bits(session)];
    for token in 0..8 {
        session.advance(token).unwrap();
        found.push(bits(session));
    }
    found
}

#[test]
fn forks_answer_to_the_bit_as_sessions_that_read_alone() {
    for (prefill, decode) in [
        ("full", "full"),
        ("peaks:from=0,block=16,tail=16", "h2o:budget=60,recent=16,observed=8"),
        ("h2o-chunk:from=0,local=4,heavy=8", "snapkv:budget=60,window=8"),
        ("signs:from=0,peak=0.3,tail=16", "signs:from=0,peak=2,means=24"),
        (
            "xattention:from=0,block=16,stride=4,tail=16,delta=16",
            "quest:from=0,topk=2,threshold=2,block=16,dense_layers=0",
        ),
        (
            "log-stride:window=16,landmarks=1,block=24",
            "log-stride:window=16,landmarks=1,block=24",
        ),
    ] {
        for format in [Format::F16, Format::Q4_0] {
            let engine = engine(prefill, decode, format);
            // The prompt ends within a page.
            let book = prompt(100);
            let questions = [prompt(17), prompt(40), vec![3, 1, 4, 1, 5]];
            let mut reader = Session::new(&engine).unwrap();
            reader.prefill(&book, &mut go_on).unwrap();
            let mut forks: Vec<Session> = (0..3).map(|_| reader.fork().unwrap()).collect();
            for (fork, question) in forks.iter_mut().zip(&questions) {
                let mut alone = Session::new(&engine).unwrap();
                alone.prefill(&book, &mut go_on).unwrap();
                assert_eq!(
                    ask(fork, question),
                    ask(&mut alone, question),
                    "{prefill} {decode} {format:?}"
                );
            }
            // The book is stored once, and each question has its own pages.
            assert!(
                forks[0].sequence().usage().shared_bytes > 0
                    || decode.starts_with("h2o")
                    || decode.starts_with("snapkv")
            );
            let mut alone = Session::new(&engine).unwrap();
            alone.prefill(&book, &mut go_on).unwrap();
            assert_eq!(ask(&mut reader, &questions[1]), ask(&mut alone, &questions[1]));
        }
    }
}

#[test]
fn one_reading_serves_several_decode_policies_to_the_bit() {
    let book = prompt(100);
    let question = prompt(17);
    let read = |decode: &str| {
        let mut session = Session::new(&engine(
            "xattention:from=0,block=16,stride=4,tail=16",
            decode,
            Format::F16,
        ))
        .unwrap();
        session.prefill(&book, &mut go_on).unwrap();
        session
    };
    let mut reader = read("full");
    let policies = [
        "quest:from=0,topk=1,threshold=1,block=16,dense_layers=0",
        "twilight:from=0,least=1,block=16,dense_layers=0",
        "signs:from=0,peak=2",
        "certified:from=0",
        "blasst:from=0",
        "streaming:sinks=2,window=16",
    ];
    let mut dense = reader.fork().unwrap();
    let dense = ask(&mut dense, &question);
    for decode in policies {
        let mut fork = reader.fork_under(decode.parse().unwrap()).unwrap();
        let found = ask(&mut fork, &question);
        assert_eq!(found, ask(&mut read(decode), &question), "{decode}");
        let leaves_out = ["quest", "streaming"].iter().any(|name| decode.starts_with(name));
        assert!(!leaves_out || found != dense, "{decode} reads everything");
    }
    for decode in ["h2o:budget=60", "snapkv:budget=60"] {
        let error = reader.fork_under(decode.parse().unwrap()).err().unwrap().to_string();
        assert!(
            error.contains("`decode`") && error.contains("read the text under it"),
            "{error}"
        );
        let error = read(decode)
            .fork_under("full".parse().unwrap())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("read the text under it"), "{error}");
    }
}

#[test]
fn forks_of_a_hybrid_model_carry_their_own_state() {
    let engine = hybrid_engine(EngineOptions::default());
    let mut reader = Session::new(&engine).unwrap();
    reader.prefill(&hybrid_prompt(120), &mut go_on).unwrap();
    let mut fork = reader.fork().unwrap();
    let mut alone = Session::new(&engine).unwrap();
    alone.prefill(&hybrid_prompt(120), &mut go_on).unwrap();
    let mut second = alone.fork().unwrap();
    assert_eq!(ask(&mut fork, &[1, 2, 3]), ask(&mut alone, &[1, 2, 3]));
    assert_eq!(ask(&mut reader, &[7]), ask(&mut second, &[7]));
}

#[test]
fn a_session_beside_another_takes_the_beginning_that_it_shares() {
    let engine = engine("full", "full", Format::F16);
    let mut first = Session::new(&engine).unwrap();
    first.prefill(&prompt(200), &mut go_on).unwrap();
    let tokens = [&prompt(180)[..], &[9, 9, 9, 9]].concat();
    let mut second = first.beside().unwrap();
    assert_eq!(adopt_prefix(second.sequence_mut(), &tokens).unwrap(), 0);
    assert_eq!(share_prefix(first.sequence_mut()).unwrap(), 192);
    assert_eq!(adopt_prefix(second.sequence_mut(), &tokens).unwrap(), 160);
    assert!(second.sequence().usage().shared_bytes > 0);
    let mut alone = Session::new(&engine).unwrap();
    alone.prefill(&tokens[..160], &mut go_on).unwrap();
    assert_eq!(ask(&mut second, &tokens[160..]), ask(&mut alone, &tokens[160..]));
    // A fully known prompt shares everything except its last token.
    let mut third = first.beside().unwrap();
    assert_eq!(adopt_prefix(third.sequence_mut(), &prompt(192)).unwrap(), 191);
}

#[test]
fn forks_keep_to_the_budget_of_one_session_and_say_so() {
    let options = EngineOptions::default()
        .with_context_tokens(Some(320))
        .with_page_tokens(32);
    let engine = Engine::load(fixture("vectors/group2-dim64-linear-bf16"), options).unwrap();
    let mut reader = Session::new(&engine).unwrap();
    reader.prefill(&prompt(224), &mut go_on).unwrap();
    let mut forks = vec![reader.fork().unwrap(), reader.fork().unwrap()];
    for fork in &mut forks {
        fork.prefill(&prompt(20), &mut go_on).unwrap();
    }
    let error = forks[0].prefill(&prompt(60), &mut go_on).unwrap_err().to_string();
    assert!(error.contains("KV budget"), "{error}");
    // The refused fork changed nothing, and fits after another is dropped.
    assert_eq!(forks[0].tokens().len(), 244);
    forks.truncate(1);
    drop(reader);
    forks[0].prefill(&prompt(60), &mut go_on).unwrap();
}
