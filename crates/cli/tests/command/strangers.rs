//! Model files of unknown authors: their templates can be stopped, and their texts do not control the terminal.

use std::fs;

use crate::testing::{ModelCopy, assert_refused, riffle, stderr, stdout};
use serde_json::Value;

/// Control characters: title, colours, cursor, C1 codes, text direction and a zero-width character.
const STEERING: &str = "\u{1b}]0;title\u{7}\u{1b}[31m\u{9b}2J\u{202e}\u{200b}\r\u{7f}";

#[track_caller]
fn assert_plain(bytes: &[u8]) {
    let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
    let steers = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202e}' | '\u{200b}');
    assert!(!text.contains(steers), "{text:?}");
}

fn with_template(template: &str) -> ModelCopy {
    let copy = ModelCopy::new();
    copy.edit_json("tokenizer_config.json", |config| {
        config["chat_template"] = template.into()
    });
    copy
}

// Only Linux lists the threads and handled signals of a process in /proc.
#[cfg(target_os = "linux")]
mod interruption {
    use std::fs;
    use std::process::{Child, Command, Output, Stdio};
    use std::thread;
    use std::time::Duration;

    use super::with_template;
    use crate::testing::{ModelCopy, assert_refused, riffle};

    /// A model with the slowest template that the limits allow: many cheap steps.
    fn slow_model() -> ModelCopy {
        with_template(
            "{% for a in range(25) %}{% for b in range(100000) %}{% set x = a * b + a * b - a %}{% endfor %}{% endfor %}",
        )
    }

    /// True if the process handles signal 15.
    fn listens_for_sigterm(id: u32) -> bool {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).expect("a mask") & (1 << 14) != 0)
    }

    /// The name of the thread that compiles or renders a template.
    fn template_thread(id: u32) -> Option<String> {
        let threads = fs::read_dir(format!("/proc/{id}/task")).ok()?.flatten();
        let mut names = threads.map(|thread| (thread.file_name(), fs::read_to_string(thread.path().join("comm"))));
        let (thread, _) = names.find(|(_, name)| name.as_ref().is_ok_and(|name| name.trim() == "chat template"))?;
        thread.into_string().ok()
    }

    /// Sends SIGTERM after `is_ready` returns true, and waits for the end.
    #[track_caller]
    fn terminated(command: &mut Command, is_ready: impl Fn(u32) -> bool) -> Output {
        let mut child: Child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        while !is_ready(child.id()) {
            let ended = child.try_wait().expect("a child");
            assert_eq!(ended, None, "it ended before the signal");
            thread::sleep(Duration::from_millis(1));
        }
        let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        child.wait_with_output().expect("the process ends")
    }

    const INTERRUPTED: [&str; 2] = [
        "interrupted while the chat template was rendered",
        "tokenizer_config.json",
    ];

    #[test]
    fn the_first_sigterm_ends_a_command_whose_template_runs_on() {
        let copy = slow_model();
        let prompt = copy.path().join("prompt");
        fs::write(&prompt, "word ".repeat(10_000)).expect("a file");
        let mut run = riffle();
        run.args(["run", "--model"]).arg(copy.path()).arg("--file").arg(&prompt);
        let output = terminated(&mut run, listens_for_sigterm);
        assert_refused(&output, 130, &INTERRUPTED);
    }

    #[test]
    fn the_first_sigterm_ends_a_measurement_whose_template_runs_on() {
        let copy = slow_model();
        // Loading compiles the template on a short-lived thread; rendering has a lasting one.
        let renders = |id: u32| {
            let before = template_thread(id);
            thread::sleep(Duration::from_millis(50));
            before.is_some() && template_thread(id) == before
        };
        let needle = ["needle", "--lengths", "512", "--depths", "1", "--kinds", "single"];
        let ruler = ["ruler", "--lengths", "512", "--samples", "1", "--tasks", "vt"];
        for task in [needle, ruler] {
            let mut eval = riffle();
            eval.arg("eval").args(task).arg("--model").arg(copy.path());
            assert_refused(&terminated(&mut eval, renders), 130, &INTERRUPTED);
        }
    }
}

#[test]
fn a_template_without_end_is_refused_by_its_file() {
    let copy = with_template("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}");
    assert_refused(&copy.run(), 1, &["tokenizer_config.json", "chat template", "more than"]);
}

#[test]
fn a_template_that_would_overflow_the_stack_is_refused_by_every_command() {
    let copy = with_template(&format!("{{{{ {}1 }}}}", "not ".repeat(50_000)));
    for command in ["inspect", "plan"] {
        let mut riffle = riffle();
        riffle.arg(command);
        if command == "plan" {
            riffle.arg("--model");
        }
        let output = riffle.arg(copy.path()).output().expect("the binary runs");
        assert_refused(&output, 1, &["tokenizer_config.json", "words and signs"]);
    }
}

#[test]
fn messages_of_a_template_do_not_steer_the_terminal() {
    let source = format!("{{{{ raise_exception({}) }}}}", serde_json::json!(STEERING));
    let output = with_template(&source).run();
    assert_refused(
        &output,
        1,
        &["\\u{1b}]0;title\\u{7}\\u{1b}[31m\\u{9b}2J\\u{202e}\\u{200b}"],
    );
    assert_plain(&output.stderr);
    let long = with_template("{{ raise_exception('x' * 100000) }}").run();
    assert!(stderr(&long).len() < 2_000 && stderr(&long).contains("(100000 characters)"));
}

/// Renames a tensor in the header of a safetensors file.
fn rename_tensor(copy: &ModelCopy, from: &str, to: &str) {
    copy.edit_bytes("model.safetensors", |bytes| {
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
        let tensors = header.as_object().expect("an object").iter();
        let renamed: serde_json::Map<String, Value> = tensors
            .map(|(name, tensor)| (if name == from { to } else { name }.to_owned(), tensor.clone()))
            .collect();
        assert!(renamed.contains_key(to), "no {from}");
        let header = Value::from(renamed).to_string().into_bytes();
        let data = bytes.split_off(8 + length);
        bytes.clear();
        bytes.extend((header.len() as u64).to_le_bytes());
        bytes.extend(header);
        bytes.extend(data);
    });
}

#[test]
fn names_of_tensors_do_not_steer_the_terminal() {
    let inspect = |copy: &ModelCopy, more: &[&str]| {
        let output = riffle().arg("inspect").arg(copy.path()).args(more).output();
        output.expect("the binary runs")
    };
    let copy = ModelCopy::new();
    let name = "model.\u{202e}\u{200b}norm";
    rename_tensor(&copy, "model.norm.weight", name);
    let text = inspect(&copy, &["--tensors"]);
    assert_plain(&text.stdout);
    assert!(stdout(&text).contains("model.\\u{202e}\\u{200b}norm"));
    let json = inspect(&copy, &["--tensors", "--json"]);
    assert_plain(&json.stdout);
    let listed: Value = serde_json::from_str(&stdout(&json)).expect("JSON");
    let tensors = listed["tensors"].as_array().expect("tensors");
    assert!(tensors.iter().any(|tensor| tensor["name"] == name));
    let run = copy.run();
    assert_eq!(run.status.code(), Some(1));
    assert_plain(&run.stderr);
    // The reader of the weight file refuses control characters and names them.
    let copy = ModelCopy::new();
    rename_tensor(&copy, "model.norm.weight", &format!("model.{STEERING}"));
    let refused = inspect(&copy, &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert_plain(&refused.stderr);
}

#[test]
fn names_of_files_and_settings_do_not_steer_the_terminal() {
    let copy = ModelCopy::new();
    copy.edit_json("config.json", |config| {
        config["architectures"] = serde_json::json!([format!("Llama{STEERING}")]);
        config["model_type"] = format!("llama{STEERING}").into();
    });
    let output = copy.run();
    assert_eq!(output.status.code(), Some(1));
    assert_plain(&output.stderr);
    let copy = ModelCopy::new();
    let index = serde_json::json!({"weight_map": {"model.norm.weight": format!("shard{STEERING}.safetensors")}});
    fs::remove_file(copy.path().join("model.safetensors")).expect("a file");
    fs::write(copy.path().join("model.safetensors.index.json"), index.to_string()).expect("a file");
    let output = copy.run();
    assert_eq!(output.status.code(), Some(1));
    assert_plain(&output.stderr);
}
