//! Means of blocks on a device, emulated on the CPU unless RIFFLE_TEST_GPU names a GPU.

use std::sync::Arc;

use crate::testing::device::{MODEL, any_device, difference, far, load, logits, options};
use crate::testing::{fixture, go_on, prompt};
use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, Session};

fn with(options: EngineOptions, prefill: &str, decode: &str) -> Arc<Engine> {
    let options = options
        .with_prefill(prefill.parse().unwrap())
        .with_decode(decode.parse().unwrap());
    load(&fixture(MODEL), options)
}

#[test]
fn means_are_kept_and_read_on_the_device_as_on_the_cpu_wherever_pages_lie() {
    let device = any_device();
    for (prefill, decode, formats, length) in [
        // Blocks within pages, blocks across page boundaries, and other blocks for the answer.
        (
            "log-stride:window=8,block=8",
            "log-stride:window=8,block=8",
            [Format::F16; 2],
            130,
        ),
        (
            "log-stride:window=5,block=24,globals=0+70",
            "log-stride:window=3,block=5",
            [Format::Q8_0, Format::Q4_0],
            130,
        ),
        // Keys of 4 bits: with a shorter text a different rounding changes the logits more.
        (
            "full",
            "log-stride:window=16,block=30",
            [Format::Q4_0, Format::F16],
            190,
        ),
    ] {
        let tokens = prompt(length);
        let of = |options: EngineOptions| {
            let [key_format, value_format] = formats;
            let options = options.with_key_format(key_format).with_value_format(value_format);
            with(options, prefill, decode)
        };
        let resident = logits(&of(options(Some(device.clone()))), &tokens);
        let cpu = logits(&of(options(None)), &tokens);
        let found = difference(&resident, &cpu);
        assert!(found <= 1e-2, "{prefill}, {decode}: {found}");
        assert!(
            logits(&of(far(&device, 2, 3)), &tokens) == resident,
            "{prefill}, {decode}"
        );
        // With an audit the CPU keeps and reads the summaries; only roundings differ.
        let audited = options(Some(device.clone())).with_audit(true);
        let audited = logits(&of(audited), &tokens);
        let found = difference(&audited, &resident);
        assert!(found > 0.0 && found <= 1e-2, "{prefill}, {decode}: {found}");
    }
}

#[test]
fn means_on_the_device_follow_a_session_that_goes_back_forks_and_is_restored() {
    let device = any_device();
    let tokens = prompt(100);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    for options in [options(Some(device.clone())), far(&device, 2, 3)] {
        let engine = with(options, "log-stride:window=8,block=12", "log-stride:window=8,block=12");
        let mut straight = Session::new(&engine).unwrap();
        straight.prefill(&tokens[..64], &mut go_on).unwrap();
        straight.prefill(&tokens[64..], &mut go_on).unwrap();
        let expected = straight.logits().to_vec();
        // The session reads other tokens for a while, then truncates to within a block.
        let mut session = Session::new(&engine).unwrap();
        session.prefill(&tokens[..64], &mut go_on).unwrap();
        let mut fork = session.fork().unwrap();
        session.prefill(&prompt(230)[190..], &mut go_on).unwrap();
        session.truncate(64).unwrap();
        fork.prefill(&tokens[30..70], &mut go_on).unwrap();
        session.prefill(&tokens[64..], &mut go_on).unwrap();
        assert_eq!(session.logits(), expected);
        fork.truncate(64).unwrap();
        fork.prefill(&tokens[64..], &mut go_on).unwrap();
        assert_eq!(fork.logits(), expected);
        // Neither results nor means were copied to main memory.
        assert_eq!(session.sequence().counts().device.transferred.returned_bytes, 0);
        session.sequence().save(&path).unwrap();
        let mut restored = Session::restore(&engine, &path).unwrap();
        for token in [7, 11] {
            for reader in [&mut session, &mut fork, &mut restored, &mut straight] {
                reader.advance(token).unwrap();
            }
            for reader in [&session, &fork, &restored] {
                assert_eq!(reader.logits(), straight.logits(), "token {token}");
            }
        }
    }
}
