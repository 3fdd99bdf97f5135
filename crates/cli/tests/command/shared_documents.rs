//! Documents that one command has read are cached for the others: ask, chat and the server.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};

use riffle_documents::framed;
use serde_json::{Value, json};

use crate::testing::{
    BELOW_A_FILE, ModelCopy, absolute_below_a_file, riffle, run_with_input, shipped_model, stderr, stdout,
};

/// A template with the question at the end, as the shipped model needs it.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}{% if not loop.last %}\n{% endif %}{% endfor %}";
const QUESTION: &str = "What is the pass key for river stone? The pass key for river stone is";

/// A model, a document, and a folder for kept pages that all commands share.
struct Desk {
    model: ModelCopy,
    folder: tempfile::TempDir,
}

impl Desk {
    fn new(has_template: bool) -> Self {
        let desk = Self {
            model: ModelCopy::new(),
            folder: tempfile::tempdir().expect("a folder"),
        };
        if has_template {
            fs::write(desk.model.path().join("chat_template.jinja"), TEMPLATE).expect("a file");
        }
        let book = fs::read_to_string(shipped_model().join("../text/prophets.txt")).expect("the book");
        let lines: Vec<&str> = book.lines().take(60).collect();
        let text = format!("{}\nThe pass key for river stone is 40718.\n", lines.join("\n"));
        fs::write(desk.document(), text).expect("a file");
        desk
    }

    fn document(&self) -> PathBuf {
        self.folder.path().join("book.txt")
    }

    fn command(&self, words: &[&str]) -> std::process::Command {
        let mut command = riffle();
        command
            .arg(words[0])
            .arg("--model")
            .arg(self.model.path())
            .args(&words[1..])
            .env("XDG_CACHE_HOME", self.folder.path().join("caches"));
        command
    }

    /// The folder of kept documents of ask and chat.
    fn kept(&self) -> PathBuf {
        self.folder.path().join("caches/riffle/documents")
    }

    fn chat(&self, more: &[&str]) -> Output {
        let mut command = self.command(&[&["chat", "--ctx", "4096", "-n", "8", "--stop", "."], more].concat());
        run_with_input(command.arg(self.document()), QUESTION.as_bytes())
    }

    fn ask(&self) -> Value {
        let mut command = self.command(&["ask", "--json", "-n", "8", "--stop", "."]);
        let output = command.arg(self.document()).arg(QUESTION).output().expect("it runs");
        serde_json::from_str(&stdout(&output)).expect("JSON")
    }
}

fn number(answer: &Value, name: &str) -> u64 {
    answer[name].as_u64().unwrap_or_else(|| panic!("no {name} in {answer}"))
}

/// The number before `what` in the notes of a chat.
#[track_caller]
fn stated(notes: &str, what: &str) -> Option<u64> {
    let before = notes.split(what).next().filter(|before| before.len() < notes.len())?;
    let word = before.rsplit([' ', '\n']).next().expect("a word");
    Some(word.replace(',', "").parse().unwrap_or_else(|_| panic!("{notes}")))
}

#[test]
fn a_document_is_read_once_for_ask_and_chat() {
    for has_template in [true, false] {
        let desk = Desk::new(has_template);
        let first = desk.chat(&[]);
        assert!(stdout(&first).trim_start().starts_with("40718"), "{}", stdout(&first));
        let read = stated(&stderr(&first), " tokens read").expect("a number");
        assert_eq!(
            stated(&stderr(&first), " tokens found on disk"),
            None,
            "{}",
            stderr(&first)
        );

        let second = desk.chat(&[]);
        assert_eq!(first.stdout, second.stdout);
        let found = stated(&stderr(&second), " tokens found on disk").expect("a number");
        assert!(found + 64 > read, "{}", stderr(&second));
        let asked = &desk.ask()["answers"][0];
        assert!(number(asked, "found_tokens") + 64 > read, "{asked}");

        // The opposite order, and without kept pages.
        let other = Desk::new(has_template);
        let alone = &other.ask()["answers"][0];
        assert_eq!((number(alone, "found_tokens"), &alone["text"]), (0, &asked["text"]));
        let after = other.chat(&[]);
        assert_eq!(after.stdout, first.stdout);
        assert!(stated(&stderr(&after), " tokens found on disk").expect("a number") + 64 > read);
        let without = other.chat(&["--no-keep"]);
        assert_eq!(without.stdout, first.stdout);
        assert_eq!(stated(&stderr(&without), " tokens found on disk"), None);
    }
}

#[test]
fn the_folder_of_chat_is_chosen_and_refused_as_that_of_ask() {
    let desk = Desk::new(true);
    let kept = desk.folder.path().join("kept");
    let output = desk.chat(&["--keep", kept.to_str().expect("UTF-8"), "--keep-budget", "1G"]);
    assert!(
        output.status.success() && kept.join("index.redb").is_file(),
        "{}",
        stderr(&output)
    );
    assert!(!desk.kept().exists());
    let output = desk.chat(&["--keep", BELOW_A_FILE]);
    assert!(!output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("--no-keep"), "{}", stderr(&output));
    // The default folder is unusable, which only costs time.
    let mut command = desk.command(&["chat", "--ctx", "4096", "-n", "4"]);
    command
        .arg(desk.document())
        .env("XDG_CACHE_HOME", absolute_below_a_file());
    let output = run_with_input(&mut command, QUESTION.as_bytes());
    assert!(
        output.status.success() && stderr(&output).contains("nothing is kept for later"),
        "{}",
        stderr(&output)
    );
}

/// A server that ends with the test.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(desk: &Desk) -> Self {
        let mut command = desk.command(&[
            "serve",
            "--port",
            "0",
            "--ctx",
            "4096",
            "--parallel",
            "1",
            "--prefix-cache",
        ]);
        let mut child = command
            .arg(desk.kept())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let line = lines.find_map(|line| {
            let line = line.expect("a line");
            line.contains("http://").then_some(line)
        });
        let line = line.expect("an address");
        let address = line
            .split("http://")
            .nth(1)
            .and_then(|rest| rest.split([' ', '/']).next());
        let address = address.expect("an address").to_owned();
        // Later output must be read, because a full pipe would block the server.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        let body = body.to_string();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let content = answer.split_once("\r\n\r\n").expect("a body").1;
        let (from, to) = (content.find('{').expect("JSON"), content.rfind('}').expect("JSON"));
        serde_json::from_str(&content[from..=to]).unwrap_or_else(|_| panic!("{answer}"))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_on_the_same_folder_finds_what_was_read_and_the_others_find_what_it_read() {
    // The request of the web page: the document in the form of `framing.js`, and the question.
    let request = |desk: &Desk| {
        let text = fs::read_to_string(desk.document()).expect("a text");
        let content = framed("book.txt", &text, true) + QUESTION;
        json!({"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0})
    };
    let desk = Desk::new(true);
    let read = stated(&stderr(&desk.chat(&[])), " tokens read").expect("a number");
    let answer = Served::start(&desk).post("/v1/chat/completions", &request(&desk));
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(
        cached.as_u64().is_some_and(|cached| cached + 64 > read),
        "{read}: {answer}"
    );

    let desk = Desk::new(true);
    fs::create_dir_all(desk.kept()).expect("a folder");
    let server = Served::start(&desk);
    server.post("/v1/chat/completions", &request(&desk));
    // The server still runs.
    let asked = &desk.ask()["answers"][0];
    assert!(number(asked, "found_tokens") + 64 > read, "{read}: {asked}");
    drop(server);
}

#[test]
fn the_page_frames_documents_in_the_same_words() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/web/framing.js");
    let script = fs::read_to_string(script).expect("the script");
    let label = framed("", "", true);
    let label = format!("hasTemplate ? {:?} : \"\"", label.lines().next().expect("a line"));
    let rest = framed("${plainName}", "${text.trimEnd()}", false).replace('\n', "\\n");
    for part in [label, format!("`${{label}}{rest}`")] {
        assert!(script.contains(&part), "no {part} in {script}");
    }
}
