//! Arguments of `riffle ask`.

use clap::Args;
use riffle_ask::Given;

use crate::args::{EngineArguments, GenerateArguments, ModelArguments};
use crate::keep_args::KeepArguments;

#[derive(Debug, Args)]
pub(crate) struct AskArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Documents, and last the question in quotes
    ///
    /// Documents are text, Markdown, HTML, PDF, EPUB and DOCX files, and folders of them. A single word is a document, and so
    /// is a last word that names a file that is there.
    #[arg(value_name = "FILE… QUESTION", required = true)]
    pub(crate) words: Vec<String>,
    /// A question; then all words name documents
    ///
    /// It may be given several times: the questions are asked one after the other.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) question: Vec<String>,
    /// Ask for further questions, one a line
    ///
    /// They come from standard input. On a terminal this is so where no question is given.
    #[arg(long)]
    pub(crate) follow: bool,
    /// Read these pages alone, such as 10-60, 7 or iv
    ///
    /// A page is named by the label printed on it, or by its number. Several ranges have commas between them, or an option each.
    #[arg(long, value_name = "FROM-TO", value_delimiter = ',')]
    pub(crate) pages: Vec<String>,
    /// Read the chapter alone whose title has these words; may be repeated
    #[arg(long, value_name = "TITLE", hide_short_help = true)]
    pub(crate) chapter: Vec<String>,
    /// Read all of it, also where it is longer than the context that the model was made for
    #[arg(long, hide_short_help = true)]
    pub(crate) whole: bool,
    /// Read the parts that share words with the question, also where all of it fits
    #[arg(long, conflicts_with = "whole", hide_short_help = true)]
    pub(crate) parts: bool,
    /// Say what was chosen and how fast it went
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Instructions for the model, in place of the usual ones
    ///
    /// The model needs a chat template that takes them.
    #[arg(
        long,
        alias = "system-prompt",
        value_name = "TEXT",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    pub(crate) system: Option<String>,
    /// Do not show the passages behind the answers
    #[arg(long)]
    pub(crate) no_passages: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
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
