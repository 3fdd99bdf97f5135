//! Writes beyond the file size limit, and unusable caches: the answer is printed, and one line names the fault.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::testing::{assert_refused, program, run_shipped, shipped_model, stderr, stdout};

/// Runs the command with a file size limit of `kib` KiB.
fn run_limited(kib: u32, folder: &Path, arguments: &[&str]) -> Output {
    program("bash")
        .args(["-c", &format!("ulimit -f {kib} && exec \"$0\" \"$@\"")])
        .arg(env!("CARGO_BIN_EXE_riffle"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("bash")
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries
        .map(|entry| entry.expect("an entry").file_name().display().to_string())
        .collect()
}

#[test]
fn a_session_beyond_the_limit_on_file_sizes_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = shipped_model().display().to_string();
    let prompt = "And it came to pass in those days, that ".repeat(20);
    let arguments = [
        "run",
        "--model",
        &model,
        "--prompt",
        &prompt,
        "-n",
        "2",
        "--session",
        "s",
    ];
    let output = run_limited(8, folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("cannot write s") && said.contains("ulimit -f"), "{said}");
    // The lock file stays beside a session.
    let left: Vec<String> = files(folder.path())
        .into_iter()
        .filter(|name| name != ".s.lock")
        .collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn an_answer_stands_where_its_prefixes_cannot_be_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = shipped_model().display().to_string();
    let prompt = "And it came to pass in those days, that ".repeat(20);
    let arguments = [
        "run",
        "--model",
        &model,
        "--prompt",
        &prompt,
        "-n",
        "4",
        "--prefix-cache",
        "p",
    ];
    let whole = run_limited(1 << 20, folder.path(), &arguments);
    assert_eq!(whole.status.code(), Some(0), "{whole:?}");
    fs::remove_dir_all(folder.path().join("p")).expect("a folder");
    for kib in [8, 200, 1700] {
        let output = run_limited(kib, folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{kib}: {output:?}");
        assert_eq!(stdout(&output), stdout(&whole));
        let left = files(&folder.path().join("p"));
        assert!(!left.iter().any(|name| name.ends_with(".partial")), "{left:?}");
        if kib == 8 {
            assert!(stderr(&output).contains("kept: "), "{}", stderr(&output));
        }
    }
}

#[test]
fn a_damaged_prefix_index_is_said_and_answers_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().display().to_string();
    let prompt = "And it came to pass in those days, that ".repeat(60);
    let ask = || run_shipped(&["--prompt", &prompt, "-n", "4", "--prefix-cache", &cache]);
    let first = ask();
    assert!(
        !stderr(&first).contains(" 0 kept in"),
        "the prompt must fill a block: {}",
        stderr(&first)
    );
    let index = folder.path().join("index.redb");
    let whole = fs::read(&index).expect("an index");
    for number in 0..40 {
        let mut damaged = whole.clone();
        let at = number * whole.len() / 40;
        match number % 4 {
            0 => damaged.truncate(at),
            1 => damaged[at..].fill(0),
            2 => damaged[..=at].fill(0),
            _ => damaged[at.min(4096)] ^= 0xff,
        }
        fs::write(&index, &damaged).expect("a file");
        let output = ask();
        assert_eq!(output.status.code(), Some(0), "{number}: {}", stderr(&output));
        assert_eq!(stdout(&output), stdout(&first), "{number}");
        assert!(!stderr(&output).contains("panicked"), "{number}: {}", stderr(&output));
    }
    fs::write(&index, vec![0; whole.len()]).expect("a file");
    assert!(stderr(&ask()).contains("begins anew"));
}

#[test]
fn a_plan_for_a_server_has_its_requests_and_their_bodies() {
    let model = shipped_model().display().to_string();
    let plan = |more: &[&str]| {
        let output = crate::testing::run(&[&["plan", "--model", &model, "--ctx", "1024", "--json"], more].concat());
        serde_json::from_str::<serde_json::Value>(&stdout(&output)).expect("JSON")
    };
    let (alone, served) = (plan(&[]), plan(&["--parallel", "4"]));
    assert!(alone.get("requests").is_none());
    assert_eq!(served["requests"]["parallel"], 4);
    assert_eq!(served["requests"]["pool_tokens"], 4096);
    assert_eq!(served["requests"]["bodies_bytes"], 256 << 20);
    assert!(served["kv_bytes"].as_u64() > alone["kv_bytes"].as_u64());
    let part = |value: &serde_json::Value| value.as_u64().expect("bytes");
    let texts = part(&served["requests"]["tokenising_bytes"]);
    assert_eq!(texts, part(&served["process"]["prompt_bytes"]));
    let parts = ["weights_bytes", "kv_bytes", "recurrent_bytes", "scratch_bytes"].map(|name| part(&served[name]));
    let process = ["program_bytes", "tokenizer_bytes", "prompt_bytes"].map(|name| part(&served["process"][name]));
    let engine = parts.iter().chain(&process).sum::<u64>();
    assert_eq!(part(&served["total_bytes"]), engine + texts + (256 << 20));
    let small = ["plan", "--model", &model, "--ctx", "1024", "--memory", "100M"];
    assert_eq!(crate::testing::run(&small).status.code(), Some(0));
    let refused = crate::testing::run(&[&small[..], &["--parallel", "4"]].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("the requests take 256 MiB of what is needed"),
        "{}",
        stderr(&refused)
    );
    let open = [
        "plan",
        "--model",
        &model,
        "--memory",
        "500M",
        "--parallel",
        "2",
        "--json",
    ];
    let open = serde_json::from_str::<serde_json::Value>(&stdout(&crate::testing::run(&open))).expect("JSON");
    assert!(part(&open["total_bytes"]) <= 500 << 20, "{open}");
    let both = crate::testing::run(&["plan", "--model", &model, "--parallel", "4", "--question", "x"]);
    assert_refused(&both, 2, &["--parallel", "--question"]);
}

/// A prefix cache with a prompt, and a command without permission to write to it. Root runs the command as another
/// user.
struct Reader {
    folder: tempfile::TempDir,
    binary: PathBuf,
    model: PathBuf,
    /// The id of the user `nobody` if this process is root, because permissions do not restrict root.
    user: Option<u32>,
}

impl Reader {
    const NOBODY: u32 = 65534;

    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut reader = Self {
            binary: PathBuf::from(env!("CARGO_BIN_EXE_riffle")),
            model: shipped_model(),
            user: None,
            folder,
        };
        if fs::metadata("/proc/self").expect("this process").uid() == 0 {
            // The other user may not be able to read the checkout.
            let (binary, model) = (reader.folder.path().join("riffle"), reader.folder.path().join("model"));
            fs::copy(&reader.binary, &binary).expect("a copy");
            fs::create_dir(&model).expect("a folder");
            for entry in fs::read_dir(&reader.model).expect("the model") {
                let entry = entry.expect("an entry");
                fs::copy(entry.path(), model.join(entry.file_name())).expect("a copy");
            }
            set_mode(reader.folder.path(), 0o755);
            (reader.binary, reader.model, reader.user) = (binary, model, Some(Self::NOBODY));
        }
        reader
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("p")
    }

    fn run(&self, user: Option<u32>, more: &[&str]) -> Output {
        let mut command = program(self.binary.to_str().expect("UTF-8"));
        command
            .arg("run")
            .arg("--model")
            .arg(&self.model)
            .args(["-n", "4", "--prefix-cache", "p"]);
        command
            .args(more)
            .current_dir(self.folder.path())
            .stdin(std::process::Stdio::null());
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        command.output().expect("the binary runs")
    }

    /// Names, lengths and bytes of the cache's files.
    fn contents(&self) -> Vec<(String, Vec<u8>)> {
        let mut contents: Vec<(String, Vec<u8>)> = files(&self.cache())
            .into_iter()
            .map(|name| (name.clone(), fs::read(self.cache().join(name)).expect("a file")))
            .collect();
        contents.sort();
        contents
    }

    fn set_modes(&self, folder: u32, file: u32) {
        set_mode(&self.cache(), 0o755);
        files(&self.cache())
            .iter()
            .for_each(|name| set_mode(&self.cache().join(name), file));
        set_mode(&self.cache(), folder);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        set_mode(&self.cache(), 0o755);
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
}

/// Number of cached tokens that a run reports.
fn found_tokens(output: &Output) -> usize {
    let said = stderr(output);
    let line = said.lines().find(|line| line.starts_with("prefixes"));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    let (before, _) = line.split_once(" tokens found").unwrap_or_else(|| panic!("{said}"));
    let number = before.rsplit(' ').next().unwrap_or_default().replace(',', "");
    number.parse().unwrap_or_else(|_| panic!("{said}"))
}

#[test]
fn a_prefix_cache_that_may_only_be_read_is_read_with_one_notice() {
    let reader = Reader::new();
    let prompt = "And it came to pass in those days, that ".repeat(60);
    let longer = prompt.clone() + &"there went out a decree. ".repeat(60);
    let first = reader.run(None, &["--prompt", &prompt]);
    stdout(&first);
    reader.set_modes(0o555, 0o444);
    let before = reader.contents();
    for text in [&prompt, &longer] {
        let output = reader.run(reader.user, &["--prompt", text]);
        assert!(found_tokens(&output) > 0, "{}", stderr(&output));
        let said = stderr(&output);
        assert_eq!(said.matches("could not be kept").count(), 1, "{said}");
        assert_eq!(said.matches("ermission denied").count(), 1, "{said}");
        if text == &prompt {
            assert_eq!(stdout(&output), stdout(&first));
        }
    }
    assert!(reader.contents() == before, "nothing of it changes");
    let block = before
        .iter()
        .find(|(name, _)| name.ends_with(".block"))
        .expect("a block");
    let mut damaged = block.1.clone();
    damaged[block.1.len() / 2] ^= 1;
    set_mode(&reader.cache().join(&block.0), 0o644);
    fs::write(reader.cache().join(&block.0), damaged).expect("a file");
    reader.set_modes(0o555, 0o444);
    let output = reader.run(reader.user, &["--prompt", &prompt]);
    assert_eq!(stdout(&output), stdout(&first), "{}", stderr(&output));
}

#[test]
fn a_full_prefix_cache_in_a_folder_that_may_only_be_read_loses_nothing() {
    let reader = Reader::new();
    let prompt = "And it came to pass in those days, that ".repeat(60);
    stdout(&reader.run(None, &["--prompt", &prompt]));
    // The user owns the files, so the cache could forget blocks but not remove them.
    for name in files(&reader.cache()) {
        let user = reader.user;
        std::os::unix::fs::chown(reader.cache().join(name), user, user).expect("an owner");
    }
    reader.set_modes(0o555, 0o644);
    let before = files(&reader.cache()).len();
    let contents = reader.contents();
    let blocks = contents.iter().filter(|(name, _)| name.ends_with(".block"));
    let bytes: usize = blocks.map(|(_, bytes)| bytes.len()).sum();
    // The budget is almost full: a new block would displace others.
    let budget = (bytes + 1000).to_string();
    let other = "Other words that were never read before. ".repeat(60);
    let found = found_tokens(&reader.run(reader.user, &["--prompt", &prompt]));
    assert!(found > 0);
    for _ in 0..2 {
        let output = reader.run(reader.user, &["--prompt", &other, "--prefix-cache-budget", &budget]);
        assert_eq!(
            stderr(&output).matches("could not be kept").count(),
            1,
            "{}",
            stderr(&output)
        );
    }
    assert_eq!(files(&reader.cache()).len(), before);
    assert_eq!(found_tokens(&reader.run(reader.user, &["--prompt", &prompt])), found);
}
