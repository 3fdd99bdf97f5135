//! The `riffle` command: parses arguments, calls the libraries and prints.
//!
//! Exit statuses: 0 for success, or if the reader of standard output closed it; 1 for a refused value, file or model,
//! and for a failed run; 2 for unknown arguments; 130 after Ctrl-C. A failure is one line on standard error.
//!
//! A program that serves a model without HTTP can reuse the options of `riffle serve`: see [`ServingArguments`].

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

/// Parses the arguments of another program that serves a model, its name first, with `riffle`'s messages and
/// spellings.
///
/// # Errors
/// Refused arguments. A request for help or for the version also fails, without a message, after printing it.
pub fn arguments_of<A: clap::Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<A, Failure> {
    command_line::parse_of(arguments)
}

/// The error line for these arguments, the program's name first, before any file is read; `None` if they are valid so
/// far.
pub fn refusal(arguments: impl IntoIterator<Item = OsString>) -> Option<String> {
    let error = command_line::parse(arguments).err()?;
    if command_line::asks_for_help(&error) {
        return None;
    }
    Some(Failure::usage(&error).to_string())
}
