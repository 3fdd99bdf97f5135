//! Errors of loading and running a model.

use std::ops::Range;
use std::path::{Path, PathBuf};

use riffle_files::FileError;

use crate::TemplateLimit;
use crate::weights::TensorType;

/// One problem with a model, its files or a call: the fault and the remedy, in one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The path does not exist.
    #[error("{}: no such file or directory; give a Hugging Face model directory or a GGUF file", path.display())]
    NotFound {
        /// The path as given.
        path: PathBuf,
    },
    /// The path exists but is no model this crate can read.
    #[error("{}: not a model ({problem}); give a GGUF file or a directory that holds config.json and model.safetensors", path.display())]
    NotAModel {
        /// The path as given.
        path: PathBuf,
        /// The reason the file is not a model.
        problem: String,
    },
    /// An unknown scaling of positions, or one that does not fit the model.
    #[error("`rope_scaling={text}`: {problem}")]
    RopeScaling {
        /// The scaling as given.
        text: String,
        /// The fault of the file.
        problem: String,
    },
    /// A required file is missing from the model's directory.
    #[error("{}: {file} is missing; {hint}", directory.display())]
    MissingFile {
        /// The model's directory.
        directory: PathBuf,
        /// The file's name.
        file: String,
        /// The remedy.
        hint: &'static str,
    },
    /// A folder without settings holds several GGUF models.
    #[error("{}: holds several models: {}; name one of these files", directory.display(), files.join(", "))]
    SeveralModels {
        /// The folder.
        directory: PathBuf,
        /// The names of the files.
        files: Vec<String>,
    },
    /// A folder contains only an adapter (LoRA).
    #[error("{}: holds an adapter for {base} and no model; give a model, and add this with `adapters`", directory.display())]
    Adapter {
        /// The folder.
        directory: PathBuf,
        /// The adapter's base model, as named in its settings.
        base: String,
    },
    /// An adapter (LoRA) that is unsupported or belongs to another model.
    #[error("adapter {}: {problem}", path.display())]
    AdapterRefused {
        /// The adapter.
        path: PathBuf,
        /// The fault.
        problem: String,
    },
    /// The operating system refused to read a file.
    #[error("{}: cannot be read: {source}; check its permissions and the disk", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A path names something other than a regular file.
    #[error("{}: it is {found}, not a regular file; give a Hugging Face model directory or a GGUF file", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
        /// The kind of the existing entry, such as `a pipe`.
        found: &'static str,
    },
    /// A file is larger than files of its kind may be.
    #[error("{}: it holds more than {limit_bytes} bytes, the limit for this file; download it again", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Allowed bytes.
        limit_bytes: u64,
    },
    /// A JSON file does not parse.
    #[error("{}: not valid JSON: {problem}; download the file again", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's message, with line and column.
        problem: String,
    },
    /// The architecture is unknown to this crate.
    #[error("architecture {found:?} is not supported; supported are {}", short_names(known))]
    UnknownArchitecture {
        /// The architecture in the file.
        found: String,
        /// The architectures of this crate.
        known: Vec<&'static str>,
    },
    /// A setting of the model is missing, of the wrong type, or contradicts another.
    #[error("{}: {field}: {problem}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The setting.
        field: String,
        /// The fault and the allowed values.
        problem: String,
    },
    /// A weight file is truncated or damaged.
    #[error("{}: damaged weight file: {problem}; download it again", path.display())]
    CorruptWeights {
        /// The file.
        path: PathBuf,
        /// The part that contradicts the format.
        problem: String,
    },
    /// A tensor has an element type that its format has removed, or one newer than this program.
    #[error(
        "{}: tensor {tensor} has the type {found}; choose another quantisation of the model, or a newer version of this program",
        path.display()
    )]
    UnknownType {
        /// The file.
        path: PathBuf,
        /// The first such tensor.
        tensor: String,
        /// Type number of the tensor, and the name of a removed type.
        found: String,
    },
    /// A shard listed in the index is missing.
    #[error("{}: shard {shard} is missing (it holds {tensor}); download every file the index names", index.display())]
    MissingShard {
        /// The index file.
        index: PathBuf,
        /// The shard's file name.
        shard: String,
        /// One of the shard's tensors.
        tensor: String,
    },
    /// A tensor name occurs twice, in two files or in one.
    #[error("tensor {tensor} stands twice: in {} and in {}; remove one of them", first.display(), second.display())]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// The first file with the tensor.
        first: PathBuf,
        /// The second file with the tensor.
        second: PathBuf,
    },
    /// A required tensor is in no file.
    #[error("tensor {tensor} is missing; the weights do not belong to this configuration or are incomplete")]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },
    /// The weights contain tensors that the configured model does not use.
    #[error(
        "{}: {} are not used by a model of this configuration ({count} such tensors); the weights do not belong to this configuration",
        path.display(),
        tensors.join(", ")
    )]
    UnusedTensors {
        /// The file of settings.
        path: PathBuf,
        /// Tensors without a use.
        count: usize,
        /// The first names of unused tensors.
        tensors: Vec<String>,
    },
    /// A file changed after the model was loaded, and more of its weights are needed.
    #[error(
        "{}: it was changed or cut off while its weights were in use (tensor {tensor}); load the model again",
        path.display()
    )]
    ChangedWeights {
        /// The file.
        path: PathBuf,
        /// The tensor to read.
        tensor: String,
    },
    /// Experts in a layout that needs conversion, so they cannot stay in the files.
    #[error(
        "experts cannot stay in the files of this model, because of the form of tensor {tensor}; give memory for all of its weights"
    )]
    NotStreamed {
        /// The tensor.
        tensor: String,
    },
    /// Too little memory for experts that stay in the files, or no such experts.
    #[error(
        "{}: {given} of memory are too little for experts that stay in its files, {least} is the least (0 B: no experts of it can stay there); give more, or memory for all of its weights",
        path.display()
    )]
    FewExpertBytes {
        /// The model.
        path: PathBuf,
        /// The given bytes, formatted.
        given: String,
        /// Bytes needed, for people.
        least: String,
    },
    /// A reading thread failed to start.
    #[error("cannot start a thread that reads weights: {source}; end other programs")]
    Thread {
        /// The system's reason.
        source: std::io::Error,
    },
    /// A tensor's shape differs from the configuration.
    #[error(
        "tensor {tensor} has shape {found:?}, the configuration asks for {expected:?}; the weights do not belong to this configuration"
    )]
    WrongShape {
        /// The tensor.
        tensor: String,
        /// Shape by config.json.
        expected: Vec<usize>,
        /// Shape in the weight file.
        found: Vec<usize>,
    },
    /// A tensor has an element type that is not allowed in its place.
    #[error("tensor {tensor} has type {found}, expected {expected}; convert the weights to one of these")]
    WrongType {
        /// The tensor.
        tensor: String,
        /// The allowed types.
        expected: &'static str,
        /// Type in the weight file.
        found: TensorType,
    },
    /// A text is longer than the table of positions.
    #[error("position {position} has no embedding: this model has {positions} positions; use a shorter text")]
    NoPosition {
        /// The position, counted from 0.
        position: usize,
        /// Positions of the model.
        positions: usize,
    },
    /// Tensors of one matrix have different formats.
    #[error(
        "tensor {tensor} has another format than {first}, and both are one matrix; convert the weights to one format"
    )]
    TwoFormats {
        /// The tensor.
        tensor: String,
        /// The first tensor of the matrix.
        first: String,
    },
    /// A weight is not a number or infinite.
    #[error(
        "tensor {tensor} holds {value} at element {element}; the weights are damaged, download or convert them again"
    )]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Index in row-major order.
        element: usize,
        /// NaN, inf or -inf.
        value: f32,
    },
    /// Packing the weights failed.
    #[error("tensor {tensor} cannot be packed: {source}")]
    Pack {
        /// The tensor.
        tensor: String,
        /// The reason.
        source: riffle_linear::LinearError,
    },
    /// The kind of tokenizer is not supported.
    #[error("{}: {kind} is not supported; {advice}", path.display())]
    UnsupportedTokenizer {
        /// The file.
        path: PathBuf,
        /// The kind, as named in the file.
        kind: String,
        /// The advice to the user.
        advice: &'static str,
    },
    /// A tokenizer file cannot be used.
    #[error("{}: broken tokenizer: {problem}; download the tokenizer files again", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The fault of the file.
        problem: String,
    },
    /// The tokenizer can produce ids without an embedding in the model.
    #[error("{}: the tokenizer knows {tokens} tokens but the model embeds only {embedded}; use the tokenizer the model was trained with", path.display())]
    VocabularyTooLarge {
        /// The tokenizer file.
        path: PathBuf,
        /// Highest token id + 1.
        tokens: usize,
        /// Rows of the embedding.
        embedded: usize,
    },
    /// A token the configuration names is not in the vocabulary.
    #[error("{}: {role} is {token:?}, which the tokenizer does not know; use the tokenizer the model was trained with", path.display())]
    MissingToken {
        /// The file with the setting.
        path: PathBuf,
        /// The token's role, such as `bos_token`.
        role: &'static str,
        /// The token's text or id.
        token: String,
    },
    /// Converting text to tokens or back failed.
    #[error("text cannot be tokenized: {0}")]
    Tokenize(String),
    /// The caller stopped the conversion of text to tokens.
    #[error("interrupted while the text was turned into tokens")]
    TokenizeInterrupted,
    /// The chat template is broken or refuses the messages.
    #[error("{}: chat template: {problem}", file.display())]
    Template {
        /// The template's file.
        file: PathBuf,
        /// The fault, or the template's own message.
        problem: String,
    },
    /// The chat template is too long, or needs too much time or memory.
    #[error("{}: chat template: {limit}; correct the template or use the original model's", file.display())]
    TemplateLimit {
        /// The template's file.
        file: PathBuf,
        /// The exceeded limit.
        limit: TemplateLimit,
    },
    /// The caller stopped the rendering of the chat template.
    #[error("{}: interrupted while the chat template was rendered", file.display())]
    TemplateInterrupted {
        /// The template's file.
        file: PathBuf,
    },
    /// A token id is outside the vocabulary.
    #[error("token id {token} is outside the vocabulary of {vocab_size}; tokenize with the model's own tokenizer")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// A buffer has the wrong length.
    #[error("{buffer} holds {found} values, {expected} are needed")]
    BufferLength {
        /// Name of the buffer.
        buffer: &'static str,
        /// Values needed.
        expected: usize,
        /// Values found.
        found: usize,
    },
    /// A batch without tokens.
    #[error("a batch needs at least one token")]
    EmptyBatch,
    /// A segment of a batch without tokens.
    #[error("segment {segment} of a batch has no tokens; leave it out or give it at least one")]
    EmptySegment {
        /// Number of the segment.
        segment: usize,
    },
    /// A position in a segment overflows.
    #[error("segment {segment} of a batch begins at position {position}, which is too large to count on from")]
    PositionTooLarge {
        /// Number of the segment.
        segment: usize,
        /// Position of the batch's first token.
        position: usize,
    },
    /// More tokens in a batch than the scratch memory allows.
    #[error(
        "a batch of {tokens} tokens does not fit memory made for {batch_tokens}; make room for more or pass fewer tokens"
    )]
    BatchTooLarge {
        /// Tokens of the batch.
        tokens: usize,
        /// The most tokens of a batch.
        batch_tokens: usize,
    },
    /// The number of recurrent states differs from the number of segments.
    #[error("{states} recurrent states were given for {segments} segments of a batch; give one for each")]
    WrongStates {
        /// Segments of the batch.
        segments: usize,
        /// States given.
        states: usize,
    },
    /// A recurrent state of another model.
    #[error("the recurrent state was made for another model; make it from this model's configuration")]
    WrongRecurrentState,
    /// A recurrent state that has not read exactly the tokens before a batch.
    #[error(
        "layer {layer} is to read from token {start_position} on, but its recurrent state has read {tokens}; restore the state of that position or read again from the start"
    )]
    RecurrentPosition {
        /// The layer.
        layer: usize,
        /// Tokens the state has read.
        tokens: usize,
        /// Position of the batch's first token.
        start_position: usize,
    },
    /// A stored recurrent state has another length than the model's.
    #[error(
        "a stored recurrent state holds {found} bytes, this model's takes {expected}; it is cut off or of another model"
    )]
    RecurrentBytes {
        /// Bytes of this model's state.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// Rows of a batch that are not the next rows of a layer.
    #[error(
        "layer {layer} was given rows {rows:?} of its batch, and {expected:?} are next; take blocks of rows in order"
    )]
    RowsOutOfOrder {
        /// The layer.
        layer: usize,
        /// The rows given.
        rows: Range<usize>,
        /// The expected next rows; empty if none.
        expected: Range<usize>,
    },
    /// A layer the model does not have.
    #[error("layer {layer} does not exist; the model has {layers}")]
    NoSuchLayer {
        /// The requested layer.
        layer: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// The device failed or lacks something.
    #[error("{0}")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ModelError {
    /// Checks the length of a caller's buffer.
    ///
    /// # Errors
    /// [`ModelError::BufferLength`] if `found` differs from `expected`.
    pub fn check_length(buffer: &'static str, expected: usize, found: usize) -> Result<(), ModelError> {
        if found == expected {
            Ok(())
        } else {
            Err(ModelError::BufferLength {
                buffer,
                expected,
                found,
            })
        }
    }

    /// The reason why weights could not be read during a run.
    pub(crate) fn streamed(path: &Path, tensor: String, error: FileError) -> ModelError {
        match error {
            FileError::Changed => ModelError::ChangedWeights {
                path: path.to_owned(),
                tensor,
            },
            other => ModelError::file(path, other),
        }
    }

    /// The reason why a model's file was not opened or read.
    pub(crate) fn file(path: &Path, error: FileError) -> ModelError {
        let path = path.to_owned();
        match error {
            FileError::NotRegular { found } => ModelError::NotRegular { path, found },
            FileError::TooLarge { limit_bytes } => ModelError::FileTooLarge { path, limit_bytes },
            other => ModelError::Io {
                path,
                source: other.into(),
            },
        }
    }
}

/// The most architectures listed in an error.
const MOST_NAMED: usize = 36;

/// Names of architectures without their common suffix; of many, the first ones.
fn short_names(names: &[&str]) -> String {
    let short = names
        .iter()
        .map(|name| name.strip_suffix("ForCausalLM").unwrap_or(name));
    let mut short: Vec<String> = short.take(MOST_NAMED).map(str::to_owned).collect();
    if let Some(more) = names.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
        short.push(format!("and {more} more, which docs/models.md lists"));
    }
    short.join(", ")
}
