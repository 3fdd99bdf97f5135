//! Errors of a conversation.

use std::path::PathBuf;

use riffle_engine::EngineError;
use riffle_files::FileError;
use riffle_kv::KvError;
use riffle_model::ModelError;
use riffle_policy::PolicyError;

/// Errors of a conversation's steps. The conversation can continue after each of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(EngineError),
    /// The conversation no longer fits the context.
    #[error("{refusal}; or take back the last turn (/undo) or begin anew (/clear). The message was not read")]
    ContextFull {
        /// The engine's error: the part that does not fit, and the options that would make it fit.
        refusal: EngineError,
    },
    /// No turn, document or branch exists for this step.
    #[error("there is nothing to {0} yet")]
    Nothing(&'static str),
    /// A message without text.
    #[error("the message is empty")]
    EmptyMessage,
    /// The folder of kept pages cannot be used.
    #[error("{0}; choose another folder with `keep`, or leave it out")]
    Keep(KvError),
    /// An option of the engine that conflicts with a conversation.
    #[error("{0}")]
    Option(&'static str),
    /// No branch has this name.
    #[error("there is no branch {name:?}; there are {known}")]
    NoBranch {
        /// The unknown name.
        name: String,
        /// The known names.
        known: String,
    },
    /// The name of a branch is taken.
    #[error("there is a branch {0:?} already: use another name")]
    BranchExists(String),
    /// Too many branches.
    #[error("a conversation has at most {0} branches: remove one with /drop NAME")]
    TooManyBranches(usize),
    /// The current branch cannot be removed.
    #[error("{0:?} is the branch you are in: /switch to another first")]
    CurrentBranch(String),
    /// A file of a conversation cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file of a conversation cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: FileError,
    },
    /// A file holds no conversation.
    #[error("{} holds no saved conversation ({problem}): give a file that /save wrote", path.display())]
    NotAConversation {
        /// The file.
        path: PathBuf,
        /// The problem with the file.
        problem: String,
    },
}

impl ChatError {
    /// True if the caller asked to stop.
    pub fn is_interrupted(&self) -> bool {
        matches!(
            self,
            Self::Engine(EngineError::Interrupted { .. } | EngineError::Model(ModelError::TemplateInterrupted { .. }))
        )
    }
}

impl From<EngineError> for ChatError {
    fn from(error: EngineError) -> Self {
        match error {
            refusal @ EngineError::ContextExceeded { .. } => Self::ContextFull { refusal },
            error => Self::Engine(error),
        }
    }
}

impl From<ModelError> for ChatError {
    fn from(error: ModelError) -> Self {
        Self::Engine(error.into())
    }
}

impl From<PolicyError> for ChatError {
    fn from(error: PolicyError) -> Self {
        Self::Engine(error.into())
    }
}
