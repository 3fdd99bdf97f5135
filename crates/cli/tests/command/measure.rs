//! Audits, the cost of context and reports, through the command.

use std::fs;

use crate::testing::{HEADS, LAYERS, TOKEN_BYTES, run, stderr, stdout};
use serde_json::Value;

fn folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("results").to_str().expect("UTF-8").to_owned();
    (folder, path)
}

#[test]
fn an_audit_and_a_bench_leave_records_and_pictures_that_a_report_is_made_of() {
    let (_guard, out) = folder();
    let policy = "streaming:sinks=4,window=256,from=0";
    audit_leaves_a_record_and_pictures(&out, policy);
    context_leaves_a_record_and_goes_on_from_its_journal(&out, policy);
    let page = stdout(&run(&["eval", "report", &out]));
    let html = fs::read_to_string(page.trim()).unwrap();
    for part in [
        "Cost of context: context",
        "Audit of attention: audit",
        "Not run",
        "riffle eval needle",
        "Memory by part",
    ] {
        assert!(html.contains(part), "no {part}");
    }
    assert!(!html.contains("http"));
    let markdown = stdout(&run(&["eval", "report", &out, "--markdown"]));
    assert!(markdown.contains("| policy | tokens |"), "{markdown}");
}

fn audit_leaves_a_record_and_pictures(out: &str, policy: &str) {
    let audit = run(&[
        "eval",
        "audit",
        "--length",
        "1536",
        "--prefill",
        policy,
        "--name",
        "audit",
        "--out",
        out,
        "--csv",
    ]);
    let csv = stdout(&audit);
    assert!(csv.starts_with("layer,head,kv_head,samples,mean_mass,"), "{csv}");
    assert_eq!(csv.lines().count(), 1 + LAYERS * HEADS);
    let record: Value = serde_json::from_slice(&fs::read(format!("{out}/audit.json")).unwrap()).unwrap();
    assert_eq!(
        (record["kind"].as_str(), record["name"].as_str()),
        (Some("audit"), Some("audit"))
    );
    let (mean, density) = (
        record["results"]["mean_mass"].as_f64().unwrap(),
        record["results"]["density"].as_f64().unwrap(),
    );
    assert!(
        (0.2..0.999).contains(&mean) && (0.1..0.6).contains(&density),
        "{mean} {density}"
    );
    for picture in ["attention", "heavy-hitters", "kept", "rows"] {
        let svg = fs::read_to_string(format!("{out}/audit-{picture}.svg")).unwrap();
        assert!(svg.contains("streaming:sinks=4"), "{picture}");
        #[cfg(feature = "png")]
        assert!(
            fs::read(format!("{out}/audit-{picture}.png"))
                .unwrap()
                .starts_with(b"\x89PNG")
        );
    }
}

fn context_leaves_a_record_and_goes_on_from_its_journal(out: &str, policy: &str) {
    let both = format!("prefill={policy}");
    let journal = format!("{out}/context.journal");
    let bench = [
        "bench",
        "context",
        "--lengths",
        "512,1024",
        "--policy",
        "full",
        "--policy",
        &both,
        "-n",
        "4",
        "--resume",
        &journal,
        "--out",
        out,
    ];
    let text = stdout(&run(&bench));
    assert!(
        text.contains("prompt, tokens/s") && text.contains("workspace (planned)"),
        "{text}"
    );
    let path = format!("{out}/context.json");
    let record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let rows = record["results"]["rows"].as_array().unwrap().clone();
    assert_eq!(rows.len(), 4);
    for row in &rows {
        let tokens = row["context_tokens"].as_f64().unwrap();
        assert!(
            row["kv_ram_bytes"].as_f64().unwrap() >= TOKEN_BYTES as f64 * tokens,
            "{row}"
        );
        assert!(row["peak_resident_bytes"].as_u64().unwrap_or(u64::MAX) > row["weights_bytes"].as_u64().unwrap());
    }
    // A resumed run keeps finished rows and measures missing ones. The last row is cut here, as after a kill.
    let finished = fs::read_to_string(&journal).unwrap();
    assert_eq!(finished.lines().count(), 5);
    let cut: Vec<&str> = finished.lines().take(4).collect();
    fs::write(&journal, cut.join("\n") + "\n").unwrap();
    stdout(&run(&bench));
    let resumed: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let resumed = resumed["results"]["rows"].as_array().unwrap();
    assert_eq!((resumed.len(), &resumed[..3]), (4, &rows[..3]));
}

#[test]
fn what_cannot_be_measured_is_one_line() {
    let (_guard, out) = folder();
    let cases: [(&[&str], &[&str]); 10] = [
        (
            &["eval", "report", "/nowhere"],
            &["/nowhere", "no such folder", "--out DIR"],
        ),
        (
            &["eval", "perplexity", "--file", "/nowhere.txt"],
            &["/nowhere.txt", "no such file"],
        ),
        (
            &["eval", "ruler", "--questions", "/nowhere.json"],
            &["no such file", "JSON array"],
        ),
        (&["eval", "audit", "--length", "20"], &["at least 128 tokens"]),
        (
            &["eval", "audit", "--length", "99999999"],
            &["--lengths 99999999", "prophets.txt"],
        ),
        (
            &["eval", "audit", "--length", "512", "--map", "9:0"],
            &["--map 9:0", "5 layers"],
        ),
        (&["eval", "audit", "--length", "512", "--heavy", "0"], &["--heavy"]),
        (
            &["eval", "audit", "--length", "256", "--name", "a/b", "--out", &out],
            &["a/b", "file name"],
        ),
        (&["bench", "context", "--lengths", "0"], &["--lengths"]),
        (&["bench", "context", "--policy", "nonsense"], &["nonsense"]),
    ];
    for (arguments, parts) in cases {
        let output = run(arguments);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        let last = message.lines().last().unwrap_or("");
        for part in parts {
            assert!(last.contains(part), "{arguments:?}: no {part} in {message}");
        }
    }
}

#[test]
fn offload_is_measured_beside_everything_in_memory() {
    let (_guard, out) = folder();
    let bench = ["bench", "context", "--lengths", "4096", "-n", "2", "--beside-memory"];
    let disk = ["--kv-disk", &out, "--kv-ram-budget", "5M", "--json"];
    fs::create_dir_all(&out).unwrap();
    let record: Value = serde_json::from_str(&stdout(&run(&[&bench[..], &disk].concat()))).unwrap();
    let rows = record["results"]["rows"].as_array().unwrap();
    let on_disk: Vec<u64> = rows.iter().map(|row| row["kv_disk_bytes"].as_u64().unwrap()).collect();
    assert!(on_disk.len() == 2 && on_disk[0] == 0 && on_disk[1] > 0, "{rows:?}");
    let refused = run(&bench);
    assert!(stderr(&refused).contains("--kv-disk"), "{}", stderr(&refused));
}

#[test]
fn benchmarks_of_the_machine_are_kept_as_records_and_go_on_where_they_were() {
    let (_guard, out) = folder();
    let journal = format!("{out}/attention.journal");
    fs::create_dir_all(&out).unwrap();
    let small: [&[&str]; 3] = [
        &["attention", "--only", "decode q4_0 1x16384 d128", "--resume", &journal],
        &["kv", "--tokens", "2048", "--hot-tokens", "512"],
        &["policies", "--tokens", "4096", "--policy", "quest:dense_layers=0"],
    ];
    for (arguments, shown) in small
        .iter()
        .zip(["of peak", "older pages in", "selecting, of time saved"])
    {
        let kept = [&["bench"], *arguments, &["--out", &out]].concat();
        let text = stdout(&run(&kept));
        assert!(text.contains(shown), "{text}");
    }
    let path = format!("{out}/attention.json");
    let first = fs::read_to_string(&path).unwrap();
    let csv = stdout(&run(&[&["bench"], small[0], &["--csv"]].concat()));
    let rate: Value = serde_json::from_str(&first).unwrap();
    let median = rate["results"]["rates"][0]["median_ms"].to_string();
    assert!(
        csv.contains(&median),
        "what was measured is not measured again: {csv}, {median}"
    );
    let page = stdout(&run(&["eval", "report", &out]));
    let html = fs::read_to_string(page.trim()).unwrap();
    for part in [
        "Attention kernels: attention",
        "KV tiers: kv",
        "Cost of policies: policies",
    ] {
        assert!(html.contains(part), "no {part}");
    }
}

#[test]
fn every_benchmark_writes_csv() {
    let model = crate::testing::shipped_model();
    let model = model.to_str().unwrap();
    let csv = stdout(&run(&[
        "bench",
        "model",
        "--model",
        model,
        "--depth",
        "0",
        "-p",
        "64",
        "-n",
        "4",
        "--repeats",
        "1",
        "--csv",
    ]));
    assert!(
        csv.starts_with("depth,prefill_tokens_per_s,decode_tokens_per_s"),
        "{csv}"
    );
    assert_eq!(csv.lines().count(), 2);
    for help in [["bench", "attention"], ["bench", "kv"]] {
        let text = stdout(&run(&[help[0], help[1], "--help"]));
        assert!(text.contains("--csv") && text.contains("--json"));
    }
}
