//! Options of every program that serves a model, over HTTP or another protocol.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use riffle_engine::{DraftSpec, Engine, EngineOptions, with_threads};
use riffle_server::{Limits, ServerOptions};

use crate::args::{EngineArguments, ModelArguments};
use crate::commands::{engine_options, note_activations};
use crate::failure::Failure;
use crate::prefix_cache::PrefixCacheArguments;
use crate::{hub_args, numbers};

/// The options of `riffle serve` without HTTP: the model, its memory and cache, and the limits on requests.
///
/// Programs with another protocol flatten this into their own arguments.
#[derive(Debug, Clone, Args)]
pub struct ServingArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Name of the model for clients; may be repeated, answers have the first [default: its file or folder]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) alias: Vec<String>,
    /// Refuse requests for other model names, instead of answering every name
    #[arg(long, hide_short_help = true)]
    pub(crate) strict_names: bool,
    /// Requests that run at a time; others wait
    #[arg(long, value_name = "N", value_parser = numbers::sequences, default_value = "8")]
    pub(crate) parallel: usize,
    /// Maximum tokens of an answer whose request sets no limit
    #[arg(short = 'n', long = "tokens", aliases = ["predict", "n-predict"], value_name = "N", value_parser = numbers::tokens, default_value = "4096")]
    pub(crate) tokens: usize,
    /// Let an answer continue that repeats the same tokens
    ///
    /// Without this option an answer ends when it repeats up to 256 tokens at least four times in a row, with 128
    /// repeated tokens. Answers with a repetition penalty and answers of a given form are never ended this way. A
    /// request overrides it: "riffle": {"allow_loops": true}.
    #[arg(long, hide_short_help = true)]
    pub(crate) allow_loops: bool,
    /// Guess tokens and verify several in one pass: auto, none, ngram, sparse, mtp or model:PATH
    ///
    /// Answers are the same to the byte. A request overrides it: "riffle": {"draft": "none"}.
    #[arg(long, value_name = "SPEC", value_parser = hub_args::draft, default_value = "auto", help_heading = "Speculative decoding", hide_short_help = true)]
    pub(crate) draft: DraftSpec,
    #[command(flatten)]
    pub(crate) prefix: PrefixCacheArguments,
    /// Free the memory of a text after these seconds without use [default: when it is needed]
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Sessions and caches",
        hide_short_help = true
    )]
    pub(crate) keep_alive: Option<u64>,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Maximum tokens of all requests together; shared tokens count once
    ///
    /// [default: as many whole contexts as fit in memory, at most one per request]
    #[arg(long, value_name = "N", value_parser = numbers::tokens, help_heading = "Limits", hide_short_help = true)]
    pub(crate) pool_tokens: Option<usize>,
    /// Maximum number of requests that run or wait; others are refused with status 429
    #[arg(long, value_name = "N", value_parser = numbers::samples, default_value = "256", help_heading = "Limits", hide_short_help = true)]
    pub(crate) max_requests: usize,
    /// Maximum seconds from the arrival of a request to the end of its answer
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "21600",
        help_heading = "Limits",
        hide_short_help = true
    )]
    pub(crate) max_time: u64,
    /// Seconds for running answers to finish when the server stops
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "10",
        help_heading = "Limits",
        hide_short_help = true
    )]
    pub(crate) grace: u64,
    /// Log no lines about answers and refused requests
    #[arg(long, help_heading = "Log", hide_short_help = true)]
    pub(crate) quiet: bool,
}

impl ServingArguments {
    /// The file or folder of the model. A note on standard error names the default model if none is given.
    ///
    /// # Errors
    /// If no model is given, none was used before, and this machine has none or several.
    pub fn model_path(&self) -> Result<&Path, Failure> {
        self.model.path()
    }

    /// The name of the model for clients.
    ///
    /// # Errors
    /// As [`model_path`](Self::model_path).
    pub fn model_name(&self) -> Result<String, Failure> {
        match self.alias.first() {
            Some(alias) => Ok(alias.clone()),
            None => match self.model.served_as()? {
                Some(name) => Ok(name.to_owned()),
                None => self.model_path().map(name_of_path),
            },
        }
    }

    /// Requests that run at a time.
    pub fn parallel(&self) -> usize {
        self.parallel
    }

    /// Checks the options of the model and its cache before anything is loaded.
    ///
    /// # Errors
    /// For invalid options. Errors of the model's files and of memory come from [`load`](Self::load).
    pub fn check(&self) -> Result<(), Failure> {
        Ok(self.engine_options()?.validate()?)
    }

    /// Loads the model. `bodies_bytes` of memory stay free for the bodies of requests. Loading takes as long as reading
    /// the weights.
    ///
    /// # Errors
    /// If the model cannot be read, an option is invalid, or memory is too small.
    pub fn load(&self, bodies_bytes: u64) -> Result<Arc<Engine>, Failure> {
        let path = self.model_path()?;
        let options = riffle_server::engine_options(path, self.engine_options()?, self.parallel, bodies_bytes)?;
        let engine = with_threads(self.engine.threads, || Engine::load(path, options))??;
        note_activations(
            &self.engine,
            engine.model().config(),
            engine.options().machine.device.is_some(),
        );
        self.model.remember();
        Ok(engine)
    }

    /// Limits, caches and names for the server. The HTTP options have their defaults.
    ///
    /// # Errors
    /// If a place of the prefix cache is invalid.
    pub fn server_options(&self) -> Result<ServerOptions, Failure> {
        Ok(ServerOptions {
            model_name: self.model_name()?,
            aliases: self.alias.iter().skip(1).cloned().collect(),
            ..self.unnamed_options()?
        })
    }

    /// The server's options without a model's name, for a server with several models.
    pub(crate) fn unnamed_options(&self) -> Result<ServerOptions, Failure> {
        let places = self.prefix.places()?;
        Ok(ServerOptions {
            threads: self.engine.threads,
            parallel: self.parallel,
            draft: self.draft.clone(),
            has_strict_names: self.strict_names,
            limits: Limits {
                requests: self.max_requests,
                request_time: Duration::from_secs(self.max_time),
                ..Limits::default()
            },
            default_max_tokens: self.tokens,
            ends_loops: !self.allow_loops,
            prefix_cache: places.folder,
            shared_store: places.store,
            keep_alive: self.keep_alive.map(Duration::from_secs),
            grace: Duration::from_secs(self.grace),
            logs_requests: !self.quiet,
            ..ServerOptions::default()
        })
    }

    pub(crate) fn engine_options(&self) -> Result<EngineOptions, Failure> {
        Ok(engine_options(&self.engine)?
            .with_pool_tokens(self.pool_tokens)
            .with_draft_model(self.draft.model().map(Path::to_owned))
            .with_draft_predictor(self.draft.uses_predictor()))
    }
}

/// The name of a model or an adapter from its file or folder.
pub(crate) fn name_of_path(path: &Path) -> String {
    if let Some(name) = riffle_hub::ModelName::of_path(path) {
        return name.repository();
    }
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = if path.is_dir() {
        path.file_name()
    } else {
        path.file_stem()
    };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}
