//! The `riffle` command: it parses, calls the libraries and prints.
//!
//! Exit statuses: 0 when everything asked for was done, or when the reader of standard output went away; 1 for a value, a
//! file or a model that is refused and for a run that fails; 2 for arguments that the command does not have; 130 after
//! Ctrl-C. A failure is one line on standard error.
//!
//! A program that serves a model in another way than over HTTP takes the options of `riffle serve` from here: see [`ServingArguments`].

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod ask_args;
mod bench_args;
mod chat_args;
mod command_line;
mod commands;
mod console;
mod device;
mod engine_args;
mod eval_args;
mod failure;
mod flags;
mod help;
mod hub_args;
mod interrupt;
mod keep_args;
mod launch_args;
mod llama_cpp;
mod model;
mod numbers;
mod option_sources;
mod prefix_cache;
mod progress;
mod quantize_args;
mod reading_line;
mod serve_args;
mod serving_args;
mod shipped;
mod shown;
mod unused;
mod user_folders;
mod wrap;

use std::ffi::OsString;
use std::process::ExitCode;

use args::Command;

pub use command_line::command;
pub use failure::Failure;
pub use serving_args::ServingArguments;

/// Runs the process's arguments to the end.
pub fn main() -> ExitCode {
    let arguments = match command_line::parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => return command_line::end(&error),
    };
    if let Err(failure) = interrupt::outlive_file_size_limit() {
        return failure.report();
    }
    let result = match arguments.command {
        None => commands::demo::demo(arguments.dense),
        Some(Command::Ask(arguments)) => commands::ask::ask(&arguments),
        Some(Command::Run(arguments)) => commands::run::run(&arguments),
        Some(Command::Chat(arguments)) => commands::chat::chat(&arguments),
        Some(Command::Serve(arguments)) => commands::serve::serve(&arguments),
        Some(Command::Launch(arguments)) => commands::launch::launch(&arguments),
        Some(Command::Plan(arguments)) => commands::plan::plan(&arguments),
        Some(Command::Inspect(arguments)) => commands::inspect::inspect(&arguments),
        Some(Command::Tokenize(arguments)) => commands::tokenize::tokenize(&arguments),
        Some(Command::Policies(arguments)) => commands::policies::policies(&arguments),
        Some(Command::Calibrate(arguments)) => commands::calibrate::calibrate(&arguments),
        Some(Command::Quantize(arguments)) => commands::quantize::quantize(&arguments),
        Some(Command::Session(arguments)) => commands::session::session(&arguments),
        Some(Command::Eval(arguments)) => commands::eval::eval(&arguments),
        Some(Command::Bench(arguments)) => commands::bench::bench(&arguments),
        Some(Command::Pull(arguments)) => commands::pull::pull(&arguments),
        Some(Command::List(arguments)) => commands::list::list(&arguments),
        Some(Command::Rm(arguments)) => commands::rm::rm(&arguments),
        Some(Command::Completions(arguments)) => commands::completions::completions(&arguments),
        Some(Command::Man(arguments)) => commands::completions::man(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Parses the arguments of another program that serves a model, its name first: in the words and with the spellings of `riffle`.
///
/// # Errors
/// For arguments that are refused. A request for help or for the version also fails, with no message: the answer was printed.
pub fn arguments_of<A: clap::Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<A, Failure> {
    command_line::parse_of(arguments)
}

/// The line with which these arguments, the program's name first, are refused before anything is read; `None` where they
/// are accepted so far.
pub fn refusal(arguments: impl IntoIterator<Item = OsString>) -> Option<String> {
    let error = command_line::parse(arguments).err()?;
    if command_line::asks_for_help(&error) {
        return None;
    }
    Some(Failure::usage(&error).to_string())
}
