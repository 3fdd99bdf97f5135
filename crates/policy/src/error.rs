use crate::Phase;

/// The reason why a policy is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// No policy has this name.
    #[error("there is no policy {name:?}: use one of {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// The policy has no parameter of this name.
    #[error("policy {policy} has no parameter {parameter:?}; it has {known}")]
    UnknownParameter {
        /// The policy.
        policy: &'static str,
        /// The parameter given.
        parameter: String,
        /// The parameters that exist.
        known: String,
    },
    /// A parameter occurs twice.
    #[error("policy {policy}: parameter {parameter:?} is given twice; give it once")]
    RepeatedParameter {
        /// The policy.
        policy: &'static str,
        /// The parameter.
        parameter: String,
    },
    /// A parameter's value is unreadable or out of range.
    #[error("policy {policy}: {parameter} is {value:?}, but must be {requirement}")]
    BadValue {
        /// The policy.
        policy: &'static str,
        /// The parameter.
        parameter: &'static str,
        /// The value given.
        value: String,
        /// Allowed values.
        requirement: String,
    },
    /// The text is not `name` or `name:key=value,…`.
    #[error(
        "policy {text:?} cannot be read: write a name, or a name with parameters, such as streaming:sinks=64,window=2048"
    )]
    Syntax {
        /// The text given.
        text: String,
    },
    /// A rule has a layer or KV head that the model does not have.
    #[error(
        "a rule names {what} {number}, but the model has {count}, counted from 0; write the profile for this model"
    )]
    NoSuchPlace {
        /// `layer` or `KV head`.
        what: &'static str,
        /// The number named.
        number: usize,
        /// Number of layers or KV heads in the model.
        count: usize,
    },
    /// The policy has no support for this phase.
    #[error(
        "policy {policy} works in {supported} alone and does not support {phase}: choose another for {phase} (riffle policies lists them)"
    )]
    UnsupportedPhase {
        /// The policy.
        policy: &'static str,
        /// The requested phase.
        phase: Phase,
        /// The policy's own phase.
        supported: Phase,
    },
    /// The parameter `delta`, which corrects attention to prompts, was given for generated tokens.
    #[error(
        "policy {policy}: the parameter delta corrects what a prompt reads, and decode reads no prompt: leave delta out of `decode`"
    )]
    DeltaInDecode {
        /// The policy.
        policy: &'static str,
    },
    /// The policy contradicts its [`Traits`](crate::Traits).
    #[error(
        "policy {policy}: its traits say {data} is {said}, but {accessor}() says the opposite; correct its PolicyInfo or its SparsePolicy"
    )]
    WrongTraits {
        /// The policy.
        policy: &'static str,
        /// The field of the traits.
        data: &'static str,
        /// Value of the field.
        said: bool,
        /// The accessor of [`SparsePolicy`](crate::SparsePolicy).
        accessor: &'static str,
    },
    /// The saved state does not belong to a policy of this spec.
    #[error(
        "the file holds a state of its policy that this version of riffle cannot read: read the text again into a new file"
    )]
    BadState,
    /// The chunk is too short for the policy.
    #[error(
        "policy {policy} needs chunks of more than {above} tokens and `chunk_tokens` is {chunk_tokens}: use `chunk_tokens={preferred}` (and at least as large a `batch_tokens`), or lower its parameters"
    )]
    ChunkTooShort {
        /// The policy.
        policy: &'static str,
        /// Tokens a chunk must exceed.
        above: usize,
        /// Tokens in a chunk.
        chunk_tokens: usize,
        /// A sufficient length.
        preferred: usize,
    },
}
