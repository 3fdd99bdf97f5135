//! The arguments of `riffle ask`.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use riffle_ask::Given;

use crate::args::{EngineArguments, GenerateArguments, ModelArguments};
use crate::numbers;

#[derive(Debug, Args)]
pub(crate) struct AskArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Documents, and the question as the last word: files of text, Markdown, HTML, PDF, EPUB or DOCX, or folders. A single word, and a last
    /// word that names a file that is there, is a document
    #[arg(value_name = "FILE… QUESTION", required = true)]
    pub(crate) words: Vec<String>,
    /// A question in place of the last word, all of which name documents then; may be given several times: the questions are asked one
    /// after the other
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) question: Vec<String>,
    /// Read further questions from standard input, one a line; on a terminal this is so where no question is given
    #[arg(long)]
    pub(crate) follow: bool,
    /// Instructions for the model in place of the usual ones, where its chat template takes them
    #[arg(long, alias = "system-prompt", value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,
    /// Do not show the passages that answers rest on
    #[arg(long)]
    pub(crate) no_passages: bool,
    /// Print one JSON object at the end in place of text
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) generate: GenerateArguments,
    /// Keep what was read of documents in this folder [default: riffle/documents in the user's cache folder]
    #[arg(long, value_name = "DIR", help_heading = "What is kept")]
    pub(crate) keep: Option<PathBuf>,
    /// Keep nothing, and look for nothing that was kept
    #[arg(long, conflicts_with_all = ["keep", "keep_budget"], help_heading = "What is kept")]
    pub(crate) no_keep: bool,
    /// Bytes that is kept at most; what was used longest ago goes first [default: 8G]
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, help_heading = "What is kept", hide_short_help = true)]
    pub(crate) keep_budget: Option<u64>,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Which options were typed.
    #[arg(skip)]
    pub(crate) given: Given,
}

impl AskArguments {
    /// Notes which of the options that are chosen otherwise were typed.
    pub(crate) fn note_given(&mut self, matches: &ArgMatches) {
        let typed = |names: &[&str]| {
            let mut names = names.iter();
            names.any(|name| matches.value_source(name) == Some(ValueSource::CommandLine))
        };
        self.given = Given {
            format: typed(&["kv_type", "cache_type_k", "cache_type_v"]),
            context: typed(&["ctx"]),
            prefill: typed(&["prefill", "profile", "auto", "h2o_local", "h2o_heavy"]),
            decode: typed(&["decode", "profile"]),
        };
    }
}
