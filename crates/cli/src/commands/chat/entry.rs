//! Parses the user's messages and commands.

use std::path::PathBuf;

/// Begins and ends a message of several lines.
const FENCE: &str = "\"\"\"";

/// Every command: its spelling and its effect.
pub(crate) const COMMANDS: [(&str, &str); 16] = [
    ("/help", "this list"),
    (
        "/file PATH",
        "put a document or a folder before your next message, and read it now",
    ),
    ("/undo", "take back the last file or the last turn"),
    ("/retry", "answer the last message again, or read on where you stopped"),
    (
        "/fork [NAME]",
        "go on in a copy; the conversation so far stays as it is",
    ),
    ("/switch [NAME]", "go to another copy, or list them"),
    ("/drop NAME", "remove a copy"),
    (
        "/save PATH",
        "write the conversation to a file, and what was read to PATH.pages",
    ),
    ("/load PATH", "go on with a saved conversation"),
    ("/system [TEXT]", "instructions for the model; - removes them"),
    (
        "/policy [prefill=P] [decode=P]",
        "what attention reads; riffle policies lists the policies",
    ),
    (
        "/set [NAME VALUE]",
        "how answers are drawn, such as /set temperature 0.7",
    ),
    ("/stats", "tokens, speed and memory"),
    ("/clear", "forget the conversation"),
    ("/quit", "leave; Ctrl-D does the same"),
    (
        "\"\"\"",
        "begins and ends a message of several lines; a line that ends with \\ goes on as well",
    ),
];

/// One input of the user.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Nothing,
    Message(String),
    Command(Command),
}

/// A command with its argument.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    File(PathBuf),
    Undo,
    Retry,
    Fork(Option<String>),
    Switch(Option<String>),
    Drop(String),
    Save(PathBuf),
    Load(PathBuf),
    System(Option<String>),
    Policy(Vec<(String, String)>),
    Set(Option<(String, String)>),
    Stats,
    Clear,
    Quit,
}

/// True if the text so far is complete; otherwise the next line belongs to it.
pub(crate) fn is_whole(text: &str) -> bool {
    match text.trim_start().strip_prefix(FENCE) {
        Some(inside) => inside.contains(FENCE),
        None => !text.trim_end_matches(['\n', '\r']).ends_with('\\'),
    }
}

/// Parses a complete text as a message or a command.
///
/// # Errors
/// An unknown command, or a missing argument: a line with the correct spelling.
pub(crate) fn entry(text: &str) -> Result<Entry, String> {
    if let Some(inside) = text.trim_start().strip_prefix(FENCE) {
        let (inside, behind) = inside.split_once(FENCE).unwrap_or((inside, ""));
        return Ok(message(&format!("{inside}{behind}")));
    }
    let is_command = text.starts_with('/') && text[1..].starts_with(|c: char| c.is_ascii_alphabetic());
    if !is_command {
        return Ok(message(&text.replace("\\\r\n", "\n").replace("\\\n", "\n")));
    }
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    command(name, rest.trim()).map(Entry::Command)
}

fn message(text: &str) -> Entry {
    match text.trim() {
        "" => Entry::Nothing,
        text => Entry::Message(text.to_owned()),
    }
}

fn command(name: &str, rest: &str) -> Result<Command, String> {
    let given = (!rest.is_empty()).then(|| rest.to_owned());
    let needed = |what: &str| {
        given
            .clone()
            .ok_or_else(|| format!("{name} needs {what}: {name} {what}"))
    };
    let alone = |command: Command| match given {
        Some(_) => Err(format!("{name} stands alone: type {name}")),
        None => Ok(command),
    };
    match name {
        "/help" => alone(Command::Help),
        "/file" => needed("PATH").map(|path| Command::File(path.into())),
        "/undo" => alone(Command::Undo),
        "/retry" => alone(Command::Retry),
        "/fork" => Ok(Command::Fork(given)),
        "/switch" => Ok(Command::Switch(given)),
        "/drop" => needed("NAME").map(Command::Drop),
        "/save" => needed("PATH").map(|path| Command::Save(path.into())),
        "/load" => needed("PATH").map(|path| Command::Load(path.into())),
        "/system" => Ok(Command::System(given)),
        "/policy" => policies(rest).map(Command::Policy),
        "/set" => setting(rest).map(Command::Set),
        "/stats" => alone(Command::Stats),
        "/clear" => alone(Command::Clear),
        "/quit" | "/exit" => alone(Command::Quit),
        _ => Err(format!(
            "there is no command {name}: /help lists them; a message that begins with / needs a space before it"
        )),
    }
}

fn policies(text: &str) -> Result<Vec<(String, String)>, String> {
    let words = text.split_whitespace().map(|word| match word.split_once('=') {
        Some((phase @ ("prefill" | "decode"), policy)) if !policy.is_empty() => {
            Ok((phase.to_owned(), policy.to_owned()))
        }
        _ => Err(format!(
            "{word:?} is no choice of a policy: type /policy prefill=POLICY, /policy decode=POLICY or both"
        )),
    });
    words.collect()
}

fn setting(text: &str) -> Result<Option<(String, String)>, String> {
    match text.split_once(char::is_whitespace) {
        Some((name, value)) => Ok(Some((name.to_owned(), value.trim().to_owned()))),
        None if text.is_empty() => Ok(None),
        None => Err(format!(
            "/set {text} needs a value, such as /set temperature 0.7; /set alone shows all"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Entry {
        entry(text).unwrap_or_else(|problem| panic!("{text:?}: {problem}"))
    }

    #[test]
    fn lines_that_go_on_are_one_message() {
        assert!(is_whole("one line"));
        assert!(!is_whole("one line\\"));
        assert!(is_whole("one line\\\nand another"));
        assert_eq!(
            said("one line\\\nand another\n"),
            Entry::Message("one line\nand another".to_owned())
        );
        assert!(!is_whole("\"\"\"first"));
        assert!(!is_whole("\"\"\"first\n/quit\\"));
        assert!(is_whole("\"\"\"first\n/quit\n\"\"\""));
        assert_eq!(
            said("\"\"\"first\n/quit\n\"\"\""),
            Entry::Message("first\n/quit".to_owned())
        );
        assert_eq!(said(" \n"), Entry::Nothing);
        assert_eq!(said("\"\"\"\"\"\""), Entry::Nothing);
    }

    #[test]
    fn commands_take_what_they_need_and_say_what_is_missing() {
        assert_eq!(said("/file a b.txt"), Entry::Command(Command::File("a b.txt".into())));
        assert_eq!(said("/fork"), Entry::Command(Command::Fork(None)));
        assert_eq!(said(" /fork"), Entry::Message("/fork".to_owned()));
        assert_eq!(said("/ 2 is half"), Entry::Message("/ 2 is half".to_owned()));
        let policies = vec![("prefill".to_owned(), "xattention:stride=16".to_owned())];
        assert_eq!(
            said("/policy prefill=xattention:stride=16"),
            Entry::Command(Command::Policy(policies))
        );
        let set = Some(("stop".to_owned(), ". \"".to_owned()));
        assert_eq!(said("/set stop . \""), Entry::Command(Command::Set(set)));
        for (text, part) in [
            ("/file", "/file PATH"),
            ("/undo 3", "stands alone"),
            ("/etc/hosts", "/help"),
            ("/policy full", "prefill=POLICY"),
            ("/policy decode=", "decode=POLICY"),
            ("/set temperature", "needs a value"),
        ] {
            let problem = entry(text).expect_err(text);
            assert!(problem.contains(part), "{problem}");
        }
    }

    #[test]
    fn every_command_of_the_help_is_known() {
        for (usage, _) in COMMANDS {
            let name = usage.split(' ').next().unwrap_or(usage);
            let refused = entry(name).err().unwrap_or_default();
            assert!(!refused.contains("there is no command"), "{refused}");
        }
    }
}
