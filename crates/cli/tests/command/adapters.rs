//! `--lora`: an adapter changes answers and plans, and a fault of it is one line.

use std::fs;

use crate::testing::{assert_refused, riffle, shipped_model, stdout};
use riffle_testing::write_shipped_adapter;
use serde_json::Value;

fn run(command: &str, adapters: &[String]) -> std::process::Output {
    let mut riffle = riffle();
    riffle.arg(command).arg("--model").arg(shipped_model());
    if command == "run" {
        riffle.args(["--prompt", "In the beginning God", "-n", "12"]);
    } else {
        riffle.args(["--json", "--ctx", "1024"]);
    }
    for adapter in adapters {
        riffle.args(["--lora", adapter]);
    }
    riffle.output().expect("the binary runs")
}

#[test]
fn an_adapter_changes_answers_and_is_planned() {
    let folder = tempfile::tempdir().expect("a folder");
    write_shipped_adapter(folder.path(), 5);
    let path = folder.path().to_str().expect("UTF-8").to_owned();
    let plain = stdout(&run("run", &[]));
    let adapted = stdout(&run("run", std::slice::from_ref(&path)));
    assert_ne!(adapted, plain);
    assert_eq!(stdout(&run("run", &[format!("{path}=0")])), plain);
    assert_eq!(
        stdout(&run("run", &[format!("{path}=0.25"), format!("{path}=0.75")])),
        adapted
    );
    let weights = |adapters: &[String]| {
        let plan: Value = serde_json::from_str(&stdout(&run("plan", adapters))).expect("JSON");
        plan["weights_bytes"].as_u64().expect("bytes")
    };
    assert!(weights(std::slice::from_ref(&path)) > weights(&[]));
    let alone = riffle().arg("inspect").arg(folder.path()).output();
    assert_refused(
        &alone.expect("the binary runs"),
        1,
        &["holds an adapter for made up", "--lora"],
    );
}

#[test]
fn adapters_that_cannot_be_used_are_refused_in_a_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8").to_owned();
    let refused = |adapter: &str, parts: &[&str]| {
        for command in ["run", "plan"] {
            assert_refused(&run(command, &[adapter.to_owned()]), 1, parts);
        }
    };
    refused(&path, &[&path, "no adapter_config.json"]);
    refused(&format!("{path}/none"), &["no such file"]);
    write_shipped_adapter(folder.path(), 5);
    refused(&format!("{path}=nan"), &["--lora", "must be a number"]);
    let settings = folder.path().join("adapter_config.json");
    let text = fs::read_to_string(&settings).expect("a file");
    fs::write(&settings, text.replace("\"bias\": \"none\"", "\"use_dora\": true")).expect("a file");
    refused(&path, &["DoRA", "not supported"]);
    fs::write(&settings, "{").expect("a file");
    refused(&path, &["adapter_config.json", "not valid JSON"]);
}
