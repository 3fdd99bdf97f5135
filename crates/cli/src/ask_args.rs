//! Arguments of `riffle ask`.

use std::path::PathBuf;

use clap::Args;
use riffle_ask::Given;

use crate::args::{EngineArguments, GenerateArguments, ModelArguments};
use crate::hub_args;
use crate::keep_args::KeepArguments;

#[derive(Debug, Args)]
pub(crate) struct AskArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Documents, and last the question in quotes
    ///
    /// Documents are text, Markdown, HTML, PDF, EPUB and DOCX files, and folders of them. A single word is a
    /// document. A last word that names an existing file is a document too.
    #[arg(value_name = "FILE… QUESTION", required = true)]
    pub(crate) words: Vec<String>,
    /// Question, instead of the last word; may be repeated
    ///
    /// All words are then documents. The questions are asked one by one.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) question: Vec<String>,
    /// Ask further questions, one per line
    ///
    /// They are read from standard input. On a terminal this is the default without a question.
    #[arg(long)]
    pub(crate) follow: bool,
    /// Read only these pages, such as 10-60, 7 or iv
    ///
    /// A page has its printed label or its number. Separate several ranges by commas, or repeat the option.
    #[arg(long, value_name = "FROM-TO", value_delimiter = ',')]
    pub(crate) pages: Vec<String>,
    /// Read only the chapter with these words in its title; may be repeated
    #[arg(long, value_name = "TITLE", hide_short_help = true)]
    pub(crate) chapter: Vec<String>,
    /// Read the whole text, even beyond the context of the model
    #[arg(long, hide_short_help = true)]
    pub(crate) whole: bool,
    /// Read only the parts that the question needs, even if all of it fits
    #[arg(long, conflicts_with = "whole", hide_short_help = true)]
    pub(crate) parts: bool,
    /// Embedding model, to find the parts by meaning too: file, folder or name
    ///
    /// For example EmbeddingGemma or Qwen3-Embedding. It reads the parts of a text once and each question, and takes
    /// memory beside the model. A text that is read whole does not need it. RIFFLE_EMBEDDINGS is the default.
    #[arg(long, value_name = "PATH", value_parser = hub_args::model_path(), hide_short_help = true)]
    pub(crate) embeddings: Option<PathBuf>,
    /// Instructions for the model, instead of the default
    ///
    /// The model needs a chat template that supports them.
    #[arg(
        long,
        alias = "system-prompt",
        value_name = "TEXT",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    pub(crate) system: Option<String>,
    /// Do not show the source passages of the answers
    #[arg(long)]
    pub(crate) no_passages: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
    /// Show the selected options and the speed
    #[arg(long, short)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) generate: GenerateArguments,
    #[command(flatten)]
    pub(crate) keep: KeepArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// The options that the user typed.
    #[arg(skip)]
    pub(crate) given: Given,
}
