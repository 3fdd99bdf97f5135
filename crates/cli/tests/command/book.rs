//! Riffle accepts every command in the book, the README and the pages in docs.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the sources.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Pages that people read first.
fn pages() -> Vec<PathBuf> {
    let folder = |name: &str| {
        let entries = fs::read_dir(root().join(name)).expect("a folder");
        let paths = entries.map(|entry| entry.expect("a file").path());
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "md"))
    };
    let mut pages: Vec<PathBuf> = folder("docs").chain(folder("docs/book/src")).collect();
    pages.push(root().join("README.md"));
    pages.sort();
    pages
}

/// The shell lines of a page: in blocks marked `sh` and in indented blocks. Lines that end with \ are joined.
fn shell_lines(text: &str) -> Vec<String> {
    let (mut lines, mut block): (Vec<String>, Option<bool>) = (Vec::new(), None);
    let mut open = String::new();
    for line in text.lines() {
        if let Some(mark) = line.trim_start().strip_prefix("```") {
            block = match block {
                Some(_) => None,
                None => Some(mark.trim() == "sh"),
            };
            continue;
        }
        let shown = match block {
            Some(is_shell) => is_shell,
            None => line.starts_with("    "),
        };
        if !shown {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(begun) => open += begun,
            None => lines.push(std::mem::take(&mut open) + line.trim()),
        }
    }
    lines
}

/// The words of each command of a line, split like a shell: quotes, comments, pipes.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let (mut word, mut is_word, mut quote) = (String::new(), false, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some(_), c) => word.push(c),
            (None, '"' | '\'') => (quote, is_word) = (Some(c), true),
            (None, '#') if !is_word => break,
            (None, ' ' | '|' | ';' | '&') => {
                if is_word {
                    commands.last_mut().expect("one").push(std::mem::take(&mut word));
                    is_word = false;
                }
                if c != ' ' {
                    commands.push(Vec::new());
                }
            }
            (None, c) => {
                word.push(c);
                is_word = true;
            }
        }
    }
    if is_word {
        commands.last_mut().expect("one").push(word);
    }
    // Words after > redirect output and are not arguments.
    for command in &mut commands {
        let end = command.iter().position(|word| word == ">").unwrap_or(command.len());
        command.truncate(end);
    }
    commands
}

/// The words with a path instead of a model's name, because this machine may not have that model.
fn with_a_path_for_the_model(mut words: Vec<String>) -> Vec<String> {
    for at in 1..words.len() {
        if words[at - 1] == "--model" && words[at].contains(['/', ':']) && !words[at].ends_with(".gguf") {
            words[at] = "model.gguf".to_owned();
        }
    }
    words
}

#[test]
fn every_command_that_is_shown_is_accepted() {
    let (mut refused, mut shown) = (Vec::new(), 0);
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        for line in shell_lines(&text) {
            for words in commands(&line) {
                let Some(program) = words.first() else { continue };
                // A setting before a command, such as RIFFLE_URL=…/riffle, is no program.
                if program.contains('=') || program != "riffle" && !program.ends_with("/riffle") {
                    continue;
                }
                shown += 1;
                let words = with_a_path_for_the_model(words);
                if let Some(refusal) = riffle_cli::refusal(words.iter().map(Into::into)) {
                    refused.push(format!("{}: {line}\n  {refusal}", page.display()));
                }
            }
        }
    }
    assert!(shown > 60, "only {shown} commands were found");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn every_example_that_the_book_runs_or_shows_is_there() {
    let mut examples = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        let words: Vec<&str> = text.split_whitespace().collect();
        for at in 0..words.len() {
            if let ["-p", package, "--example", name] = words[at..].iter().take(4).copied().collect::<Vec<_>>()[..] {
                let package = package.trim_start_matches("riffle-");
                let file = root().join(format!("crates/{package}/examples/{name}.rs"));
                assert!(file.is_file(), "{}: {} is not there", page.display(), file.display());
                examples += 1;
            }
        }
    }
    assert!(examples >= 2, "only {examples} examples were found");
}

#[test]
fn the_book_lists_the_models_that_have_short_names() {
    let text = fs::read_to_string(root().join("docs/models.md")).expect("a page");
    let (_, behind) = text.split_once("<!-- short names -->\n").expect("the list begins");
    let (listed, _) = behind.split_once("<!-- end of short names -->").expect("the list ends");
    let table = riffle_hub::TriedModel::table();
    assert_eq!(
        listed, table,
        "put the table of the program into docs/models.md:\n{table}"
    );
}

#[test]
fn words_of_a_line_are_cut_as_a_shell_cuts_them() {
    let cut = commands("cat a | riffle run --prompt \"a b\" --seed '1' # note | x");
    assert_eq!(
        cut,
        [
            vec!["cat", "a"],
            vec!["riffle", "run", "--prompt", "a b", "--seed", "1"]
        ]
    );
    assert_eq!(
        commands("riffle completions bash > file"),
        [vec!["riffle", "completions", "bash"]]
    );
    let lines =
        shell_lines("text\n\n    riffle policies\n```sh\nriffle run \\\n  --prompt x\n```\n```rust\nriffle\n```\n");
    assert_eq!(lines, ["riffle policies", "riffle run --prompt x"]);
}
