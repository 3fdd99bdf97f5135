//! How a command ends when it does not succeed.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use riffle_engine::EngineError;
use riffle_eval::EvalError;

/// One line for the user and an exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    status: u8,
}

/// Exit status after Ctrl-C, as shells expect it.
const INTERRUPTED: u8 = 130;

impl Failure {
    pub(crate) fn new(message: impl Display) -> Self {
        // One line, whatever a library's message holds.
        let message = message.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        Self { message, status: 1 }
    }

    pub(crate) fn interrupted(message: impl Display) -> Self {
        Self {
            status: INTERRUPTED,
            ..Self::new(message)
        }
    }

    /// The same with what to do next, where the run was interrupted.
    pub(crate) fn with_hint(mut self, hint: &str) -> Self {
        if self.status == INTERRUPTED {
            self.message += &format!("; {hint}");
        }
        self
    }

    /// Standard output could not be written, most often because its reader has gone.
    pub(crate) fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::new("standard output was closed by its reader: stopped writing")
        } else {
            Self::new(format!("cannot write to standard output: {error}"))
        }
    }

    pub(crate) fn report(self) -> ExitCode {
        eprintln!("riffle: {}", self.message);
        ExitCode::from(self.status)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Interrupted { .. } => Self::interrupted(error),
            error => Self::new(error),
        }
    }
}

impl From<EvalError> for Failure {
    fn from(error: EvalError) -> Self {
        match error {
            EvalError::Engine(error) => error.into(),
            EvalError::Interrupted { .. } => Self::interrupted(error),
            error => Self::new(error),
        }
    }
}

impl From<riffle_model::ModelError> for Failure {
    fn from(error: riffle_model::ModelError) -> Self {
        Self::new(error)
    }
}
