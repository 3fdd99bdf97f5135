//! Errors as Python exceptions: the classes of `riffle.errors` with the messages that the command prints.

use pyo3::prelude::*;
use riffle_attention::AttendError;
use riffle_engine::{EngineError, rename_options};
use riffle_eval::EvalError;
use riffle_hub::HubError;
use riffle_kv::KvError;
use riffle_model::ModelError;
use riffle_policy::PolicyError;

/// The reason for a failed call.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A class of `riffle.errors` and its message.
    Riffle(Class, String),
    /// An exception that Python raised.
    Python(PyErr),
}

/// The classes of `riffle.errors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Riffle,
    Array,
    Cache,
    Closed,
    ContextExceeded,
    Internal,
    Interrupted,
    Model,
    Option,
    OutOfMemory,
    Policy,
    Process,
    Session,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Self::Riffle => "RiffleError",
            Self::Array => "ArrayError",
            Self::Cache => "CacheError",
            Self::Closed => "ClosedError",
            Self::ContextExceeded => "ContextExceededError",
            Self::Internal => "InternalError",
            Self::Interrupted => "InterruptedError",
            Self::Model => "ModelError",
            Self::Option => "OptionError",
            Self::OutOfMemory => "OutOfMemoryError",
            Self::Policy => "PolicyError",
            Self::Process => "ProcessError",
            Self::Session => "SessionError",
        }
    }
}

/// A message with the package's keyword arguments in place of option fields.
fn in_keywords(message: &str) -> String {
    const KEYWORDS: [(&str, &str); 11] = [
        ("auto_target", "auto"),
        ("context_tokens", "context"),
        ("device_budget_bytes", "kv_device"),
        ("disk.budget_bytes", "kv_disk_bytes"),
        ("disk.folder", "kv_disk"),
        ("memory_budget_bytes", "memory"),
        ("ram_budget_bytes", "kv_ram"),
        ("rotate", "kv_rotate"),
        ("token_selection", "select_tokens"),
        ("weights_budget_bytes", "weights_ram"),
        ("window_tokens", "window"),
    ];
    let renamed = rename_options(message, |field, value| {
        let keyword = KEYWORDS.iter().find(|(name, _)| *name == field)?.1;
        Some(value.map_or(format!("`{keyword}`"), |value| format!("`{keyword}={value}`")))
    });
    renamed.into_owned()
}

impl Failure {
    /// A failure of this class.
    pub(crate) fn new(class: Class, message: impl Into<String>) -> Self {
        Self::Riffle(class, in_keywords(&message.into()))
    }

    /// An option with an invalid value.
    pub(crate) fn option(message: impl Into<String>) -> Self {
        Self::new(Class::Option, message)
    }

    /// An array of a wrong shape, type or device.
    pub(crate) fn array(message: impl Into<String>) -> Self {
        Self::new(Class::Array, message)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let (class, message) = match failure {
            Failure::Python(error) => return error,
            Failure::Riffle(class, message) => (class, message),
        };
        Python::attach(|py| {
            let raised = py
                .import("riffle.errors")
                .and_then(|module| module.getattr(class.name()))
                .and_then(|class| class.call1((message,)));
            raised.map_or_else(|error| error, PyErr::from_value)
        })
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let class = match &error {
            EngineError::Model(_) | EngineError::NoTokenizer(_) | EngineError::NoChatTemplate(_) => Class::Model,
            EngineError::NonFiniteLogits { .. } => Class::Model,
            EngineError::OutOfMemory { .. }
            | EngineError::OutOfDeviceMemory { .. }
            | EngineError::TierTooSmall { .. }
            | EngineError::NoRoom(_) => Class::OutOfMemory,
            EngineError::Kv(_) => Class::Cache,
            EngineError::Policy(_) => Class::Policy,
            EngineError::ContextExceeded { .. } => Class::ContextExceeded,
            EngineError::Option { .. }
            | EngineError::Profile(_)
            | EngineError::ContextTooLong { .. }
            | EngineError::EmptyPrompt
            | EngineError::Form(_)
            | EngineError::Threads { .. } => Class::Option,
            EngineError::ForeignSession { .. }
            | EngineError::OtherText { .. }
            | EngineError::NotCompressible(_)
            | EngineError::SessionNotHeld(_)
            | EngineError::NothingToContinue { .. }
            | EngineError::StaleCheckpoint { .. } => Class::Session,
            EngineError::Interrupted { .. } => Class::Interrupted,
            _ => Class::Riffle,
        };
        Self::new(class, error.to_string())
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Self::new(Class::Model, error.to_string())
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self::new(Class::Model, error.to_string())
    }
}

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        Self::new(Class::Policy, error.to_string())
    }
}

impl From<KvError> for Failure {
    fn from(error: KvError) -> Self {
        Self::new(Class::Cache, error.to_string())
    }
}

impl From<AttendError> for Failure {
    fn from(error: AttendError) -> Self {
        Self::new(Class::Array, error.to_string())
    }
}

impl From<EvalError> for Failure {
    fn from(error: EvalError) -> Self {
        match error {
            EvalError::Engine(error) => error.into(),
            error => Self::new(Class::Riffle, error.to_string()),
        }
    }
}
