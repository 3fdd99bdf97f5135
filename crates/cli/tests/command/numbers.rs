//! Unusual values for every number of the command line: each run ends soon, with success or with one line.
//!
//! The options come from the command itself, so new options are tested too.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::testing::{riffle, shipped_model};
use clap::{Arg, Command};

/// The last one is the largest number of tokens that any option accepts.
const VALUES: [&str; 9] = [
    "0",
    "1",
    "-1",
    "99999999999",
    "18446744073709551615",
    "NaN",
    "inf",
    "",
    "4294967295",
];

/// Value names of options without numbers.
const NOT_NUMBERS: [&str; 29] = [
    "ADDRESS",
    "MODEL",
    "URL",
    "PATH",
    "PLACE",
    "FILE",
    "F",
    "DIR",
    "TEXT",
    "NAME",
    "POLICY",
    "SPEC",
    "DEVICE",
    "FORMAT",
    "WORDING",
    "KIND,…",
    "WHEN,…",
    "TASK,…",
    "METHOD:factor=F",
    "METHOD:KEEP",
    "echo|kvzip|expected",
    "exact|rounded",
    "on|off",
    "prefill|decode",
    "peaked|random",
    "f32|f16|bf16|q8_0|q4_0",
    "K[:V]",
    "COMMAND",
    "SHELL",
];

/// Longest time of a case. A refusal or a tiny run takes a fraction of it.
const LIMIT: Duration = Duration::from_secs(20);

/// Files of the cases, in a temporary folder.
struct CaseFiles {
    model: String,
    text: String,
    ids: String,
    session: String,
    folder: String,
}

impl CaseFiles {
    fn new(folder: &Path) -> Self {
        let model = shipped_model();
        let book = fs::read_to_string(model.join("../text/prophets.txt")).expect("the book");
        let (text, ids) = (folder.join("text.txt"), folder.join("ids.json"));
        let start: String = book.chars().take(8000).collect();
        fs::write(&text, start).expect("a file");
        fs::write(&ids, "[1, 2, 3]").expect("a file");
        let session = folder.join("session");
        let read = ["run", "--prompt", "In the beginning", "--tokens", "0", "--model"];
        let read = riffle().args(read).arg(&model).arg("--session").arg(&session).output();
        assert!(read.expect("the binary runs").status.success());
        let name = |path: &Path| path.display().to_string();
        Self {
            model: name(&model),
            text: name(&text),
            ids: name(&ids),
            session: name(&session),
            folder: name(folder),
        }
    }

    /// A quick run of a command, as options with their values; `None` for a command without a case.
    #[allow(clippy::too_many_lines, reason = "a table of commands")]
    fn quick(&self, command: &str) -> Option<Vec<(&str, String)>> {
        let model = ("--model", self.model.clone());
        let text = ("--text", self.text.clone());
        let file = |name: &str| format!("{}/{name}", self.folder);
        let given = |name: &'static str, value: &str| (name, value.to_owned());
        Some(match command {
            "run" => vec![model, given("--prompt", "In the beginning"), given("--tokens", "1")],
            "plan" | "tokenize" => vec![model],
            // Without standard input a chat ends after the model is loaded.
            "chat" => vec![model],
            // Two words: a document and the question.
            "ask" => vec![
                model,
                (self.text.as_str(), "Who?".to_owned()),
                given("--tokens", "1"),
                ("--keep", file("kept")),
            ],
            // This machine does not have the address, so the server ends after all other checks.
            "serve" => vec![model, given("--host", "192.0.2.1")],
            "policies" => Vec::new(),
            "quantize" => vec![(self.model.as_str(), file("small.gguf")), given("--check-tokens", "64")],
            "session compress" => vec![model, ("--session", self.session.clone()), given("--keep", "0.5")],
            "calibrate" => vec![
                model,
                ("--file", self.text.clone()),
                ("--out", file("profile.toml")),
                given("--length", "256"),
                given("--candidate", "streaming"),
            ],
            "calibrate --imatrix" => vec![
                model,
                ("--imatrix", file("my.imatrix")),
                (self.text.as_str(), self.text.clone()),
            ],
            "eval logits" => vec![model, ("--tokens", self.ids.clone()), ("--out", file("logits"))],
            "eval needle" => vec![
                model,
                text,
                given("--lengths", "256"),
                given("--depths", "1"),
                given("--samples", "1"),
                given("--kinds", "single"),
                given("--ask", "end"),
            ],
            "eval ruler" => vec![
                model,
                text,
                given("--lengths", "512"),
                given("--samples", "1"),
                given("--tasks", "vt"),
            ],
            "eval perplexity" => vec![model, text, given("--tokens", "256"), given("--window", "128")],
            "eval compare" => vec![
                model,
                text,
                given("--lengths", "256"),
                given("--samples", "1"),
                given("--depths", "1"),
                given("--policy", "streaming"),
                given("--tasks", "needle:single:end"),
            ],
            "eval audit" => vec![model, text, given("--lengths", "256")],
            "bench attention" => vec![given("--only", "decode q4_0 1x16384 d128")],
            "bench kv" => vec![
                given("--tokens", "1024"),
                given("--hot-tokens", "512"),
                ("--kv-disk", self.folder.clone()),
            ],
            "bench model" => vec![
                model,
                given("--prompt-tokens", "16"),
                given("--tokens", "2"),
                given("--depth", "0"),
                given("--repeats", "1"),
            ],
            "bench batch" => vec![
                model,
                given("--sequences", "2"),
                given("--prompt-tokens", "16"),
                given("--tokens", "2"),
                given("--repeats", "1"),
            ],
            "bench draft" => vec![
                model,
                text,
                given("--depth", "64"),
                given("--draft", "ngram"),
                given("--tokens", "4"),
            ],
            "bench context" => vec![model, text, given("--lengths", "64"), given("--tokens", "2")],
            "bench policies" => vec![
                given("--tokens", "512"),
                given("--ub", "64"),
                given("--policy", "streaming"),
                given("--phase", "prefill"),
            ],
            _ => return None,
        })
    }

    /// Further arguments that an option requires.
    fn beside(&self, command: &str, option: &str) -> Vec<(&str, String)> {
        match (command, option) {
            (_, "--sink-tokens") => vec![("--window-size", "64".to_owned())],
            (_, "--kv-disk-budget") => vec![("--kv-disk", self.folder.clone())],
            (_, "--prefix-cache-budget" | "--prefix-cache-wait") => {
                vec![("--prefix-cache", format!("{}/prefixes", self.folder))]
            }
            (_, "--ablate-local") => vec![("--ablate-heavy", "8".to_owned())],
            (_, "--ablate-heavy") => vec![("--ablate-local", "8".to_owned())],
            // An endless answer fills the context.
            ("run" | "ask", "--tokens") => vec![("--ctx", "64".to_owned())],
            _ => Vec::new(),
        }
    }
}

/// A command line with one unusual number.
struct Case {
    command: String,
    option: String,
    words: Vec<String>,
}

fn takes_numbers(option: &Arg) -> bool {
    let names = option.get_value_names().unwrap_or_default();
    let takes_values = option.get_action().takes_values() && !option.is_positional();
    takes_values && names.iter().all(|name| !NOT_NUMBERS.contains(&name.as_str()))
}

/// Calls `take` with every command without subcommands, and with its name, such as `bench kv`.
fn each_command(command: &Command, name: &str, take: &mut dyn FnMut(&str, &Command)) {
    if !command.has_subcommands() {
        take(name, command);
    }
    for inner in command.get_subcommands() {
        each_command(inner, format!("{name} {}", inner.get_name()).trim_start(), take);
    }
}

fn cases(place: &CaseFiles) -> Vec<Case> {
    let mut cases = Vec::new();
    each_command(&riffle_cli::command(), "", &mut |command, described| {
        let options: Vec<&Arg> = described
            .get_arguments()
            .filter(|option| takes_numbers(option))
            .collect();
        for option in options {
            let option = format!("--{}", option.get_long().expect("numbers belong to options"));
            let way = match (command, option.as_str()) {
                ("calibrate", "--chunk-size") => "calibrate --imatrix",
                _ => command,
            };
            let quick = place.quick(way);
            let quick = quick.unwrap_or_else(|| panic!("{command} takes numbers: give it a quick case here"));
            let others = quick.into_iter().chain(place.beside(command, &option));
            // A window replaces the context.
            let is_of_window = ["--window-size", "--sink-tokens"].contains(&&*option);
            let is_fitting = |name: &str| name != option && !(is_of_window && name == "--ctx");
            let others: Vec<(&str, String)> = others.filter(|(name, _)| is_fitting(name)).collect();
            for value in VALUES {
                let mut words: Vec<String> = command.split(' ').map(str::to_owned).collect();
                words.extend(
                    others
                        .iter()
                        .flat_map(|(name, value)| [(*name).to_owned(), value.clone()]),
                );
                words.extend([option.clone(), value.to_owned()]);
                cases.push(Case {
                    command: command.to_owned(),
                    option: option.clone(),
                    words,
                });
            }
        }
    });
    cases
}

/// True for options with the same meaning in every command: run and plan test all values, the others one value.
fn is_carried_out_elsewhere(case: &Case, of_engine: &BTreeSet<String>) -> bool {
    let others = !["run", "plan"].contains(&case.command.as_str()) && of_engine.contains(&case.option);
    others && case.words.last().is_none_or(|value| value != "1")
}

/// Runs a case to its end. Returns its fault, if any.
fn fault(case: &Case, folder: &Path) -> Option<String> {
    let mut child = riffle()
        .args(&case.words)
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut pipe = child.stderr.take().expect("a pipe");
    let reader = thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).map(|_| text)
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if start.elapsed() > LIMIT {
            child.kill().expect("killed");
            child.wait().expect("it ends");
            return Some("it does not end".to_owned());
        }
        thread::sleep(Duration::from_millis(2));
    };
    let message = reader.join().expect("read").expect("text");
    let said: Vec<&str> = message.lines().filter(|line| line.starts_with("riffle: ")).collect();
    let well = match status.code() {
        Some(0) => said.is_empty(),
        Some(1 | 2) => said.len() == 1 && message.lines().last() == said.first().copied(),
        _ => false,
    };
    (!well || message.contains("panicked")).then(|| format!("{status}: {message}"))
}

#[test]
fn every_number_of_every_command_ends_soon_and_well_or_with_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = CaseFiles::new(folder.path());
    let cases = cases(&place);
    let named = |command: &str| {
        let mine = cases.iter().filter(|case| case.command == command);
        mine.map(|case| case.option.clone()).collect::<BTreeSet<String>>()
    };
    let of_engine = named("plan");
    for option in ["--ctx", "--threads", "--memory", "--auto"] {
        assert!(of_engine.contains(option), "{option} takes a number");
    }
    let mut carried_out = Vec::new();
    let mut faults = Vec::new();
    for case in &cases {
        match riffle_cli::refusal(["riffle".into()].into_iter().chain(case.words.iter().map(Into::into))) {
            Some(line) if line.starts_with("riffle: --") && !line.contains('\n') => {}
            Some(line) => faults.push(format!("{:?}: {line}", case.words)),
            None if is_carried_out_elsewhere(case, &of_engine) => {}
            None => carried_out.push(case),
        }
    }
    assert!(carried_out.len() > 50, "some values are possible");
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(case) = carried_out.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(fault) = fault(case, folder.path()) {
                        found
                            .lock()
                            .expect("no panic")
                            .push(format!("{:?}: {fault}", case.words));
                    }
                }
            });
        }
    });
    faults.extend(found.into_inner().expect("no panic"));
    assert!(
        faults.is_empty(),
        "{} of {}:\n{}",
        faults.len(),
        cases.len(),
        faults.join("\n")
    );
}
