//! Every wrong input gets one clear line, a non-zero exit and no panic.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use crate::testing::{assert_refused, riffle, run, run_shipped, run_with_input, shipped_model, stderr};

#[test]
fn a_missing_model_is_named() {
    let output = run(&["run", "--model", "/nowhere/model", "--prompt", "x"]);
    assert_refused(&output, 1, &["/nowhere/model"]);
}

#[test]
fn a_device_that_is_not_there_is_one_line_that_names_the_other() {
    assert_refused(
        &run_shipped(&["--device", "cuda:77", "--prompt", "x"]),
        1,
        &["--device cpu"],
    );
    if !cfg!(feature = "cuda") {
        assert_refused(
            &run_shipped(&["--device", "cuda", "--prompt", "x"]),
            1,
            &["--features cuda", "--device cpu"],
        );
    }
    assert_refused(
        &run_shipped(&["--device", "gpu", "--prompt", "x"]),
        1,
        &["--device", "cuda:N"],
    );
    assert_refused(
        &run(&["bench", "attention", "--device", "cuda:77"]),
        1,
        &["--device cpu"],
    );
}

#[test]
fn a_missing_prompt_file_is_named() {
    assert_refused(
        &run_shipped(&["--file", "/nowhere/book.txt"]),
        1,
        &["/nowhere/book.txt"],
    );
}

#[test]
fn a_missing_folder_for_pages_is_named_before_anything_is_read() {
    let disk = ["--kv-ram-budget", "10M", "--kv-disk", "/nowhere/pages"];
    let named = ["--kv-disk", "/nowhere/pages", "no such folder"];
    assert_refused(&run_shipped(&[&disk[..], &["--prompt", "x"]].concat()), 1, &named);
    let model = shipped_model();
    let planned = [&["plan", "--model", model.to_str().expect("a path")][..], &disk[..]].concat();
    assert_refused(&run(&planned), 1, &named);
}

#[test]
fn an_empty_prompt_is_refused_from_every_source() {
    let folder = tempfile::tempdir().expect("a folder");
    let empty = folder.path().join("empty.txt");
    fs::write(&empty, " \n").expect("a file");
    assert_refused(&run_shipped(&["--prompt", ""]), 1, &["prompt is empty"]);
    assert_refused(
        &run_shipped(&["--file", empty.to_str().expect("UTF-8")]),
        1,
        &["prompt is empty"],
    );
    assert_refused(&run_shipped(&[]), 1, &["prompt is empty"]);
}

#[test]
fn text_that_is_not_utf8_says_where_it_goes_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let latin = folder.path().join("latin.txt");
    fs::write(&latin, b"caf\xe9").expect("a file");
    assert_refused(
        &run_shipped(&["--file", latin.to_str().expect("UTF-8")]),
        1,
        &["latin.txt", "not UTF-8", "byte 3"],
    );

    let output = run_with_input(riffle().args(["run", "--model"]).arg(shipped_model()), b"\xff\xfe");
    assert_refused(&output, 1, &["standard input", "not UTF-8", "byte 0"]);
}

#[test]
fn a_prompt_longer_than_the_context_says_how_much_is_needed() {
    let prompt = "word ".repeat(100);
    let output = run_shipped(&["--prompt", &prompt, "--ctx", "64"]);
    assert_refused(&output, 1, &["the prompt needs", "64", "--ctx"]);
}

#[test]
fn a_context_longer_than_the_model_supports_is_refused() {
    let output = run_shipped(&["--prompt", "x", "--ctx", "100000000"]);
    let refused = [
        "--ctx 100000000",
        "131072 or less",
        "at most 524288",
        "yarn:factor=4 --ctx 524288",
    ];
    assert_refused(&output, 1, &refused);
    let output = run_shipped(&["--prompt", "x", "--ctx", "300000"]);
    assert_refused(&output, 1, &["--rope-scaling yarn:factor=3 --ctx 300000"]);
    let output = run_shipped(&[
        "--prompt",
        "x",
        "--ctx",
        "300000",
        "--rope-scaling",
        "yarn:factor=2,original=131072",
    ]);
    assert_refused(&output, 1, &["--ctx 300000", "262144"]);
    let output = run_shipped(&["--prompt", "x", "--rope-scaling", "ntk:factor=2"]);
    assert_refused(&output, 1, &["--rope-scaling ntk:factor=2", "yarn, linear and own"]);
}

#[test]
fn unknown_policies_and_parameters_list_the_known_ones() {
    let output = run_shipped(&["--prompt", "x", "--prefill", "psychic"]);
    assert_refused(&output, 1, &["psychic", "full", "streaming"]);
    let output = run_shipped(&["--prompt", "x", "--decode", "streaming:windw=4"]);
    assert_refused(&output, 1, &["windw", "sinks", "window"]);
    let output = run_shipped(&["--prompt", "x", "--decode", "streaming:window=many"]);
    assert_refused(&output, 1, &["window", "many"]);
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    for (arguments, name) in [
        (["-b", "0"], "-b"),
        (["-ub", "0"], "-ub"),
        (["--ctx", "0"], "--ctx"),
        (["--temperature", "-1"], "--temperature"),
        (["--top-p", "2"], "--top-p"),
        (["--kv-type", "f8"], "--kv-type"),
        (["--page-tokens", "17"], "17"),
        (["--memory", "lots"], "--memory"),
        (["--threads", "0"], "--threads is 0"),
        (["--threads", "100000"], "--threads is 100000"),
        (["-n", "-3"], "--tokens is -3"),
        (
            ["-b", "cat"],
            "--batch is cat, but it must be a whole number from 1 to 4294967295",
        ),
        (
            ["--kv-rotate", "maybe"],
            "--kv-rotate is maybe, but it must be on or off",
        ),
        (["--seed", ""], "--seed is \"\""),
    ] {
        let mut all = vec!["--prompt", "x"];
        all.extend(arguments);
        assert_refused(&run_shipped(&all), 1, &[name]);
    }
    assert_refused(
        &run_shipped(&["--prompt", "x", "-b", "8", "-ub", "16"]),
        1,
        &["-ub", "-b 8"],
    );
}

#[test]
fn heads_that_do_not_go_together_are_refused_before_anything_is_measured() {
    for shape in ["16,0,128", "0,8,128", "16,5,128", "16,8"] {
        for command in [&["policies"][..], &["bench", "policies", "--tokens", "1024"]] {
            let output = riffle()
                .args(command)
                .args(["--shape", shape])
                .output()
                .expect("it runs");
            assert_refused(&output, 1, &["--shape", "16,8,128"]);
        }
    }
}

#[test]
fn a_plan_that_does_not_fit_says_what_would() {
    let output = run_shipped(&["--prompt", "x", "--memory", "40M", "--ctx", "100000"]);
    assert_refused(&output, 1, &["of memory", "are free", "--ctx"]);
    let output = run_shipped(&["--prompt", "x", "--memory", "1M"]);
    assert_refused(&output, 1, &["not even one token fits"]);
    let output = riffle()
        .args(["plan", "--memory", "40M", "--ctx", "100000", "--model"])
        .arg(shipped_model())
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1), "scripts see it too");
    assert!(String::from_utf8_lossy(&output.stdout).contains("does not fit"));
}

#[test]
fn a_reader_that_leaves_ends_the_run_quietly() {
    let mut child = riffle()
        .args(["run", "--model"])
        .arg(shipped_model())
        .args(["--prompt", "In the beginning", "-n", "4000", "--temperature", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

#[test]
#[cfg_attr(not(unix), ignore = "Ctrl-C is sent by a signal of Unix")]
fn ctrl_c_while_generating_keeps_the_text_and_says_so() {
    let mut child = riffle()
        .args(["run", "--model"])
        .arg(shipped_model())
        .args(["--prompt", "In the beginning", "-n", "100000", "--temperature", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut text = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut first = [0u8; 16];
    text.read_exact(&mut first).expect("text is streamed");
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    let mut rest = Vec::new();
    text.read_to_end(&mut rest).expect("the stream ends");
    assert!(text.fill_buf().expect("closed").is_empty());
    let output = child.wait_with_output().expect("it ends");
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(
        message
            .lines()
            .last()
            .expect("a line")
            .starts_with("riffle: interrupted after"),
        "{message}"
    );
    assert!(message.contains("ended by interrupted"), "{message}");
}

#[test]
fn damaged_token_files_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens.json");
    let out = folder.path().join("logits.safetensors");
    let model = shipped_model();
    let logits = |text: &str| {
        fs::write(&tokens, text).expect("a file");
        riffle()
            .args(["eval", "logits", "--model"])
            .arg(&model)
            .arg("--tokens")
            .arg(&tokens)
            .arg("--out")
            .arg(&out)
            .output()
            .expect("the binary runs")
    };
    assert_refused(&logits("[1, cat]"), 1, &["\"cat\" is not a token id"]);
    assert_refused(&logits("[]"), 1, &["no token ids"]);
    assert_refused(&logits("[1, 99999]"), 1, &["99999", "2048"]);
    assert!(!out.exists(), "a failed run leaves no file");
    assert_eq!(
        fs::read_dir(folder.path()).expect("a folder").count(),
        1,
        "nor a partial one"
    );
}

#[test]
fn outputs_that_may_not_be_written_are_refused_before_anything_is_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let diary = folder.path().join("diary");
    fs::write(&diary, "a diary").expect("a file");
    let tokens = folder.path().join("tokens");
    fs::write(&tokens, "1 2 3").expect("a file");
    let (diary_name, tokens) = (diary.display().to_string(), tokens.display().to_string());
    let inside = folder.path().display().to_string();
    // Without this refusal, the missing model would be refused next.
    let logits = ["eval", "logits", "--model", "no-model", "--tokens", &*tokens, "--out"];
    let calibrate = ["calibrate", "--model", "no-model", "--file", &*tokens, "--out"];
    let refused = |command: &[&str], out: &str, part: &str| {
        assert_refused(&run(&[command, &[out]].concat()), 1, &[part, out]);
    };
    for command in [&logits[..], &calibrate] {
        refused(command, &diary_name, "is not a");
        refused(command, &inside, "it is a folder");
        refused(command, &format!("{inside}/no/such"), "its folder is not there");
        #[cfg(unix)]
        refused(command, "/dev/null", "it is a device");
        #[cfg(target_os = "linux")]
        refused(command, "/proc/riffle-output", "cannot write");
    }
    let output = run(&["eval", "needle", "--model", "no-model", "--out", &*diary_name]);
    assert_refused(&output, 1, &[&*diary_name]);
    let records = folder.path().join("records");
    fs::create_dir(&records).expect("a folder");
    fs::write(records.join("needle.json"), "{}").expect("a file");
    let records = records.display().to_string();
    let output = run(&["eval", "needle", "--model", "no-model", "--out", &*records]);
    assert_refused(&output, 1, &["needle.json exists and is not a record"]);
    assert_eq!(fs::read_to_string(&diary).expect("a file"), "a diary");
}

#[test]
fn an_empty_profile_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let profile = folder.path().join("profile.toml");
    fs::write(&profile, "# nothing\n").expect("a file");
    let profile = profile.display().to_string();
    let output = run_shipped(&["--prompt", "x", "--profile", &*profile]);
    assert_refused(&output, 1, &[&*profile, "it is empty", "riffle calibrate"]);
}

#[test]
fn a_benchmark_that_does_not_exist_lists_those_that_do() {
    assert_refused(
        &run(&["bench", "attention", "--only", "sideways"]),
        1,
        &["sideways", "prefill f16 512x4096 d128"],
    );
}

#[test]
fn instructions_for_a_model_without_a_chat_template_are_refused_rather_than_dropped() {
    let output = run_shipped(&["--prompt", "x", "--system", "Be brief."]);
    assert_refused(&output, 1, &["--system", "chat template"]);
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused_at_once_and_a_prompt_may_come_from_a_pipe() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
    assert!(made.success());
    let named = pipe.to_str().expect("UTF-8");
    assert_refused(&run_shipped(&["--file", "/dev/zero"]), 1, &["/dev/zero", "a device"]);
    for option in ["--profile", "--session"] {
        let output = run_shipped(&["--prompt", "x", option, named]);
        assert_refused(&output, 1, &[named, "pipe"]);
    }
    assert_refused(&run(&["run", "--model", named, "--prompt", "x"]), 1, &[named, "a pipe"]);
    assert_refused(&run(&["inspect", named]), 1, &[named, "a pipe"]);

    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::write(pipe, "In the beginning God").expect("the prompt is written")
    });
    let from_pipe = run_shipped(&["--file", named, "-n", "4"]);
    writer.join().expect("the writer ends");
    let from_argument = run_shipped(&["--prompt", "In the beginning God", "-n", "4"]);
    assert!(from_pipe.status.success(), "{}", stderr(&from_pipe));
    assert_eq!(from_pipe.stdout, from_argument.stdout);
}

#[test]
fn a_command_line_that_riffle_does_not_have_is_one_line_with_the_nearest() {
    for (arguments, parts) in [
        (&["rum"][..], &["'rum'", "riffle run or riffle rm"][..]),
        (&["eval", "needel"], &["'needel'", "riffle eval needle; see"]),
        (&["run", "--modl", "x"], &["--modl", "--model", "see riffle run --help"]),
        (&["rm"], &["riffle: rm needs <NAME>", "see riffle rm --help"]),
        (
            &["run", "--model", "x", "--prompt", "a", "--file", "b"],
            &["--prompt", "cannot be used with", "--file"],
        ),
        (
            &["run", "--model", "x", "-ngl", "99"],
            &["--n-gpu-layers (-ngl)", "--device cuda"],
        ),
        (&["run", "--model"], &["a value is required", "--model"]),
    ] {
        assert_refused(&run(arguments), 2, parts);
    }
}

#[test]
fn plan_and_run_refuse_alike() {
    let model = shipped_model();
    let model = model.to_str().expect("a path");
    let folder = tempfile::tempdir().expect("a folder");
    let prompt = folder.path().join("prompt.txt");
    fs::write(&prompt, "In the beginning").expect("a file");
    let prompt = ["--file", prompt.to_str().expect("a path")];
    for arguments in [
        &["--model", "/nowhere/model"][..],
        &["--model", model, "--ctx", "100000000"],
        &["--model", model, "--ctx", "0"],
        &["--model", model, "--page-tokens", "17"],
        &["--model", model, "--kv-type", "f8"],
        &["--model", model, "--prefill", "psychic"],
        &["--model", model, "--memory", "24M", "--ctx", "100000"],
        &["--model", model, "-b", "8", "-ub", "16"],
        &["--model", model, "--ctxx", "8"],
    ] {
        let planned = run(&[&["plan"], &prompt[..], arguments].concat());
        let ran = run(&[&["run"], &prompt[..], arguments].concat());
        assert_eq!(planned.status.code(), ran.status.code(), "{arguments:?}");
        assert_eq!(
            stderr(&planned).replace("riffle plan", "riffle run"),
            stderr(&ran),
            "{arguments:?}"
        );
    }
}

#[test]
fn a_place_for_results_that_is_not_there_is_named_before_anything_is_measured() {
    let model = shipped_model();
    let model = model.to_str().expect("a path");
    let text = shipped_model().join("../text/zechariah.txt");
    let text = text.to_str().expect("a path");
    let calibrate = [
        "calibrate",
        "--model",
        model,
        "--file",
        text,
        "--out",
        "/nowhere/profile.toml",
    ];
    assert_refused(
        &run(&calibrate),
        1,
        &["/nowhere/profile.toml", "its folder is not there"],
    );
    let kv = [
        "bench",
        "kv",
        "--tokens",
        "1024",
        "--hot-tokens",
        "512",
        "--kv-disk",
        "/nowhere",
    ];
    assert_refused(&run(&kv), 1, &["/nowhere", "--kv-disk"]);
}
