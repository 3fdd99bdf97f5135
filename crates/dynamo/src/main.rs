//! The program `riffle-dynamo`.

use std::process::ExitCode;
use std::sync::Arc;

use dynamo_backend_common::DynamoError;
use riffle_cli::Failure;
use riffle_dynamo::Arguments;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run() -> Result<(), Failure> {
    let arguments: Arguments = riffle_cli::arguments_of(std::env::args_os())?;
    let (worker, config) = arguments.worker()?;
    let ended = dynamo_backend_common::run(Arc::new(worker), config);
    ended.map_err(|error| match error.downcast_ref::<DynamoError>() {
        // The message without the category that Dynamo writes before it.
        Some(error) => Failure::new(error.message()),
        None => Failure::new(error),
    })
}
