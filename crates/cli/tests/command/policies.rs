//! Policies on the command line, and their names in reports.

use std::fs;

use crate::testing::{assert_refused, riffle, run, run_shipped, shipped_model, stderr, stdout};
use serde_json::Value;

fn report(options: &[&str]) -> Value {
    let prompt = "and he said unto them ".repeat(400);
    let mut all = vec!["--prompt", &prompt, "-n", "2", "--json"];
    all.extend(options);
    serde_json::from_str(&stdout(&run_shipped(&all))).expect("one JSON object")
}

#[test]
fn h2o_flags_choose_chunks_with_heavy_hitters_and_their_chunk_length() {
    let report = report(&["--h2o-local", "100", "--h2o-heavy", "50"]);
    assert_eq!(report["prefill_policy"], "h2o-chunk:local=100,heavy=50,sinks=4");
    let refused = run_shipped(&["--prompt", "x", "--h2o-local", "100", "--prefill", "streaming"]);
    assert_refused(&refused, 1, &["--h2o-local", "streaming"]);
    let refused = run_shipped(&["--prompt", "x", "--prefill", "h2o-chunk", "-ub", "512"]);
    assert_refused(&refused, 1, &["512", "-ub 1024"]);
}

#[test]
fn a_profile_gives_layers_and_heads_their_policies() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("profile.toml");
    let file = path.to_str().expect("UTF-8");
    fs::write(
        &path,
        "[prefill]\npolicy = \"streaming:sinks=4,window=64\"\n[[prefill.rules]]\nlayers = \"0-4\"\npolicy = \"full\"\n",
    )
    .expect("a file");
    let all = report(&["--profile", file]);
    assert_eq!(all["density"], 1.0);
    assert_eq!(all["prefill_policy"], "streaming:sinks=4,window=64 and 1 rule");
    fs::write(&path, "[prefill]\npolicy = \"streaming\"\nlayers = 3\n").expect("a file");
    let refused = run_shipped(&["--prompt", "x", "--profile", file]);
    assert_refused(&refused, 1, &["profile.toml", "layers"]);
    let refused = run_shipped(&["--prompt", "x", "--profile", "nowhere.toml"]);
    assert_refused(&refused, 1, &["nowhere.toml"]);
}

#[test]
fn policies_that_evict_say_what_they_cannot_find() {
    let list: Value = serde_json::from_str(&stdout(&run(&["policies", "--json"]))).expect("JSON");
    let evicting: Vec<&str> = list
        .as_array()
        .expect("policies")
        .iter()
        .filter(|policy| policy["evicts"] == true)
        .filter_map(|policy| policy["name"].as_str())
        .collect();
    assert_eq!(evicting, ["h2o", "snapkv"]);
    let text = stdout(&run(&["policies"]));
    assert_eq!(text.matches("before a later question is known").count(), 2, "{text}");
}

#[test]
fn an_audit_says_what_was_kept() {
    let streaming = "streaming:sinks=4,window=64";
    let report = report(&["--audit", "--prefill", streaming]);
    let mass = report["audit"]["mean_mass"].as_f64().expect("mass");
    assert!(mass > 0.0 && mass < 1.0, "{mass}");
    let output = run_shipped(&["--prompt", "In the beginning", "-n", "2", "--audit"]);
    assert!(
        stderr(&output).contains("true mass kept: mean 1.0000"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn auto_keeps_its_target_and_reads_less_than_everything() {
    let report = report(&["--auto", "0.5", "-b", "1024", "-ub", "64"]);
    assert_eq!(report["prefill_policy"], "auto to 0.5");
    assert!(report["density"].as_f64() < Some(1.0), "{}", report["density"]);
    assert!(report["audit"]["mean_mass"].as_f64() > Some(0.5));
    let refused = run_shipped(&["--prompt", "x", "--auto", "1.5"]);
    assert_refused(&refused, 1, &["--auto", "1.5", "0 to 1"]);
}

#[test]
fn calibrate_writes_a_profile_that_a_run_takes_and_that_keeps_its_target() {
    let folder = tempfile::tempdir().expect("a folder");
    let (text, profile) = (folder.path().join("text.txt"), folder.path().join("profile.toml"));
    fs::write(
        &text,
        "In the beginning God created the heaven and the earth. ".repeat(120),
    )
    .expect("a file");
    let profile = profile.to_str().expect("UTF-8");
    let output = riffle()
        .args([
            "calibrate",
            "--json",
            "--candidate",
            "streaming:sinks=64,window=600",
            "--model",
        ])
        .arg(shipped_model())
        .arg("--file")
        .arg(&text)
        .args(["--out", profile])
        .output()
        .expect("the binary runs");
    let audit: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    for head in audit["heads"].as_array().expect("heads") {
        assert!(head["first_percentile_mass"].as_f64() >= Some(0.9), "{head}");
    }
    let report = report(&["--profile", profile]);
    assert!(
        report["density"].as_f64() < Some(1.0),
        "some head reads less than everything"
    );
}

#[test]
fn calibrate_reaches_a_mean_at_the_least_cost() {
    let folder = tempfile::tempdir().expect("a folder");
    let (text, profile) = (folder.path().join("text.txt"), folder.path().join("profile.toml"));
    fs::write(&text, "And it came to pass in those days. ".repeat(150)).expect("a file");
    let calibrate = |mean: &str| {
        let mut command = riffle();
        command
            .args(["calibrate", "--json", "--mean", mean, "--model"])
            .arg(shipped_model());
        for candidate in ["streaming:sinks=4,window=64", "streaming:sinks=4,window=500"] {
            command.args(["--candidate", candidate]);
        }
        let output = command.arg("--file").arg(&text).arg("--out").arg(&profile).output();
        output.expect("the binary runs")
    };
    let audit: Value = serde_json::from_str(&stdout(&calibrate("0.9"))).expect("JSON");
    assert!(audit["mean_mass"].as_f64() >= Some(0.9), "{audit}");
    assert!(audit["density"].as_f64() < Some(1.0), "{audit}");
    assert_refused(&calibrate("1.9"), 1, &["--mean", "1.9", "0 to 1"]);
}

#[test]
fn policies_are_listed_with_phases_savings_sources_and_the_guard() {
    let text = stdout(&run(&["policies"]));
    for part in [
        "h2o-chunk (prefill; saves compute)",
        "twilight (decode",
        "certified (decode; saves traffic of values; recalls facts anywhere)",
        "quest (decode; saves traffic, compute; recalls facts unlike the rest of the text)",
        "faster than full in decode from",
        "arXiv:2404.14469",
        "from=auto",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}
