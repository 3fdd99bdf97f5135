//! Tests which policies answer the same for every chunk length, page length and split of a prompt.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::testing::{run, run_shipped, stderr, stdout};

/// Parameters with which a policy skips tokens of a short text; others have their defaults.
const PARAMETERS: &[(&str, &str)] = &[
    ("h2o", "budget=128,"),
    ("snapkv", "budget=128,"),
    ("quest", "budget=128,"),
    ("streaming", "window=128,"),
    ("tri-shape", "window=64,"),
    ("h2o-chunk", "local=16,heavy=8,"),
    ("signs", "peak=0.3,"),
];

/// A sampled answer: it changes if logits differ by some percent.
fn answer(file: &Path, policy: [&str; 2], more: &[&str]) -> String {
    let file = file.to_str().expect("UTF-8");
    let asked = [
        "--file",
        file,
        "--raw",
        "-n",
        "100",
        "--temperature",
        "1.3",
        "--seed",
        "7",
    ];
    let output = run_shipped(&[&asked[..], &policy, more].concat());
    assert_eq!(
        output.status.code(),
        Some(0),
        "{policy:?} {more:?}: {}",
        stderr(&output)
    );
    stdout(&output)
}

/// The first setting under which an answer differs.
fn difference(folder: &Path, policy: [&str; 2]) -> Option<String> {
    let (whole, half) = (folder.join("whole"), folder.join("half"));
    let expected = answer(&whole, policy, &[]);
    let settings = [["-ub", "32"], ["-ub", "128"], ["--page-tokens", "64"]];
    if let Some(setting) = settings
        .iter()
        .find(|setting| answer(&whole, policy, &setting[..]) != expected)
    {
        return Some(setting.join(" "));
    }
    let session = folder.join("session");
    fs::remove_file(&session).ok();
    let kept = ["--session", session.to_str().expect("UTF-8")];
    answer(&half, policy, &kept);
    (answer(&whole, policy, &kept) != expected).then(|| "two parts".to_owned())
}

#[test]
fn policies_say_whether_their_answers_depend_on_chunks() {
    let text =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/text/prophets.txt")).expect("a text");
    let folder = tempfile::tempdir().expect("a folder");
    let part: String = text.chars().skip(4000).take(2600).collect();
    fs::write(folder.path().join("whole"), &part).expect("a file");
    fs::write(folder.path().join("half"), part.chars().take(1300).collect::<String>()).expect("a file");
    let catalogue: Vec<Value> = serde_json::from_str(&stdout(&run(&["policies", "--json"]))).expect("JSON");
    for policy in &catalogue {
        let name = policy["name"].as_str().expect("a name");
        let depends = policy["depends_on_chunks"].as_bool().expect("a boolean");
        let parameters = PARAMETERS
            .iter()
            .find(|(of, _)| *of == name)
            .map_or("", |found| found.1);
        let spec = match name {
            "full" => name.to_owned(),
            name => format!("{name}:{parameters}from=0"),
        };
        for phase in ["prefill", "decode"] {
            if policy[phase] != true {
                continue;
            }
            let found = difference(folder.path(), [&format!("--{phase}"), &spec]);
            assert!(depends || found.is_none(), "{name} in {phase}: {found:?}");
            // snapkv seldom changes an answer this short, and signs cuts prompts only into blocks of queries.
            let same = name == "snapkv" || (name, phase) == ("signs", "decode");
            assert!(!depends || found.is_some() || same, "{name} in {phase}");
        }
    }
}
