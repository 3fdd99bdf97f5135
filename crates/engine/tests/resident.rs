//! Resident memory of a whole run, in its own process.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod testing;

use riffle_attention::Format;
use riffle_engine::{Engine, EngineOptions, Session};
use testing::{fixture, go_on, prompt};

/// Set in the measured child process.
const MEASURES: &str = "RIFFLE_TEST_RESIDENT";

/// Resident bytes of this process.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn measure(decode: &str) {
    let options = EngineOptions::default()
        .with_context_tokens(Some(12_288))
        .with_prefill("streaming:sinks=16,window=128".parse().unwrap())
        .with_decode(decode.parse().unwrap())
        .with_key_format(Format::F32)
        .with_value_format(Format::F32)
        .with_page_tokens(64);
    let engine = Engine::load(fixture("model"), options).unwrap();
    let mut session = Session::new(&engine).unwrap();
    let empty = resident_bytes();
    session.prefill(&prompt(12_000), &mut go_on).unwrap();
    let held = session.sequence().usage().bytes_by_tier.total();
    let full = resident_bytes();
    assert!(full - empty > held * 9 / 10, "{full} after {empty} for {held}");
    // Pages that the first tokens select stay, and the others are freed.
    for token in 0..40 {
        session.advance(token).unwrap();
    }
    let freed = held - session.sequence().usage().bytes_by_tier.total();
    let evicted = resident_bytes();
    assert!(freed > held * 8 / 10, "{freed} of {held} are free");
    let back = full.saturating_sub(evicted);
    assert!(back > freed * 9 / 10, "{back} of {freed} went back");
    eprintln!("{decode}: {held} bytes of pages, {freed} evicted, {back} went back");
}

#[test]
fn what_decode_policies_evict_goes_back_to_the_system() {
    let decodes = ["snapkv:budget=500,window=32", "h2o:budget=500,recent=64,observed=32"];
    if let Some(decode) = std::env::var_os(MEASURES) {
        return measure(decode.to_str().unwrap());
    }
    for decode in decodes {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "what_decode_policies_evict_goes_back_to_the_system",
                "--nocapture",
            ])
            .env(MEASURES, decode)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{decode}: {said}");
        eprintln!("{said}");
    }
}
