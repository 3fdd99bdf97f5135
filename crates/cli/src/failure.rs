//! Failures of a command.

use std::fmt::{self, Display};
use std::io;
use std::process::ExitCode;

use riffle_ask::AskError;
use riffle_chat::ChatError;
use riffle_demo::DemoError;
use riffle_documents::DocumentError;
use riffle_engine::EngineError;
use riffle_eval::EvalError;
use riffle_hub::HubError;
use riffle_model::ModelError;
use riffle_quantize::QuantizeError;
use riffle_server::ServerError;

use crate::{command_line, console, flags, shown};

/// One line for the user and an exit status. An empty line prints no message.
#[derive(Debug)]
pub struct Failure {
    message: String,
    status: u8,
}

impl Failure {
    /// Exit status after Ctrl-C, as shells expect.
    pub(crate) const INTERRUPTED: u8 = 130;

    /// Exit status for unknown arguments.
    pub(crate) const MISSPELLED: u8 = 2;

    /// Creates a failure with exit status 1. The message becomes one line; names of library options become flags.
    pub fn new(message: impl Display) -> Self {
        let message = shown::line(&flags::typed(&message.to_string()));
        Self { message, status: 1 }
    }

    pub(crate) fn interrupted(message: impl Display) -> Self {
        Self {
            status: Self::INTERRUPTED,
            ..Self::new(message)
        }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.status == Self::INTERRUPTED
    }

    /// Adds a hint for the next step, if the run was interrupted.
    pub(crate) fn with_hint(mut self, hint: &str) -> Self {
        if self.is_interrupted() {
            self.message += &format!("; {hint}");
        }
        self
    }

    /// Refused arguments.
    pub(crate) fn usage(error: &clap::Error) -> Self {
        let failure = Self::new(command_line::one_line(error));
        if command_line::refuses_a_value(error) {
            failure
        } else {
            Self {
                status: Self::MISSPELLED,
                ..failure
            }
        }
    }

    /// An end without a message, with the exit status of success.
    pub(crate) fn quiet() -> Self {
        Self {
            message: String::new(),
            status: 0,
        }
    }

    /// Standard output failed. A closed reader such as `head` is not an error.
    pub(crate) fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::quiet();
        }
        Self::new(format!("cannot write to standard output: {error}"))
    }

    /// The line without the program's name.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Prints the message on standard error, and returns the exit status of the process.
    pub fn report(self) -> ExitCode {
        if !self.message.is_empty() {
            console::note(&self);
        }
        ExitCode::from(self.status)
    }
}

impl std::error::Error for Failure {}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "riffle: {}", self.message)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Model(error) => error.into(),
            EngineError::Interrupted { .. } => Self::interrupted(error),
            EngineError::EmptyPrompt => {
                Self::new(format!("{error}, with --prompt TEXT, --file FILE or through a pipe"))
            }
            error => Self::new(error),
        }
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Engine(error) => error.into(),
            AskError::Keep(_) => Self::new(format!("{error} with --no-keep")),
            error => Self::new(error),
        }
    }
}

impl From<ChatError> for Failure {
    fn from(error: ChatError) -> Self {
        match error {
            ChatError::Engine(error) => error.into(),
            ChatError::Keep(_) => Self::new(format!("{error} with --no-keep")),
            error => Self::new(error),
        }
    }
}

impl From<DemoError> for Failure {
    fn from(error: DemoError) -> Self {
        match error {
            DemoError::Engine(error) => error.into(),
            DemoError::Interrupted => Self::interrupted(error),
            error => Self::new(error),
        }
    }
}

impl From<DocumentError> for Failure {
    fn from(error: DocumentError) -> Self {
        Self::new(error)
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

impl From<QuantizeError> for Failure {
    fn from(error: QuantizeError) -> Self {
        match error {
            QuantizeError::Model(error) => error.into(),
            QuantizeError::Interrupted => Self::interrupted(error),
            error => Self::new(error),
        }
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Engine(error) => error.into(),
            error => Self::new(error),
        }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        match error {
            HubError::Interrupted => Self::interrupted(error),
            error => Self::new(error),
        }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::TemplateInterrupted { .. } | ModelError::TokenizeInterrupted => Self::interrupted(error),
            ModelError::NotFound { path } => Self::new(format!(
                "{}: no such file or folder; check the path, or give the name of a model: riffle list shows those that are here, riffle pull gets one",
                path.display()
            )),
            ModelError::UnknownArchitecture { .. } => Self::new(format!("{error}; choose a model of one of these")),
            error => Self::new(error),
        }
    }
}
