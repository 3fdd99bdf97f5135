//! Prompts with a common beginning: it is read once, in memory, from files and from disk.

use std::path::Path;
use std::sync::Arc;

use riffle_engine::{
    Engine, Event, PrefixCacheOptions, Request, RequestId, Scheduler, SchedulerOptions, Sequence, Session,
};

use super::{alone, alone_on, engine, finish, options, request, scheduler, tokens};
use crate::testing::{fixture, go_on};

/// Questions about a long text: its tokens, and four questions with a few tokens each.
fn questions(engine: &Engine) -> Vec<Request> {
    let book = tokens(engine, "In the beginning was the word, and the word was long. ", 700);
    let ask = |question: &str| {
        let question = engine.tokenizer().unwrap().encode(question, false).unwrap();
        request([&book[..], &question].concat(), 6)
    };
    ["Who was it?", "Where?", "When was that?", "Why?"].map(ask).to_vec()
}

#[test]
fn questions_about_one_text_share_the_state_of_recurrent_layers() {
    let hybrid = |options| Engine::load(fixture("model-hybrid"), options).unwrap();
    let engine = hybrid(options());
    let mut scheduler = scheduler(&engine, 4);
    let requests = questions(&engine);
    let together: Vec<RequestId> = requests[..3]
        .iter()
        .map(|request| scheduler.submit(request.clone()).unwrap())
        .collect();
    let mut found = finish(&mut scheduler);
    let later = scheduler.submit(requests[3].clone()).unwrap();
    found.extend(finish(&mut scheduler));
    for (number, (id, request)) in together.iter().chain([&later]).zip(&requests).enumerate() {
        let alone = alone_on(&hybrid(options()), request);
        assert_eq!(found[id].0, alone, "question {number}");
        let reused = found[id].1;
        // Of the 700 common tokens, whole pages, chunks and steps of 64 are shared.
        assert_eq!(reused, if number == 0 { 0 } else { 640 }, "question {number}");
    }
}

fn with_disk(engine: &Arc<Engine>, folder: &Path) -> Scheduler {
    let options = SchedulerOptions {
        prefix_cache: Some(PrefixCacheOptions {
            folder: folder.to_owned(),
            budget_bytes: u64::MAX,
        }),
        ..SchedulerOptions::for_engine(engine.options())
    };
    Scheduler::new(engine, options).unwrap()
}

#[test]
fn beginnings_outlive_the_process_in_the_prefix_cache_on_disk() {
    for model in ["model", "model-hybrid"] {
        let folder = tempfile::tempdir().unwrap();
        let load = || Engine::load(fixture(model), options()).unwrap();
        let requests = questions(&load());
        let (mut alone, mut reused) = (Vec::new(), Vec::new());
        for request in &requests[..3] {
            alone.push(alone_on(&load(), request));
        }
        for number in 0..3 {
            // A new scheduler has an empty memory, like another process.
            let mut scheduler = with_disk(&load(), folder.path());
            let id = scheduler.submit(requests[number].clone()).unwrap();
            let found = finish(&mut scheduler);
            assert_eq!(found[&id].0, alone[number], "{model}, question {number}");
            reused.push(found[&id].1);
            let report = scheduler.prefix_report().unwrap();
            assert_eq!((report.found_tokens, report.damaged_blocks), (reused[number], 0));
            assert!(
                number > 0 || report.kept_tokens >= 640,
                "{model}: {} kept",
                report.kept_tokens
            );
            // Two requests at once; the disk has the beginning of one.
            if number == 2 {
                let ids = [0, 1].map(|other| scheduler.submit(requests[other].clone()).unwrap());
                let found = finish(&mut scheduler);
                assert_eq!([&found[&ids[0]].0, &found[&ids[1]].0], [&alone[0], &alone[1]]);
            }
        }
        assert_eq!(reused[0], 0);
        assert!(reused[1..].iter().all(|reused| *reused >= 640), "{model}: {reused:?}");
    }
}

#[test]
fn the_next_turn_goes_on_from_the_last_token_of_the_one_before_in_another_process() {
    for model in ["model", "model-hybrid"] {
        let folder = tempfile::tempdir().unwrap();
        let load = || Engine::load(fixture(model), options()).unwrap();
        let text = tokens(&load(), "In the beginning was the word, and the word was long. ", 700);
        let (mut turn, mut read_before) = (request(text, 6), 0);
        for number in 0..3 {
            let mut scheduler = with_disk(&load(), folder.path());
            let id = scheduler.submit(turn.clone()).unwrap();
            let (answer, reused) = finish(&mut scheduler).remove(&id).unwrap();
            assert_eq!(answer, alone_on(&load(), &turn), "{model}, turn {number}");
            if model == "model" {
                assert_eq!(reused, read_before, "turn {number}");
            } else {
                // States exist at whole pages, chunks and steps of 64.
                assert!(
                    reused % 64 == 0 && reused + 2 * 64 > read_before,
                    "turn {number}: {reused}"
                );
            }
            let report = scheduler.prefix_report().unwrap();
            assert_eq!((report.found_tokens, report.damaged_blocks), (reused, 0));
            read_before = turn.tokens.len();
            assert!(report.kept_tokens == read_before || model != "model", "turn {number}");
            let question: Vec<u32> = (0..46).map(|at| at * 7 % 200).collect();
            turn = request([&turn.tokens[..], &answer.tokens, &question].concat(), 6);
        }
    }
}

#[test]
fn what_memory_holds_is_continued_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(options());
    let requests = questions(&engine);
    let mut first = with_disk(&engine, folder.path());
    first.submit(requests[0].clone()).unwrap();
    finish(&mut first);
    let mut second = with_disk(&engine, folder.path());
    // Memory then has the first 300 tokens, and the disk has more, in whole pages.
    second.submit(request(requests[0].tokens[..300].to_vec(), 2)).unwrap();
    finish(&mut second);
    let id = second.submit(requests[1].clone()).unwrap();
    let found = finish(&mut second);
    assert_eq!(found[&id], (alone(&requests[1]), 672));
}

#[test]
fn an_answer_goes_on_between_the_steps_of_the_prefix_cache_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(options().with_page_tokens(64));
    let requests = questions(&engine);
    let mut scheduler = with_disk(&engine, folder.path());
    let id = scheduler.submit(requests[0].clone()).unwrap();
    let mut kept_before_the_end = 0;
    let mut ended = false;
    while !ended {
        let more = scheduler.step(&mut |event| ended |= matches!(event, Event::Finished(..)));
        assert!(more.unwrap());
        kept_before_the_end = scheduler.prefix_report().unwrap().kept_tokens;
    }
    assert!(kept_before_the_end > 0, "{id:?} was kept only after it had ended");
}

#[test]
fn a_prefix_cache_that_fails_is_told_and_requests_go_on_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(options());
    let requests = questions(&engine);
    let mut scheduler = with_disk(&engine, folder.path());
    // A folder instead of the index can be neither read nor written.
    std::fs::create_dir(folder.path().join("index.redb")).unwrap();
    let id = scheduler.submit(requests[0].clone()).unwrap();
    let (mut lost, mut generation) = (Vec::new(), None);
    scheduler
        .run(&mut |event| match event {
            Event::PrefixCacheLost(error) => lost.push(error.to_string()),
            Event::Finished(finished, report, _) if finished == id => generation = Some(report.generation),
            Event::Failed(_, error) => panic!("{error}"),
            _ => {}
        })
        .unwrap();
    assert_eq!(lost.len(), 1);
    assert!(lost[0].contains("index.redb"), "{lost:?}");
    assert_eq!(generation.unwrap(), alone(&requests[0]));
}

#[test]
fn a_sequence_from_a_file_serves_requests_from_the_one_pool() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    for model in ["model", "model-hybrid"] {
        let engine = Engine::load(fixture(model), options()).unwrap();
        let requests = questions(&engine);
        let mut session = Session::new(&engine).unwrap();
        session.prefill(&requests[0].tokens[..640], &mut go_on).unwrap();
        session.sequence().save(&path).unwrap();
        drop(session);
        let mut scheduler = scheduler(&engine, 2);
        let restored = Sequence::restore(&engine, scheduler.pool(), &path).unwrap();
        assert!(scheduler.pool().near_bytes() > 0, "its pages are the pool's");
        assert!(scheduler.adopt(restored));
        let id = scheduler.submit(requests[1].clone()).unwrap();
        let found = finish(&mut scheduler);
        assert_eq!(found[&id], (alone_on(&engine, &requests[1]), 640), "{model}");
    }
}
