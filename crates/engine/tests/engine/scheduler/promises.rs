//! Long answers that share a pool with room for one context.

use std::collections::{BTreeMap, BTreeSet};

use super::{alone, engine, options, request, scheduler, tokens};
use riffle_engine::{EngineOptions, Event, GenerateOptions, Request, SamplingOptions};

/// Requests for answers that take the whole pool each; none ends early.
fn long_requests(count: usize, answer: usize) -> (Vec<Request>, EngineOptions) {
    let options = options().with_pool_tokens(None);
    let engine = engine(options.clone());
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
        ..request(tokens(&engine, texts[number], 70 + 10 * number), 0)
    };
    ((0..count).map(long).collect(), options)
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
