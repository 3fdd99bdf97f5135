//! Models of the hub by name, completions, and manual pages.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::testing::{assert_refused, at_home, riffle, run, shipped_model, stderr, stdout};
use riffle_testing::hub::{Fault, Hub, bytes, other_home};

/// The command with a hub and a cache, without a token and without other programs' models.
fn with_hub(hub: &str, cache: &Path) -> Command {
    let mut command = riffle();
    for name in [
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_HUB_OFFLINE",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
        "LLAMA_CACHE",
    ] {
        command.env_remove(name);
    }
    at_home(&mut command, cache)
        .env("HF_ENDPOINT", hub)
        .env("HF_HUB_CACHE", cache)
        .env("HF_HOME", cache)
        .env("XDG_CACHE_HOME", cache.join(".cache"))
        .env("OLLAMA_MODELS", cache.join(".ollama/models"));
    command
}

fn run_with(hub: &str, cache: &Path, arguments: &[&str]) -> Output {
    with_hub(hub, cache).args(arguments).output().expect("the binary runs")
}

fn shipped_files() -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(shipped_model()).expect("the shipped model");
    let files = entries.map(|entry| entry.expect("an entry").path());
    files
        .filter(|path| path.is_file())
        .map(|path| {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read(&path).expect("a file"))
        })
        .collect()
}

#[test]
fn a_model_is_pulled_used_by_its_name_listed_and_removed() {
    let files = shipped_files();
    let files: Vec<(&str, Vec<u8>)> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.clone()))
        .collect();
    let hub = Hub::start(&files);
    let cache = tempfile::tempdir().expect("a folder");
    let go = |arguments: &[&str]| run_with(&hub.url(), cache.path(), arguments);
    let prompt = [
        "run",
        "--model",
        "owner/model",
        "--prompt",
        "In the beginning God",
        "-n",
        "4",
    ];
    assert_refused(&go(&prompt), 1, &["--model is owner/model", "riffle pull owner/model"]);

    let pulled = go(&["pull", "owner/model"]);
    let path = stdout(&pulled);
    assert!(Path::new(path.trim()).join("config.json").is_file(), "{path}");
    assert!(
        stderr(&pulled).contains("next: riffle run --model owner/model"),
        "{}",
        stderr(&pulled)
    );
    let by_name = stdout(&go(&prompt));
    let by_path = stdout(&run(&[
        "run",
        "--model",
        shipped_model().to_str().expect("UTF-8"),
        "--prompt",
        "In the beginning God",
        "-n",
        "4",
    ]));
    assert_eq!(by_name, by_path);
    assert!(stdout(&go(&["inspect", "owner/model"])).contains("layers"));

    let listed = stdout(&go(&["list"]));
    assert!(
        listed.starts_with("NAME") && listed.contains("owner/model  safetensors") && listed.contains("hub"),
        "{listed}"
    );
    assert!(listed.contains("complete") && listed.contains("just now"), "{listed}");
    let listed: Value = serde_json::from_str(&stdout(&go(&["list", "--json"]))).expect("JSON");
    assert_eq!(listed[0]["name"], "owner/model");
    assert_eq!(listed[0]["complete"], true);
    let removed = stdout(&go(&["rm", "owner/model"]));
    assert!(
        removed.starts_with("removed owner/model: ") && removed.contains("free again"),
        "{removed}"
    );
    assert_refused(&go(&["rm", "owner/model"]), 1, &["owner/model is not in the cache"]);
    assert_eq!(stdout(&go(&["list"])), "");
}

#[test]
fn a_model_that_cannot_run_is_refused_before_its_weights_come() {
    let config = br#"{"architectures": ["MambaForCausalLM"], "model_type": "mamba"}"#;
    let hub = Hub::start(&[("config.json", config.to_vec()), ("model.safetensors", bytes(2000, 1))]);
    let cache = tempfile::tempdir().expect("a folder");
    let refused = run_with(&hub.url(), cache.path(), &["pull", "owner/model"]);
    assert_refused(
        &refused,
        1,
        &["owner/model: architecture", "MambaForCausalLM", "not downloaded"],
    );
    assert!(hub.asked_for("model.safetensors").is_empty());
}

#[test]
fn a_quantisation_is_chosen_by_the_machine_and_the_others_are_shown() {
    let hub = Hub::start(&[
        ("m-BF16.gguf", bytes(8000, 1)),
        ("m-Q4_K_M.gguf", bytes(2500, 2)),
        ("m-Q8_0.gguf", bytes(4300, 3)),
        ("m-UD-IQ2_XXS.gguf", bytes(1500, 4)),
    ]);
    let cache = tempfile::tempdir().expect("a folder");
    let go = |arguments: &[&str]| run_with(&hub.url(), cache.path(), arguments);
    let pulled = go(&["pull", "owner/model"]);
    let notes = stderr(&pulled);
    for row in [
        "QUANTISATION",
        "*  Q8_0",
        "BF16",
        "Q4_K_M",
        "UD-IQ2_XXS",
        "--quant NAME",
    ] {
        assert!(notes.contains(row), "{row}: {notes}");
    }
    assert!(stdout(&pulled).trim().ends_with("m-Q8_0.gguf"));
    let named = go(&["pull", "owner/model", "--quant", "iq2_xxs"]);
    assert!(stdout(&named).trim().ends_with("m-UD-IQ2_XXS.gguf"));
    assert!(!stderr(&named).contains("QUANTISATION"));
    assert_refused(
        &go(&["pull", "owner/model", "--quant", "Q5_K_M"]),
        1,
        &["no Q5_K_M", "BF16, Q4_K_M, Q8_0, UD-IQ2_XXS"],
    );
    assert_refused(
        &go(&["pull", "owner/model:Q8_0", "--quant", "Q4_K_M"]),
        1,
        &["leave out --quant"],
    );
    assert_refused(
        &go(&["pull", "owner/model", "--quant", "a b"]),
        1,
        &["--quant is \"a b\""],
    );
}

#[test]
fn a_pull_says_what_the_model_is_and_how_fast_it_will_be() {
    let files = shipped_files();
    let files: Vec<(&str, Vec<u8>)> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.clone()))
        .collect();
    let hub = Hub::start(&files);
    let cache = tempfile::tempdir().expect("a folder");
    let notes = stderr(&run_with(&hub.url(), cache.path(), &["pull", "owner/model"]));
    assert!(notes.contains("5 layers") && notes.contains("tokens/s here"), "{notes}");
}

#[test]
fn folders_of_quantised_safetensors_are_pulled_inspected_and_planned() {
    let folders = shipped_model().join("../../crates/model/tests/vectors/folders");
    let mut cases = 0;
    for case in fs::read_dir(folders).expect("the vectors") {
        let case = case.expect("an entry").path();
        let read = |file: &str| fs::read(case.join(file)).expect("a file");
        if !case.join("model.safetensors").is_file() {
            continue;
        }
        let files = ["config.json", "model.safetensors"].map(|file| (file, read(file)));
        let hub = Hub::start(&files);
        let cache = tempfile::tempdir().expect("a folder");
        let go = |arguments: &[&str]| run_with(&hub.url(), cache.path(), arguments);
        let pulled = go(&["pull", "owner/model"]);
        let notes = stderr(&pulled);
        assert!(pulled.status.success(), "{}: {notes}", case.display());
        assert!(
            notes.contains("quantised by") && notes.contains("tokens/s"),
            "{}: {notes}",
            case.display()
        );
        let inspected = stdout(&go(&["inspect", "owner/model"]));
        assert!(
            inspected.contains("quantised     by"),
            "{}: {inspected}",
            case.display()
        );
        let inspected: Value = serde_json::from_str(&stdout(&go(&["inspect", "owner/model", "--json"]))).expect("JSON");
        let planned = go(&["plan", "--model", "owner/model", "--json"]);
        // The cache needs head widths that are multiples of 16, which some of these small models do not have.
        if inspected["head_dim"].as_u64().is_none_or(|width| width % 16 != 0) {
            assert_refused(&planned, 1, &["multiple of 16"]);
            continue;
        }
        let plan: Value = serde_json::from_str(&stdout(&planned)).expect("JSON");
        assert_eq!(plan["weights_bytes"], inspected["weight_bytes"], "{}", case.display());
        cases += 1;
    }
    assert!(cases >= 5, "{cases} folders");
}

#[test]
fn short_names_are_listed_found_and_suggested() {
    let hub = Hub::start(&[("m-Q4_K_M.gguf", bytes(2000, 1))]);
    "Qwen/Qwen3-4B-GGUF".clone_into(&mut hub.state().repository);
    let cache = tempfile::tempdir().expect("a folder");
    let go = |arguments: &[&str]| run_with(&hub.url(), cache.path(), arguments);
    for listed in [go(&["pull"]), go(&["pull", "--list"])] {
        let text = stdout(&listed);
        assert!(text.starts_with("NAME") && text.contains("qwen3:4b  "), "{text}");
        assert!(text.contains("was run") && text.contains("architecture"), "{text}");
        assert!(stderr(&listed).contains("estimates"));
    }
    assert_refused(&go(&["pull", "qwen3"]), 1, &["no model named \"qwen3\"", "qwen3:4b"]);
    assert_refused(&go(&["run", "--model", "qwen3"]), 1, &["qwen3:4b"]);
    assert_refused(&go(&["run", "--model", "Qwen3 4B"]), 1, &["riffle pull qwen3:4b"]);
    let pulled = go(&["pull", "qwen3-4b"]);
    assert!(
        stderr(&pulled).contains("qwen3-4b is Qwen/Qwen3-4B-GGUF"),
        "{}",
        stderr(&pulled)
    );
    assert!(stderr(&pulled).contains("next: riffle run --model qwen3-4b"));
    // The file was found, and it is not a model.
    assert_refused(&go(&["inspect", "qwen3:4b"]), 1, &["m-Q4_K_M.gguf"]);
    assert!(stdout(&go(&["rm", "qwen3-4b"])).contains("removed Qwen/Qwen3-4B-GGUF"));
}

#[test]
fn models_of_other_programs_are_listed_run_and_never_removed() {
    let shipped =
        fs::read(shipped_model().join("../../crates/model/tests/vectors/gguf/llama-0.gguf")).expect("a GGUF model");
    let home = other_home(&shipped);
    let go = |arguments: &[&str]| run_with("http://127.0.0.1:1", home.path(), arguments);
    let output = go(&["list"]);
    let listed = stdout(&output);
    for (name, program) in [
        ("llama3.2:1b", "Ollama"),
        ("publisher/model-GGUF:Q4_K_M", "LM Studio"),
        ("owner/cached-GGUF:Q8_0", "llama.cpp"),
    ] {
        let row = listed.lines().find(|line| line.starts_with(name)).expect(name);
        assert!(row.contains("complete") && row.ends_with(program), "{row}");
        assert!(stdout(&go(&["inspect", name])).contains("layers"), "{name}");
        assert_refused(&go(&["rm", name]), 1, &[name, program, "remove it there"]);
    }
    assert!(
        stderr(&output).contains("damaged:latest of Ollama: its manifest"),
        "{}",
        stderr(&output)
    );
    let json: Value = serde_json::from_str(&stdout(&go(&["list", "--json"]))).expect("JSON");
    let models = json.as_array().expect("models");
    let tiny = models
        .iter()
        .find(|model| model["name"] == "llama3.2:1b")
        .expect("a model");
    assert_eq!(
        (&tiny["from"], &tiny["complete"]),
        (&Value::from("Ollama"), &Value::from(true))
    );
    for (name, part) in [
        ("adapted", "--lora"),
        ("damaged", "is damaged"),
        ("publisher/split", "are missing"),
    ] {
        assert_refused(&go(&["inspect", name]), 1, &[part]);
    }
    assert!(home.path().join(".ollama/models/blobs").is_dir());
}

#[test]
fn a_killed_pull_goes_on_where_it_was() {
    let weights = bytes(4_000_000, 1);
    let hub = Hub::start(&[("m-Q4_0.gguf", weights.clone())]);
    hub.faults(|asked, _| asked.is_for("m-Q4_0.gguf").then_some(Fault::Slow(20_000)));
    let cache = tempfile::tempdir().expect("a folder");
    let mut child = with_hub(&hub.url(), cache.path())
        .args(["pull", "owner/model"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let partial = cache.path().join(format!(
        "models--owner--model/blobs/{}.incomplete",
        riffle_testing::hub::sum(&weights)
    ));
    let length = || fs::metadata(&partial).map_or(0, |metadata| metadata.len());
    let start = Instant::now();
    while length() < 200_000 {
        assert!(start.elapsed() < Duration::from_secs(20), "bytes come");
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("killed");
    child.wait().expect("it ends");
    let left = length();
    let listed = stdout(&run_with(&hub.url(), cache.path(), &["list"]));
    assert!(listed.contains("incomplete: its download was interrupted"), "{listed}");
    let refused = run_with(&hub.url(), cache.path(), &["inspect", "owner/model"]);
    assert_refused(&refused, 1, &["not complete", "riffle pull owner/model"]);
    hub.faults(|_, _| None);
    let path = stdout(&run_with(&hub.url(), cache.path(), &["pull", "owner/model"]));
    assert_eq!(fs::read(path.trim()).expect("a file"), weights);
    let asked = hub.asked_for("m-Q4_0.gguf");
    assert_eq!(asked[0].header("range"), Some(format!("bytes={left}-").as_str()));
}

#[cfg(unix)]
#[test]
fn a_path_that_exists_comes_before_a_name() {
    let cache = tempfile::tempdir().expect("a folder");
    let place = tempfile::tempdir().expect("a folder");
    fs::create_dir(place.path().join("owner")).expect("a folder");
    std::os::unix::fs::symlink(
        shipped_model().canonicalize().expect("a path"),
        place.path().join("owner/model"),
    )
    .expect("a link");
    let mut command = with_hub("http://127.0.0.1:1", cache.path());
    let output = command
        .current_dir(place.path())
        .args(["inspect", "owner/model"])
        .output();
    assert!(stdout(&output.expect("the binary runs")).contains("layers"));
}

#[test]
fn what_is_wrong_with_a_pull_is_one_line() {
    let cache = tempfile::tempdir().expect("a folder");
    let hub = Hub::start(&[("m-Q4_0.gguf", bytes(2000, 1))]);
    let refused = |hub: &str, arguments: &[&str], parts: &[&str]| {
        assert_refused(&run_with(hub, cache.path(), arguments), 1, parts)
    };
    refused(&hub.url(), &["pull", "gpt2"], &["owner/name", "riffle pull --list"]);
    refused(&hub.url(), &["pull", "owner/other"], &["has no model owner/other"]);
    refused(&hub.url(), &["pull", "owner/model:Q8_0"], &["no Q8_0", "Q4_0"]);
    refused("huggingface.co", &["pull", "owner/model"], &["HF_ENDPOINT"]);
    refused("huggingface.co", &["list"], &["HF_ENDPOINT"]);
    let offline = with_hub(&hub.url(), cache.path())
        .env("HF_HUB_OFFLINE", "1")
        .args(["pull", "owner/model"])
        .output();
    assert_refused(&offline.expect("the binary runs"), 1, &["HF_HUB_OFFLINE"]);
}

#[test]
fn every_shell_gets_completions_of_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&run(&["completions", shell]));
        for word in ["pull", "tokenize", "prefix-cache"] {
            assert!(script.contains(word), "{shell} has no {word}");
        }
    }
    assert_refused(&run(&["completions", "sh"]), 2, &["bash"]);
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("man/man1");
    stdout(&run(&["man", place.to_str().expect("UTF-8")]));
    for page in ["riffle.1", "riffle-run.1", "riffle-pull.1", "riffle-eval-needle.1"] {
        let text = fs::read_to_string(place.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(".TH"), "{page}");
    }
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    assert_refused(&run(&["man", file.to_str().expect("UTF-8")]), 1, &["file"]);
    assert!(
        !stdout(&run(&["--help"])).contains("manual pages"),
        "the command is for packagers"
    );
}
