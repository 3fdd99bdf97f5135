//! Sessions on the command line.

use std::path::Path;

use crate::testing::{BELOW_A_FILE, assert_refused, run, run_shipped, shipped_model, stderr, stdout};
use riffle_kv::PathLock;
use serde_json::Value;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn report(arguments: &[&str]) -> Value {
    let output = run_shipped(&[arguments, &["--json"]].concat());
    serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)))
}

#[test]
fn an_answer_goes_on_in_the_next_process_as_if_it_had_never_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session");
    let prompt = "And it came to pass in those days, that ".repeat(20);
    let common = ["--temperature", "0.9", "--seed", "5"];
    let whole = report(&[&["--prompt", &prompt, "-n", "30"][..], &common].concat());

    let session = ["--session", text(&path)];
    let first = report(&[&["--prompt", &prompt, "-n", "12"][..], &session, &common].concat());
    let second = report(&[&["--continue", "-n", "18"][..], &session, &common].concat());
    let joined = format!(
        "{}{}",
        first["text"].as_str().unwrap(),
        second["text"].as_str().unwrap()
    );
    assert_eq!(joined, whole["text"].as_str().unwrap());
    assert_eq!(second["reused_tokens"], second["prompt_tokens"]);
    assert_eq!(
        second["session"]["restored_tokens"].as_u64(),
        first["kv"]["tokens"].as_u64()
    );

    // The same prompt again: almost nothing is read, and the answer is the same.
    let again = report(&[&["--prompt", &prompt, "-n", "30"][..], &session, &common].concat());
    assert_eq!(again["text"], whole["text"]);
    assert_eq!(
        again["reused_tokens"].as_u64().map(|reused| reused + 1),
        whole["prompt_tokens"].as_u64()
    );
}

#[test]
fn a_session_that_cannot_be_used_says_why_and_stays_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session");
    let fails = |arguments: &[&str], words: &[&str]| {
        let output = run_shipped(&[arguments, &["--session", text(&path), "-n", "4"]].concat());
        assert_refused(&output, 1, words);
    };
    fails(&["--continue"], &["no answer to go on with", "session"]);
    let prompt = "In the beginning God created the heaven and the earth.";
    report(&["--prompt", prompt, "-n", "4", "--session", text(&path)]);
    let saved = std::fs::read(&path).expect("a session");

    fails(
        &["--prompt", "Blessed is the man"],
        &["holds another text", "use another session file"],
    );
    fails(
        &["--prompt", prompt, "--kv-type", "q8_0"],
        &["--kv-type f16:f16", "q8_0:q8_0"],
    );
    fails(&["--prompt", prompt, "--prefill", "tri-shape"], &["--prefill full"]);
    fails(
        &["--prompt", prompt, "--rope-scaling", "linear:factor=2"],
        &["--rope-scaling not set", "linear:factor=2"],
    );
    let lock = PathLock::take(&path).expect("nobody holds it");
    fails(&["--prompt", prompt], &["in use by another process"]);
    drop(lock);
    assert_eq!(std::fs::read(&path).expect("a session"), saved);

    std::fs::write(
        &path,
        b"something else entirely, long enough to have a head: ".repeat(9),
    )
    .expect("a file");
    fails(&["--prompt", prompt], &["not a KV cache file"]);
    std::fs::write(&path, &saved[..saved.len() - 1]).expect("a file");
    fails(&["--prompt", prompt], &["damaged", "delete it"]);
    std::fs::remove_file(&path).expect("a file");
    std::fs::create_dir(&path).expect("a folder");
    fails(&["--prompt", prompt], &["it is a folder", text(&path)]);
}

#[cfg(unix)]
#[test]
fn a_session_keeps_its_permissions_and_the_link_that_leads_to_it() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().expect("a folder");
    let (path, link) = (folder.path().join("session"), folder.path().join("link"));
    let mode = || std::fs::metadata(&path).expect("a session").permissions().mode() & 0o777;
    let prompt = "In the beginning God created the heaven and the earth.";
    let save = |path: &Path| report(&["--prompt", prompt, "-n", "4", "--session", text(path)]);
    save(&path);
    assert_eq!(mode(), 0o600, "a session holds private text");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("its owner");
    symlink("session", &link).expect("a link");
    save(&link);
    assert_eq!(mode(), 0o640);
    assert!(std::fs::symlink_metadata(&link).expect("a link").is_symlink());
    // A session that cannot be saved must be refused before reading.
    let nowhere = folder.path().join("no/such/session");
    let output = run_shipped(&["--prompt", prompt, "--session", text(&nowhere)]);
    assert_refused(&output, 1, &["cannot write", "its folder is not there", text(&nowhere)]);
}

#[test]
fn several_questions_about_a_text_are_answered_as_each_alone_and_share_its_pages() {
    let folder = tempfile::tempdir().expect("a folder");
    let book = folder.path().join("book");
    let text_of_book = "And it came to pass in those days, that ".repeat(200);
    std::fs::write(&book, &text_of_book).expect("a file");
    let questions = ["Who went up to the city?", "What was the name of the king?", "When?"];
    let mut arguments = vec!["--file", text(&book), "-n", "8"];
    arguments.extend(questions.iter().flat_map(|question| ["--question", *question]));
    let reports = report(&arguments);
    let reports = reports.as_array().expect("a list");
    assert_eq!(reports.len(), 3);
    for (number, (answer, question)) in reports.iter().zip(questions).enumerate() {
        let alone = report(&["--prompt", &format!("{text_of_book}\n{question}"), "-n", "8"]);
        assert_eq!(answer["text"], alone["text"]);
        assert_eq!(answer["prompt_tokens"], alone["prompt_tokens"]);
        let reused = answer["reused_tokens"].as_u64().expect("a number");
        let tokens = answer["prompt_tokens"].as_u64().expect("a number");
        // The whole text is cached, and only the question is read.
        assert!(
            if number == 0 { reused == 0 } else { reused + 32 > tokens },
            "{reused} of {tokens}"
        );
        assert!(answer["kv"]["shared_bytes"].as_u64() > Some(0));
    }
}

#[test]
#[cfg_attr(not(unix), ignore = "limits on file sizes are those of Unix")]
fn a_disk_that_fills_in_the_middle_of_a_run_says_so_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (disk, session) = (folder.path().join("pages"), folder.path().join("session"));
    std::fs::create_dir(&disk).expect("a folder");
    let prompt = "In the beginning God created the heaven and the earth. ".repeat(150);
    // A limit on file sizes simulates a full disk.
    let run = |prompt: &str, blocks: &str| {
        let mut command = crate::testing::program("sh");
        command.args(["-c", "trap '' XFSZ; ulimit -f \"$0\"; exec \"$@\"", blocks]);
        command
            .args([env!("CARGO_BIN_EXE_riffle"), "run", "--model"])
            .arg(crate::testing::shipped_model());
        command.args([
            "--prompt",
            prompt,
            "-n",
            "4",
            "--ctx",
            "8000",
            "-b",
            "256",
            "--page-tokens",
            "32",
            "-ub",
            "256",
        ]);
        command
            .args(["--kv-ram-budget", "1500K", "--kv-slots", "4", "--kv-disk"])
            .arg(&disk);
        command.arg("--session").arg(&session).arg("--json");
        command.stdin(std::process::Stdio::null()).output().expect("sh runs")
    };
    let saved = run(&prompt[..prompt.len() / 4], "unlimited");
    let saved_text = stdout(&saved);
    let before = std::fs::read(&session).expect("a session");
    assert_refused(
        &run(&prompt, "100"),
        1,
        &["cannot write KV pages", "free space there", text(&disk)],
    );
    assert_eq!(
        std::fs::read(&session).expect("a session"),
        before,
        "the earlier session is still there"
    );
    assert_eq!(std::fs::read_dir(&disk).expect("a folder").count(), 0);
    // Without the limit, the same run continues from the session.
    let report: Value = serde_json::from_str(&stdout(&run(&prompt, "unlimited"))).expect("JSON");
    assert!(report["kv"]["disk_bytes"].as_u64() > Some(0), "{saved_text}");
    assert!(report["reused_tokens"].as_u64() > Some(100));
}

#[test]
fn a_second_question_about_a_text_starts_at_once_in_another_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("prefixes");
    let text_of_book = "And it came to pass in those days, that ".repeat(200);
    let ask = |question: &str, cached: bool| {
        let prompt = format!("{text_of_book}{question}");
        let cached: &[&str] = if cached { &["--prefix-cache", text(&cache)] } else { &[] };
        report(&[&["--prompt", &prompt, "-n", "8"][..], cached].concat())
    };
    let first = ask("Who went up to the city?", true);
    assert_eq!(first["prefix_cache"]["found_tokens"], 0);
    let second = ask("What was the name of the king?", true);
    let tokens = second["prompt_tokens"].as_u64().expect("tokens");
    let found = second["prefix_cache"]["found_tokens"].as_u64().expect("tokens");
    assert!(found + 32 > tokens, "{found} of {tokens}");
    // For the same question only the last token is read.
    let again = ask("What was the name of the king?", true);
    assert_eq!(again["prefix_cache"]["found_tokens"], tokens - 1);
    assert_eq!(again["text"], second["text"]);
    assert_eq!(second["text"], ask("What was the name of the king?", false)["text"]);

    let output = run_shipped(&[
        "--prompt",
        "x",
        "--prefix-cache",
        text(&cache),
        "--prefix-cache-budget",
        "1Q",
    ]);
    assert_refused(&output, 1, &["--prefix-cache-budget", "1Q"]);
    let output = run_shipped(&["--prompt", "x", "--prefix-cache", BELOW_A_FILE]);
    assert_refused(&output, 1, &["cannot create", BELOW_A_FILE]);
}

/// `riffle session compress` on the shipped model.
fn compress(arguments: &[&str]) -> std::process::Output {
    let model = shipped_model();
    run(&[&["session", "compress", "--model", text(&model)][..], arguments].concat())
}

#[test]
fn a_compressed_session_answers_a_question_that_came_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session");
    let book = std::fs::read_to_string(shipped_model().join("../text/prophets.txt")).expect("the book");
    let chapter = |from: usize| book.lines().skip(from).take(120).collect::<Vec<_>>().join("\n");
    let document = format!(
        "{}\nThe pass key for river stone is 40718.\n{}\n",
        chapter(300),
        chapter(900)
    );
    let session = ["--session", text(&path)];
    let read = report(&[&["--prompt", &document, "-n", "0"][..], &session].concat());
    let before = std::fs::metadata(&path).expect("a session").len();

    let output = compress(&[&session[..], &["--keep", "0.3", "--json"]].concat());
    let found: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(found["tokens"], read["prompt_tokens"]);
    let (pairs, all) = (
        found["pairs"].as_u64().unwrap(),
        found["pairs_before"].as_u64().unwrap(),
    );
    assert_eq!(pairs, (0.3 * all as f64).ceil() as u64);
    let after = std::fs::metadata(&path).expect("a session").len();
    assert_eq!(found["session"]["file_bytes"].as_u64(), Some(after));
    assert!(after < before / 2, "{after} of {before}");

    let question = "What is the pass key for river stone? The pass key for river stone is";
    let prompt = format!("{document}{question}");
    let answer = report(&[&["--prompt", &prompt, "-n", "8"][..], &session].concat());
    // The last line break of the text may be tokenised differently before a question.
    let (reused, held) = (answer["reused_tokens"].as_u64(), read["prompt_tokens"].as_u64());
    assert!(reused >= held.map(|held| held - 2), "{reused:?} of {held:?}");
    let found = answer["text"].as_str().expect("text");
    assert!(found.trim_start().starts_with("40718"), "{found}");

    let output = compress(&[&session[..], &["--keep", "0.5", "--method", "expected"]].concat());
    let line = stdout(&output);
    assert!(line.starts_with("kept ") && line.contains("(50.0%)"), "{line}");
    assert_eq!(line.lines().count(), 1);
}

#[test]
fn a_session_that_cannot_be_compressed_says_why_and_stays_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session");
    let session = ["--session", text(&path)];
    let refused = |arguments: &[&str], words: &[&str]| {
        assert_refused(&compress(&[&session[..], arguments].concat()), 1, words);
    };
    refused(&["--keep", "0.3"], &[text(&path), "cannot read"]);
    report(&[&["--prompt", "In the beginning God created", "-n", "4"][..], &session].concat());
    let saved = std::fs::read(&path).expect("a session");
    refused(&["--keep", "0"], &["--keep is 0", "above 0"]);
    refused(&["--keep", "2"], &["--keep is 2"]);
    refused(
        &["--keep", "0.3", "--method", "zip"],
        &["--method", "\"zip\"", "echo, kvzip or expected"],
    );
    refused(
        &["--keep", "0.3", "--kv-type", "q8_0"],
        &["--kv-type f16:f16", "q8_0:q8_0"],
    );
    refused(
        &["--keep", "0.3", "--ctx", "24"],
        &["what is read again of it", "--ctx"],
    );
    let lock = PathLock::take(&path).expect("nobody holds it");
    refused(&["--keep", "0.3"], &["in use by another process"]);
    drop(lock);
    assert_eq!(std::fs::read(&path).expect("a session"), saved);
    std::fs::write(&path, b"something else").expect("a file");
    refused(&["--keep", "0.3"], &["not a KV cache file"]);
}
