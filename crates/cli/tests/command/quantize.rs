//! `riffle quantize` and `riffle calibrate --imatrix`, through the command.

use std::fs;

use serde_json::Value;

use crate::testing::{assert_refused, run, shipped_model, stderr, stdout};

fn folder() -> (tempfile::TempDir, String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("model.gguf").to_str().expect("UTF-8").to_owned();
    (folder, shipped_model().to_str().expect("UTF-8").to_owned(), output)
}

#[test]
fn a_folder_is_quantised_with_an_importance_matrix_compared_and_run() {
    let (guard, model, output) = folder();
    let matrix = guard.path().join("model.imatrix.gguf");
    let matrix = matrix.to_str().expect("UTF-8");
    let text = riffle_testing::fixture("text/prophets.txt");
    let text = text.to_str().expect("UTF-8");
    let collected = run(&[
        "calibrate",
        "--model",
        &model,
        "--imatrix",
        matrix,
        text,
        "--length",
        "1024",
        "--chunk-size",
        "256",
    ]);
    let shown = stdout(&collected);
    assert!(shown.contains("35 tensors, from 1024 tokens"), "{shown}");
    let arguments = [
        "quantize",
        &model,
        &output,
        "--type",
        "Q8_0",
        "--imatrix",
        matrix,
        "--check-tokens",
        "128",
    ];
    let quantised = run(&arguments);
    let shown = stdout(&quantised);
    assert!(shown.contains("q8_0") && shown.contains("bits a weight"), "{shown}");
    assert!(shown.contains("KL divergence from the original 0.00"), "{shown}");
    let answer = run(&["run", "--model", &output, "--prompt", "In the beginning", "-n", "4"]);
    assert!(answer.status.success(), "{}", stderr(&answer));
    assert_refused(&run(&arguments), 1, &["model.gguf exists", "--force"]);
}

#[test]
fn a_dry_run_shows_the_plan_and_writes_nothing() {
    let (guard, model, output) = folder();
    let shown = run(&["quantize", &model, &output, "--type", "Q4_K_M", "--dry-run", "--json"]);
    assert!(stderr(&shown).contains("q5_0 in place of q4_k"), "{}", stderr(&shown));
    let report: Value = serde_json::from_str(&stdout(&shown)).expect("JSON");
    assert_eq!(report["mix"], "Q4_K_M");
    assert_eq!(fs::read_dir(guard.path()).expect("a folder").count(), 0);
}

#[test]
fn wrong_arguments_are_one_line_each() {
    let (_guard, model, output) = folder();
    let cases: [(&[&str], &[&str]); 5] = [
        (&["--type", "Q9_K"], &["Q9_K", "Q4_K_M"]),
        (&["--tensor-type", "attn_v"], &["attn_v", "attn_v=q6_k"]),
        (&["--output-type", "q9"], &["q9", "q6_k"]),
        (&["--imatrix", &model], &["importance matrix"]),
        (&["--memory", "1M", "--type", "F32"], &[]),
    ];
    for (arguments, parts) in &cases[..4] {
        let all = [&["quantize", &model, &output][..], arguments].concat();
        assert_refused(&run(&all), 1, parts);
    }
    assert_refused(&run(&["quantize", "nowhere", &output]), 1, &["nowhere"]);
    assert_refused(
        &run(&["calibrate", "--model", &model, "--imatrix", &output]),
        2,
        &["DOCUMENTS"],
    );
}
