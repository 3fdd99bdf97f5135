//! `riffle eval`: records, journals, tables, and one clear line for impossible measurements.

use std::fs;
use std::path::Path;

use crate::testing::{assert_refused, run, stderr, stdout};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("one JSON object")
}

#[test]
fn a_needle_record_is_kept_printed_and_gone_on_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (out, journal) = (path("records"), path("journal"));
    let needle = |more: &[&str]| {
        let base = [
            "eval",
            "needle",
            "--lengths",
            "1024",
            "--depths",
            "3",
            "--samples",
            "1",
            "--ask",
            "late,end",
        ];
        run(&[&base[..], &["--resume", &*journal], more].concat())
    };
    let first = needle(&["--out", &*out, "--name", "tiny", "--json"]);
    let record = json(&stdout(&first));
    assert_eq!(
        (&record["kind"], &record["seed"]),
        (&Value::from("needle"), &Value::from(1))
    );
    assert_eq!(record["results"]["samples"].as_array().map(Vec::len), Some(6));
    assert_eq!(record["model"]["layers"].as_u64().map(|layers| layers > 0), Some(true));
    let kept = fs::read_to_string(folder.path().join("records/tiny.json")).expect("the record");
    assert_eq!(json(&kept), record);
    // The journal is complete, so nothing is measured again.
    let again = needle(&["--csv"]);
    let rows: Vec<String> = stdout(&again).lines().map(str::to_owned).collect();
    assert_eq!(rows.len(), 7, "{rows:?}");
    assert!(
        rows[0].contains("context_tokens") && rows[1].contains("multi-key"),
        "{rows:?}"
    );
    // A journal of another model or setting is refused.
    let other = needle(&["--kv-type", "q8_0"]);
    assert_refused(&other, 1, &["begun with other settings", "q8_0", "--resume"]);
}

#[test]
fn policies_are_compared_in_one_table() {
    let output = run(&[
        "eval",
        "compare",
        "--policy",
        "streaming",
        "--policy",
        "decode=oracle-top-k",
        "--tasks",
        "niah_single_2",
        "--lengths",
        "1024",
        "--samples",
        "1",
        "--budget",
        "0.2",
        "--json",
    ]);
    let record = json(&stdout(&output));
    let rows = record["results"]["rows"].as_array().expect("rows");
    let policies: Vec<&str> = rows.iter().filter_map(|row| row["policy"].as_str()).collect();
    assert_eq!(policies, ["full", "streaming", "decode=oracle-top-k"]);
    assert!(rows.iter().all(|row| row["score"]["samples"] == 1), "{rows:?}");
}

#[test]
fn the_books_own_questions_are_asked_and_policies_that_miss_their_budgets_are_marked() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().display().to_string();
    let questions = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/questions.jsonl");
    let task = format!("file:{questions}");
    let compare = |more: &[&str]| {
        let base = [
            "eval",
            "compare",
            "--tasks",
            &*task,
            "--policy",
            "streaming",
            "--policy",
            "decode=quest",
        ];
        stdout(&run(&[&base[..], &["--budget", "0.1,0.9"], more].concat()))
    };
    let text = compare(&["--out", &*out, "--name", "own"]);
    for part in [
        "as run",
        "streaming:window=1",
        "% ▲",
        "misses its budget of 10%",
        "questions.jsonl",
        "XXH3",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    check_own_record(folder.path(), &task);
    let csv = compare(&["--csv"]);
    assert!(
        csv.lines()
            .next()
            .is_some_and(|head| head.contains("budget_kept") && head.contains("fit.parameter"))
    );
    check_own_pictures(folder.path());
    stdout(&run(&["eval", "report", &*out]));
    let page = fs::read_to_string(folder.path().join("report.html")).expect("the page");
    for part in [
        "as run",
        "misses its budget of 10%",
        "of the pairs",
        "Score over the share of pairs read",
    ] {
        assert!(page.contains(part), "no {part:?}");
    }
}

#[track_caller]
fn check_own_record(folder: &Path, task: &str) {
    let record = json(&fs::read_to_string(folder.join("own.json")).expect("the record"));
    let rows = record["results"]["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 5);
    assert!(
        rows.iter()
            .all(|row| row["task"] == task && row["score"]["samples"] == 3),
        "{rows:?}"
    );
    assert_eq!(
        (&rows[0]["density"], &rows[0]["budget_kept"]),
        (&Value::from(1.0), &Value::Null)
    );
    assert_eq!(
        (&rows[1]["budget"], &rows[1]["budget_kept"]),
        (&Value::from(0.1), &Value::from(false))
    );
    assert!(
        rows[1]["fit"]["parameter"]
            .as_str()
            .is_some_and(|text| text.starts_with("window=")),
        "{rows:?}"
    );
}

#[track_caller]
fn check_own_pictures(folder: &Path) {
    for (picture, parts) in [
        (
            "own-scores-prefill.svg",
            &[">full<", ">streaming 10%<", ">streaming 90%<", "▲"][..],
        ),
        ("own-scores-decode.svg", &[">full<", ">quest 10%<"]),
        (
            "own-shares-prefill.svg",
            &[">full<", ">streaming<", "share of the causal pairs read", ">100%<"],
        ),
    ] {
        let svg = fs::read_to_string(folder.join(picture)).expect("a picture");
        assert!(parts.iter().all(|part| svg.contains(part)), "{picture}: {svg}");
    }
}

#[test]
fn options_of_one_meaning_have_one_name_and_answer_to_the_other() {
    for (measurement, shown, hidden) in [
        ("needle", "--lengths", "--length"),
        ("needle", "--samples", "--documents"),
        ("ruler", "--lengths", "--length"),
        ("compare", "--lengths", "--length"),
        ("compare", "--samples", "--documents"),
        ("audit", "--lengths", "--length"),
    ] {
        let help = stdout(&run(&["eval", measurement, "--help"]));
        let is_shown = |name: &str| help.contains(&format!("{name} <"));
        assert!(is_shown(shown) && !is_shown(hidden), "{measurement} {shown}: {help}");
        let output = run(&["eval", measurement, hidden, "0"]);
        assert_refused(&output, 1, &[shown]);
    }
}

#[test]
fn what_cannot_be_measured_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let short = folder.path().join("short.txt");
    fs::write(&short, "Nothing much.").expect("a file");
    let short = short.display().to_string();
    let own = format!("file:{short}");
    for (arguments, parts) in [
        (
            &["needle", "--kinds", "several"][..],
            &["unknown kind of needle", "multi-key"][..],
        ),
        (&["needle", "--compress", "kvzip"], &["--compress", "METHOD:KEEP"]),
        (&["needle", "--compress", "kvzip:3"], &["--compress", "above 0"]),
        (
            &["needle", "--compress", "kvzip:0.3", "--ask", "end"],
            &["--compress needs --ask late"],
        ),
        (&["needle", "--ask", "never"], &["unknown place to ask", "second-turn"]),
        (
            &["needle", "--kinds", "multi-value", "--ask", "middle"],
            &["nothing to ask"],
        ),
        (&["needle", "--text", &*short], &["1024", "longer one"]),
        (&["needle", "--lengths", "100"], &["does not fit a context of 100"]),
        (&["ruler", "--tasks", "niah"], &["unknown task", "niah_single_1"]),
        (
            &["ruler", "--wording", "no-such-file"],
            &["no-such-file", "--wording takes"],
        ),
        (&["ruler", "--questions", &*short], &["JSON array"]),
        (&["compare", "--tasks", "qa_1", "--questions", &*short], &["JSON array"]),
        (&["compare", "--tasks", &*own], &["short.txt: line 1:", "\"answers\""]),
        (
            &["compare", "--tasks", "file:no-such.jsonl"],
            &["no-such.jsonl: no such file"],
        ),
        (&["perplexity", "--window", "100000000"], &["use a shorter window"]),
        (
            &["perplexity", "--policy", "prefill=quest"],
            &["does not support prefill"],
        ),
        (&["perplexity", "--auto"], &["--policy"]),
        (&["compare", "--budget", "2"], &["--budget is 2"]),
        (
            &["compare", "--tasks", "mytask"],
            &["needle:KIND:WHEN", "multi-key", "second-turn", "vt", "file:PATH.jsonl"],
        ),
        (&["needle", "--depths", "1000"], &["--depths must be 1 to 512"]),
        (&["compare", "--tasks", "needle:single:second-turn"], &["KIND:PLACE"]),
    ] {
        let output = run(&[&["eval"], arguments].concat());
        assert_refused(&output, 1, parts);
    }
}

#[test]
fn a_foreign_file_among_records_is_named_and_left_out_of_the_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    fs::write(folder.path().join("package.json"), "{}").expect("a file");
    let output = run(&["eval", "report", &*path]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("package.json") && message.contains("no records there"),
        "{message}"
    );

    let records = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/results/records/perplexity-f16.json"
    );
    fs::copy(records, folder.path().join("ours.json")).expect("a record");
    let output = run(&["eval", "report", &*path]);
    assert!(stdout(&output).contains("report.html"));
    let message = stderr(&output);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(
        message.starts_with("left out: ") && message.contains("package.json"),
        "{message}"
    );
}

#[test]
fn a_perplexity_that_was_stopped_and_gone_on_with_is_the_same_to_the_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    let journal = folder.path().join("journal");
    let path = journal.display().to_string();
    let perplexity = |more: &[&str]| {
        let base = [
            "eval",
            "perplexity",
            "--tokens",
            "1024",
            "--window",
            "256",
            "--policy",
            "streaming:window=64",
        ];
        let mut record = json(&stdout(&run(&[&base[..], &["--json"], more].concat())));
        record["results"].take()
    };
    let whole = perplexity(&[]);
    assert_eq!(perplexity(&["--resume", &*path]), whole);
    // The journal lacks the last cells, as after an interruption.
    let text = fs::read_to_string(&journal).expect("a journal");
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    assert!(lines.len() > 4, "{text}");
    fs::write(&journal, lines[..lines.len() / 2].concat() + "{\"xxh3\":").expect("a journal");
    assert_eq!(perplexity(&["--resume", &*path]), whole);
    assert_eq!(perplexity(&["--resume", &*path]), whole);
}

#[test]
fn every_measurement_shows_an_example() {
    for measurement in ["logits", "needle", "ruler", "perplexity", "compare"] {
        let output = run(&["eval", measurement, "--help"]);
        let help = stdout(&output);
        assert!(
            help.contains("Example") && help.contains(&format!("riffle eval {measurement}")),
            "{help}"
        );
        assert!(stderr(&output).is_empty());
    }
}
