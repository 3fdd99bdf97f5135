//! Errors of a running model.

use std::path::PathBuf;

use riffle_attention::AttendError;
use riffle_device::DeviceError;
use riffle_kv::KvError;
use riffle_model::ModelError;
use riffle_policy::PolicyError;

/// Errors of a run. Each message gives the fault and the remedy.
///
/// Messages name options by their fields, in backticks; [`rename_options`](crate::rename_options) replaces them by a
/// program's names.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The model could not be loaded or run.
    #[error(transparent)]
    Model(ModelError),
    /// The device failed or lacks something.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The plan needs more than the device's free memory.
    #[error("{device} has {available} free and the run does not fit: {parts}; {advice}")]
    OutOfDeviceMemory {
        /// The device.
        device: String,
        /// The memory needs of the run, part by part.
        parts: String,
        /// The free memory.
        available: String,
        /// Changes that would make the run fit.
        advice: String,
    },
    /// The KV cache refused an operation.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// A policy is unknown, misspelt or does not support the phase.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The attention kernel rejected its input: a fault in the engine, not in the user's input.
    #[error(
        "attention refuses what the engine gives it: {0}; this is a fault of riffle: report it with the command and the model"
    )]
    Attend(#[from] AttendError),
    /// An option has an invalid value.
    #[error("`{name}` is {value}, but {requirement}")]
    Option {
        /// The option: a field of this crate's options, or a parameter.
        name: &'static str,
        /// The given value.
        value: String,
        /// The allowed values.
        requirement: String,
    },
    /// An unreadable profile.
    #[error("the profile cannot be used: {0}")]
    Profile(String),
    /// A sequence cannot be rolled back to a checkpoint.
    #[error(
        "a checkpoint at token {tokens} is not one that a sequence of {held} tokens can go back to: make a checkpoint before each draft"
    )]
    StaleCheckpoint {
        /// Tokens of the sequence at the checkpoint.
        tokens: usize,
        /// Tokens that the session holds now.
        held: usize,
    },
    /// No layer of the model attends, so there is no cache to store.
    #[error("no layer of the model has attention: such models are not supported")]
    NoAttention,
    /// The prompt is empty.
    #[error("the prompt is empty: give at least one token of text")]
    EmptyPrompt,
    /// The prompt does not fit the context.
    #[error("{what} needs {needed} tokens, but the context holds {context}: {advice}")]
    ContextExceeded {
        /// The text that did not fit: the prompt, or prompt and answer.
        what: &'static str,
        /// Tokens needed.
        needed: usize,
        /// Tokens the context holds.
        context: usize,
        /// Changes that would make it fit.
        advice: String,
    },
    /// A session of another model or other options.
    #[error(
        "session {} was saved with {what} {saved}, this run has {now}: use the same, or another session file",
        path.display()
    )]
    ForeignSession {
        /// The file.
        path: PathBuf,
        /// The part that differs: the model, or an option.
        what: String,
        /// Value of the setting in the file.
        saved: String,
        /// Value of the setting in this run.
        now: String,
    },
    /// A prompt that does not match the session's text.
    #[error(
        "session {} holds another text: its {saved} tokens and the prompt share {shared}; use another session file, or delete this one",
        path.display()
    )]
    OtherText {
        /// The file.
        path: PathBuf,
        /// Tokens of the session.
        saved: usize,
        /// Number of leading tokens that session and prompt share.
        shared: usize,
    },
    /// A prefix cache with a policy that learns from its queries.
    #[error(
        "`prefix_cache` cannot be used with policy {0}: this policy learns from every query of a text, and pages from the cache bring none; use another policy, or `session`"
    )]
    PrefixPolicy(String),
    /// Pages of another session for a model in which some layers have no keys and values.
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
    /// Running requests use the memory that is needed.
    #[error("there is no free memory for {0}, because other requests use it: try again when fewer requests run")]
    NoRoom(&'static str),
    /// There is nothing to continue from.
    #[error("{} holds no answer to go on with: give `session` a file that a run has saved, or give a prompt", path.display())]
    NothingToContinue {
        /// The file.
        path: PathBuf,
    },
    /// A context longer than the model supports.
    #[error(
        "`context_tokens={context}` is longer than the {maximum} positions this model was made for: use `context_tokens={maximum}` or less, or stretch them{}", stretch_advice(*context, *maximum)
    )]
    ContextTooLong {
        /// Requested tokens.
        context: usize,
        /// Positions the model supports.
        maximum: usize,
    },
    /// The plan exceeds the available memory.
    #[error("the run needs {needed} of memory ({parts}) and {available} are free: {advice}")]
    OutOfMemory {
        /// Bytes needed, for people.
        needed: String,
        /// The parts that need the memory.
        parts: String,
        /// Bytes available, for people.
        available: String,
        /// Changes that would make it fit.
        advice: String,
    },
    /// The context does not fit in the KV tiers.
    #[error("keys and values of {tokens} tokens take {needed}, but {refusal}: {advice}")]
    TierTooSmall {
        /// Tokens of the context.
        tokens: usize,
        /// Bytes of the tier's pages, formatted.
        needed: String,
        /// The budget that is too small.
        refusal: String,
        /// Changes that would make it fit.
        advice: String,
    },
    /// The model has no tokenizer, so it cannot read or write text.
    #[error("{0} has no {missing}, or give token ids to riffle eval logits", missing = missing_tokenizer(.0))]
    NoTokenizer(String),
    /// An answer cannot have the requested form.
    #[error("the answer cannot be given the form that was asked for: {0}")]
    Form(String),
    /// Instructions were given, but the model has no template for them.
    #[error("`system` needs a chat template and {0} has none: put the instructions into the prompt")]
    NoChatTemplate(String),
    /// The model makes no vectors of texts.
    #[error("this model gives no vectors of texts: {0}; use a model for embeddings")]
    NoVectors(String),
    /// The model cannot score documents.
    #[error("this model gives no scores of documents: {0}; use a model for reranking")]
    NoScores(String),
    /// The model predicts no tokens.
    #[error(
        "this model writes no text: it was made for vectors or scores of whole texts; ask it for these, or use a model that answers"
    )]
    NoTokens,
    /// A text is longer than the model reads.
    #[error("text {number} has {tokens} tokens and the model reads {most}: shorten it")]
    TextTooLong {
        /// The index of the text in the call, from 0.
        number: usize,
        /// Tokens of the text.
        tokens: usize,
        /// Maximum number of tokens that the model reads.
        most: usize,
    },
    /// The model produced NaN or infinite logits.
    #[error(
        "after {position} tokens the model computed a score that is not a number: its weights are damaged, or its numbers are too large for 16 bits; get the model again, or try `kv_type=bf16`"
    )]
    NonFiniteLogits {
        /// Tokens read before.
        position: usize,
    },
    /// The caller stopped the run.
    #[error("interrupted after {tokens} of {total} tokens")]
    Interrupted {
        /// Tokens completely in the cache.
        tokens: usize,
        /// Tokens to read or generate.
        total: usize,
    },
    /// The thread pool could not be started.
    #[error("cannot start {threads} threads: {reason}; use fewer with `threads`")]
    Threads {
        /// Requested threads.
        threads: usize,
        /// The system's reason.
        reason: String,
    },
}

/// Limit on stretching, as a multiple of the model's positions; beyond it, answers become worse.
const MOST_STRETCH: usize = 4;

/// The integer factor by which `maximum` positions of a model reach `context` tokens. `None` if the model has enough
/// positions, or if the factor would exceed 4.
pub fn stretch_factor(context: usize, maximum: usize) -> Option<usize> {
    let factor = context.div_ceil(maximum.max(1));
    (2..=MOST_STRETCH).contains(&factor).then_some(factor)
}

/// The options that stretch `maximum` positions to `context`, or to the longest context that is advisable.
pub(crate) fn stretch_advice(context: usize, maximum: usize) -> String {
    match stretch_factor(context, maximum) {
        Some(factor) => format!(" by `rope_scaling=yarn:factor={factor}` `context_tokens={context}`"),
        None => format!(
            " to at most {longest} by `rope_scaling=yarn:factor={MOST_STRETCH}` `context_tokens={longest}`",
            longest = maximum.saturating_mul(MOST_STRETCH)
        ),
    }
}

/// The reason a sequence did not complete a pass. The sequence is unchanged, apart from `again`.
#[derive(Debug)]
pub struct Failure {
    /// The error of the pass.
    pub error: EngineError,
    /// Tokens that the sequence must read again, because recurrent layers could not return to their earlier state. All
    /// tokens, if an eviction failed.
    pub again: Vec<u32>,
}

/// The tokenizer that a model of this path lacks, and the remedy.
fn missing_tokenizer(path: &str) -> &'static str {
    if path.ends_with(".gguf") {
        "tokenizer in its metadata, so it can read and write no text: use a file with one"
    } else {
        "tokenizer.json, tokenizer.model or tekken.json, so it can read and write no text: put the model's own there"
    }
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

/// Checks that an option's value meets a requirement.
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
    /// A failure of the device within a model's error becomes a device error.
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Device(source) => Self::Device(DeviceError::new(source)),
            error => Self::Model(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_without_a_tokenizer_is_told_where_one_belongs() {
        let folder = EngineError::NoTokenizer("models/small".to_owned()).to_string();
        assert!(folder.contains("models/small has no tokenizer.json"), "{folder}");
        let file = EngineError::NoTokenizer("small.gguf".to_owned()).to_string();
        assert!(file.contains("small.gguf has no tokenizer in its metadata"), "{file}");
    }
}
