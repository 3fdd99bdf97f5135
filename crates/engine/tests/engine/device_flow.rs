//! Attention results that stay on the device until the next product, and pages that are loaded ahead of the next layer.
//! The device is emulated on the CPU, unless RIFFLE_TEST_GPU names a GPU. Results through main memory and resident
//! pages have the same bits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::testing::device::{MODEL, any_device, far, gpu, load, logits, options, with_disk};
use crate::testing::{fixture, go_on, prompt};
use riffle_attention::Format;
use riffle_cuda::{EmulatedOptions, Gpu};
use riffle_engine::{Engine, EngineOptions, Session};

fn hybrid() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/vectors/qwen3_5-0")
}

/// Logits after a prompt and after each of two more tokens, and the bytes of attention results copied to main memory.
fn logits_and_returned(engine: &Arc<Engine>, tokens: &[u32]) -> (Vec<Vec<f32>>, u64) {
    let mut session = Session::new(engine).unwrap();
    session.prefill(tokens, &mut go_on).unwrap();
    let mut all = vec![session.logits().to_vec()];
    for token in [7, 11] {
        session.advance(token).unwrap();
        all.push(session.logits().to_vec());
    }
    let counts = session.sequence().counts();
    for time in [counts.prefill_time, counts.decode_time] {
        assert!(time.attend_ms > 0.0);
    }
    (all, session.sequence().counts().device.transferred.returned_bytes)
}

/// An audit reads the attention results, so they go through main memory, where they are merged and rotated back.
#[track_caller]
fn assert_the_same_with_an_audit(path: &Path, options: EngineOptions, tokens: &[u32], what: &str) {
    let audited = options.clone().with_audit(true);
    let (there, returned) = logits_and_returned(&load(path, options), tokens);
    assert_eq!(returned, 0, "{what}");
    let (here, returned) = logits_and_returned(&load(path, audited), tokens);
    assert!(returned > 0, "{what}");
    assert!(there == here, "{what}");
}

#[test]
fn what_attention_returns_stays_on_the_device_with_the_bits_it_has_in_main_memory() {
    let device = any_device();
    for (key_format, value_format, rotate, chunk_tokens, are_near) in [
        (Format::F16, Format::F16, false, 64, true),
        (Format::Q8_0, Format::Q4_0, true, 30, true),
        (Format::Q4_0, Format::Q8_0, true, 64, false),
        (Format::Bf16, Format::Q8_0, true, 30, false),
    ] {
        let options = if are_near {
            options(Some(device.clone()))
        } else {
            far(&device, 2, 3)
        }
        .with_key_format(key_format)
        .with_value_format(value_format)
        .with_rotate(Some(rotate))
        .with_chunk_tokens(chunk_tokens);
        let what = format!("{key_format:?} {value_format:?} {chunk_tokens} {are_near}");
        assert_the_same_with_an_audit(&fixture(MODEL), options, &prompt(100), &what);
    }
}

#[test]
fn gated_attention_and_recurrent_layers_go_on_from_what_stays_on_the_device() {
    let device = any_device();
    let tokens = crate::testing::hybrid_prompt(100);
    for (format, rotate) in [(Format::F16, false), (Format::Q8_0, true)] {
        let options = options(Some(device.clone()))
            .with_key_format(format)
            .with_value_format(format)
            .with_rotate(Some(rotate))
            .with_batch_tokens(64)
            .with_chunk_tokens(40);
        assert_the_same_with_an_audit(&hybrid(), options, &tokens, format.name());
    }
}

#[test]
fn policies_that_vote_by_mass_leave_attention_on_the_device() {
    let device = any_device();
    for (prefill, decode) in [
        ("streaming:sinks=4,window=50", "h2o:budget=60,recent=16,observed=8"),
        (
            "vertical-slash:from=0,budget=0.3,sinks=4,recent=16,last=16",
            "snapkv:budget=80,window=8",
        ),
    ] {
        let with = |mut options: EngineOptions| {
            options.sequence.prefill = prefill.parse().unwrap();
            options.sequence.decode = decode.parse().unwrap();
            options
        };
        let what = format!("{prefill} and {decode}");
        assert_the_same_with_an_audit(
            &fixture(MODEL),
            with(options(Some(device.clone()))),
            &prompt(100),
            &what,
        );
    }
}

#[test]
fn what_the_cpu_adds_to_comes_to_main_memory() {
    let device = any_device();
    let mut options = options(Some(device));
    options.sequence.prefill = "h2o-chunk:from=0,local=4,heavy=8".parse().unwrap();
    let (_, returned) = logits_and_returned(&load(&fixture(MODEL), options), &prompt(100));
    assert!(returned > 0);
}

/// Logits after a prompt and after each of two more tokens, and the number of pages loaded ahead, after the prompt
/// and in total.
fn logits_and_ahead(engine: &Arc<Engine>, tokens: &[u32]) -> (Vec<Vec<f32>>, [u64; 2]) {
    let mut session = Session::new(engine).unwrap();
    session.prefill(tokens, &mut go_on).unwrap();
    let mut all = vec![session.logits().to_vec()];
    let of_the_prompt = session.sequence().counts().device.transferred.pages_ahead;
    for token in [7, 11] {
        session.advance(token).unwrap();
        all.push(session.logits().to_vec());
    }
    (
        all,
        [
            of_the_prompt,
            session.sequence().counts().device.transferred.pages_ahead,
        ],
    )
}

#[test]
fn pages_read_ahead_of_the_next_layer_give_the_bits_of_resident_ones() {
    let device = any_device();
    let tokens = prompt(100);
    for decode in ["full", "quest:from=0,topk=4,threshold=2,block=16,dense_layers=0"] {
        let with = |mut options: EngineOptions| {
            options.sequence.decode = decode.parse().unwrap();
            load(&fixture(MODEL), options)
        };
        let resident = logits(&with(options(Some(device.clone()))), &tokens);
        // A guess for a sparse policy may be wrong; a guess for full attention is not.
        for (slots, pages) in [(1, 0), (5, 1)] {
            let (found, [of_the_prompt, all]) = logits_and_ahead(&with(far(&device, slots, pages)), &tokens);
            assert!(found == resident, "{decode}, {slots} slots, {pages} pages");
            // With one slot, pages whose bounds are computed first have no half to be read ahead into.
            assert!(
                of_the_prompt > 0 || slots == 1,
                "{decode}, {slots} slots, {pages} pages"
            );
            assert!(
                all > of_the_prompt || decode != "full",
                "{slots} slots, {pages} pages: {of_the_prompt} and {all}"
            );
        }
    }
}

/// Logits of sessions that are truncated, forked, evicted from and dropped between two tokens.
fn logits_of_changes(engine: &Arc<Engine>) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    let mut reader = Session::new(engine).unwrap();
    reader.prefill(&prompt(110), &mut go_on).unwrap();
    reader.advance(7).unwrap();
    all.push(reader.logits().to_vec());
    reader.truncate(90).unwrap();
    reader.prefill(&prompt(90)[45..], &mut go_on).unwrap();
    all.push(reader.logits().to_vec());
    let mut fork = reader.fork().unwrap();
    for session in [&mut reader, &mut fork] {
        session.advance(3).unwrap();
        all.push(session.logits().to_vec());
    }
    drop(reader);
    fork.advance(9).unwrap();
    all.push(fork.logits().to_vec());
    fork.truncate(64).unwrap();
    fork.prefill(&prompt(100)[64..], &mut go_on).unwrap();
    fork.advance(4).unwrap();
    all.push(fork.logits().to_vec());
    all
}

/// An emulated device with a random order of its streams, or the GPU if there is one.
fn device_of_order(seed: u64) -> Gpu {
    match std::env::var_os("RIFFLE_TEST_GPU") {
        Some(_) => any_device(),
        None => gpu(EmulatedOptions {
            seed: Some(seed),
            ..EmulatedOptions::default()
        }),
    }
}

#[test]
fn sessions_that_change_while_pages_are_read_ahead_answer_as_with_all_pages_on_the_device() {
    let folder = tempfile::tempdir().unwrap();
    for (decode, orders) in [
        ("full", [(2, 2, false), (3, 6, true)]),
        ("h2o:budget=70,recent=16,observed=8", [(4, 6, false), (5, 2, true)]),
    ] {
        let with = |mut options: EngineOptions| {
            options.sequence.decode = decode.parse().unwrap();
            load(&fixture(MODEL), options)
        };
        let resident = logits_of_changes(&with(options(Some(any_device()))));
        for (seed, slots, on_disk) in orders {
            let mut options = far(&device_of_order(seed), slots, 0);
            if on_disk {
                // Pages move to disk while they are copied, and others take their memory.
                options = with_disk(options, folder.path(), 2);
            }
            let found = logits_of_changes(&with(options));
            assert!(found == resident, "{decode}, {slots} slots, disk {on_disk}");
        }
    }
}
