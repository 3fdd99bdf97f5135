//! Questions about documents: a text, a PDF, an EPUB, a folder; kept pages, passages and refusals.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use crate::testing::{
    BELOW_A_FILE, absolute_below_a_file, assert_refused, riffle, run_with_input, shipped_model, stderr, stdout,
};
use riffle_testing::documents as make;
use serde_json::Value;

const FACT: &str = "The pass key for field house is 70452.";
const QUESTION: &str = "What is the pass key for field house? The pass key for field house is";

/// A temporary folder with documents, and a folder for kept pages.
struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, bytes).expect("a file");
        path.display().to_string()
    }

    /// `riffle ask` on the shipped model with the user's cache folder in this one.
    fn ask(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("the binary runs")
    }

    fn command(&self, words: &[&str]) -> std::process::Command {
        let mut command = riffle();
        command.arg("ask").arg("--model").arg(shipped_model());
        command.args(words).env("XDG_CACHE_HOME", self.path("caches"));
        command
    }
}

/// Lines of the shipped book with the fact among them.
fn book(lines: usize) -> String {
    let path = shipped_model().join("../text/zechariah.txt");
    let book = fs::read_to_string(path).expect("the book");
    let mut lines: Vec<&str> = book.lines().take(lines).collect();
    lines.insert(lines.len() / 3, FACT);
    lines.join("\n")
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&stdout(output)).expect("JSON")
}

/// The first passage holds the fact; returns its place.
#[track_caller]
fn place_of_fact(report: &Value) -> String {
    let answer = &report["answers"][0];
    assert!(answer["text"].as_str().expect("text").contains("70452"), "{report}");
    let passage = &answer["passages"][0];
    assert!(
        passage["quotation"].as_str().expect("text").contains("70452"),
        "{report}"
    );
    passage["place"].as_str().expect("a place").to_owned()
}

#[test]
fn a_text_is_read_once_and_answers_show_where_they_come_from() {
    let desk = Desk::new();
    let text = desk.file("book.txt", book(60).as_bytes());
    let first = desk.ask(&[&text, QUESTION, "-n", "6", "--verbose"]);
    let said = stdout(&first);
    assert!(said.contains("70452"), "{said}");
    assert!(
        said.contains("attention went most to\n") && said.contains("line 21 ("),
        "{said}"
    );
    let notes = stderr(&first);
    assert!(
        notes.contains("1 document, ") && notes.contains("keys and values in f16"),
        "{notes}"
    );
    assert!(notes.contains("\nreads ") && notes.contains("(0 of "), "{notes}");

    let second = json(&desk.ask(&[&text, QUESTION, "-n", "6", "--json"]));
    assert_eq!(place_of_fact(&second), "line 21");
    let number = |name: &str| second["answers"][0][name].as_u64().expect("a number");
    assert!(number("found_tokens") + 512 + 256 > number("prompt_tokens"), "{second}");
    // Kept pages must change no answer, and --no-keep must do without them.
    let alone = desk.ask(&[&text, QUESTION, "-n", "6", "--json", "--no-keep"]);
    let alone = json(&alone);
    assert_eq!(alone["answers"][0]["found_tokens"], 0);
    assert_eq!(alone["answers"][0]["text"], second["answers"][0]["text"]);
    assert_eq!(alone["answers"][0]["passages"], second["answers"][0]["passages"]);
}

#[test]
fn pages_of_a_pdf_and_chapters_of_an_epub_are_shown() {
    let desk = Desk::new();
    let book = book(30);
    let lines: Vec<&str> = book.lines().collect();
    // A line of a page holds some ninety characters.
    let page = |lines: &[&str]| {
        let words = lines.iter().flat_map(|line| line.split_whitespace());
        let mut page = String::new();
        let mut length = 0;
        for word in words {
            let breaks = length + word.len() > 90 || word == "The" && length > 0;
            page.push(if breaks { '\n' } else { ' ' });
            length = if breaks { 0 } else { length } + word.len() + 1;
            page.push_str(word);
        }
        page
    };
    let (before, behind) = lines.split_at(8);
    let pages = [page(before), page(behind)];
    let pdf = desk.file("book.pdf", &make::pdf(&[&pages[0], &pages[1]]));
    let report = json(&desk.ask(&[&pdf, QUESTION, "-n", "6", "--json"]));
    assert_eq!(place_of_fact(&report), "page 2");
    assert_eq!(report["documents"][0]["kind"], "PDF");

    let chapters = [before.join("\n\n"), behind.join("\n\n")];
    let epub = desk.file(
        "book.epub",
        &make::epub(&[("Visions", &chapters[0]), ("Horsemen", &chapters[1])]),
    );
    let report = json(&desk.ask(&[&epub, QUESTION, "-n", "6", "--json"]));
    assert_eq!(place_of_fact(&report), "chapter \"Horsemen\"");
}

#[test]
fn several_documents_stand_under_their_names_and_questions_follow_one_another() {
    let desk = Desk::new();
    desk.file("notes/a.md", b"# Places\n\nThe pass key for city wall is 31905.\n");
    desk.file("notes/b.txt", book(20).as_bytes());
    desk.file("notes/c.png", b"\x89PNG\0\0");
    let other = "What is the pass key for city wall? The pass key for city wall is";
    let folder = desk.path("notes").display().to_string();
    let words = [&*folder, "--question", QUESTION, "--question", other, "-n", "6"];
    let output = desk.ask(&[&words[..], &["--json"]].concat());
    let report = json(&output);
    place_of_fact(&report);
    assert!(stderr(&output).contains("1 without text"), "{}", stderr(&output));
    let second = &report["answers"][1];
    assert!(second["text"].as_str().expect("text").contains("31905"), "{report}");
    assert!(
        second["passages"][0]["document"]
            .as_str()
            .expect("a name")
            .ends_with("a.md"),
        "{report}"
    );
    let number = |name: &str| second[name].as_u64().expect("a number");
    assert!(number("prompt_tokens") - number("reused_tokens") < 60, "{report}");

    // Standard input gives the same questions, line by line.
    let mut command = desk.command(&[&folder, "--follow", "-n", "6"]);
    let said = stdout(&run_with_input(
        &mut command,
        format!("{QUESTION}\n\n{other}\n").as_bytes(),
    ));
    assert!(said.contains("70452") && said.contains("31905"), "{said}");
}

#[test]
fn what_is_given_is_not_chosen_and_memory_chooses_the_format() {
    let desk = Desk::new();
    let text = desk.file("book.txt", book(60).as_bytes());
    let given = [
        "--kv-type",
        "q8_0",
        "--prefill",
        "xattention",
        "--decode",
        "twilight",
        "--ctx",
        "8192",
    ];
    let report = json(&desk.ask(&[&[&*text, QUESTION, "-n", "6", "--json"][..], &given].concat()));
    let choice = &report["choice"];
    assert_eq!(choice["kv_format"], "q8_0");
    assert_eq!(choice["context_tokens"], 8192);
    assert!(choice["prefill"].as_str().expect("a policy").starts_with("xattention"));
    assert!(choice["decode"].as_str().expect("a policy").starts_with("twilight"));
    for option in [["--window-size", "512"], ["--select-tokens", "0.5"]] {
        let output = desk.ask(&[&[&*text, "Who?"][..], &option].concat());
        assert_refused(&output, 1, &[option[0], "does not go with questions about documents"]);
    }
}

#[test]
fn a_text_longer_than_the_context_is_read_in_parts_and_all_of_it_is_refused_with_numbers() {
    let desk = Desk::new();
    let text = desk.file("book.txt", book(400).as_bytes());
    let output = desk.ask(&[&text, QUESTION, "--ctx", "2048", "-n", "6"]);
    let (said, notes) = (stdout(&output), stderr(&output));
    assert!(said.contains("70452") && said.contains("line 134 ("), "{said}\n{notes}");
    assert!(
        notes.contains("tokens reads ") && notes.contains(" that the question needs, in "),
        "{notes}"
    );
    assert!(notes.contains("\n--whole reads all of it"), "{notes}");

    let whole = desk.ask(&[&text, "Who?", "--ctx", "2048", "--whole"]);
    assert_refused(
        &whole,
        1,
        &[
            "all of the documents takes",
            "--ctx holds 2048",
            "read the parts",
            "choose pages",
        ],
    );
    let long = desk.file("long.txt", book(400).repeat(9).as_bytes());
    let report = json(&desk.ask(&[&long, QUESTION, "-n", "6", "--json"]));
    assert!(report["choice"]["document_tokens"].as_u64().expect("tokens") > 131_072);
    assert!(report["answers"][0]["prompt_tokens"].as_u64().expect("tokens") < 9000);
    place_of_fact(&report);
}

#[test]
fn pages_and_chapters_can_be_chosen() {
    let desk = Desk::new();
    let pdf = desk.file(
        "a.pdf",
        &make::pdf(&["Words of one page.", &book(6), "Words of another page."]),
    );
    let report = json(&desk.ask(&[&pdf, QUESTION, "--pages", "2-3", "-n", "6", "--json"]));
    assert_eq!(place_of_fact(&report), "page 2");
    assert_eq!(report["answers"][0]["parts"].as_array().expect("parts").len(), 1);
    let refused = desk.ask(&[&pdf, "Who?", "--pages", "2-9"]);
    assert_refused(&refused, 1, &["a.pdf: no page is labelled \"9\"", "\"3\""]);
    assert_refused(
        &desk.ask(&[&pdf, "Who?", "--pages", "2-"]),
        1,
        &["--pages 2-", "such as 10-60"],
    );

    let epub = desk.file("a.epub", &make::epub(&[("Visions", "Words."), ("Horsemen", FACT)]));
    let report = json(&desk.ask(&[&epub, QUESTION, "--chapter", "horse", "-n", "6", "--json"]));
    assert_eq!(place_of_fact(&report), "chapter \"Horsemen\"");
    let refused = desk.ask(&[&epub, "Who?", "--chapter", "Whales"]);
    assert_refused(&refused, 1, &["no chapter is called \"Whales\"", "Visions"]);
    let refused = desk.ask(&[&pdf, "Where", "is", "it"]);
    assert_refused(
        &refused,
        1,
        &["\"Where\" is no file", "write the whole question in quotes"],
    );
}

#[test]
fn damage_in_what_is_kept_costs_time_and_no_answer() {
    let desk = Desk::new();
    let text = desk.file("book.txt", book(30).as_bytes());
    let ask = || {
        desk.ask(&[
            &text,
            QUESTION,
            "-n",
            "6",
            "--verbose",
            "--keep",
            &desk.path("kept").display().to_string(),
        ])
    };
    let (first, again) = (ask(), ask());
    assert!(stderr(&again).contains("of them from disk"), "{}", stderr(&again));
    let files = || {
        let entries = fs::read_dir(desk.path("kept")).expect("a folder");
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        files.retain(|path| {
            path.extension()
                .is_some_and(|ending| ending == "block" || ending == "redb")
        });
        files.sort();
        files
    };
    let kept = files();
    let (blocks, index) = (kept.len() - 1, kept.last().expect("an index"));
    assert!(blocks > 0 && index.ends_with("index.redb"), "{kept:?}");
    for path in [&kept[0], &kept[blocks - 1], index] {
        for damage in ["flip", "cut", "zeros", "nothing", "removed", "folder"] {
            let whole = fs::read(path).expect("a file");
            let mut bytes = whole.clone();
            match damage {
                "flip" => bytes[whole.len() / 2] ^= 1,
                "cut" => bytes.truncate(whole.len() / 3),
                "zeros" => bytes.fill(0),
                _ => bytes.clear(),
            }
            fs::write(path, bytes).expect("a file");
            if matches!(damage, "removed" | "folder") {
                fs::remove_file(path).expect("removed");
            }
            if damage == "folder" {
                fs::create_dir(path).expect("a folder");
            }
            let output = ask();
            let said = stderr(&output);
            assert_eq!(stdout(&output), stdout(&first), "{damage} {}: {said}", path.display());
            assert!(!said.contains("panicked"), "{damage} {}: {said}", path.display());
            if path.is_dir() {
                fs::remove_dir(path).expect("removed");
            }
            fs::write(path, whole).expect("a file");
            assert_eq!(stdout(&ask()), stdout(&first));
        }
    }
}

#[test]
fn files_that_are_no_documents_and_missing_questions_are_one_line() {
    let desk = Desk::new();
    let damaged = desk.file("a.pdf", &make::pdf(&["words"])[..200]);
    assert_refused(&desk.ask(&[&damaged, "Who?"]), 1, &["a.pdf: this PDF file is damaged"]);
    let pictures = desk.file("b.pdf", &make::pdf(&["", ""]));
    assert_refused(
        &desk.ask(&[&pictures, "Who?"]),
        1,
        &["its 2 pages hold no text", "ocrmypdf"],
    );
    let text = desk.file("c.txt", b"some words");
    assert_refused(&desk.ask(&[&text]), 1, &["no question", "--question", "--follow"]);
    assert_refused(&desk.ask(&[&text, &text]), 1, &["no question"]);
    assert_refused(&desk.ask(&[&text, " "]), 1, &["the question is empty"]);
    assert_refused(
        &desk.ask(&[&text, "missing.txt"]),
        1,
        &["missing.txt: no such file", "--question"],
    );
    assert_refused(&desk.ask(&["missing.txt", "Who?"]), 1, &["missing.txt: no such file"]);
    assert_refused(
        &desk.ask(&[&text, "Who?", "--keep", BELOW_A_FILE]),
        1,
        &[BELOW_A_FILE, "--no-keep"],
    );
    assert_refused(&desk.ask(&[]), 2, &["FILE… QUESTION"]);
    // Without --keep, an unusable cache folder only costs time.
    let mut command = desk.command(&[&text, "Who?", "-n", "1"]);
    let output = command
        .env("XDG_CACHE_HOME", absolute_below_a_file())
        .output()
        .expect("it runs");
    assert!(
        output.status.success() && stderr(&output).contains("nothing is kept for later"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn an_embedding_model_finds_parts_by_meaning_and_the_line_says_so() {
    let desk = Desk::new();
    let text = desk.file("book.txt", book(400).as_bytes());
    let model = |name: &str| shipped_model().join("..").join(name).display().to_string();
    let embeddings = model("vectors/embedding/gemma");
    let asked = [&*text, QUESTION, "--ctx", "4096", "-n", "6"];
    let output = desk.ask(&[&asked[..], &["--embeddings", &embeddings]].concat());
    let notes = stderr(&output);
    assert!(notes.contains(", found by words and meaning"), "{notes}");
    assert!(stdout(&output).contains("70452"), "{notes}");
    let report = json(&desk.ask(&[&asked[..], &["--json"]].concat()));
    assert_eq!(report["answers"][0]["found_by"], "words");
    let mut command = desk.command(&[&asked[..], &["--json"]].concat());
    let output = command.env("RIFFLE_EMBEDDINGS", &embeddings).output().expect("it runs");
    assert_eq!(json(&output)["answers"][0]["found_by"], "words_and_meaning");
    // A text that is read whole ignores the option.
    let short = desk.file("short.txt", book(30).as_bytes());
    let report = json(&desk.ask(&[&short, QUESTION, "-n", "6", "--json", "--embeddings", &embeddings]));
    assert_eq!(report["answers"][0]["found_by"], Value::Null);
    let refused = desk.ask(&[&asked[..], &["--embeddings", &model("model")]].concat());
    assert_refused(&refused, 1, &["is no embedding model", "name one with --embeddings"]);
    let refused = desk.ask(&[&asked[..], &["--embeddings", &embeddings, "--memory", "60M"]].concat());
    assert_refused(&refused, 1, &["leaves", "raise --memory, or leave out --embeddings"]);
    let mut command = desk.command(&asked);
    let output = command
        .env("RIFFLE_EMBEDDINGS", "owner/missing")
        .output()
        .expect("it runs");
    assert_refused(
        &output,
        1,
        &["RIFFLE_EMBEDDINGS is set, but", "riffle pull owner/missing"],
    );
}
