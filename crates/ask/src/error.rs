//! Errors of a question.

use std::path::PathBuf;

use riffle_documents::PlaceError;
use riffle_engine::{EngineError, human_bytes, stretch_factor};
use riffle_kv::KvError;
use riffle_model::ModelError;

/// Errors of a question; each message gives the fault and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The documents are longer than the model's context.
    #[error(
        "all of the documents takes {documents} tokens, the question and its answer {rest}, but {}: read the parts that the question needs, choose pages or a chapter, {}or take a model with a longer context", holds(*limit, *is_given), stretch(*documents + *rest, *maximum)
    )]
    TooLong {
        /// Tokens of the documents.
        documents: usize,
        /// Tokens of the question and its answer.
        rest: usize,
        /// Tokens of the context.
        limit: usize,
        /// True if the caller's options set that limit.
        is_given: bool,
        /// Positions of the model.
        maximum: usize,
    },
    /// The documents' text does not fit in memory during tokenization.
    #[error("the documents hold {} of text, and memory allows {}: give fewer documents, or a larger `memory_budget_bytes`", human_bytes(*bytes), human_bytes(*limit_bytes))]
    TooMuchText {
        /// Bytes of the documents' text.
        bytes: u64,
        /// Bytes of the memory budget.
        limit_bytes: u64,
    },
    /// The conversation is longer than the context.
    #[error(
        "the conversation has {held} tokens and this question needs {needed} more, but its context holds {context}: begin anew (the documents are not read again), or use a larger `context_tokens`"
    )]
    ConversationFull {
        /// Tokens of the conversation so far.
        held: usize,
        /// Tokens of the question and of the least answer.
        needed: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// A question without words.
    #[error("the question is empty: say what you want to know")]
    EmptyQuestion,
    /// An option that conflicts with a conversation about documents.
    #[error("`{option}` does not go with questions about documents, since {why}: leave it out, or use riffle run")]
    Option {
        /// The option: a field of the engine's options.
        option: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// Pages or a chapter that the documents lack.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The model that `embeddings` names gives no vectors of texts.
    #[error("{} is no embedding model, since {reason}: name one with `embeddings`, such as EmbeddingGemma or Qwen3-Embedding", path.display())]
    NoEmbeddings {
        /// The path of the model.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The language model and the embedding model do not fit in memory together.
    #[error(
        "{model} needs {needed} and {other} leaves {available}: raise `memory_budget_bytes`, or leave out `embeddings`"
    )]
    NoRoom {
        /// The model that has no room.
        model: &'static str,
        /// The other model.
        other: &'static str,
        /// The needed memory.
        needed: String,
        /// The memory beside the other model.
        available: String,
    },
    /// The folder of kept pages cannot be used.
    #[error("{0}; choose another folder with `keep`, or leave it out")]
    Keep(KvError),
}

impl From<ModelError> for AskError {
    fn from(error: ModelError) -> Self {
        Self::Engine(error.into())
    }
}

fn holds(limit: usize, is_given: bool) -> String {
    if is_given {
        format!("`context_tokens` holds {limit}")
    } else {
        format!("the model was made for {limit}")
    }
}

/// The advice to stretch positions, if the text needs more than the model has and stretching reaches it.
fn stretch(needed: usize, maximum: usize) -> String {
    stretch_factor(needed, maximum).map_or_else(String::new, |factor| {
        format!("`rope_scaling=yarn:factor={factor}` `context_tokens={needed}`, ")
    })
}
