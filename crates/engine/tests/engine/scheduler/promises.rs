//! Long answers in a pool with pages for one context.

use std::collections::{BTreeMap, BTreeSet};

use super::{alone, alone_on, engine, finish_texts, options, request, scheduler, tokens};
use crate::testing::fixture;
use crate::tiers::far;
use riffle_engine::{
    Engine, EngineOptions, Event, GenerateOptions, Generation, Request, RequestId, RequestReport, SamplingOptions,
    Scheduler, StopReason,
};

/// Requests whose answers fill the pool each and do not end early.
fn long_requests(count: usize, answer: usize) -> (Vec<Request>, EngineOptions) {
    let options = options().with_pool_tokens(None);
    let engine = engine(options.clone());
    (requests_of(&engine, count, answer), options)
}

fn requests_of(engine: &Engine, count: usize, answer: usize) -> Vec<Request> {
    let texts = [
        "In the beginning ",
        "And it came to pass ",
        "Then said he ",
        "The words of the prophet ",
    ];
    let long = |number: usize| Request {
        generate: GenerateOptions {
            max_tokens: answer,
            min_tokens: answer,
            sampling: SamplingOptions {
                temperature: if number.is_multiple_of(2) { 0.0 } else { 0.9 },
                seed: number as u64,
                ..SamplingOptions::default()
            },
            ..GenerateOptions::default()
        },
        ..request(tokens(engine, texts[number], 70 + 10 * number), 0)
    };
    (0..count).map(long).collect()
}

fn submit(scheduler: &mut Scheduler, requests: &[Request]) -> Vec<RequestId> {
    let submit = |request: &Request| scheduler.submit(request.clone()).unwrap();
    requests.iter().map(submit).collect()
}

/// Number of tokens in the sequence of a request.
fn held(scheduler: &Scheduler, id: RequestId) -> usize {
    scheduler.sequence(id).map_or(0, |sequence| sequence.tokens().len())
}

/// Steps until a started request frees its pages.
fn write_until_given_up(scheduler: &mut Scheduler, id: RequestId) {
    let mut before = 0;
    while before == 0 || held(scheduler, id) > 0 {
        before = before.max(held(scheduler, id));
        assert!(scheduler.step(&mut |_| ()).unwrap());
    }
}

#[test]
fn answers_that_may_be_long_begin_at_once_and_end_as_alone() {
    for (count, answer) in [(2, 700), (4, 400)] {
        let (requests, options) = long_requests(count, answer);
        let engine = engine(options);
        let mut scheduler = scheduler(&engine, 4);
        let budget = engine.plan().kv_bytes + 64 * engine.plan().kv_bytes_per_token;
        let ids: Vec<_> = requests
            .iter()
            .map(|request| scheduler.submit(request.clone()).unwrap())
            .collect();
        let (mut begun, mut found) = (BTreeSet::new(), BTreeMap::new());
        let mut order = Vec::new();
        loop {
            let more = scheduler.step(&mut |event| match event {
                Event::Token(id, _) if found.is_empty() => drop(begun.insert(id)),
                Event::Finished(id, report, _) => {
                    order.push(id);
                    found.insert(id, report);
                }
                Event::Failed(id, error) => panic!("{id:?}: {error}"),
                _ => {}
            });
            assert!(scheduler.pool().near_bytes() <= budget);
            if !more.unwrap() {
                break;
            }
        }
        assert_eq!(begun.len(), count, "all answer before the first one ends");
        assert_eq!(order, ids, "the oldest ends first");
        for (id, request) in ids.iter().zip(&requests) {
            assert_eq!(found[id].generation, alone(request), "{id:?} of {count}");
            assert_eq!(found[id].prompt_tokens, request.tokens.len());
        }
    }
}

#[test]
fn an_answer_without_room_can_be_cancelled_and_parked_ones_go_on() {
    let (requests, options) = long_requests(3, 600);
    let engine = engine(options);
    let mut scheduler = scheduler(&engine, 3);
    let ids: Vec<_> = requests
        .iter()
        .map(|request| scheduler.submit(request.clone()).unwrap())
        .collect();
    for running in [3, 2] {
        while scheduler.running() != running {
            assert!(scheduler.step(&mut |_| ()).unwrap());
        }
    }
    assert!(!scheduler.is_running(ids[2]), "the last one waits for room");
    assert!(scheduler.cancel(ids[2]));
    assert!(scheduler.park(ids[0]).unwrap());
    let mut found = BTreeMap::new();
    for resumes in [false, true] {
        if resumes {
            assert!(scheduler.resume(ids[0]));
        }
        scheduler
            .run(&mut |event| {
                if let Event::Finished(id, report, _) = event {
                    found.insert(id, report.generation);
                }
            })
            .unwrap();
    }
    assert_eq!(found.len(), 2);
    for place in 0..2 {
        assert_eq!(found[&ids[place]], alone(&requests[place]));
    }
}

#[test]
fn answers_that_gave_up_their_pages_are_those_alone_from_disk_and_with_recurrent_layers() {
    let folder = tempfile::tempdir().unwrap();
    let small = || options().with_context_tokens(Some(512)).with_pool_tokens(None);
    let from_disk = far(&small(), &fixture("model"), folder.path(), 4, 64 << 10);
    for (model, options) in [("model", from_disk), ("model-hybrid", small())] {
        let engine = Engine::load(fixture(model), options).unwrap();
        let requests = requests_of(&engine, 3, 300);
        let mut scheduler = scheduler(&engine, 3);
        let ids = submit(&mut scheduler, &requests);
        for id in [ids[2], ids[1]] {
            write_until_given_up(&mut scheduler, id);
        }
        let usage = scheduler.sequence(ids[0]).unwrap().usage();
        assert_eq!(usage.bytes_by_tier.disk > 0, model == "model");
        let found = finish_texts(&mut scheduler);
        let resident = Engine::load(fixture(model), small()).unwrap();
        for (id, request) in ids.iter().zip(&requests) {
            assert_eq!(found[id], alone_on(&resident, request), "{model}, {id:?}");
        }
    }
}

/// Ends an answer, and returns its report.
fn stop(scheduler: &mut Scheduler, id: RequestId) -> RequestReport {
    let mut report = None;
    assert!(scheduler.has_begun(id));
    assert!(scheduler.stop(id, &mut |event| match event {
        Event::Finished(ended, finished, _) if ended == id => report = Some(finished),
        event => panic!("{event:?}"),
    }));
    assert!(!scheduler.has_begun(id) && !scheduler.stop(id, &mut |_| ()));
    report.unwrap()
}

/// The state of an answer without its pages.
#[derive(Debug, Clone, Copy)]
enum Away {
    Waits,
    ReadsPrompt,
    ReadsAnswer,
}

/// Steps until a parked answer has read this much of its text again.
fn step_to(scheduler: &mut Scheduler, id: RequestId, prompt: usize, away: Away) {
    let is_there = |scheduler: &Scheduler| match away {
        Away::Waits => true,
        Away::ReadsPrompt => scheduler.is_running(id),
        Away::ReadsAnswer => held(scheduler, id) > prompt,
    };
    while !is_there(scheduler) {
        assert!(scheduler.step(&mut |_| ()).unwrap());
    }
}

#[test]
fn an_answer_without_its_pages_can_be_stopped_and_the_others_stay_as_alone() {
    let (mut requests, options) = long_requests(2, 600);
    let engine = engine(options);
    requests.push(request(tokens(&engine, "The words of the prophet ", 90), 4));
    let expected: Vec<Generation> = requests.iter().map(alone).collect();
    for away in [Away::Waits, Away::ReadsPrompt, Away::ReadsAnswer] {
        let mut scheduler = scheduler(&engine, 3);
        let mut ids = submit(&mut scheduler, &requests[..2]);
        write_until_given_up(&mut scheduler, ids[1]);
        // A new prompt is read beside the text that is read again.
        ids.push(scheduler.submit(requests[2].clone()).unwrap());
        step_to(&mut scheduler, ids[1], requests[1].tokens.len(), away);
        let report = stop(&mut scheduler, ids[1]);
        assert_eq!(report.generation.stop, StopReason::Interrupted);
        assert_eq!(report.prompt_tokens, requests[1].tokens.len());
        let written = report.generation.tokens;
        assert!(written.len() > 100, "{away:?}");
        assert_eq!(written, expected[1].tokens[..written.len()], "{away:?}");
        assert_eq!(finish_texts(&mut scheduler)[&ids[2]], expected[2], "{away:?}");
        assert_eq!(scheduler.running() + scheduler.waiting(), 0);
    }
}

#[test]
fn a_request_that_copies_part_of_an_idle_page_has_room_for_the_copy() {
    // The idle text holds 12 of the pool's pages; with the further requests all of them are in use, or nearly all.
    let engine = engine(options().with_pool_tokens(None));
    for (pages, shared) in (26..=31).flat_map(|pages| [(pages, 20), (pages, 33), (pages, 70)]) {
        let mut scheduler = scheduler(&engine, 1);
        let idle = tokens(&engine, "In the beginning ", 380);
        let mut text = idle[..shared].to_vec();
        text.extend(tokens(&engine, "Then said he ", 32 * pages - 4 - shared));
        for wanted in [request(idle, 2), request(text, 2)] {
            let id = scheduler.submit(wanted).unwrap();
            let mut finished = Vec::new();
            let run = scheduler.run(&mut |event| match event {
                Event::Failed(_, error) => panic!("{pages} pages, {shared} tokens shared: {error}"),
                Event::Finished(id, ..) => finished.push(id),
                _ => {}
            });
            run.unwrap();
            assert_eq!(finished, [id]);
        }
    }
}
