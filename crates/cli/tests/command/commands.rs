//! Tests of each command's output in successful runs.

use std::fs;

use crate::testing::{
    KV_HEADS, LAYERS, ModelCopy, TOKEN_BYTES, assert_refused, riffle, run, run_shipped, shipped_model, stderr, stdout,
};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("one JSON object")
}

#[test]
fn run_prints_the_text_alone_on_standard_output() {
    let output = run_shipped(&["--prompt", "In the beginning God", "-n", "8"]);
    let text = stdout(&output);
    assert!(!text.trim().is_empty());
    assert!(!text.contains("tokens/s"));
    assert!(stderr(&output).contains("tokens/s"));
}

#[test]
fn run_reads_the_prompt_from_a_file_and_from_standard_input_alike() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("prompt.txt");
    fs::write(&path, "In the beginning God").expect("a file");
    let from_argument = run_shipped(&["--prompt", "In the beginning God", "-n", "8"]);
    let from_file = run_shipped(&["--file", path.to_str().expect("UTF-8"), "-n", "8"]);
    let from_input = riffle()
        .args(["run", "--model"])
        .arg(shipped_model())
        .args(["-n", "8"])
        .stdin(fs::File::open(&path).expect("a file"))
        .output()
        .expect("the binary runs");
    assert_eq!(stdout(&from_argument), stdout(&from_file));
    assert_eq!(stdout(&from_argument), stdout(&from_input));
}

#[test]
fn json_holds_the_text_and_the_summary() {
    let output = run_shipped(&["--prompt", "In the beginning God", "-n", "8", "--json"]);
    let report = json(&stdout(&output));
    assert_eq!(report["generated_tokens"], 8);
    assert_eq!(report["stop"]["reason"], "max_tokens");
    assert!(report["text"].as_str().is_some_and(|text| !text.is_empty()));
    for field in [
        "prompt_tokens",
        "time_to_first_token_ms",
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
    ] {
        assert!(
            report[field].as_f64().is_some_and(|value| value > 0.0),
            "{field}: {report}"
        );
    }
    assert_eq!(report["kv"]["pages"].as_u64(), Some((LAYERS * KV_HEADS) as u64));
    assert_eq!(report["density"], 1.0);
}

#[test]
fn a_short_prompt_in_a_long_context_allocates_pages_for_the_prompt_only() {
    let prompt = "and he said ".repeat(100);
    let output = run_shipped(&[
        "--prompt",
        &prompt,
        "-n",
        "1",
        "--ctx",
        "131072",
        "--page-tokens",
        "64",
        "--json",
    ]);
    let report = json(&stdout(&output));
    let tokens = report["kv"]["tokens"].as_u64().expect("tokens");
    let pages = tokens.div_ceil(64);
    assert_eq!(report["kv"]["pages"].as_u64(), Some(pages * (LAYERS * KV_HEADS) as u64));
    assert_eq!(
        report["kv"]["ram_bytes"].as_u64().expect("bytes") + report["kv"]["device_bytes"].as_u64().expect("bytes"),
        pages * 64 * TOKEN_BYTES as u64
    );
    assert!(
        report["plan"]["kv_bytes"].as_u64() > Some(64 << 20),
        "the plan covers the whole context"
    );
}

#[test]
fn equal_seeds_give_equal_texts() {
    let sample = |seed: &str| {
        stdout(&run_shipped(&[
            "--prompt",
            "And it came to pass",
            "-n",
            "24",
            "--temperature",
            "1",
            "--seed",
            seed,
        ]))
    };
    assert_eq!(sample("3"), sample("3"));
    assert_ne!(sample("3"), sample("4"));
}

#[test]
fn the_answer_does_not_depend_on_threads_batches_or_pages() {
    let prompt = "In the beginning God created the heaven and the earth. ".repeat(20);
    let answer = |options: &[&str]| {
        let mut all = vec!["--prompt", &prompt, "-n", "24", "--kv-type", "f32"];
        all.extend(options);
        stdout(&run_shipped(&all))
    };
    let expected = answer(&[]);
    assert_eq!(answer(&["--threads", "1"]), expected);
    assert_eq!(answer(&["-b", "100", "-ub", "7"]), expected);
    assert_eq!(answer(&["--page-tokens", "16"]), expected);
}

#[test]
fn a_stop_string_ends_the_answer_and_is_not_shown() {
    let whole = stdout(&run_shipped(&["--prompt", "In the beginning God", "-n", "32"]));
    let words: Vec<&str> = whole.split_whitespace().collect();
    let stop = words[words.len() / 2];
    let output = run_shipped(&["--prompt", "In the beginning God", "-n", "32", "--stop", stop, "--json"]);
    let report = json(&stdout(&output));
    assert_eq!(report["stop"]["reason"], "stop_string");
    assert_eq!(report["stop"]["stop"], stop);
    let text = report["text"].as_str().expect("text");
    assert_eq!(text, &whole[..whole.find(stop).expect("the stop string")]);
}

#[test]
fn streaming_reads_fewer_pairs_and_says_so() {
    let prompt = "and he said unto them ".repeat(200);
    let streaming = "streaming:sinks=16,window=64";
    let output = run_shipped(&[
        "--prompt",
        &prompt,
        "-n",
        "4",
        "--prefill",
        streaming,
        "--decode",
        streaming,
        "--json",
    ]);
    let report = json(&stdout(&output));
    assert_eq!(report["prefill_policy"], streaming);
    let density = report["density"].as_f64().expect("density");
    let tokens = report["kv"]["tokens"].as_f64().expect("tokens");
    let expected = 2.0 * 80.0 / tokens;
    assert!(
        (density / expected - 1.0).abs() < 0.1,
        "{density} against about {expected}"
    );
}

#[test]
fn plan_adds_up_and_scales_with_the_context() {
    let model = shipped_model();
    let plan = |context: &str| {
        let output = riffle()
            .args(["plan", "--model"])
            .arg(&model)
            .args(["--ctx", context, "--json"])
            .output()
            .expect("the binary runs");
        json(&stdout(&output))
    };
    let (short, long) = (plan("4096"), plan("65536"));
    for plan in [&short, &long] {
        let part = |name: &str| plan[name].as_u64().expect("bytes");
        let of_process = ["program_bytes", "tokenizer_bytes", "prompt_bytes"];
        let of_process = of_process.map(|name| plan["process"][name].as_u64().expect("bytes"));
        assert_eq!(
            part("weights_bytes")
                + part("kv_bytes")
                + part("recurrent_bytes")
                + part("scratch_bytes")
                + of_process.iter().sum::<u64>(),
            part("total_bytes")
        );
    }
    assert_eq!(short["kv_bytes_per_token"], TOKEN_BYTES);
    assert_eq!(long["kv_bytes"].as_u64(), Some(65536 * TOKEN_BYTES as u64));
}

#[test]
fn a_stretched_model_takes_a_longer_context() {
    let run = |scaling: &[&str]| {
        let mut arguments = vec!["--prompt", "In the beginning", "-n", "4", "--json"];
        arguments.extend(scaling);
        json(&stdout(&run_shipped(&arguments)))
    };
    let plain = run(&[]);
    let further = run(&["--ctx", "200000", "--rope-scaling", "own:factor=2"]);
    assert_eq!(further["text"], plain["text"]);
    let stretched = run(&["--ctx", "200000", "--rope-scaling", "yarn:factor=2,original=131072"]);
    assert_eq!(stretched["generated_tokens"], 4);
}

#[test]
fn a_prompt_is_read_with_fewer_tokens_where_that_is_asked_for() {
    let book = "In the beginning was the word, and the word was long. ".repeat(100);
    let read = |selection: &[&str]| {
        let mut arguments = vec!["--prompt", &book, "--raw", "-n", "4", "--json"];
        arguments.extend(selection);
        json(&stdout(&run_shipped(&arguments)))
    };
    let (whole, selected) = (read(&[]), read(&["--select-tokens", "0.2"]));
    assert_eq!(selected["prompt_tokens"], whole["prompt_tokens"]);
    assert_eq!(whole["density"], 1.0);
    assert!(selected["density"].as_f64() < Some(0.5), "{}", selected["density"]);
    assert!(selected["kv"]["pages"].as_u64() < whole["kv"]["pages"].as_u64());
    let asked = read(&["--select-tokens", "0.2", "--question", "Who?", "--question", "When?"]);
    assert_eq!(asked.as_array().map(Vec::len), Some(2));
    assert!(asked[1]["density"].as_f64() < Some(0.5), "{}", asked[1]["density"]);
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("a path");
    for (arguments, part) in [
        (&["--select-tokens", "1.5"][..], "above 0 and at most 1"),
        (&["--select-tokens", "0.2,layers=9"], "from 1 to 4"),
        (&["--select-tokens", "0.2,rows=9"], "layers=N"),
        (
            &["--select-tokens", "0.2", "--prefix-cache", folder],
            "leave one of them out",
        ),
    ] {
        let mut all = vec!["--prompt", "In the beginning", "-n", "1"];
        all.extend(arguments);
        let output = run_shipped(&all);
        assert_refused(&output, 1, &["--select-tokens", part]);
    }
}

#[test]
fn inspect_shows_architecture_shapes_formats_and_tokenizer() {
    let model = shipped_model();
    let model = model.to_str().expect("a path");
    let text = stdout(&run(&["inspect", model]));
    for part in ["llama", "bf16", "2,048", "tokenizer", "tensors"] {
        assert!(text.to_lowercase().contains(part), "no {part:?} in {text}");
    }
    let shape = "[384, 128]";
    assert!(
        !text.contains(shape),
        "tensors are listed where they are asked for: {text}"
    );
    assert!(text.lines().count() < 20, "{text}");
    assert!(stdout(&run(&["inspect", model, "--tensors"])).contains(shape));
    let summary = json(&stdout(&run(&["inspect", model, "--json"])));
    let listed = json(&stdout(&run(&["inspect", model, "--json", "--tensors"])));
    let tensors = listed["tensors"].as_array().expect("a list");
    assert_eq!(summary["tensors"].as_u64(), Some(tensors.len() as u64));
    let bytes = |list: &Value| -> u64 {
        let each = list.as_array().expect("a list").iter();
        each.map(|part| part["bytes"].as_u64().expect("bytes")).sum()
    };
    assert_eq!(bytes(&summary["formats"]), bytes(&listed["tensors"]));
}

#[test]
fn policies_are_listed_with_their_parameters() {
    let text = stdout(&run(&["policies"]));
    assert!(text.contains("full (prefill, decode"), "{text}");
    assert!(text.contains("streaming (prefill, decode"), "{text}");
    assert!(text.contains("sinks=64") && text.contains("window=1024"), "{text}");
    assert!(json(&stdout(&run(&["policies", "--json"]))).is_array());
}

#[test]
fn bench_model_reports_every_depth() {
    let output = riffle()
        .args(["bench", "model", "--model"])
        .arg(shipped_model())
        .args([
            "-p",
            "64",
            "-n",
            "8",
            "--depth",
            "0,300,700,200",
            "--repeats",
            "1",
            "--json",
        ])
        .output()
        .expect("the binary runs");
    let rates = json(&stdout(&output))["results"]["rates"].clone();
    let found = |key: &str| -> Vec<u64> {
        let rates = rates.as_array().expect("a list").iter();
        rates.map(|rate| rate[key].as_u64().expect(key)).collect()
    };
    assert_eq!(found("depth"), [0, 300, 700, 200]);
    // Each context has its own tokens and the answer's, in pages of 256 tokens.
    let page_bytes = found("kv_bytes")[0];
    assert_eq!(found("kv_bytes"), [1, 2, 3, 1].map(|pages| pages * page_bytes));
    for rate in rates.as_array().expect("a list") {
        assert!(
            rate["prefill_tokens_per_s"].as_f64().is_some_and(|value| value > 0.0),
            "{rate}"
        );
        assert!(
            rate["decode_tokens_per_s"].as_f64().is_some_and(|value| value > 0.0),
            "{rate}"
        );
    }
}

#[test]
fn quantised_kv_takes_fewer_bytes_and_still_reads() {
    let prompt = "and he said unto them ".repeat(100);
    let bytes = |kv_type: &str| {
        let output = run_shipped(&["--prompt", &prompt, "-n", "4", "--kv-type", kv_type, "--json"]);
        json(&stdout(&output))["kv"]["ram_bytes"].as_u64().expect("bytes")
    };
    let half = bytes("f16");
    // One byte per value and two for every 32; half a byte per value for q4_0.
    assert_eq!(bytes("q8_0") * 64, half * 34);
    assert_eq!(bytes("q8_0:q4_0") * 128, half * (34 + 18));
}

#[test]
fn a_chat_template_is_applied_where_there_is_one_unless_the_prompt_is_raw() {
    let copy = ModelCopy::new();
    copy.edit_json("tokenizer_config.json", |config| {
        config["chat_template"] =
            "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:".into();
    });
    let report = |options: &[&str]| {
        let output = riffle()
            .args(["run", "--model"])
            .arg(copy.path())
            .args(["--prompt", "Who made the heaven?", "-n", "1", "--json"])
            .args(options)
            .output()
            .expect("the binary runs");
        json(&stdout(&output))
    };
    let (wrapped, with_system, raw) = (report(&[]), report(&["--system", "Be brief."]), report(&["--raw"]));
    assert_eq!(wrapped["chat_template_applied"], true);
    assert_eq!(raw["chat_template_applied"], false);
    let tokens = |report: &Value| report["prompt_tokens"].as_u64().expect("tokens");
    assert!(tokens(&raw) < tokens(&wrapped) && tokens(&wrapped) < tokens(&with_system));
}

#[test]
fn a_run_under_a_quarter_of_its_kv_bytes_says_what_one_without_a_limit_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let prompt = "In the beginning God created the heaven and the earth. ".repeat(220);
    let answer = |more: &[&str]| {
        let mut all = vec!["--prompt", &prompt, "-n", "16", "--json", "--ctx", "4096"];
        all.extend(["--page-tokens", "64", "-ub", "128"]);
        all.extend(more);
        json(&stdout(&run_shipped(&all)))
    };
    let free = answer(&[]);
    let disk = folder.path().to_str().expect("UTF-8");
    let limited = answer(&["--kv-ram-budget", "1700K", "--kv-disk", disk, "--kv-slots", "4"]);
    assert_eq!(limited["text"], free["text"]);
    let bytes = |report: &Value, tier: &str| report["kv"][tier].as_u64().expect("bytes");
    assert!(bytes(&limited, "ram_bytes") <= 1700 << 10);
    assert!(bytes(&limited, "disk_bytes") > 1 << 20, "{limited}");
    assert_eq!(
        bytes(&limited, "ram_bytes") + bytes(&limited, "disk_bytes"),
        bytes(&free, "ram_bytes")
    );
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);

    let refused = run_shipped(&["--prompt", &prompt, "--ctx", "4096", "--kv-ram-budget", "1700K"]);
    assert_refused(
        &refused,
        1,
        &["4096 tokens", "--kv-ram-budget 10M", "--kv-disk DIR", "--ctx "],
    );
}

#[test]
fn an_answer_without_a_limit_goes_on_until_the_context_is_full() {
    let output = run_shipped(&[
        "--prompt",
        "In the beginning",
        "-n",
        "-1",
        "--ctx",
        "64",
        "--temp",
        "1",
        "--json",
    ]);
    let report = json(&stdout(&output));
    assert_eq!(report["stop"]["reason"], "context_full");
    assert_eq!(report["kv"]["tokens"], 64);
}

#[test]
fn formats_policies_and_devices_are_read_in_any_case() {
    let output = run_shipped(&[
        "--prompt",
        "In the beginning",
        "-n",
        "1",
        "--kv-type",
        "Q8_0:BF16",
        "--prefill",
        "Streaming:Sinks=16,Window=64",
        "--decode",
        "FULL",
        "--device",
        "CPU",
        "--kv-rotate",
        "On",
        "--activations",
        "Exact",
        "--json",
    ]);
    let report = json(&stdout(&output));
    assert_eq!(report["kv"]["format"], "q8_0:bf16");
    assert_eq!(report["prefill_policy"], "streaming:sinks=16,window=64");
}

#[test]
fn spellings_of_llama_cpp_run_as_their_own_do() {
    let model = shipped_model();
    let model = model.to_str().expect("a path");
    let own = [
        "run",
        "--model",
        model,
        "--prompt",
        "In the beginning",
        "--tokens",
        "8",
        "--threads",
        "1",
        "--ctx",
        "512",
        "--temperature",
        "1",
        "--seed",
        "7",
        "--kv-type",
        "q8_0:q4_0",
    ];
    let llama = [
        "run",
        "-m",
        model,
        "-p",
        "In the beginning",
        "-n",
        "8",
        "-t",
        "1",
        "-c",
        "512",
        "--temp",
        "1",
        "-s",
        "7",
        "-ctk",
        "q8_0",
        "--cache-type-v",
        "Q4_0",
    ];
    assert_eq!(stdout(&run(&llama)), stdout(&run(&own)));
}

#[test]
fn what_becomes_of_the_input_of_linear_layers_is_said() {
    let model = shipped_model();
    let model = model.to_str().expect("a path");
    let plan = stdout(&run(&["plan", "--model", model]));
    assert!(plan.contains("exact (f32) for bf16 weights"), "{plan}");
    let plan = run(&["plan", "--model", model, "--activations", "rounded", "--device", "cpu"]);
    assert!(stdout(&plan).contains("rounded to bf16 for bf16 weights") && stderr(&plan).is_empty());
    let output = run_shipped(&["--prompt", "x", "-n", "1"]);
    assert!(
        stderr(&output).contains("of linear layers exact (f32)"),
        "{}",
        stderr(&output)
    );
    let half = shipped_model().join("../../crates/model/tests/vectors/gguf/llama-2.gguf");
    let half = half.to_str().expect("a path");
    let plan = run(&["plan", "--model", half, "--activations", "rounded"]);
    assert!(
        stderr(&plan).contains("this model's weights are f16"),
        "{}",
        stderr(&plan)
    );
    let plan = run(&["plan", "--model", half]);
    assert!(stderr(&plan).is_empty(), "nothing was asked for: {}", stderr(&plan));
}

#[test]
fn a_file_that_mixes_types_is_described_planned_and_answered_from() {
    let mixed = shipped_model().join("../../crates/model/tests/vectors/quantised/ud.gguf");
    let mixed = mixed.to_str().expect("a path");
    let described = stdout(&run(&["inspect", mixed]));
    for format in ["iq3_s", "iq4_nl", "iq4_xs", "q4_k", "q5_k", "q6_k", "q8_0", "f32"] {
        assert!(described.contains(format), "{format} is not in: {described}");
    }
    let plan = json(&stdout(&run(&["plan", "--model", mixed, "--ctx", "64", "--json"])));
    assert!(plan["weights_bytes"].as_u64() > Some(100_000), "{plan}");
    let arguments = [
        "run",
        "--model",
        mixed,
        "--prompt",
        "in the beginning",
        "--ctx",
        "64",
        "-n",
        "8",
    ];
    let answer = run(&arguments);
    assert!(!stdout(&answer).is_empty() && stderr(&answer).contains("tokens/s"));
}
