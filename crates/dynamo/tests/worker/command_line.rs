//! Wrong options give one clear line, and the program ends with it.

use std::process::Command;

use dynamo_backend_common::LLMEngine;

use crate::testing::{MODEL, parsed, worker};

fn refusal(arguments: &[&str]) -> String {
    let refused =
        parsed(arguments).and_then(|arguments| arguments.worker().map_err(|failure| failure.message().to_owned()));
    refused.err().expect("they are refused")
}

#[test]
fn wrong_options_give_one_line_that_says_what_to_do() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let folder = env!("CARGO_MANIFEST_DIR");
    let model = ["--model", MODEL];
    for (arguments, parts) in [
        (vec![], ["--model", "riffle-dynamo --help"]),
        (vec!["--port", "1"], ["--port", "riffle-dynamo --help"]),
        (vec!["--page-tokens", "none"], ["--page-tokens is none", "but"]),
        (vec!["--prefill", "magic"], ["magic", "xattention"]),
        (vec!["--kv-type", "q9"], ["--kv-type is \"q9\"", "q8_0"]),
        (
            vec!["--kv-disk", "/nowhere"],
            ["--kv-disk is /nowhere", "no such folder"],
        ),
        (
            vec!["--disaggregation-mode", "prefill"],
            ["--disaggregation-mode", "agg"],
        ),
        (vec!["--route-to-encoder"], ["--route-to-encoder", "leave it out"]),
        (vec!["--enable-rl"], ["--enable-rl", "leave it out"]),
        (vec!["--event-plane", "pigeons"], ["--event-plane", "zmq"]),
        (vec!["--frontend-files", file], ["is a file", "--frontend-files"]),
        (
            vec!["--frontend-files", "/nowhere"],
            ["is not there", "--frontend-files"],
        ),
        (
            vec!["--frontend-files", folder],
            ["has no tokenizer.json", "--frontend-files"],
        ),
    ] {
        let line = match arguments[..] {
            [] => refusal(&[]),
            _ => refusal(&[&model, &arguments[..]].concat()),
        };
        for part in parts {
            assert!(line.contains(part), "{arguments:?}: {line}");
        }
        assert!(!line.contains('\n'), "{line:?}");
    }
}

#[test]
fn the_program_ends_with_that_line() {
    let program = env!("CARGO_BIN_EXE_riffle-dynamo");
    let output = Command::new(program).args(["--model", "/nowhere"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    let output = Command::new(program).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(help.starts_with("Serve a model as a worker of NVIDIA Dynamo"), "{help}");
    for option in [
        "--model",
        "--prefix-cache",
        "--kv-type",
        "--namespace",
        "--discovery-backend",
    ] {
        assert!(help.contains(option), "{option}");
    }
}

#[tokio::test]
async fn too_little_memory_is_told_when_it_starts() {
    let worker = worker(&["--memory", "1M"]);
    let error = worker.start(0).await.expect_err("it is refused").message().to_owned();
    assert!(error.contains("memory") && !error.contains('\n'), "{error:?}");
    assert!(
        !error.starts_with("riffle: "),
        "the program says its name itself: {error}"
    );
    worker.cleanup().await.unwrap();
}
