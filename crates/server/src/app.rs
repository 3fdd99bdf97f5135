//! Common state of all requests to one model.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use riffle_engine::Engine;
use riffle_model::{AdapterScales, ChatTemplate};

use crate::api::openai::KeptItems;
use crate::asking::traits::TemplateTraits;
use crate::driver::Driver;
use crate::failure::Failure;
use crate::fields::Fields;
use crate::forms::Forms;
use crate::log::Log;
use crate::metrics::Metrics;
use crate::models::unknown_model;
use crate::speech::Markup;
use crate::{ServerError, ServerOptions, Worker};

/// A loaded model: its engine, its driver, and the server's settings.
pub(crate) struct App {
    pub(crate) engine: Arc<Engine>,
    pub(crate) driver: Driver,
    pub(crate) options: ServerOptions,
    pub(crate) log: Log,
    pub(crate) forms: Arc<Forms>,
    /// The model's marks of tool calls and thoughts.
    pub(crate) markup: Markup,
    /// Items of the latest responses, common to all models.
    pub(crate) kept_items: Arc<KeptItems>,
    /// Traits of the chat template for requests without tools and with tools, computed at first use.
    pub(crate) traits: [OnceLock<TemplateTraits>; 2],
    /// True if the model stays loaded as long as the server runs.
    pub(crate) stays_loaded: bool,
    /// Default scales of the adapters.
    pub(crate) adapter_scales: Mutex<AdapterScales>,
}

impl App {
    /// Starts the thread that computes.
    ///
    /// # Errors
    /// As [`Worker::start`].
    pub(crate) fn start(
        engine: &Arc<Engine>,
        options: ServerOptions,
        metrics: &Arc<Metrics>,
        kept_items: Arc<KeptItems>,
        stays_loaded: bool,
    ) -> Result<Self, ServerError> {
        let Worker { driver, forms, .. } = Worker::counted(engine, &options, None, Arc::clone(metrics))?;
        Ok(Self {
            engine: Arc::clone(engine),
            driver,
            forms,
            markup: Markup::detect(engine),
            kept_items,
            traits: Default::default(),
            stays_loaded,
            adapter_scales: Mutex::new(engine.options().sequence.adapters),
            log: Log::of(&options),
            options,
        })
    }

    /// Default scales of the adapters.
    pub(crate) fn adapter_scales(&self) -> AdapterScales {
        *self.adapter_scales.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the default scales of adapters for later requests.
    pub(crate) fn set_adapter_scales(&self, scales: AdapterScales) {
        *self.adapter_scales.lock().unwrap_or_else(PoisonError::into_inner) = scales;
    }

    /// Traits of the model's chat template, for requests with tools or without.
    pub(crate) fn traits(&self, template: &ChatTemplate, has_tools: bool) -> &TemplateTraits {
        self.traits[usize::from(has_tools)].get_or_init(|| TemplateTraits::probe(template, has_tools))
    }

    /// Names of the model: the name in answers first, then the others.
    pub(crate) fn model_names(&self) -> impl Iterator<Item = &str> {
        let aliases = self.options.aliases.iter().map(String::as_str);
        std::iter::once(self.options.model_name.as_str()).chain(aliases)
    }

    /// Names of adapters that a request may use as its model, each with the adapter's index.
    pub(crate) fn adapter_names(&self) -> impl Iterator<Item = (usize, &str)> {
        let names = self.options.adapter_names.iter().map(String::as_str);
        let loaded = names.enumerate().take(self.engine.adapters().len());
        loaded.filter(|(_, name)| !name.is_empty() && !self.model_names().any(|own| own == *name))
    }

    /// The adapter of this name.
    pub(crate) fn adapter(&self, name: &str) -> Option<usize> {
        let (number, _) = self.adapter_names().find(|(_, own)| *own == name)?;
        Some(number)
    }

    /// Takes the model's name from a request, if it has one. The one model answers to every name, unless the server
    /// is strict.
    pub(crate) fn take_model(&self, fields: &mut Fields) -> Result<Option<String>, Failure> {
        let asked = fields.text("model")?;
        if self.options.has_strict_names {
            self.find_model(asked.as_deref())?;
        }
        Ok(asked)
    }

    /// Refuses an unknown model. The name is optional.
    pub(crate) fn find_model(&self, asked: Option<&str>) -> Result<(), Failure> {
        match asked {
            Some(name) if !self.model_names().any(|own| own == name) && self.adapter(name).is_none() => {
                Err(unknown_model(name, std::iter::once(self.options.model_name.as_str())))
            }
            _ => Ok(()),
        }
    }
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// A unique id for an answer.
pub(crate) fn new_id(prefix: &str) -> String {
    format!("{prefix}{:032x}", rand::random::<u128>())
}

/// Runs long work on its own thread.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
        Err(Failure::new(
            axum::http::StatusCode::INTERNAL_SERVER_ERROR,
            "the server failed on this request: please report it",
        ))
    })
}
