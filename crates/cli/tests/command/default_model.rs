//! The default model without `--model`: RIFFLE_MODEL, the last used model, or the only model.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::testing::{assert_refused, at_home, riffle, shipped_model, state_below, stderr, stdout};
use riffle_testing::hub::{COMMIT, other_home};

/// A user with folders for models and for the state of programs.
struct User {
    home: tempfile::TempDir,
}

impl User {
    fn new() -> Self {
        Self {
            home: tempfile::tempdir().expect("a folder"),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let home = self.home.path();
        let mut command = riffle();
        for name in ["HF_HUB_CACHE", "LLAMA_CACHE", "XDG_STATE_HOME", "XDG_CACHE_HOME"] {
            command.env_remove(name);
        }
        at_home(&mut command, home)
            .env("HF_HOME", home.join("hf"))
            .env("OLLAMA_MODELS", home.join(".ollama/models"))
            .args(arguments);
        command
    }

    fn go(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    /// Puts the shipped model into the hub's cache under this name.
    fn has_model(&self, name: &str) {
        let repository = self.home.path().join("hf/hub/models--owner--".to_owned() + name);
        let snapshot = repository.join("snapshots").join(COMMIT);
        fs::create_dir_all(&snapshot).expect("a folder");
        fs::create_dir_all(repository.join("refs")).expect("a folder");
        fs::write(repository.join("refs/main"), COMMIT).expect("a file");
        for entry in fs::read_dir(shipped_model()).expect("the shipped model") {
            let entry = entry.expect("a file");
            fs::copy(entry.path(), snapshot.join(entry.file_name())).expect("a copy");
        }
    }

    fn last_model(&self) -> Option<String> {
        fs::read_to_string(state_below(self.home.path()).join("riffle/last_model")).ok()
    }
}

const RUN: [&str; 5] = ["run", "--prompt", "In the beginning God", "-n", "2"];

#[test]
fn without_any_model_one_that_fits_this_machine_is_named() {
    let user = User::new();
    for command in [
        &RUN[..],
        &["ask", "notes.txt", "When?"],
        &["chat"],
        &["serve", "--port", "0"],
        &["plan"],
        &["inspect"],
        &["tokenize", "--prompt", "x"],
        &["bench", "model"],
    ] {
        let parts = ["no model is given and none is here", "riffle pull", "--model"];
        assert_refused(&user.go(command), 1, &parts);
    }
    assert_eq!(user.last_model(), None);
}

#[test]
fn the_only_model_is_taken_and_then_the_one_used_last() {
    let user = User::new();
    user.has_model("first");
    // Files that Riffle cannot open do not count.
    let broken = user.home.path().join(".lmstudio/models/publisher/a-GGUF/a-Q8_0.gguf");
    fs::create_dir_all(broken.parent().expect("a folder")).expect("a folder");
    fs::write(&broken, "no model").expect("a file");
    let only = user.go(&RUN);
    stdout(&only);
    assert!(
        stderr(&only).starts_with("model owner/first, the only one here\n"),
        "{}",
        stderr(&only)
    );
    assert_eq!(user.last_model().as_deref(), Some("owner/first\n"));

    user.has_model("second");
    let last = user.go(&RUN);
    assert_eq!(only.stdout, last.stdout);
    assert!(
        stderr(&last).starts_with("model owner/first, the one used last; "),
        "{}",
        stderr(&last)
    );
    stdout(&user.go(&[&RUN[..], &["--model", "owner/second"]].concat()));
    for command in [&["inspect"][..], &["plan"], &["tokenize", "--prompt", "x"]] {
        let output = user.go(command);
        stdout(&output);
        assert!(
            stderr(&output).starts_with("model owner/second, the one used last; "),
            "{}",
            stderr(&output)
        );
    }
    // Only a model that answers counts as used.
    stdout(&user.go(&["plan", "--model", "owner/first"]));
    assert_eq!(user.last_model().as_deref(), Some("owner/second\n"));
}

#[test]
fn of_several_models_one_has_to_be_chosen() {
    let user = User::new();
    ["first", "second"].iter().for_each(|name| user.has_model(name));
    assert_refused(
        &user.go(&RUN),
        1,
        &[
            "several are here",
            "--model or RIFFLE_MODEL",
            "owner/first",
            "owner/second",
        ],
    );
    // A removed model is not the default.
    stdout(&user.go(&[&RUN[..], &["--model", "owner/first"]].concat()));
    fs::remove_dir_all(user.home.path().join("hf/hub/models--owner--first")).expect("removed");
    let output = user.go(&RUN);
    stdout(&output);
    assert!(
        stderr(&output).starts_with("model owner/second, the only one here\n"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn models_of_other_programs_count_and_a_variable_names_one_for_every_command() {
    let user = User::new();
    let made = other_home(b"weights");
    let model = shipped_model();
    let with = |model: &Path, arguments: &[&str]| {
        user.command(arguments)
            .env("RIFFLE_MODEL", model)
            .output()
            .expect("it runs")
    };
    let output = with(&model, &RUN);
    stdout(&output);
    assert!(stderr(&output).starts_with("model "), "{}", stderr(&output));
    assert!(
        stderr(&output).contains(", as RIFFLE_MODEL says\n"),
        "{}",
        stderr(&output)
    );
    // A path is stored as absolute.
    assert_eq!(user.last_model().map(|name| Path::new(&name).is_absolute()), Some(true));
    assert_refused(
        &with(Path::new("owner/none"), &RUN),
        1,
        &["RIFFLE_MODEL is set, but", "riffle pull owner/none"],
    );
    let output = with(Path::new("/nowhere/a.gguf"), &RUN);
    assert!(
        !output.status.success() && stderr(&output).contains("/nowhere/a.gguf: no such file"),
        "{}",
        stderr(&output)
    );
    // A typed model has priority over the variable.
    let typed = [&RUN[..], &["--model", model.to_str().expect("UTF-8")]].concat();
    let output = with(Path::new("owner/none"), &typed);
    stdout(&output);
    assert!(!stderr(&output).contains("RIFFLE_MODEL"), "{}", stderr(&output));

    // Models of other programs that Riffle cannot open are not offered.
    let mut command = user.command(&RUN);
    at_home(&mut command, made.path()).env("OLLAMA_MODELS", made.path().join(".ollama/models"));
    assert_refused(&command.output().expect("it runs"), 1, &["none is here"]);
}
