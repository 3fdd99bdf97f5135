//! Options of `riffle serve` from a file (`--config`) or environment variables (`RIFFLE_*`).
//!
//! Their values become the options' defaults. The command line overrides the environment, which overrides the file.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command, Error};
use toml::{Table, Value};

use crate::commands::unread;

/// The command with these sources.
const COMMAND: &str = "serve";

/// The option for the file.
const FILE_OPTION: &str = "config";

/// Begins the names of variables.
const PREFIX: &str = "RIFFLE_";

/// Variables of this form with another meaning: `RIFFLE_PREFILL` selects GPU kernels.
const TAKEN: [&str; 1] = ["RIFFLE_PREFILL"];

/// Maximum bytes of a file of options.
const LARGEST_FILE_BYTES: u64 = 1 << 20;

/// Values by long option name.
type Values = HashMap<String, Vec<String>>;

/// The command with the values of file and environment as defaults, if the command is `riffle serve`. `arguments`
/// begin with the program's name.
///
/// # Errors
/// A file that is unreadable, is not TOML, or has an unknown option.
pub(crate) fn with_sources(
    command: Command,
    arguments: &[OsString],
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Command, Error> {
    let Some(serve) = command.find_subcommand(COMMAND) else {
        return Ok(command);
    };
    if arguments.get(1).is_none_or(|name| name != COMMAND) {
        return Ok(command);
    }
    let file = given_file(&arguments[2..]).or_else(|| variable(&variable_of(FILE_OPTION)).map(OsString::from));
    let mut values = match file {
        Some(path) => values_of_file(serve, Path::new(&path))?,
        None => Values::new(),
    };
    for (name, option) in options_of(serve) {
        let variable_name = variable_of(name);
        if TAKEN.contains(&variable_name.as_str()) {
            continue;
        }
        if let Some(text) = variable(&variable_name).filter(|text| !text.is_empty()) {
            values.insert(name.to_owned(), split(option, &text));
        }
    }
    Ok(command.mut_subcommand(COMMAND, |serve| {
        serve.mut_args(|option| match option.get_long().and_then(|name| values.get(name)) {
            Some(values) => option.default_values(values.clone()),
            None => option,
        })
    }))
}

/// The supported options with their long names.
fn options_of(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let options = command
        .get_arguments()
        .filter_map(|option| Some((option.get_long()?, option)));
    options.filter(|(name, _)| ![FILE_OPTION, "help", "version"].contains(name))
}

fn variable_of(name: &str) -> String {
    format!("{PREFIX}{}", name.to_uppercase().replace('-', "_"))
}

/// The values of a variable, separated by commas if the option may be repeated.
fn split(option: &Arg, text: &str) -> Vec<String> {
    match option.get_action() {
        ArgAction::Append => text.split(',').map(|value| value.trim().to_owned()).collect(),
        _ => vec![text.to_owned()],
    }
}

/// The file in the command's arguments.
fn given_file(arguments: &[OsString]) -> Option<OsString> {
    let flag = format!("--{FILE_OPTION}");
    let begin = format!("{flag}=");
    arguments.iter().enumerate().find_map(|(at, argument)| {
        if argument == OsStr::new(&flag) {
            return arguments.get(at + 1).cloned();
        }
        argument.to_str()?.strip_prefix(&begin).map(OsString::from)
    })
}

fn values_of_file(command: &Command, path: &Path) -> Result<Values, Error> {
    let refuse = |problem: String| {
        let line = format!("--{FILE_OPTION} {}: {}", path.display(), problem.replace('\n', " "));
        Error::raw(ErrorKind::ValueValidation, line)
    };
    let text = riffle_files::read_text(path, LARGEST_FILE_BYTES).map_err(|error| refuse(unread(&error)))?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map(|span| text[..span.start].lines().count().max(1));
        let place = line.map_or_else(String::new, |line| format!("line {line}: "));
        refuse(format!("{place}{}", error.message()))
    })?;
    let mut values = Values::new();
    for (key, value) in table {
        let name = key.replace('_', "-");
        let is_named = |option: &Arg| {
            let aliases = option.get_all_aliases().unwrap_or_default();
            option.get_long() == Some(name.as_str()) || aliases.contains(&name.as_str())
        };
        let Some((long, _)) = options_of(command).find(|(_, option)| is_named(option)) else {
            return Err(refuse(format!(
                "riffle {COMMAND} has no option {key:?}: see riffle {COMMAND} --help"
            )));
        };
        let texts = texts_of(&value).ok_or_else(|| refuse(format!("{key} must be a value or a list of values")))?;
        values.insert(long.to_owned(), texts);
    }
    Ok(values)
}

/// A value, or the values of a list, in the command line's spelling.
fn texts_of(value: &Value) -> Option<Vec<String>> {
    let text_of = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(is_on) => Some(is_on.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    };
    match value {
        Value::Array(list) => list.iter().map(text_of).collect(),
        value => Some(vec![text_of(value)?]),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::args::{Arguments, Command as Chosen};
    use crate::serve_args::ServeArguments;
    use clap::FromArgMatches;

    fn serve(arguments: &[&str], variables: &[(&str, &str)]) -> Result<ServeArguments, Error> {
        let all: Vec<OsString> = ["riffle", "serve"]
            .iter()
            .chain(arguments)
            .map(OsString::from)
            .collect();
        let variable = |name: &str| {
            variables
                .iter()
                .find(|(own, _)| *own == name)
                .map(|(_, value)| (*value).to_owned())
        };
        let matches = with_sources(crate::command(), &all, variable)?.try_get_matches_from(all)?;
        match Arguments::from_arg_matches(&matches)?.command {
            Some(Chosen::Serve(arguments)) => Ok(*arguments),
            _ => unreachable!("serve is asked for"),
        }
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        file
    }

    #[test]
    fn the_command_line_counts_before_the_environment_and_that_before_the_file() {
        let file =
            file("port = 1\nparallel = 2\nmax-requests = 3\nstrict_names = true\nallow-origin = [\"a\", \"b\"]\n");
        let path = file.path().to_str().expect("a text");
        let variables = [
            ("RIFFLE_PORT", "11"),
            ("RIFFLE_PARALLEL", "12"),
            ("RIFFLE_ALIAS", "x, y"),
            ("RIFFLE_QUIET", "true"),
        ];
        let arguments = serve(&["--port", "21", "--config", path], &variables).expect("accepted");
        assert_eq!(
            (
                arguments.port,
                arguments.serving.parallel,
                arguments.serving.max_requests
            ),
            (21, 12, 3)
        );
        assert!(arguments.serving.strict_names && arguments.serving.quiet);
        assert_eq!(arguments.allow_origin, ["a", "b"]);
        assert_eq!(arguments.serving.alias, ["x", "y"]);
        let named = serve(&[], &[("RIFFLE_CONFIG", path)]).expect("accepted");
        assert_eq!(named.port, 1);
        let typed = serve(&["--allow-origin", "c"], &[("RIFFLE_CONFIG", path)]).expect("accepted");
        assert_eq!(typed.allow_origin, ["c"]);
    }

    #[test]
    fn a_file_that_is_wrong_is_refused_with_its_fault() {
        for (text, fault) in [
            ("prot = 1", "has no option \"prot\""),
            ("port = ", "line 1"),
            ("port = \"high\"", "port"),
            ("[port]\na = 1", "must be a value"),
        ] {
            let file = file(text);
            let error = serve(&["--config", file.path().to_str().expect("a text")], &[]).expect_err(text);
            let line = crate::command_line::one_line(&error);
            assert!(line.contains(fault) && !line.contains('\n'), "{line}");
        }
        assert!(serve(&["--config", "/no/such/file"], &[]).is_err());
    }

    #[test]
    fn variables_of_other_meaning_are_left_alone() {
        assert!(serve(&[], &[("RIFFLE_PREFILL", "wgmma")]).is_ok());
    }
}
