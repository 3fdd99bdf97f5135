//! Mixtures with experts in the model's file: reads are counted, and a failing file ends only requests.

use std::fs::OpenOptions;
use std::time::Duration;

use riffle_engine::{Engine, EngineOptions};
use riffle_testing::write_mixture;
use serde_json::json;

use crate::testing::{options, start_on};

#[test]
fn a_file_that_shrinks_is_one_line_for_each_request_and_the_server_lives() {
    let folder = tempfile::tempdir().unwrap();
    write_mixture(folder.path());
    let engine_options = EngineOptions::default()
        .with_context_tokens(Some(1024))
        .with_sequences(8)
        .with_pool_tokens(Some(4096))
        .with_weights_budget_bytes(Some(4 << 20));
    let engine = Engine::load(folder.path(), engine_options).unwrap();
    let server = start_on(&engine, options());
    let ask = |prompt: &str| {
        let asked = json!({"prompt": prompt, "max_tokens": 8, "ignore_eos": true});
        server.post("/v1/completions", &asked)
    };
    assert_eq!(ask("In the beginning God").status, 200);
    for name in [
        "riffle:chosen_experts_total{found=\"memory\"}",
        "riffle:chosen_experts_total{found=\"disk\"}",
        "riffle:expert_bytes_read_total",
    ] {
        // The server updates the counters after it sends the answer.
        let is_counted = (0..200).any(|_| {
            let metrics = server.get("/metrics").body;
            let line = metrics.lines().find(|line| line.starts_with(name));
            let line = line.unwrap_or_else(|| panic!("{name} is not in {metrics}"));
            let count: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            std::thread::sleep(Duration::from_millis(if count > 0.0 { 0 } else { 50 }));
            count > 0.0
        });
        assert!(is_counted, "{name}");
    }
    let file = OpenOptions::new()
        .write(true)
        .open(folder.path().join("model.safetensors"))
        .unwrap();
    file.set_len(1 << 20).unwrap();
    // These texts select experts that are not in memory.
    for prompt in [
        "And the earth was without form, and void; ",
        "And God said, Let there be light: ",
    ] {
        let failed = ask(&prompt.repeat(20));
        assert!(failed.status >= 500, "{}", failed.body);
        let message = failed.json()["error"]["message"]
            .as_str()
            .expect("a message")
            .to_owned();
        assert!(
            message.contains("was changed or cut off") && !message.contains('\n'),
            "{message}"
        );
        assert_eq!(server.get("/health").status, 200);
    }
}
