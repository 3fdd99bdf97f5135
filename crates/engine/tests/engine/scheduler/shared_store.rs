//! One process reads texts and another takes them from a store, whatever faults the store has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use riffle_engine::{
    Engine, EngineOptions, Event, Generation, PrefixCacheOptions, Request, RequestId, Scheduler, SchedulerOptions,
    SharedOptions, SharedStoreOptions,
};

use super::{alone, alone_on, engine, finish, options, request, tokens, write};
use crate::testing::fixture;
use riffle_testing::store::{FakeStore, Fault, Operation};

fn questions(engine: &Engine) -> Vec<Request> {
    let book = tokens(engine, "In the beginning was the word, and the word was long. ", 700);
    let ask = |question: &str| {
        let question = engine.tokenizer().unwrap().encode(question, false).unwrap();
        request([&book[..], &question].concat(), 6)
    };
    ["Who was it?", "Where?", "When was that?"].map(ask).to_vec()
}

fn shared(store: &FakeStore, wait: Duration) -> SharedStoreOptions {
    SharedStoreOptions {
        store: Arc::new(store.clone()),
        use_as: SharedOptions {
            operation_time: Duration::from_millis(300),
            wait,
            ..SharedOptions::default()
        },
        any_machine: false,
    }
}

fn worker(engine: &Arc<Engine>, store: &FakeStore) -> Scheduler {
    waiting_worker(engine, store, Duration::ZERO)
}

fn waiting_worker(engine: &Arc<Engine>, store: &FakeStore, wait: Duration) -> Scheduler {
    let options = SchedulerOptions {
        shared_store: Some(shared(store, wait)),
        ..SchedulerOptions::for_engine(engine.options())
    };
    Scheduler::new(engine, options).unwrap()
}

/// Answers a request and waits until its blocks are in the store. Returns the answer and the number of reused tokens.
fn answer(scheduler: &mut Scheduler, request: &Request) -> (Generation, usize) {
    let id = scheduler.submit(request.clone()).unwrap();
    let answered = finish(scheduler).remove(&id).unwrap();
    assert!(scheduler.flush_shared(Duration::from_secs(20)));
    answered
}

#[test]
fn what_one_process_reads_another_adopts_with_the_same_answer() {
    for model in ["model", "model-hybrid"] {
        let load = || Engine::load(fixture(model), options()).unwrap();
        let (store, requests) = (FakeStore::default(), questions(&load()));
        let first = answer(&mut worker(&load(), &store), &requests[0]);
        assert_eq!(first, (alone_on(&load(), &requests[0]), 0));
        for request in &requests[1..] {
            let mut other = worker(&load(), &store);
            let (found, reused) = answer(&mut other, request);
            assert_eq!(found, alone_on(&load(), request), "{model}");
            assert!(reused >= 640, "{model}: {reused}");
            let report = other.shared_report().unwrap();
            assert_eq!((report.found_tokens, report.bad_blocks), (reused, 0));
        }
    }
}

#[test]
fn another_policy_format_or_model_finds_nothing() {
    let store = FakeStore::default();
    let first = engine(options());
    let requests = questions(&first);
    answer(&mut worker(&first, &store), &requests[0]);
    let others = [
        options().with_prefill("streaming".parse().unwrap()),
        options().with_key_format(riffle_attention::Format::Q8_0),
        options().with_page_tokens(64),
    ];
    for options in others {
        let (_, reused) = answer(&mut worker(&engine(options), &store), &requests[0]);
        assert_eq!(reused, 0);
    }
    let hybrid = Engine::load(fixture("model-hybrid"), options()).unwrap();
    let (_, reused) = answer(&mut worker(&hybrid, &store), &request(requests[0].tokens.clone(), 2));
    assert_eq!(reused, 0);
}

#[test]
fn what_memory_and_disk_hold_is_continued_from_the_store_and_kept_on_disk() {
    let (store, folder) = (FakeStore::default(), tempfile::tempdir().unwrap());
    let engine = engine(options());
    let requests = questions(&engine);
    answer(&mut worker(&engine, &store), &requests[0]);
    let near = |store: &FakeStore| {
        let options = SchedulerOptions {
            prefix_cache: Some(PrefixCacheOptions {
                folder: folder.path().to_owned(),
                budget_bytes: u64::MAX,
            }),
            shared_store: Some(shared(store, Duration::ZERO)),
            ..SchedulerOptions::for_engine(engine.options())
        };
        Scheduler::new(&engine, options).unwrap()
    };
    let mut scheduler = near(&store);
    answer(&mut scheduler, &request(requests[0].tokens[..300].to_vec(), 2));
    let before = store.count(Operation::Get);
    let found = answer(&mut scheduler, &requests[1]);
    assert_eq!(found, (alone(&requests[1]), 700 / 32 * 32));
    assert_eq!(store.count(Operation::Get) - before, 700 / 32 - 300 / 32);
    // The folder now has the text with the questions' common first letter, so the store gets no requests for blocks.
    let before = store.count(Operation::Get);
    let found = answer(&mut near(&store), &requests[2]);
    assert_eq!(found, (alone(&requests[2]), 701));
    assert_eq!(store.count(Operation::Get), before);
}

#[test]
fn answers_go_on_while_a_store_hangs_and_prompts_are_read_in_its_place() {
    let store = FakeStore::default();
    let engine = engine(options());
    let requests = questions(&engine);
    answer(&mut worker(&engine, &store), &requests[0]);
    store.set_faults(|_, _| Fault::Slow(Duration::from_secs(3600)));
    let mut scheduler = worker(&engine, &FakeStore::default());
    let long = request(tokens(&engine, "And it came to pass ", 40), 400);
    scheduler.submit(long.clone()).unwrap();
    write(&mut scheduler, 5);
    drop(scheduler);

    let mut shared = shared(&store, Duration::ZERO);
    shared.use_as.operation_time = Duration::from_secs(2);
    let operation_time = shared.use_as.operation_time;
    let options = SchedulerOptions {
        shared_store: Some(shared),
        ..SchedulerOptions::for_engine(engine.options())
    };
    let mut scheduler = Scheduler::new(&engine, options).unwrap();
    let first = scheduler.submit(long.clone()).unwrap();
    // The scheduler skips the store after the first failure. The second request arrives before that failure is known.
    let second = scheduler.submit(requests[1].clone()).unwrap();
    let (mut longest_step, mut notices, mut ended) = (Duration::ZERO, Vec::new(), Vec::new());
    loop {
        let began = Instant::now();
        let more = scheduler.step(&mut |event| match event {
            Event::SharedStore(notice) => notices.push(notice),
            Event::Finished(id, report, _) => ended.push((id, report.generation, report.reused_tokens)),
            Event::Failed(_, error) => panic!("{error}"),
            _ => {}
        });
        longest_step = longest_step.max(began.elapsed());
        if !more.unwrap() || ended.len() == 2 {
            break;
        }
    }
    let of = |id: RequestId| ended.iter().find(|(other, ..)| *other == id).unwrap();
    assert_eq!((&of(first).1, of(first).2), (&alone(&long), 0));
    assert_eq!((&of(second).1, of(second).2), (&alone(&requests[1]), 0));
    // A step that waits for the store takes at least one operation's time.
    assert!(longest_step < operation_time, "a step took {longest_step:?}");
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("no answer within"), "{notices:?}");
}

#[test]
fn whatever_a_store_does_the_answers_are_right() {
    for model in ["model", "model-hybrid"] {
        let engine = Engine::load(fixture(model), options()).unwrap();
        let (store, requests) = (FakeStore::default(), questions(&engine));
        answer(&mut worker(&engine, &store), &requests[0]);
        let whole = store.copy();
        let expected = alone_on(&engine, &requests[1]);
        let mut bad = 0;
        for number in 0..40 {
            store.restore(&whole);
            let (fault, operations) = (number % 5, AtomicUsize::new(0));
            store.set_faults(move |operation, name| {
                let place = operations.fetch_add(1, Ordering::Relaxed);
                // The faults begin at another operation each time.
                if operation == Operation::Contains || place < number {
                    return Fault::None;
                }
                match fault {
                    0 => Fault::Flipped(place * 7919),
                    1 => Fault::Cut(place * 37),
                    2 => Fault::Fails,
                    3 => Fault::Other(format!("{}0", &name[..name.len() - 1])),
                    _ => Fault::Slow(Duration::from_millis(if place % 3 == 0 { 400 } else { 20 })),
                }
            });
            let mut scheduler = worker(&engine, &store);
            let id = scheduler.submit(requests[1].clone()).unwrap();
            let found = finish(&mut scheduler);
            assert_eq!(found[&id].0, expected, "{model}, round {number}");
            bad += scheduler.shared_report().unwrap().bad_blocks;
        }
        assert!(bad > 0, "no damage was found out");
    }
}

#[test]
fn a_request_that_is_taken_back_while_its_blocks_arrive_leaves_whole_pages() {
    let engine = engine(options());
    let (store, requests) = (FakeStore::default(), questions(&engine));
    answer(&mut worker(&engine, &store), &requests[0]);
    store.set_faults(|operation, _| match operation {
        Operation::Get => Fault::Slow(Duration::from_millis(10)),
        _ => Fault::None,
    });
    for steps in [1, 3, 10, 30] {
        let mut scheduler = worker(&engine, &store);
        let id = scheduler.submit(requests[1].clone()).unwrap();
        for _ in 0..steps {
            scheduler.step(&mut |_| {}).unwrap();
        }
        assert!(scheduler.cancel(id));
        let id = scheduler.submit(requests[2].clone()).unwrap();
        let found = finish(&mut scheduler);
        let (answer, reused) = &found[&id];
        assert_eq!(answer, &alone(&requests[2]), "after {steps} steps");
        assert!(*reused >= 672, "after {steps} steps: {reused}");
    }
}

#[test]
fn one_process_reads_and_another_that_waits_answers() {
    for model in ["model", "model-hybrid"] {
        let load = || Engine::load(fixture(model), options()).unwrap();
        let store = FakeStore::default();
        let requests = questions(&load());
        let (reading, asked) = (store.clone(), requests[0].clone());
        let reader = thread::spawn(move || {
            let engine = Engine::load(fixture(model), options()).unwrap();
            // The other worker has requested a missing block.
            while reading.count(Operation::Get) == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            // A router sends such a request to a worker for prompts.
            answer(&mut worker(&engine, &reading), &request(asked.tokens, 1))
        });
        let mut waiting = waiting_worker(&load(), &store, Duration::from_secs(20));
        let (found, reused) = answer(&mut waiting, &requests[0]);
        assert_eq!(found, alone_on(&load(), &requests[0]), "{model}");
        assert!(reused >= 640, "{model}: {reused}");
        assert_eq!(reader.join().unwrap().1, 0);
    }
}

/// Pages whose blocks have two slices, of three layers and two.
fn large_pages() -> EngineOptions {
    options()
        .with_context_tokens(Some(4096))
        .with_page_tokens(256)
        .with_pool_tokens(Some(12_288))
        .with_sequences(3)
}

#[test]
fn a_prompt_is_read_through_its_first_layers_while_the_last_ones_arrive() {
    let engine = engine(large_pages());
    let store = FakeStore::default();
    let book = tokens(&engine, "In the beginning was the word, and the word was long. ", 2000);
    let asked = request([&book[..], &tokens(&engine, "Who was it? ", 20)].concat(), 4);
    answer(&mut worker(&engine, &store), &asked);
    let expected = alone_on(&engine, &asked);
    let whole = store.names().len() as u64;
    // The last slices of the last blocks arrive late, or never.
    for fails in [false, true] {
        store.set_faults(move |operation, name| {
            let depth: usize = name.split('.').nth(1).unwrap_or("0").parse().unwrap_or(0);
            match operation {
                Operation::Get if depth >= 5 && name.ends_with(".1") && fails => Fault::Flipped(9999),
                Operation::Get if depth >= 5 && name.ends_with(".1") => Fault::Slow(Duration::from_millis(200)),
                _ => Fault::None,
            }
        });
        let mut scheduler = worker(&engine, &store);
        let id = scheduler.submit(asked.clone()).unwrap();
        let (mut read_before_the_end, mut ended) = (false, None);
        while ended.is_none() {
            let mut is_reading = false;
            let more = scheduler.step(&mut |event| match event {
                Event::Reading(..) => is_reading = true,
                Event::Finished(finished, report, _) if finished == id => ended = Some(report),
                Event::Failed(_, error) => panic!("{error}"),
                _ => {}
            });
            assert!(more.unwrap() || ended.is_some());
            read_before_the_end |= is_reading && scheduler.shared_counts().unwrap().fetched < whole;
        }
        let report = ended.unwrap();
        assert_eq!(report.generation, expected, "fails: {fails}");
        assert!(read_before_the_end, "fails: {fails}");
        // The complete part is used if the end never arrives.
        assert_eq!(report.reused_tokens, if fails { 5 * 256 } else { 7 * 256 });
    }
}

#[test]
fn many_requests_at_once_get_right_answers_while_layers_arrive_late_and_some_are_taken_back() {
    let engine = engine(large_pages());
    let store = FakeStore::default();
    let book = tokens(&engine, "In the beginning was the word, and the word was long. ", 1600);
    let ask = |question: &str| request([&book[..], &tokens(&engine, question, 30)].concat(), 8);
    let requests = ["Who was it? ", "Where did they go? ", "And then? "].map(ask);
    answer(&mut worker(&engine, &store), &requests[0]);
    let other = request(tokens(&engine, "And it came to pass ", 900), 30);
    let expected = [&requests[1], &requests[2], &other].map(|request| alone_on(&engine, request));
    for round in 0..12 {
        let operations = AtomicUsize::new(round);
        store.set_faults(move |operation, name| match operation {
            Operation::Get if name.ends_with(".1") => {
                match (operations.fetch_add(1, Ordering::Relaxed) * 7 + round) % 11 {
                    0 if round % 3 == 0 => Fault::Cut(100),
                    1 if round % 3 == 1 => Fault::Fails,
                    late => Fault::Slow(Duration::from_millis(late as u64 * 6)),
                }
            }
            _ => Fault::None,
        });
        let mut scheduler = worker(&engine, &store);
        let gone = scheduler.submit(requests[1].clone()).unwrap();
        for _ in 0..round * 4 {
            scheduler.step(&mut |_| {}).unwrap();
        }
        scheduler.cancel(gone);
        let ids = [&requests[1], &requests[2], &other].map(|request| scheduler.submit(request.clone()).unwrap());
        let found = finish(&mut scheduler);
        for (id, expected) in ids.iter().zip(&expected) {
            assert_eq!(&found[id].0, expected, "round {round}");
        }
    }
}
