use std::io;
use std::path::PathBuf;

use crate::OutputError;

/// The reason for a refused operation. A refused operation leaves the cache unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// An invalid cache shape.
    #[error("the KV cache cannot have this shape: {what} is {value}, but must be {requirement}")]
    Shape {
        /// The invalid part of the shape.
        what: &'static str,
        /// Value of this part.
        value: usize,
        /// The allowed values.
        requirement: &'static str,
    },
    /// A layer outside the shape.
    #[error("layer {layer} does not exist: the KV cache has {layers} layers")]
    Layer {
        /// The requested layer.
        layer: usize,
        /// Layers of the cache.
        layers: usize,
    },
    /// Tokens that the layer does not contain.
    #[error("layer {layer} of the KV cache holds {held} tokens and {wanted} are asked for: append them first")]
    Tokens {
        /// The layer.
        layer: usize,
        /// Tokens in the layer.
        held: usize,
        /// Tokens that the operation needs.
        wanted: usize,
    },
    /// Keys and values of different lengths, or not whole tokens.
    #[error(
        "keys hold {keys} and values {values} elements, but those of a token have {} and {}", strides[0], strides[1]
    )]
    Length {
        /// Elements in the keys.
        keys: usize,
        /// Elements in the values.
        values: usize,
        /// Elements of the keys and of the values of one token.
        strides: [usize; 2],
    },
    /// The append would exceed the byte budget.
    #[error(
        "the KV budget of {budget_bytes} bytes is used up: it fits {fitting_tokens} tokens in all layers ({layer_tokens} in layer {layer} now) \
         and layer {layer} would hold {wanted_tokens}; use a larger budget, a shorter context or a smaller KV format"
    )]
    Budget {
        /// The hard budget.
        budget_bytes: u64,
        /// Tokens that fit the budget if every layer holds them.
        fitting_tokens: usize,
        /// The layer appended to.
        layer: usize,
        /// Tokens that the layer can hold with the pages taken so far.
        layer_tokens: usize,
        /// Tokens the layer would hold after the append.
        wanted_tokens: usize,
    },
    /// The nearest tier is too small for the pages that must be in it together.
    #[error(
        "the nearest KV tier has {near_bytes} bytes for {what} and needs {needed_bytes} at once{}; \
         use a larger budget, smaller pages, fewer slots or a smaller `chunk_tokens`", sequences_part(*sequences)
    )]
    NearBudget {
        /// Keys or values.
        what: &'static str,
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes available.
        near_bytes: u64,
        /// Sequences, each of whose first and partly filled pages must stay there.
        sequences: usize,
    },
    /// The budget of the disk tier is exhausted.
    #[error(
        "the KV budget of {budget_bytes} bytes on disk is used up; use a larger `disk.budget_bytes` or a shorter context"
    )]
    DiskBudget {
        /// The hard budget.
        budget_bytes: u64,
    },
    /// Pages could not be written to the disk tier or read from it.
    #[error("cannot {action} KV pages in {}: {source}; free space there or choose another `disk.folder`", folder.display())]
    Disk {
        /// The attempted action, for example `"write"`.
        action: &'static str,
        /// The folder of the disk tier.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A page on disk has changed.
    #[error(
        "{what} of page {page} of layer {layer}, KV head {kv_head}, have changed on disk in {}: \
         check that disk, or choose another `disk.folder`",
        folder.display()
    )]
    DamagedPage {
        /// Keys or values.
        what: &'static str,
        /// The page.
        page: usize,
        /// Layer of the page.
        layer: usize,
        /// KV head of the page.
        kv_head: usize,
        /// The folder of the disk tier.
        folder: PathBuf,
    },
    /// The planes of the tokens have another shape or format than the cache's.
    #[error(
        "tokens for layer {layer} came in planes of another shape or format than the cache's: encode them for its shape"
    )]
    Planes {
        /// The layer.
        layer: usize,
    },
    /// A thread that loads pages could not be started.
    #[error(
        "cannot start a thread that loads KV pages: {source}; end other programs, or raise the limit on threads (ulimit -u)"
    )]
    Thread {
        /// The system's reason.
        source: io::Error,
    },
    /// The operating system refused memory for pages.
    #[error(
        "the system gives no {bytes} bytes of memory for KV pages: {source}; use a shorter context or a smaller KV format"
    )]
    Memory {
        /// Bytes requested.
        bytes: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// A cache file could not be read or written.
    #[error("cannot {action} KV cache file {}: {source}; check the path, its folder and what is free there", path.display())]
    File {
        /// The attempted action, for example `"write"`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file could not be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The file is a cache file of another version or byte order.
    #[error("KV cache file {} was written by {found}, which this version cannot read: delete it and read the text again", path.display())]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// The version or machine that wrote the file.
        found: String,
    },
    /// The file is not a cache file.
    #[error("{} is not a KV cache file that can be used here ({found}): give another path", path.display())]
    NotReadable {
        /// The file.
        path: PathBuf,
        /// The fault of the file, for example `"too short"`.
        found: String,
    },
    /// The file holds the cache of another model or shape.
    #[error("KV cache file {} is of another run: {what} differs; use the file of this model and these settings", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The part that differs.
        what: &'static str,
    },
    /// The file is truncated or its bytes have changed.
    #[error("KV cache file {} is damaged: {what}; delete it and read the text again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault of the file, for example `"it is cut"`.
        what: String,
    },
    /// Another process works with the file.
    #[error("{} is in use by another process: wait for it to end, or use another file", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The index of a prefix cache could not be read or written.
    #[error("the index of prefix cache {} cannot be used: {problem}", folder.display())]
    Index {
        /// The prefix cache's folder.
        folder: PathBuf,
        /// The problem, and its remedy.
        problem: String,
    },
}

fn sequences_part(sequences: usize) -> String {
    match sequences {
        0 | 1 => String::new(),
        sequences => {
            format!(" ({sequences} sequences keep their first and last pages there: end or park some of them)")
        }
    }
}
