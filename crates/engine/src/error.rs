//! Failures while a model runs.

use std::path::PathBuf;

use riffle_attention::AttendError;
use riffle_device::DeviceError;
use riffle_kv::KvError;
use riffle_model::ModelError;
use riffle_policy::PolicyError;

/// Every way a run can fail; each message says what was wrong and what to do.
///
/// A message names options by their fields, in backticks: [`rename_options`](crate::rename_options) gives them the names of a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The model could not be loaded or run.
    #[error(transparent)]
    Model(ModelError),
    /// The device failed or lacks something.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The plan needs more memory than the device has free.
    #[error("{device} has {available} free and the run does not fit: {parts}; {advice}")]
    OutOfDeviceMemory {
        /// The device.
        device: String,
        /// The needs of the run, part by part.
        parts: String,
        /// The memory that is free.
        available: String,
        /// Changes with which the run would fit.
        advice: String,
    },
    /// The KV cache refused an operation.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// A policy was unknown, badly spelled or asked for a phase it does not have.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The attention kernel rejected its input: a fault in the engine, not in the user's input.
    #[error(
        "attention refuses what the engine gives it: {0}; this is a fault of riffle: report it with the command and the model"
    )]
    Attend(#[from] AttendError),
    /// An option has a value that makes no sense.
    #[error("`{name}` is {value}, but {requirement}")]
    Option {
        /// The option: a field of the options of this crate, or a parameter.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// The values that are allowed.
        requirement: String,
    },
    /// A profile that cannot be read.
    #[error("the profile cannot be used: {0}")]
    Profile(String),
    /// A sequence cannot be rolled back to a checkpoint.
    #[error(
        "a checkpoint at token {tokens} is not one that a sequence of {held} tokens can go back to: make a checkpoint before each draft"
    )]
    StaleCheckpoint {
        /// Tokens of the sequence at the checkpoint.
        tokens: usize,
        /// Tokens it holds now.
        held: usize,
    },
    /// No layer of the model attends, so there is no cache to keep.
    #[error("no layer of the model has attention: such models are not supported")]
    NoAttention,
    /// There was nothing to read.
    #[error("the prompt is empty: give at least one token of text")]
    EmptyPrompt,
    /// The prompt does not fit the context.
    #[error("{what} needs {needed} tokens, but the context holds {context}: {advice}")]
    ContextExceeded {
        /// The text that did not fit: the prompt, or the prompt and the answer.
        what: &'static str,
        /// Tokens needed.
        needed: usize,
        /// Tokens the context holds.
        context: usize,
        /// Changes with which it would fit.
        advice: String,
    },
    /// A session that another model or other options made.
    #[error(
        "session {} was saved with {what} {saved}, this run has {now}: use the same, or another session file",
        path.display()
    )]
    ForeignSession {
        /// The file.
        path: PathBuf,
        /// The part that differs: the model, or an option.
        what: String,
        /// Its value in the file.
        saved: String,
        /// Its value in this run.
        now: String,
    },
    /// A prompt that has nothing to do with the session it was given for.
    #[error(
        "session {} holds another text: its {saved} tokens and the prompt share {shared}; use another session file, or delete this one",
        path.display()
    )]
    OtherText {
        /// The file.
        path: PathBuf,
        /// Tokens of the session.
        saved: usize,
        /// Tokens that the session and the prompt begin with alike.
        shared: usize,
    },
    /// A prefix cache beside a policy that learns from the queries it sees.
    #[error(
        "`prefix_cache` cannot be used with policy {0}: this policy learns from every query of a text, and pages from the cache bring none; use another policy, or `session`"
    )]
    PrefixPolicy(String),
    /// Pages of another session for a model whose layers do not all keep keys and values.
    #[error(
        "this model cannot take over the pages of another session: its recurrent layers have a state that pages do not hold; fork the session that has read the text"
    )]
    PrefixRecurrent,
    /// A sequence that cannot be compressed.
    #[error("this session cannot be compressed: {0}")]
    NotCompressible(&'static str),
    /// A request names a session file whose sequence is not in memory.
    #[error("session {} is not in memory: restore it, then send the request again", .0.display())]
    SessionNotHeld(PathBuf),
    /// Requests that run take the room that is needed.
    #[error("there is no free memory for {0}, because other requests use it: try again when fewer requests run")]
    NoRoom(&'static str),
    /// Nothing to go on from.
    #[error("{} holds no answer to go on with: give `session` a file that a run has saved, or give a prompt", path.display())]
    NothingToContinue {
        /// The file.
        path: PathBuf,
    },
    /// A context longer than the model was made for.
    #[error(
        "`context_tokens={context}` is longer than the {maximum} positions this model was made for: use `context_tokens={maximum}` or less, or stretch them, such as by `rope_scaling=yarn:factor={}`", factor(*context, *maximum)
    )]
    ContextTooLong {
        /// Tokens asked for.
        context: usize,
        /// Positions the model supports.
        maximum: usize,
    },
    /// The plan does not fit the memory there is.
    #[error("the run needs {needed} of memory ({parts}) and {available} are free: {advice}")]
    OutOfMemory {
        /// Bytes needed, for people.
        needed: String,
        /// The parts that they go to.
        parts: String,
        /// Bytes available, for people.
        available: String,
        /// Changes with which it would fit.
        advice: String,
    },
    /// The KV tiers do not hold the context.
    #[error("keys and values of {tokens} tokens take {needed}, but {refusal}: {advice}")]
    TierTooSmall {
        /// Tokens of the context.
        tokens: usize,
        /// Bytes of its pages, for people.
        needed: String,
        /// The budget that is too small.
        refusal: String,
        /// Changes with which it would fit.
        advice: String,
    },
    /// The model has no tokenizer, so it cannot read or write text.
    #[error(
        "{0} has no tokenizer.json, tokenizer.model or tekken.json, so it can read and write no text: put the model's own there, or give token ids to riffle eval logits"
    )]
    NoTokenizer(String),
    /// An answer that cannot have the form that was asked for.
    #[error("the answer cannot be given the form that was asked for: {0}")]
    Form(String),
    /// Instructions were given, but nothing to put them in.
    #[error("`system` needs a chat template and {0} has none: put the instructions into the prompt")]
    NoChatTemplate(String),
    /// The model makes no vectors of texts.
    #[error("this model gives no vectors of texts: {0}; use a model for embeddings")]
    NoVectors(String),
    /// The model judges no documents.
    #[error("this model gives no scores of documents: {0}; use a model for reranking")]
    NoScores(String),
    /// The model predicts no tokens.
    #[error(
        "this model writes no text: it was made for vectors or scores of whole texts; ask it for these, or use a model that answers"
    )]
    NoTokens,
    /// A text that is to be read whole is longer than the model reads.
    #[error("text {number} has {tokens} tokens and the model reads {most}: shorten it")]
    TextTooLong {
        /// The place of the text among those of the call, from 0.
        number: usize,
        /// Its tokens.
        tokens: usize,
        /// Most tokens that the model reads.
        most: usize,
    },
    /// The model produced logits that are not numbers.
    #[error(
        "after {position} tokens the model computed a score that is not a number: its weights are damaged, or its numbers are too large for 16 bits; get the model again, or try `kv_type=bf16`"
    )]
    NonFiniteLogits {
        /// Tokens read before it happened.
        position: usize,
    },
    /// The caller asked to stop.
    #[error("interrupted after {tokens} of {total} tokens")]
    Interrupted {
        /// Tokens that are complete in the cache.
        tokens: usize,
        /// Tokens that were to be read or written.
        total: usize,
    },
    /// The thread pool could not be started.
    #[error("cannot start {threads} threads: {reason}; use fewer with `threads`")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// The system's reason.
        reason: String,
    },
}

/// The whole factor by which `maximum` positions reach `context`.
pub(crate) fn factor(context: usize, maximum: usize) -> usize {
    context.div_ceil(maximum.max(1)).max(2)
}

/// Why a sequence did not get through a pass. It holds what it held before, apart from `again`.
#[derive(Debug)]
pub struct Failure {
    /// The error that ended it.
    pub error: EngineError,
    /// Tokens that it has to read again, because recurrent layers could not go back to where they were; all of them where tokens
    /// that were let go could not be in an orderly way.
    pub again: Vec<u32>,
}

impl EngineError {
    pub(crate) fn option(name: &'static str, value: impl ToString, requirement: impl Into<String>) -> Self {
        Self::Option {
            name,
            value: value.to_string(),
            requirement: requirement.into(),
        }
    }
}

/// Refuses the value of an option that does not meet a requirement.
pub(crate) fn require(
    is_met: bool,
    name: &'static str,
    value: impl ToString,
    requirement: impl Into<String>,
) -> Result<(), EngineError> {
    if is_met {
        Ok(())
    } else {
        Err(EngineError::option(name, value, requirement))
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let again = Vec::new();
        Self { error, again }
    }
}

impl From<ModelError> for EngineError {
    /// A failure of the device stays one, whoever ran into it.
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Device(source) => Self::Device(DeviceError::new(source)),
            error => Self::Model(error),
        }
    }
}
