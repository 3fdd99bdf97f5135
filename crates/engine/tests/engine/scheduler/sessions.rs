//! Sessions in files: kept in memory, continued by requests that name them, and compressed beside other work.

use std::path::{Path, PathBuf};

use riffle_engine::{CompressMethod, CompressOptions, Compressed, LoanedSequence, Sequence};

use super::*;

const TEXT_TOKENS: usize = 640;

/// Saves a session of the first tokens of a book, compressed first if `compress` is given.
fn saved(engine: &Arc<Engine>, book: &[u32], compress: Option<&CompressOptions>, path: &Path) -> Option<Compressed> {
    let mut session = Session::new(engine).unwrap();
    session.prefill(&book[..TEXT_TOKENS], &mut go_on).unwrap();
    let compressed = compress.map(|options| session.compress(options, &mut go_on).unwrap());
    session.sequence().save(path).unwrap();
    compressed
}

fn book(engine: &Engine) -> Vec<u32> {
    let text = "In the beginning was the word, and the number of the gate is 70452. Then said he unto them: go. ";
    tokens(engine, text, 900)
}

fn named(path: &Path, tokens: &[u32]) -> Request {
    Request {
        session: Some(path.to_owned()),
        ..request(tokens.to_vec(), 12)
    }
}

fn hold(scheduler: &mut Scheduler, path: &Path) {
    let session = scheduler.restoring(path).unwrap().run().unwrap();
    scheduler.hold(session);
}

/// The answer of a file's session after the rest of a prompt, read in one call.
fn answer_of_file(engine: &Arc<Engine>, path: &Path, request: &Request) -> Generation {
    let mut session = Session::restore(engine, path).unwrap();
    let shared = session
        .sequence()
        .shared_with(&request.tokens)
        .min(request.tokens.len() - 1);
    session.truncate(shared).unwrap();
    assert_eq!(session.tokens().len(), shared);
    session.prefill(&request.tokens[shared..], &mut go_on).unwrap();
    session
        .generate(&request.generate, &mut |_| ControlFlow::Continue(()))
        .unwrap()
}

fn kvzip(keep: f64) -> CompressOptions {
    let method = CompressMethod::KvZip {
        chunk_tokens: 200,
        prompt: None,
    };
    CompressOptions::new(method, keep)
}

fn expected(keep: f64) -> CompressOptions {
    let method = CompressMethod::Expected {
        sample_tokens: 200,
        future_tokens: 100,
    };
    CompressOptions::new(method, keep)
}

fn echo(keep: f64) -> CompressOptions {
    CompressOptions::new(CompressMethod::Echo { part_tokens: 200 }, keep)
}

/// The bytes of a sequence's file.
fn file_of(sequence: &Sequence, path: &Path) -> Vec<u8> {
    sequence.save(path).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn a_request_goes_on_from_the_session_that_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("book");
    for (model, compress) in [
        ("model", None),
        ("model", Some(kvzip(0.3))),
        ("model-hybrid", Some(kvzip(0.4))),
    ] {
        let engine = Engine::load(fixture(model), options()).unwrap();
        let book = book(&engine);
        saved(&engine, &book, compress.as_ref(), &path);
        let mut scheduler = scheduler(&engine, 3);
        hold(&mut scheduler, &path);
        assert!(scheduler.holds(&path));
        // One continues the text and one repeats it; without recurrent layers one also goes back a little.
        let mut requests = vec![
            named(&path, &book[..700]),
            named(&path, &book[..900]),
            named(&path, &book[..700]),
        ];
        if model == "model" {
            let mut back = book[..TEXT_TOKENS - 20].to_vec();
            back.extend(&book[10..60]);
            requests.push(named(&path, &back));
        }
        let ids: Vec<RequestId> = requests
            .iter()
            .map(|request| scheduler.submit(request.clone()).unwrap())
            .collect();
        let found = finish(&mut scheduler);
        for (id, request) in ids.iter().zip(&requests) {
            let shared = request
                .tokens
                .iter()
                .zip(&book[..TEXT_TOKENS])
                .take_while(|(a, b)| a == b)
                .count();
            let expected = answer_of_file(&engine, &path, request);
            assert_eq!(found[id], (expected, shared), "{model} {compress:?}");
        }
    }
}

#[test]
fn a_prompt_that_does_not_go_on_from_its_session_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("book");
    let engine = engine(options());
    let book = book(&engine);
    saved(&engine, &book, Some(&kvzip(0.3)), &path);
    let mut scheduler = scheduler(&engine, 2);
    let refused = |scheduler: &mut Scheduler, request: Request| scheduler.submit(request).unwrap_err();
    let error = refused(&mut scheduler, named(&path, &book));
    assert!(matches!(error, EngineError::SessionNotHeld(_)), "{error}");
    hold(&mut scheduler, &path);
    // The session has evicted earlier tokens.
    let error = refused(&mut scheduler, named(&path, &book[..TEXT_TOKENS - 40]));
    assert!(
        matches!(
            error,
            EngineError::OtherText {
                saved: TEXT_TOKENS,
                shared: 600,
                ..
            }
        ),
        "{error}"
    );
    for (options, problem) in [
        ("streaming:sinks=4,window=64,from=0", "prefill"),
        ("h2o:budget=256", "decode"),
    ] {
        let mut other = engine.options().sequence.clone();
        match problem {
            "prefill" => other.prefill = options.parse().unwrap(),
            _ => other.decode = options.parse().unwrap(),
        }
        let request = Request {
            sequence: Some(other),
            ..named(&path, &book)
        };
        let error = refused(&mut scheduler, request);
        assert!(error.to_string().contains(problem), "{error}");
    }
    let probabilities = Request {
        prompt_probabilities: Some(1),
        ..named(&path, &book)
    };
    assert!(
        refused(&mut scheduler, probabilities)
            .to_string()
            .contains("whole prompt")
    );
    // A file replaced by another program is another session.
    saved(&engine, &book[1..], None, &path);
    assert!(!scheduler.holds(&path));
    assert!(matches!(
        refused(&mut scheduler, named(&path, &book)),
        EngineError::SessionNotHeld(_)
    ));
}

/// Runs a compression beside other requests. Returns the events of prompts and of the compression in order.
fn compress_beside(
    scheduler: &mut Scheduler,
    id: RequestId,
) -> (
    Compressed,
    LoanedSequence,
    Vec<RequestId>,
    BTreeMap<RequestId, Generation>,
) {
    let (mut outcome, mut order, mut answers) = (None, Vec::new(), BTreeMap::new());
    scheduler
        .run(&mut |event| match event {
            Event::Compressed(found, compressed, session) => {
                assert_eq!(found, id);
                outcome = Some((compressed, *session));
            }
            Event::Reading(id, ..) => order.push(id),
            Event::Finished(id, report, _) => drop(answers.insert(id, report.generation)),
            Event::Failed(id, error) => panic!("{id:?}: {error}"),
            _ => {}
        })
        .unwrap();
    let (compressed, session) = outcome.expect("it ends");
    (compressed, session, order, answers)
}

#[test]
fn a_compression_beside_answers_and_prompts_changes_neither_and_is_the_one_that_it_is_alone() {
    let folder = tempfile::tempdir().unwrap();
    let [path, alone_path, found_path]: [PathBuf; 3] = ["book", "alone", "found"].map(|name| folder.path().join(name));
    for (model, asked) in [
        ("model", kvzip(0.3)),
        ("model", expected(0.5)),
        ("model", echo(0.3)),
        ("model-hybrid", kvzip(0.3)),
        ("model-hybrid", echo(0.4)),
        ("model", kvzip(1.0)),
    ] {
        let engine = Engine::load(fixture(model), options().with_batch_tokens(64)).unwrap();
        let book = book(&engine);
        let expected = saved(&engine, &book, Some(&asked), &alone_path).unwrap();
        saved(&engine, &book, None, &path);
        let mut scheduler = scheduler(&engine, 3);
        let writes = request(tokens(&engine, "And it came to pass ", 50), 60);
        let reads = request(tokens(&engine, "The words of the prophet ", 500), 4);
        let written = scheduler.submit(writes.clone()).unwrap();
        write(&mut scheduler, 2);
        let session = scheduler.restoring(&path).unwrap().run().unwrap();
        let id = scheduler.compress(session, &asked).unwrap();
        assert!(scheduler.is_running(id));
        let read = scheduler.submit(reads.clone()).unwrap();
        let (compressed, session, order, answers) = compress_beside(&mut scheduler, id);
        assert_eq!(compressed, expected, "{model} {asked}");
        assert!(
            file_of(session.sequence(), &found_path) == std::fs::read(&alone_path).unwrap(),
            "{model} {asked}"
        );
        assert_eq!(answers[&read], alone_on(&engine, &reads));
        assert_eq!(answers[&written], alone_on(&engine, &writes));
        if asked.keep < 1.0 {
            let turns = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert!(turns >= 4, "prompts and compressions take turns: {order:?}");
        }
        // Requests that name the new file use the compressed session.
        let mut session = session;
        let bytes = session.save(&path).unwrap();
        assert_eq!(bytes, std::fs::metadata(&path).unwrap().len());
        scheduler.hold(session);
        let asks = named(&path, &book[..700]);
        let id = scheduler.submit(asks.clone()).unwrap();
        assert_eq!(
            finish(&mut scheduler)[&id].0,
            answer_of_file(&engine, &path, &asks),
            "{model} {asked}"
        );
    }
}

#[test]
fn a_compression_that_is_taken_back_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("book");
    let engine = engine(options().with_batch_tokens(64));
    let book = book(&engine);
    saved(&engine, &book, None, &path);
    for steps in [0, 1, 3, 20, 45] {
        let mut scheduler = scheduler(&engine, 2);
        let session = scheduler.restoring(&path).unwrap().run().unwrap();
        let id = scheduler.compress(session, &kvzip(0.3)).unwrap();
        for _ in 0..steps {
            assert!(
                scheduler
                    .step(&mut |event| assert!(matches!(event, Event::Reading(..))))
                    .unwrap()
            );
        }
        assert!(scheduler.cancel(id) && !scheduler.cancel(id));
        assert!(!scheduler.step(&mut |_| {}).unwrap());
        assert_eq!(scheduler.pool().pages(), 0, "after {steps} steps");
        let asks = request(book[..300].to_vec(), 3);
        let id = scheduler.submit(asks.clone()).unwrap();
        assert_eq!(finish(&mut scheduler)[&id].0, alone_on(&engine, &asks));
    }
}

#[test]
fn a_session_that_a_waiting_request_names_stays_and_others_make_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("book");
    let engine = engine(options().with_sequences(2));
    let book = book(&engine);
    saved(&engine, &book, Some(&kvzip(0.3)), &path);
    let mut scheduler = scheduler(&engine, 1);
    hold(&mut scheduler, &path);
    let long = scheduler
        .submit(request(tokens(&engine, "And it came to pass ", 50), 20))
        .unwrap();
    assert!(scheduler.step(&mut |_| {}).unwrap() && scheduler.is_running(long));
    let asks = named(&path, &book[..700]);
    let asked = scheduler.submit(asks.clone()).unwrap();
    assert!(matches!(scheduler.restoring(&path), Err(EngineError::NoRoom(_))));
    let found = finish(&mut scheduler);
    assert!(found.contains_key(&long));
    assert_eq!(found[&asked].0, answer_of_file(&engine, &path, &asks));
    // No request names the session any more, so its pages are freed.
    drop(scheduler.restoring(&path).unwrap());
    drop(scheduler.restoring(&path).unwrap());
    assert_eq!(scheduler.forget_idle_since(std::time::Instant::now()), 1);
}

#[test]
fn a_session_whose_file_another_writer_replaced_is_not_taken_for_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("book");
    let engine = engine(options());
    let book = book(&engine);
    let mut scheduler = scheduler(&engine, 2);
    let read = |scheduler: &mut Scheduler| scheduler.restoring(&path).unwrap().run().unwrap();

    // The file is read, and its sequence is not yet returned.
    saved(&engine, &book, None, &path);
    let session = read(&mut scheduler);
    saved(&engine, &book[1..], None, &path);
    scheduler.hold(session);
    assert!(!scheduler.holds(&path));
    hold(&mut scheduler, &path);
    assert!(scheduler.holds(&path));

    // The file is written, and its sequence is not returned yet.
    let mut session = scheduler.take_held(&path).unwrap();
    session.save(&path).unwrap();
    saved(&engine, &book, None, &path);
    scheduler.hold(session);
    assert!(!scheduler.holds(&path));
    hold(&mut scheduler, &path);
    let asks = named(&path, &book[..700]);
    let id = scheduler.submit(asks.clone()).unwrap();
    let (answer, shared) = &finish(&mut scheduler)[&id];
    assert_eq!((answer, *shared), (&answer_of_file(&engine, &path, &asks), TEXT_TOKENS));
}

#[test]
fn a_compression_that_was_not_saved_is_not_taken_for_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("book");
    let engine = engine(options());
    saved(&engine, &book(&engine), None, &path);
    let mut scheduler = scheduler(&engine, 2);
    let session = scheduler.restoring(&path).unwrap().run().unwrap();
    let id = scheduler.compress(session, &kvzip(0.3)).unwrap();
    let (_, session, ..) = compress_beside(&mut scheduler, id);
    scheduler.hold(session);
    assert!(!scheduler.holds(&path));
    assert_eq!(scheduler.pool().pages(), 0);
}
