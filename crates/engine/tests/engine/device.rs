//! A model on a device, emulated on the CPU unless RIFFLE_TEST_GPU names a GPU: answers equal the CPU's, and bits do
//! not depend on the number of pages on the device.

use std::path::Path;
use std::sync::Arc;

use crate::testing::device::{MODEL, any_device, difference, far, gpu, gpu_error, load, logits, options, with_disk};
use crate::testing::{fixture, go_on, prompt};
use riffle_attention::Format;
use riffle_cuda::{CudaError, EmulatedOptions, Gpu};
use riffle_engine::{AttentionPrecision, DeviceError, Engine, EngineError, EngineOptions, Session, StreamWindow};

#[test]
fn a_model_on_a_device_gives_the_logits_of_the_cpu() {
    // With many rows, 16-bit weights round activations to 16 bits too.
    let device = any_device();
    for (name, tolerance) in [(MODEL, 2e-3), ("vectors/group4-dim80-llama3-f16", 4e-3)] {
        let tokens = prompt(130);
        let cpu = logits(&load(&fixture(name), options(None)), &tokens);
        let there = logits(&load(&fixture(name), options(Some(device.clone()))), &tokens);
        let found = difference(&there, &cpu);
        assert!(found <= tolerance, "{name}: {found}");
    }
}

#[test]
fn a_hybrid_on_a_device_gives_the_logits_of_the_cpu_and_goes_on_where_its_state_is_taken() {
    let device = any_device();
    let batches = |device: Option<Gpu>| options(device).with_batch_tokens(64);
    let hybrid = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors/qwen3_5-0");
    let cpu = load(&hybrid, batches(None));
    let there = load(&hybrid, batches(Some(device)));
    let tokens = crate::testing::hybrid_prompt(110);
    let expected = logits(&cpu, &tokens);
    let found = difference(&logits(&there, &tokens), &expected);
    assert!(found <= 2e-3, "{found}");
    // Truncates to within the second batch, reads other tokens and truncates again: no forgotten state may be used.
    let mut session = Session::new(&there).unwrap();
    session.prefill(&tokens[..100], &mut go_on).unwrap();
    session.truncate(90).unwrap();
    session.prefill(&tokens[20..60], &mut go_on).unwrap();
    session.truncate(90).unwrap();
    // A fork takes over the device memory. Its origin copies its state to the device again.
    let mut fork = session.fork().unwrap();
    for reader in [&mut fork, &mut session] {
        reader.prefill(&tokens[90..], &mut go_on).unwrap();
        let found = difference(&[reader.logits().to_vec()], &expected[..1]);
        assert!(found <= 2e-3, "{found}");
    }
    assert_eq!(fork.logits(), session.logits());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    session.sequence().save(&path).unwrap();
    for engine in [&there, &cpu] {
        let mut restored = Session::restore(engine, &path).unwrap();
        for (token, expected) in [7, 11].into_iter().zip(&expected[1..]) {
            restored.advance(token).unwrap();
            let found = difference(&[restored.logits().to_vec()], std::slice::from_ref(expected));
            assert!(found <= 4e-3, "{found}");
        }
    }
}

#[test]
fn pages_that_come_from_main_memory_or_a_disk_give_the_bits_of_resident_ones() {
    let device = any_device();
    let tokens = prompt(130);
    let resident = logits(&load(&fixture(MODEL), options(Some(device.clone()))), &tokens);
    let folder = tempfile::tempdir().unwrap();
    for (slots, pages, on_disk) in [(1, 0, false), (2, 3, false), (5, 4, true)] {
        let mut options = far(&device, slots, pages);
        if on_disk {
            options = with_disk(options, folder.path(), 1);
        }
        let found = logits(&load(&fixture(MODEL), options), &tokens);
        assert!(found == resident, "{slots} slots, {pages} pages, disk {on_disk}");
    }
}

#[test]
fn what_the_device_appends_is_the_same_in_its_pages_and_in_main_memory() {
    let device = any_device();
    let tokens = prompt(100);
    for (key_format, value_format) in [(Format::Q8_0, Format::Q4_0), (Format::Q4_0, Format::Bf16)] {
        let encoded = |options: EngineOptions| {
            options
                .with_key_format(key_format)
                .with_value_format(value_format)
                .with_rotate(Some(true))
        };
        // Pages on the device, pages in main memory, and pages that the CPU reads.
        let resident = logits(&load(&fixture(MODEL), encoded(options(Some(device.clone())))), &tokens);
        let mut far = encoded(far(&device, 2, 3));
        far.machine.chunk_tokens = 30;
        let mut short = encoded(options(Some(device.clone())));
        short.machine.chunk_tokens = 30;
        assert!(logits(&load(&fixture(MODEL), far), &tokens) == logits(&load(&fixture(MODEL), short), &tokens));
        let cpu = logits(&load(&fixture(MODEL), encoded(options(None))), &tokens);
        let found = difference(&resident, &cpu);
        assert!(found <= 1e-2, "{key_format:?} {value_format:?}: {found}");
    }
}

#[test]
fn quest_ranks_by_bounds_on_the_device_as_a_session_of_the_cpu_does() {
    let device = any_device();
    let tokens = prompt(130);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let with = |mut options: EngineOptions| {
        options.sequence.decode = "quest:from=0,topk=2,threshold=2,block=16,dense_layers=0"
            .parse()
            .unwrap();
        load(&fixture(MODEL), options)
    };
    let cpu = with(options(None));
    for options in [options(Some(device.clone())), far(&device, 2, 3)] {
        let mut session = Session::new(&with(options)).unwrap();
        session.prefill(&tokens, &mut go_on).unwrap();
        for token in [7, 11] {
            // The CPU reads the same keys, so selections are equal and only roundings differ.
            session.sequence().save(&path).unwrap();
            let mut there = Session::restore(&cpu, &path).unwrap();
            let before = (session.sequence().counts().pairs, there.sequence().counts().pairs);
            session.advance(token).unwrap();
            there.advance(token).unwrap();
            let read = |now: u64, before: u64| now - before;
            assert_eq!(
                read(session.sequence().counts().pairs.read, before.0.read),
                read(there.sequence().counts().pairs.read, before.1.read)
            );
            let found = difference(&[session.logits().to_vec()], &[there.logits().to_vec()]);
            assert!(found <= 2e-3, "{found}");
        }
        // Truncates within a block, then overwrites it.
        session.truncate(100).unwrap();
        session.prefill(&tokens[100..], &mut go_on).unwrap();
        session.advance(7).unwrap();
        session.sequence().save(&path).unwrap();
        let mut elsewhere = Session::restore(session.engine(), &path).unwrap();
        session.advance(11).unwrap();
        elsewhere.advance(11).unwrap();
        assert_eq!(session.logits(), elsewhere.logits());
    }
}

#[test]
fn policies_read_the_same_wherever_pages_lie() {
    let device = any_device();
    let tokens = prompt(100);
    for (prefill, decode) in [
        (
            "streaming:sinks=4,window=50",
            "quest:from=0,topk=2,threshold=2,block=16,dense_layers=0",
        ),
        (
            "vertical-slash:from=0,budget=0.3,sinks=4,recent=16,last=16",
            "h2o:budget=60,recent=16,observed=8",
        ),
        // The device scores its own pages, and the CPU scores the others.
        ("xattention:from=0,stride=4,block=16,threshold=0.6,tail=4", "full"),
        ("h2o-chunk:from=0,local=4,heavy=8", "full"),
        // The CPU scores keys or corrects outputs for these policies.
        ("peaks:from=0,block=16,tail=4", "full"),
        ("streaming:sinks=4,window=50,delta=16", "full"),
    ] {
        let with = |mut options: EngineOptions| {
            options.sequence.prefill = prefill.parse().unwrap();
            options.sequence.decode = decode.parse().unwrap();
            load(&fixture(MODEL), options)
        };
        let resident = logits(&with(options(Some(device.clone()))), &tokens);
        // Selections by scores may differ from the CPU's run, whose hidden states round differently.
        if prefill.starts_with("streaming") {
            let cpu = logits(&with(options(None)), &tokens);
            let found = difference(&resident, &cpu);
            assert!(found <= 2e-3, "{prefill} and {decode}: {found}");
        }
        assert!(
            logits(&with(far(&device, 2, 3)), &tokens) == resident,
            "{prefill} and {decode}"
        );
    }
}

#[test]
fn what_policies_evict_leaves_the_device_as_well() {
    let device = any_device();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let mut options = options(Some(device));
    options.sequence.decode = "h2o:budget=60,recent=16,observed=8".parse().unwrap();
    let engine = load(&fixture(MODEL), options);
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&prompt(140), &mut go_on).unwrap();
    let pages = session.sequence().usage().pages;
    // A stale page on the device would change these logits.
    for token in 0..3 {
        session.sequence().save(&path).unwrap();
        let mut elsewhere = Session::restore(&engine, &path).unwrap();
        session.advance(token).unwrap();
        elsewhere.advance(token).unwrap();
        assert_eq!(session.logits(), elsewhere.logits(), "token {token}");
    }
    assert!(session.sequence().usage().pages < pages, "nothing was evicted");
    session.truncate(0).unwrap();
    assert_eq!(session.sequence().counts().device.page_bytes, 0);
}

#[test]
fn forks_take_turns_in_one_budget_and_answer_as_if_they_had_read_alone() {
    let device = any_device();
    let book = prompt(70);
    let questions = [prompt(9), vec![3, 1, 4, 1, 5], prompt(20)];
    let alone = load(&fixture(MODEL), options(Some(device.clone())));
    let expected = questions.each_ref().map(|question| {
        let mut alone = Session::new(&alone).unwrap();
        alone.prefill(&book, &mut go_on).unwrap();
        alone.prefill(question, &mut go_on).unwrap();
        for token in [7, 11] {
            alone.advance(token).unwrap();
        }
        alone.logits().to_vec()
    });
    for (options, is_near) in [(options(Some(device.clone())), true), (far(&device, 2, 3), false)] {
        let engine = load(&fixture(MODEL), options);
        let mut reader = Session::new(&engine).unwrap();
        reader.prefill(&book, &mut go_on).unwrap();
        let held = reader.sequence().counts().device.page_bytes;
        let mut first = reader.fork().unwrap();
        // The session and its fork share these bytes.
        assert_eq!(
            (
                reader.sequence().counts().device.page_bytes,
                first.sequence().counts().device.page_bytes
            ),
            (held, held)
        );
        let mut second = reader.fork().unwrap();
        let mut sessions = [&mut first, &mut second, &mut reader];
        for (session, question) in sessions.iter_mut().zip(&questions) {
            session.prefill(question, &mut go_on).unwrap();
        }
        let budget = engine.plan().device.as_ref().unwrap().kv_budget_bytes;
        for token in [7, 11] {
            let before = sessions[0].sequence().counts().device.transferred.pages;
            for session in &mut sessions {
                session.advance(token).unwrap();
                let bytes = session.sequence().counts().device.page_bytes;
                assert!(bytes <= budget, "{bytes} of {budget}");
            }
            // The sessions alternate. With enough slots no page is loaded again.
            if is_near {
                assert_eq!(sessions[0].sequence().counts().device.transferred.pages, before);
            }
        }
        for (session, expected) in sessions.iter().zip(&expected) {
            assert_eq!(session.logits(), expected);
        }
    }
}

#[test]
fn a_session_goes_back_on_the_device_and_goes_on_on_the_cpu() {
    let device = any_device();
    let engine = load(&fixture(MODEL), far(&device, 2, 8));
    let tokens = prompt(200);
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&tokens, &mut go_on).unwrap();
    let first = session.logits().to_vec();
    // Reads other tokens for a while, within a page and across a page boundary.
    session.truncate(101).unwrap();
    session.prefill(&prompt(230)[..60], &mut go_on).unwrap();
    session.truncate(128).unwrap();
    session.prefill(&tokens[..10], &mut go_on).unwrap();
    session.truncate(64).unwrap();
    session.prefill(&tokens[64..], &mut go_on).unwrap();
    assert!(crate::testing::largest_difference(session.logits(), &first) < 1e-3);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    session.sequence().save(&path).unwrap();
    let cpu = load(&fixture(MODEL), options(None));
    let mut restored = Session::restore(&cpu, &path).unwrap();
    assert_eq!(restored.tokens(), tokens);
    restored.advance(5).unwrap();
    session.advance(5).unwrap();
    let found = crate::testing::largest_difference(restored.logits(), session.logits());
    assert!(found < 5e-3, "{found}");
}

#[test]
fn a_device_lost_in_mid_run_is_an_error_and_saved_sessions_stay() {
    let tokens = prompt(200);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let lost = |at: usize| {
        gpu(EmulatedOptions {
            lost_at_launch: Some(at),
            ..EmulatedOptions::default()
        })
    };
    let engine = load(&fixture(MODEL), options(Some(lost(150))));
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&tokens[..100], &mut go_on).unwrap();
    session.sequence().save(&path).unwrap();
    let error = loop {
        if let Err(error) = session.advance(3) {
            break error;
        }
    };
    assert!(
        matches!(gpu_error(&error), Some(CudaError::DeviceLost { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("the GPU was lost"), "{error}");
    let cpu = load(&fixture(MODEL), options(None));
    assert_eq!(Session::restore(&cpu, &path).unwrap().tokens(), &tokens[..100]);
    // Main memory holds the read text, so the session can still be saved.
    session.sequence().save(&path).unwrap();
    assert!(Session::restore(&cpu, &path).unwrap().tokens().len() >= 100);
}

#[test]
fn memory_that_runs_short_at_any_allocation_is_an_error_and_the_session_goes_on() {
    let tokens = prompt(9);
    let plain = load(&fixture(MODEL), options(Some(gpu(EmulatedOptions::default()))));
    let mut session = Session::new(&plain).unwrap();
    session.prefill(&tokens, &mut go_on).unwrap();
    let mut in_mid_run = 0;
    for number in 0.. {
        let short = gpu(EmulatedOptions {
            short_at_allocation: Some(number),
            ..EmulatedOptions::default()
        });
        let is_short = |error: &EngineError| matches!(gpu_error(error), Some(CudaError::OutOfMemory { .. }));
        let begun = Engine::load(fixture(MODEL), options(Some(short))).and_then(|engine| Session::new(&engine));
        let mut here = match begun {
            Ok(session) => session,
            Err(error) => {
                assert!(is_short(&error), "allocation {number}: {error}");
                continue;
            }
        };
        match here.prefill(&tokens, &mut go_on) {
            Ok(()) => break,
            Err(error) => assert!(is_short(&error), "allocation {number}: {error}"),
        }
        in_mid_run += 1;
        // The next attempt has memory again.
        assert!(here.tokens().is_empty());
        here.prefill(&tokens, &mut go_on).unwrap();
        assert!(here.logits() == session.logits(), "allocation {number}");
    }
    assert!(in_mid_run > 10, "{in_mid_run} allocations");
}

#[test]
fn what_a_device_cannot_do_is_said_before_anything_is_loaded() {
    let device = any_device();
    let refused = |options: EngineOptions| Engine::load(fixture(MODEL), options).err().unwrap().to_string();
    let here = || options(Some(device.clone()));
    let error = refused(here().with_key_format(Format::F32));
    assert!(error.contains("kv_type") && error.contains("`device=cpu`"), "{error}");
    let error = refused(here().with_page_tokens(48));
    assert!(error.contains("page_tokens"), "{error}");
    let error = refused(here().with_attention(AttentionPrecision::Rounded));
    assert!(
        error.contains("attention") && error.contains("is rounded") && error.contains("`device=cpu`"),
        "{error}"
    );
    let small = gpu(EmulatedOptions {
        memory_bytes: 300_000,
        ..EmulatedOptions::default()
    });
    let error = refused(options(Some(small)));
    assert!(error.contains("does not fit: weights"), "{error}");
    let mut tiny = here();
    tiny.cache.kv_tiers.device_budget_bytes = 1000;
    let error = refused(tiny);
    assert!(error.contains("`device_budget_bytes` from"), "{error}");
}

#[test]
fn a_device_that_is_merely_there_is_left_alone_where_it_does_not_serve() {
    let options = options(None).with_preferred_device(Some(Arc::new(any_device())));
    let engine = load(&fixture(MODEL), options.clone());
    assert!(engine.plan().device.is_some());
    let other = options.with_key_format(Format::F32);
    assert!(load(&fixture(MODEL), other).plan().device.is_none());
    for (name, part) in [("cuda:99", "99"), ("gpu", "cuda:N"), ("cuda:x", "cuda:N")] {
        let open = |ordinal: usize| Err(DeviceError::new(format!("there is no device {ordinal}")));
        let error = EngineOptions::default()
            .on_device(Some(name), open)
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn an_endless_window_moves_on_the_device_as_on_the_cpu() {
    let windowed = |options: EngineOptions| {
        let options = options.with_context_tokens(None);
        let window = StreamWindow {
            window_tokens: 100,
            sink_tokens: 16,
        };
        load(&fixture(MODEL), options.with_window(window).unwrap())
    };
    let tokens = prompt(210);
    let cpu = logits(&windowed(options(None)), &tokens);
    let found = difference(&logits(&windowed(options(Some(any_device()))), &tokens), &cpu);
    assert!(found <= 5e-3, "{found}");
}
