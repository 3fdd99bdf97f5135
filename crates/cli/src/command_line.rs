//! Parses the command line.

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use riffle_ask::Given;

use crate::args::{Arguments, Command};
use crate::failure::Failure;
use crate::model::NamedModel;
use crate::{help, llama_cpp, option_sources};

/// Every command with its arguments, for clap.
pub fn command() -> clap::Command {
    take_negative_numbers(help::laid_out(Arguments::command()))
}

/// Accepts `-1` as an option's value, so that the error is about its range.
fn take_negative_numbers(command: clap::Command) -> clap::Command {
    command
        .mut_args(|argument| {
            if argument.get_action().takes_values() {
                argument.allow_negative_numbers(true)
            } else {
                argument
            }
        })
        .mut_subcommands(take_negative_numbers)
}

/// Parses arguments, the program's name first.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let arguments: Vec<OsString> = llama_cpp::spelled_for_clap(arguments).collect();
    let command = option_sources::with_sources(command(), &arguments, |name| std::env::var(name).ok())?;
    let matches = command.try_get_matches_from(arguments)?;
    let mut parsed = Arguments::from_arg_matches(&matches)?;
    match (&mut parsed.command, matches.subcommand()) {
        (Some(Command::Ask(ask)), Some((_, matches))) => ask.given = given(matches),
        (Some(Command::Chat(chat)), Some((_, matches))) => chat.given = given(matches),
        (Some(Command::Serve(serve)), Some((_, matches))) => {
            let models = matches.get_many::<NamedModel>("model");
            serve.models = models.into_iter().flatten().cloned().collect();
        }
        _ => {}
    }
    Ok(parsed)
}

/// The typed options that conversations about documents would otherwise select.
fn given(matches: &ArgMatches) -> Given {
    let typed = |names: &[&str]| {
        let mut names = names.iter();
        names.any(|name| matches.value_source(name) == Some(ValueSource::CommandLine))
    };
    Given {
        format: typed(&["kv_type", "cache_type_k", "cache_type_v"]),
        context: typed(&["ctx"]),
        prefill: typed(&["prefill", "profile", "auto", "h2o_local", "h2o_heavy"]),
        decode: typed(&["decode", "profile"]),
    }
}

/// Parses the arguments of another program, its name first, like `riffle`'s: with llama.cpp's spellings and one-line
/// errors. Requested help is printed, and the failure then has no message.
pub(crate) fn parse_of<A: CommandFactory + FromArgMatches>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<A, Failure> {
    let matches = take_negative_numbers(A::command()).try_get_matches_from(llama_cpp::spelled_for_clap(arguments));
    let parsed = matches.and_then(|matches| A::from_arg_matches(&matches));
    parsed.map_err(|error| {
        if asks_for_help(&error) {
            print_help(&error)
        } else {
            Failure::usage(&error)
        }
    })
}

/// Prints the requested help or version. The failure has no message, unless standard output fails.
fn print_help(error: &clap::Error) -> Failure {
    match error.print().and_then(|()| io::stdout().flush()) {
        Ok(()) => Failure::quiet(),
        Err(error) => Failure::output(&error),
    }
}

/// Ends a process with refused arguments, or after help.
pub(crate) fn end(error: &clap::Error) -> ExitCode {
    match error.kind() {
        _ if asks_for_help(error) => print_help(error).report(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // If help cannot be written, no other output is possible.
            let _ = error.print();
            ExitCode::from(Failure::MISSPELLED)
        }
        _ => Failure::usage(error).report(),
    }
}

/// True if the arguments are valid and request help or the version.
pub(crate) fn asks_for_help(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

/// True if a value was refused; false for an unknown argument or a missing value.
pub(crate) fn refuses_a_value(error: &clap::Error) -> bool {
    error.kind() == ErrorKind::ValueValidation
}

/// The fault of the arguments, in a line.
pub(crate) fn one_line(error: &clap::Error) -> String {
    if let Some(line) = refused_value(error).or_else(|| llama_cpp::refusal(error)) {
        return line;
    }
    let text = error.to_string();
    let usage = text.lines().find_map(|line| line.trim().strip_prefix("Usage: "));
    let command = usage.map(|usage| {
        let words = usage
            .split(' ')
            .take_while(|word| !word.starts_with(['-', '[', '<', '\'']));
        words.collect::<Vec<_>>().join(" ")
    });
    let message = in_our_words(error, command.as_deref()).unwrap_or_else(|| in_words_of_clap(&text));
    match command {
        Some(command) => format!("{message}; see {command} --help"),
        None => message,
    }
}

/// The fault and its remedy, for mistakes for which clap names only the fault.
fn in_our_words(error: &clap::Error, command: Option<&str>) -> Option<String> {
    let texts = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    if let (ErrorKind::InvalidSubcommand, [word]) = (error.kind(), &texts(ContextKind::InvalidSubcommand)[..]) {
        return unknown_command(word, command.unwrap_or("riffle"));
    }
    let arguments = texts(ContextKind::InvalidArg);
    let first = arguments.first()?;
    match error.kind() {
        ErrorKind::MissingRequiredArgument => {
            // The line begins with the name of the program.
            let command = command.map(|command| command.strip_prefix("riffle ").unwrap_or(command));
            Some(format!(
                "{} needs {}",
                command.unwrap_or("the command"),
                arguments.join(" and ")
            ))
        }
        ErrorKind::UnknownArgument if !first.starts_with('-') => Some(stray_word(first, command)),
        ErrorKind::UnknownArgument if command == Some("riffle") => Some(format!(
            "'{first}' needs a command before it, such as riffle run or riffle ask"
        )),
        ErrorKind::UnknownArgument if matches!(&first[..], "--model" | "-m") => {
            let usage = command?;
            let of_usage = command_of(usage)?;
            let value = of_usage.get_positionals().next()?.get_id().as_str().to_uppercase();
            Some(format!("{usage} takes {value} without {first}"))
        }
        ErrorKind::ArgumentConflict => {
            let other = texts(ContextKind::PriorArg);
            (!other.is_empty()).then(|| {
                format!(
                    "'{first}' cannot be used with '{}': leave one of them out",
                    other.join("' and '")
                )
            })
        }
        ErrorKind::InvalidValue => {
            let (value, choices) = (texts(ContextKind::InvalidValue), texts(ContextKind::ValidValue));
            let value = value.first().filter(|_| !choices.is_empty())?;
            Some(format!(
                "{} is {value}, but it must be one of {}",
                named(first),
                choices.join(", ")
            ))
        }
        _ => None,
    }
}

/// The remedy for a word that belongs to no option. Commands that read a text take it from an option.
fn stray_word(word: &str, usage: Option<&str>) -> String {
    let reads_text = usage
        .and_then(command_of)
        .is_some_and(|command| command.get_arguments().any(|argument| argument.get_id() == "prompt"));
    if reads_text {
        format!(
            "'{word}' stands behind no option: give a text in quotes with --prompt, a file with --file, a model with --model"
        )
    } else {
        format!(
            "'{word}' stands behind no option; options begin with a dash, and a value of several words needs quotes"
        )
    }
}

/// The most similar commands of `riffle`, or of the command that `usage` names; `None` if none is similar.
fn unknown_command(word: &str, usage: &str) -> Option<String> {
    let command = command_of(usage)?;
    let names = command.get_subcommands().filter(|command| !command.is_hide_set());
    let distances = names.map(|command| (strsim::osa_distance(word, command.get_name()), command.get_name()));
    let similar: Vec<_> = distances
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4)
        .collect();
    let (least, _) = similar.iter().min()?;
    let names = similar.iter().filter(|(distance, _)| distance == least);
    let names: Vec<_> = names.map(|(_, name)| format!("{usage} {name}")).collect();
    Some(format!(
        "'{word}' is no command; a similar command is {}",
        names.join(" or ")
    ))
}

/// The command of words such as `riffle eval needle`.
fn command_of(words: &str) -> Option<clap::Command> {
    let mut names = words.split(' ').skip(1);
    names.try_fold(command(), |command, name| command.find_subcommand(name).cloned())
}

/// Clap's message as one line, without the usage.
fn in_words_of_clap(text: &str) -> String {
    let is_behind = |line: &&str| line.starts_with("Usage:") || line.starts_with("For more information");
    let mut message = String::new();
    let is_advice = |line: &&str| !line.is_empty() && !line.starts_with("tip: to pass '");
    let lines = text.lines().map(str::trim).filter(is_advice);
    for line in lines.take_while(|line| !is_behind(line)) {
        let line = line.strip_prefix("error: ").unwrap_or(line);
        let (between, line) = match line.strip_prefix("tip: ") {
            _ if message.is_empty() => ("", line),
            Some(tip) => ("; ", tip),
            None if message.ends_with(':') || line.starts_with('[') => (" ", line),
            None => (", ", line),
        };
        message += between;
        message += line;
    }
    message
}

/// The name of an argument. Clap puts the name of a word without an option in brackets.
fn named(argument: &str) -> &str {
    match argument.strip_prefix(['[', '<']) {
        Some(name) => name.trim_end_matches([']', '>', '.']),
        None => argument,
    }
}

/// The error for a value out of range, as the library words it.
fn refused_value(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (Some(argument), Some(value), Some(why)) = (
        text(ContextKind::InvalidArg),
        text(ContextKind::InvalidValue),
        error.source(),
    ) else {
        return None;
    };
    let argument = named(argument.split(' ').next().unwrap_or(argument));
    let value = if value.is_empty() || value.contains(|c: char| c.is_whitespace() || c.is_control()) {
        format!("{value:?}")
    } else {
        value.to_owned()
    };
    Some(format!("{argument} is {value}, but {why}"))
}
