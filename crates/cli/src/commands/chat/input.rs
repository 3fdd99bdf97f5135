//! Sources of messages: a terminal with editing and history, or lines of standard input.

use std::borrow::Cow;
use std::fs::OpenOptions;
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};

use riffle_system::files::{make_private, private};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{ColorMode, Config, Context, Editor, Helper};

use super::entry::{COMMANDS, is_whole};
use crate::commands::LARGEST_TEXT_BYTES;
use crate::failure::Failure;
use crate::{console, user_folders};

/// The next input of a source.
pub(crate) enum Typed {
    Text(String),
    /// Ctrl-C while no answer is being written.
    Interrupted,
    End,
}

/// A source of messages.
pub(crate) enum Input {
    Terminal(Box<Terminal>),
    Lines,
}

/// Lines of a terminal.
pub(crate) struct Terminal {
    editor: Editor<Assistant, FileHistory>,
    history: Option<PathBuf>,
}

impl Input {
    /// Opens the terminal if input and output are one; its history is in the user's state folder.
    ///
    /// # Errors
    /// The terminal does not report its properties.
    pub(crate) fn open(keeps_history: bool) -> Result<Self, Failure> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(Self::Lines);
        }
        let has_colours = console::has_colours(&io::stdout());
        let config = Config::builder()
            .auto_add_history(true)
            .history_ignore_space(true)
            .color_mode(if has_colours {
                ColorMode::Enabled
            } else {
                ColorMode::Disabled
            })
            .build();
        let editor = Editor::with_config(config);
        let mut editor = editor.map_err(|error| {
            Failure::new(format!(
                "cannot use the terminal: {error}; use another, or give the lines through a pipe"
            ))
        })?;
        editor.set_helper(Some(Assistant {
            files: FilenameCompleter::new(),
            has_colours,
        }));
        let history = history_path().filter(|_| keeps_history);
        let history = history.and_then(|path| match open_history(&path) {
            Ok(()) => Some(path),
            Err(error) => {
                console::note(format!("what you type is not kept: {}: {error}", path.display()));
                None
            }
        });
        if let Some(path) = &history {
            // An unreadable history is replaced.
            let _ = editor.load_history(path);
        }
        Ok(Self::Terminal(Box::new(Terminal { editor, history })))
    }

    /// True if a person types.
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next complete message or command.
    ///
    /// # Errors
    /// Standard input is unreadable or not UTF-8.
    pub(crate) fn next(&mut self, prompt: &str) -> Result<Typed, Failure> {
        match self {
            Self::Terminal(terminal) => terminal.next(prompt),
            Self::Lines => next_of_lines(&mut io::stdin().lock()),
        }
    }
}

impl Terminal {
    fn next(&mut self, prompt: &str) -> Result<Typed, Failure> {
        match self.editor.readline(prompt) {
            Ok(text) => {
                if let Some(path) = &self.history {
                    // A message is answered even if the history file cannot be written.
                    let _ = self.editor.append_history(path);
                }
                Ok(Typed::Text(text))
            }
            Err(ReadlineError::Interrupted) => Ok(Typed::Interrupted),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(Failure::new(format!("cannot read the terminal: {error}"))),
        }
    }
}

fn next_of_lines(input: &mut impl BufRead) -> Result<Typed, Failure> {
    let mut text = String::new();
    loop {
        let read = input.by_ref().take(LARGEST_TEXT_BYTES).read_line(&mut text);
        let read = read.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => {
                Failure::new("standard input: not UTF-8 text: convert it first, e.g. with iconv -t UTF-8")
            }
            _ => Failure::new(format!("standard input: {error}")),
        })?;
        if read == 0 && text.is_empty() {
            return Ok(Typed::End);
        }
        if text.len() as u64 >= LARGEST_TEXT_BYTES {
            return Err(Failure::new(
                "standard input: a line is longer than any context; name long texts as files",
            ));
        }
        if read == 0 || is_whole(&text) {
            return Ok(Typed::Text(text));
        }
    }
}

/// History file of messages in the user's state folder; `None` without such a folder.
fn history_path() -> Option<PathBuf> {
    Some(user_folders::state_folder()?.join("chat_history"))
}

/// Creates the file if needed, readable only by its owner.
fn open_history(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    let file = private(&mut options).open(path)?;
    make_private(&file)
}

/// Completes commands and paths, and finds the end of a message.
struct Assistant {
    files: FilenameCompleter,
    has_colours: bool,
}

impl Helper for Assistant {}

impl Hinter for Assistant {
    type Hint = String;
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_whole(context.input()) {
            ValidationResult::Valid(None)
        } else {
            ValidationResult::Incomplete
        })
    }
}

impl Highlighter for Assistant {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _default: bool) -> Cow<'b, str> {
        if self.has_colours {
            Cow::Owned(format!("\u{1b}[1;36m{prompt}\u{1b}[0m"))
        } else {
            Cow::Borrowed(prompt)
        }
    }
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(&self, line: &str, position: usize, _context: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..position];
        let takes_path = ["/file ", "/save ", "/load "]
            .iter()
            .find(|name| typed.starts_with(**name));
        if let Some(name) = takes_path {
            // A path may contain spaces, but the completer would start a new word there.
            let (start, pairs) = self.files.complete_path(&typed[name.len()..], position - name.len())?;
            return Ok((start + name.len(), pairs));
        }
        if !typed.starts_with('/') || typed.contains(char::is_whitespace) {
            return Ok((position, Vec::new()));
        }
        let names = COMMANDS.iter().filter_map(|(usage, _)| usage.split(' ').next());
        let matching = names.filter(|name| name.starts_with(typed)).map(|name| Pair {
            display: name.to_owned(),
            replacement: format!("{name} "),
        });
        Ok((0, matching.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_where_they_go_on() {
        let mut input: &[u8] = b"one\ntwo \\\nthree\n\"\"\"four\n\nfive\"\"\"\n\nsix";
        let mut texts = Vec::new();
        while let Ok(Typed::Text(text)) = next_of_lines(&mut input) {
            texts.push(text);
        }
        assert_eq!(
            texts,
            ["one\n", "two \\\nthree\n", "\"\"\"four\n\nfive\"\"\"\n", "\n", "six"]
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        let mut input: &[u8] = b"\xff\xfe\n";
        assert!(next_of_lines(&mut input).is_err());
    }
}
