//! The `riffle` command: it parses, calls the libraries and prints.

mod args;
mod bench_args;
mod commands;
mod eval_args;
mod failure;
mod interrupt;
mod progress;
mod shipped;

use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse_from(args::spelled_for_clap(std::env::args_os()));
    let result = match arguments.command {
        None => commands::demo::demo(),
        Some(Command::Run(arguments)) => commands::run::run(&arguments),
        Some(Command::Plan(arguments)) => commands::plan::plan(&arguments),
        Some(Command::Inspect(arguments)) => commands::inspect::inspect(&arguments),
        Some(Command::Policies(arguments)) => commands::policies::policies(&arguments),
        Some(Command::Calibrate(arguments)) => commands::calibrate::calibrate(&arguments),
        Some(Command::Eval(arguments)) => commands::eval::eval(&arguments),
        Some(Command::Bench(arguments)) => commands::bench::bench(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
