//! The options of whatever serves a model to many, over HTTP or not.

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

/// The options of `riffle serve` that are not of HTTP: the model, its memory and cache, how many requests it takes on. Programs that
/// serve a model in another way have them by flattening this into their own arguments.
#[derive(Debug, Clone, Args)]
pub struct ServingArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Name of the model; several may be given, answers give the first [default: that of its file or folder]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) alias: Vec<String>,
    /// Refuse requests for a model of another name; without this the model serves every name
    #[arg(long, hide_short_help = true)]
    pub(crate) strict_names: bool,
    /// Requests that are read or answered at a time; others wait
    #[arg(long, value_name = "N", value_parser = numbers::sequences, default_value = "8")]
    pub(crate) parallel: usize,
    /// Tokens that all requests together may hold, what they share counted once
    ///
    /// [default: as many whole contexts as memory allows, one for each request at most]
    #[arg(long, value_name = "N", value_parser = numbers::tokens, hide_short_help = true)]
    pub(crate) pool_tokens: Option<usize>,
    /// Guess tokens and verify several in one pass: auto, none, ngram, sparse, mtp or model:PATH
    ///
    /// Answers are the same to the byte. A request may say otherwise: "riffle": {"draft": "none"}.
    #[arg(long, value_name = "SPEC", value_parser = hub_args::draft, default_value = "auto", hide_short_help = true)]
    pub(crate) draft: DraftSpec,
    /// Tokens of an answer whose request does not say how many
    #[arg(short = 'n', long = "tokens", aliases = ["predict", "n-predict"], value_name = "N", value_parser = numbers::tokens, default_value = "4096")]
    pub(crate) tokens: usize,
    /// Let an answer go on that writes the same tokens again and again
    ///
    /// Without this it ends once up to 256 tokens stand there at least four times in a row, with 128 repeated tokens. Answers under
    /// penalties for repetition, and those that have to have a form, are never ended so.
    /// A request may say otherwise: "riffle": {"allow_loops": true}.
    #[arg(long, hide_short_help = true)]
    pub(crate) allow_loops: bool,
    #[command(flatten)]
    pub(crate) prefix: PrefixCacheArguments,
    /// Seconds that what was read stays in memory after its last use [default: until its room is needed]
    #[arg(long, value_name = "SECONDS", help_heading = "What is kept", hide_short_help = true)]
    pub(crate) keep_alive: Option<u64>,
    /// Requests that are answered or wait at most; further ones are refused with 429
    #[arg(long, value_name = "N", value_parser = numbers::samples, default_value = "256", help_heading = "Limits", hide_short_help = true)]
    pub(crate) max_requests: usize,
    /// Seconds from the arrival of a request to the end of its answer at most
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "21600",
        help_heading = "Limits",
        hide_short_help = true
    )]
    pub(crate) max_time: u64,
    /// Seconds that answers under way may go on when the server is to end
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "10",
        help_heading = "Limits",
        hide_short_help = true
    )]
    pub(crate) grace: u64,
    /// Write no lines for answers and refused requests to standard error
    #[arg(long, hide_short_help = true)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
}

impl ServingArguments {
    /// The file or folder of the model. Where none is given, a note on standard error says which one is taken.
    ///
    /// # Errors
    /// No model is given, none was used before, and not exactly one is here.
    pub fn model_path(&self) -> Result<&Path, Failure> {
        self.model.path()
    }

    /// The name that clients see the model under.
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

    /// Requests that are read or answered at a time.
    pub fn parallel(&self) -> usize {
        self.parallel
    }

    /// Refuses options of the model and its cache that make no sense, before anything is loaded.
    ///
    /// # Errors
    /// As [`load`](Self::load), apart from what only the model's files and the machine's memory can tell.
    pub fn check(&self) -> Result<(), Failure> {
        Ok(self.engine_options()?.validate()?)
    }

    /// Loads the model and leaves memory to bodies of `bodies_bytes` together. It takes as long as reading its weights.
    ///
    /// # Errors
    /// For a model that cannot be read, for options that make no sense, and where memory is too small.
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

    /// How requests are taken on and what is kept; what is of HTTP has its default.
    ///
    /// # Errors
    /// For a place of the prefix cache that makes no sense.
    pub fn server_options(&self) -> Result<ServerOptions, Failure> {
        Ok(ServerOptions {
            model_name: self.model_name()?,
            aliases: self.alias.iter().skip(1).cloned().collect(),
            ..self.unnamed_options()?
        })
    }

    /// The same for a server with several models, which have names of their own.
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

/// The name that a model or an adapter has by its file or folder.
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
