//! Guarantees of a scheduler to its callers.

mod holdings;
mod promises;
mod sessions;
mod shared_prompts;
mod shared_store;
mod wishes;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::testing::{fixture, go_on};
use riffle_attention::Format;
use riffle_engine::{
    Engine, EngineError, EngineOptions, Event, GenerateOptions, Generation, Request, RequestId, SamplingOptions,
    Scheduler, SchedulerOptions, Session, StopReason,
};
use riffle_kv::DiskTier;

fn options() -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(1024))
        .with_batch_tokens(256)
        .with_chunk_tokens(64)
        .with_page_tokens(32)
        .with_sequences(8)
        .with_pool_tokens(Some(4096))
}

fn engine(options: EngineOptions) -> Arc<Engine> {
    Engine::load(fixture("model"), options).unwrap()
}

fn scheduler(engine: &Arc<Engine>, most_running: usize) -> Scheduler {
    let options = SchedulerOptions {
        most_running,
        ..SchedulerOptions::for_engine(engine.options())
    };
    Scheduler::new(engine, options).unwrap()
}

fn tokens(engine: &Engine, text: &str, count: usize) -> Vec<u32> {
    let text = text.repeat(count);
    let mut tokens = engine.tokenizer().unwrap().encode(&text, true).unwrap();
    tokens.truncate(count);
    tokens
}

fn request(tokens: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        tokens,
        generate: GenerateOptions {
            max_tokens,
            ..GenerateOptions::default()
        },
        ..Request::default()
    }
}

/// The answer of a session alone on the engine.
fn alone(request: &Request) -> Generation {
    let engine = engine(
        options()
            .with_prefill(
                request
                    .sequence
                    .as_ref()
                    .map_or(options().sequence.prefill, |sequence| sequence.prefill.clone()),
            )
            .with_decode(
                request
                    .sequence
                    .as_ref()
                    .map_or(options().sequence.decode, |sequence| sequence.decode.clone()),
            ),
    );
    alone_on(&engine, request)
}

/// The answer of a separate session on an engine.
fn alone_on(engine: &Arc<Engine>, request: &Request) -> Generation {
    let mut session = Session::new(engine).unwrap();
    session.prefill(&request.tokens, &mut go_on).unwrap();
    session
        .generate(&request.generate, &mut |_| ControlFlow::Continue(()))
        .unwrap()
}

/// Steps until the answers have this many tokens.
fn write(scheduler: &mut Scheduler, tokens: usize) {
    let mut written = 0;
    while written < tokens {
        let more = scheduler.step(&mut |event| written += usize::from(matches!(event, Event::Token(..))));
        assert!(more.unwrap());
    }
}

/// Steps until all requests end. Returns the generations and the number of reused tokens of each prompt.
fn finish(scheduler: &mut Scheduler) -> BTreeMap<RequestId, (Generation, usize)> {
    let mut ended = BTreeMap::new();
    let mut texts: BTreeMap<RequestId, String> = BTreeMap::new();
    scheduler
        .run(&mut |event| match event {
            Event::Token(id, written) => texts.entry(id).or_default().push_str(written.text),
            Event::Finished(id, report, _) => {
                ended.insert(id, (report.generation, report.reused_tokens));
            }
            Event::Failed(id, error) => panic!("{id:?}: {error}"),
            Event::Reading(..)
            | Event::PromptProbabilities(..)
            | Event::Compressed(..)
            | Event::PrefixCacheLost(_)
            | Event::SharedStore(_) => {}
        })
        .unwrap();
    for (id, (generation, _)) in &ended {
        assert_eq!(texts.get(id).map_or("", String::as_str), generation.text);
    }
    ended
}

#[test]
fn answers_are_those_of_sessions_alone() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 5);
    let texts = [
        "In the beginning ",
        "And it came to pass ",
        "The words of the prophet ",
        "Then said he ",
    ];
    let quest = riffle_engine::SequenceOptions {
        decode: "quest:from=0,topk=2,threshold=2,block=16,dense_layers=0"
            .parse()
            .unwrap(),
        ..engine.options().sequence.clone()
    };
    let requests: Vec<Request> = (0..8)
        .map(|number| Request {
            sequence: (number % 3 == 1).then(|| quest.clone()),
            generate: GenerateOptions {
                max_tokens: 3 + 5 * number,
                sampling: SamplingOptions {
                    temperature: if number % 2 == 0 { 0.0 } else { 0.9 },
                    seed: number as u64,
                    ..SamplingOptions::default()
                },
                ..GenerateOptions::default()
            },
            ..request(tokens(&engine, texts[number % 4], 40 + 90 * number), 0)
        })
        .collect();
    let ids: Vec<RequestId> = requests
        .iter()
        .map(|request| scheduler.submit(request.clone()).unwrap())
        .collect();
    let found = finish(&mut scheduler);
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(found[id].0, alone(request), "{id:?}");
    }
    assert_eq!((scheduler.running(), scheduler.waiting()), (0, 0));
}

#[test]
fn one_prompt_asked_by_many_is_read_once() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 4);
    let book = tokens(&engine, "In the beginning was the word. ", 600);
    let ask = |question: &str| {
        let mut prompt = book.clone();
        prompt.extend(engine.tokenizer().unwrap().encode(question, false).unwrap());
        request(prompt, 6)
    };
    let requests = [ask("Who was it?"), ask("Where?"), ask("When was that?")];
    let ids: Vec<RequestId> = requests
        .iter()
        .map(|request| scheduler.submit(request.clone()).unwrap())
        .collect();
    let found = finish(&mut scheduler);
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(found[id].0, alone(request));
    }
    let reused: Vec<usize> = ids.iter().map(|id| found[id].1).collect();
    assert_eq!(reused[0], 0);
    // The whole book is shared, although it ends within a page.
    assert!(reused[1..].iter().all(|reused| *reused >= book.len()), "{reused:?}");
    // The owners have ended, and later requests use their pages.
    let id = scheduler.submit(ask("Why?")).unwrap();
    assert!(finish(&mut scheduler)[&id].1 >= book.len());
}

#[test]
fn a_conversation_reads_each_of_its_prompts_once() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 4);
    // A prompt shorter than a chunk, and not a multiple of a page.
    let mut turn = request(tokens(&engine, "In the beginning was the word. ", 41), 7);
    let mut read = 0;
    for said in [" And what then?", " And who said so?"] {
        let id = scheduler.submit(turn.clone()).unwrap();
        let (answer, reused) = finish(&mut scheduler).remove(&id).unwrap();
        assert_eq!(answer, alone(&turn));
        assert_eq!(reused, read);
        read = turn.tokens.len();
        turn.tokens.extend(answer.tokens);
        turn.tokens
            .extend(engine.tokenizer().unwrap().encode(said, false).unwrap());
    }
    // Two requests continue from the same page at once.
    scheduler.submit(turn.clone()).unwrap();
    scheduler.submit(turn.clone()).unwrap();
    let found = finish(&mut scheduler);
    let reused: Vec<usize> = found.values().map(|(_, reused)| *reused).collect();
    assert_eq!(reused, [read, read]);
    assert!(found.values().all(|(answer, _)| *answer == alone(&turn)));
}

#[test]
fn prompts_wait_for_each_other_only_where_one_can_go_on_from_what_the_other_reads() {
    let prefill = "xattention:from=0,block=16,stride=4";
    for (policy, together) in [("full", 1), (prefill, 3)] {
        let engine = engine(options().with_prefill(policy.parse().unwrap()).with_chunk_tokens(128));
        let mut scheduler = scheduler(&engine, 4);
        // A sparse policy selects for chunks of 128 tokens, so 100 tokens cannot be shared.
        let book = tokens(&engine, "In the beginning was the word. ", 100);
        for question in ["Who was it?", "Where?", "When was that?"] {
            let mut prompt = book.clone();
            prompt.extend(engine.tokenizer().unwrap().encode(question, false).unwrap());
            scheduler.submit(request(prompt, 3)).unwrap();
        }
        scheduler.step(&mut |_| ()).unwrap();
        assert_eq!(scheduler.running(), together, "{policy}");
        assert_eq!(finish(&mut scheduler).len(), 3);
    }
}

#[test]
fn a_cancelled_prompt_ends_within_a_chunk_and_what_was_read_stays() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 4);
    let wanted = request(tokens(&engine, "A long story that goes on. ", 900), 4);
    let id = scheduler.submit(wanted.clone()).unwrap();
    let mut read = 0.0;
    while read < 600.0 {
        let more = scheduler.step(&mut |event| {
            if let Event::Reading(_, progress, _) = event {
                read = progress.tokens_done;
            }
        });
        assert!(more.unwrap());
    }
    assert!(scheduler.cancel(id));
    assert!(!scheduler.cancel(id), "it has ended");
    assert_eq!(scheduler.running(), 0);
    assert!(!scheduler.step(&mut |_| panic!("nothing is left to do")).unwrap());
    // Two logical batches of 256 tokens were complete.
    let id = scheduler.submit(wanted.clone()).unwrap();
    let found = finish(&mut scheduler);
    assert_eq!(found[&id].1, 512);
    assert_eq!(found[&id].0, alone(&wanted));
}

#[test]
fn an_answer_goes_on_between_the_chunks_of_a_prompt() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 4);
    let short = scheduler
        .submit(request(tokens(&engine, "In the beginning ", 20), 200))
        .unwrap();
    write(&mut scheduler, 3);
    let long = scheduler
        .submit(request(tokens(&engine, "A long story that goes on. ", 1000), 1))
        .unwrap();
    let (mut pieces, mut tokens_between, mut done) = (0, 0, false);
    while !done {
        scheduler
            .step(&mut |event| match event {
                Event::Reading(id, ..) => {
                    assert_eq!(id, long);
                    pieces += 1;
                }
                Event::Token(id, ..) if id == short => tokens_between += 1,
                Event::Token(id, ..) => done = id == long,
                _ => {}
            })
            .unwrap();
    }
    assert!(pieces > 20, "{pieces}");
    assert!(tokens_between > 3, "{tokens_between} tokens in {pieces} pieces");
}

#[test]
fn a_higher_priority_takes_a_place_and_the_parked_answer_goes_on_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    for disk in [false, true] {
        let mut options = options();
        options.cache.kv_tiers.disk = disk.then(|| DiskTier {
            folder: folder.path().to_owned(),
            budget_bytes: None,
        });
        let engine = engine(options);
        let mut scheduler = scheduler(&engine, 1);
        let slow = request(tokens(&engine, "In the beginning ", 200), 30);
        let urgent = Request {
            priority: 1,
            ..request(tokens(&engine, "Then said he ", 50), 5)
        };
        let first = scheduler.submit(slow.clone()).unwrap();
        write(&mut scheduler, 5);
        let second = scheduler.submit(urgent.clone()).unwrap();
        let mut order = Vec::new();
        let mut generations = BTreeMap::new();
        scheduler
            .run(&mut |event| {
                if let Event::Finished(id, report, _) = event {
                    order.push(id);
                    generations.insert(id, report.generation);
                }
            })
            .unwrap();
        assert_eq!(order, [second, first]);
        assert_eq!(generations[&first], alone(&slow));
        assert_eq!(generations[&second], alone(&urgent));
    }
}

#[test]
fn a_parked_answer_waits_until_it_is_resumed() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 2);
    let wanted = request(tokens(&engine, "In the beginning ", 100), 12);
    let id = scheduler.submit(wanted.clone()).unwrap();
    write(&mut scheduler, 4);
    assert!(scheduler.park(id).unwrap());
    assert!(!scheduler.park(id).unwrap(), "it is parked already");
    assert!(!scheduler.step(&mut |_| panic!("nothing goes on")).unwrap());
    assert!(scheduler.resume(id));
    assert_eq!(finish_texts(&mut scheduler)[&id], alone(&wanted));
}

fn finish_texts(scheduler: &mut Scheduler) -> BTreeMap<RequestId, Generation> {
    let mut ended = BTreeMap::new();
    let run = scheduler.run(&mut |event| {
        if let Event::Finished(id, report, _) = event {
            ended.insert(id, report.generation);
        }
    });
    run.unwrap();
    ended
}

#[test]
fn requests_that_never_fit_are_refused_and_those_that_fit_later_wait() {
    let engine = engine(options().with_pool_tokens(None));
    let mut scheduler = scheduler(&engine, 8);
    let error = scheduler
        .submit(request(tokens(&engine, "word ", 1000), 100))
        .unwrap_err();
    assert!(
        matches!(error, EngineError::ContextExceeded { needed: 1099, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("`context_tokens`"), "{error}");
    assert!(matches!(
        scheduler.submit(request(Vec::new(), 5)),
        Err(EngineError::EmptyPrompt)
    ));
    // Together they need the pages of three contexts, and the pool has one.
    let texts = ["In the beginning ", "And it came to pass ", "Then said he "];
    let requests = texts.map(|text| request(tokens(&engine, text, 900), 20));
    let ids = requests.clone().map(|request| scheduler.submit(request).unwrap());
    let budget = engine.plan().kv_bytes + 64 * engine.plan().kv_bytes_per_token;
    let mut most_running = 0;
    let mut generations = BTreeMap::new();
    loop {
        let more = scheduler.step(&mut |event| match event {
            Event::Finished(id, report, _) => drop(generations.insert(id, report.generation)),
            Event::Failed(id, error) => panic!("{id:?}: {error}"),
            _ => {}
        });
        most_running = most_running.max(scheduler.running());
        assert!(scheduler.pool().near_bytes() <= budget);
        if !more.unwrap() {
            break;
        }
    }
    assert_eq!(most_running, 1);
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(generations[id], alone(request));
    }
}

#[test]
fn formats_and_budgets_hold_for_many_requests_at_once() {
    for format in [Format::F16, Format::Q8_0, Format::Q4_0] {
        let options = options().with_key_format(format).with_value_format(format);
        let engine = engine(options);
        let mut scheduler = scheduler(&engine, 8);
        for number in 0..12 {
            let wanted = request(tokens(&engine, "And it came to pass in that day ", 30 + 60 * number), 8);
            scheduler.submit(wanted).unwrap();
        }
        assert_eq!(finish(&mut scheduler).len(), 12);
        assert_eq!(scheduler.idle(), 8, "as many as the plan has room for");
    }
}

#[test]
fn as_many_sequences_are_alive_as_the_plan_has_room_for() {
    let engine = engine(options().with_sequences(2));
    let refused = Scheduler::new(
        &engine,
        SchedulerOptions {
            most_running: 3,
            ..SchedulerOptions::for_engine(engine.options())
        },
    );
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("sequences"), "{error}");
    let mut scheduler = scheduler(&engine, 2);
    for number in 0..6 {
        let text = ["In the beginning ", "Then said he ", "And it came to pass "][number % 3];
        let priority = number as i32;
        scheduler
            .submit(Request {
                priority,
                ..request(tokens(&engine, text, 80 + 40 * number), 5)
            })
            .unwrap();
    }
    let mut finished = 0;
    while scheduler
        .step(&mut |event| finished += usize::from(matches!(event, Event::Finished(..))))
        .unwrap()
    {
        assert!(scheduler.running() + scheduler.idle() <= 2);
    }
    assert_eq!(finished, 6);
}

#[test]
fn a_request_without_room_for_a_further_sequence_does_not_stop_the_one_that_runs() {
    let engine = engine(options().with_sequences(1));
    let mut scheduler = scheduler(&engine, 1);
    let slow = request(tokens(&engine, "In the beginning ", 100), 20);
    let urgent = Request {
        priority: 1,
        ..request(tokens(&engine, "Then said he ", 50), 3)
    };
    let first = scheduler.submit(slow.clone()).unwrap();
    write(&mut scheduler, 3);
    let second = scheduler.submit(urgent.clone()).unwrap();
    let found = finish_texts(&mut scheduler);
    assert_eq!(found[&first], alone(&slow));
    assert_eq!(found[&second], alone(&urgent));
}

#[test]
fn an_answer_that_is_stopped_reports_what_was_written() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 2);
    let wanted = request(tokens(&engine, "In the beginning ", 100), 12);
    let id = scheduler.submit(wanted.clone()).unwrap();
    assert!(!scheduler.stop(id, &mut |_| panic!("nothing is written yet")));
    write(&mut scheduler, 4);
    let mut report = None;
    assert!(scheduler.stop(id, &mut |event| match event {
        Event::Finished(ended, finished, sequence) if ended == id => {
            assert_eq!(sequence.tokens().len(), 103);
            report = Some(finished);
        }
        event => panic!("{event:?}"),
    }));
    let report = report.unwrap();
    assert_eq!(report.generation.stop, StopReason::Interrupted);
    assert_eq!(report.generation.tokens, alone(&wanted).tokens[..4]);
    assert!(report.times.read_s > 0.0 && report.times.answered_s > 0.0);
    assert_eq!((scheduler.running(), scheduler.idle()), (0, 1));
}

#[test]
#[cfg_attr(not(unix), ignore = "an emulated device compiles its kernels with g++")]
fn more_answers_than_a_device_multiplies_alike_take_turns() {
    let device = crate::testing::device::any_device();
    let options = options()
        .with_sequences(9)
        .with_page_tokens(64)
        .with_device(Some(Arc::new(device)));
    let engine = engine(options.clone());
    let mut scheduler = scheduler(&engine, 9);
    let requests: Vec<Request> = (0..9)
        .map(|number| request(tokens(&engine, "And it came to pass ", 2 + number % 4), 3))
        .collect();
    let ids: Vec<RequestId> = requests
        .iter()
        .map(|request| scheduler.submit(request.clone()).unwrap())
        .collect();
    let found = finish(&mut scheduler);
    let lonely = Engine::load(fixture("model"), options.with_sequences(1)).unwrap();
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(found[id].0, alone_on(&lonely, request));
    }
}
