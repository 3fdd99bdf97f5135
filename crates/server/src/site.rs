//! State of the whole server, with one or several models.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::Semaphore;

use crate::log::Log;
use crate::metrics::Refusals;
use crate::models::Models;
use crate::{Keys, ServerError, ServerOptions};

/// Unit of the memory for bodies, in bytes.
pub(crate) const BODY_STEP: usize = 64 << 10;

/// The models, and the keys for them.
pub(crate) struct Site {
    pub(crate) models: Models,
    pub(crate) options: ServerOptions,
    pub(crate) keys: Keys,
    pub(crate) log: Log,
    /// Requests that were answered with an error.
    pub(crate) refusals: Refusals,
    /// True after the server was told to end.
    pub(crate) is_ending: AtomicBool,
    /// Free memory for bodies, in steps of [`BODY_STEP`].
    pub(crate) bodies: Arc<Semaphore>,
    /// Lock for reading files, one at a time.
    pub(crate) reader: Arc<Semaphore>,
}

impl Site {
    pub(crate) fn new(models: Models, options: ServerOptions) -> Result<Self, ServerError> {
        Ok(Self {
            models,
            keys: Keys::new(options.api_keys.clone())?,
            log: Log::of(&options),
            refusals: Refusals::default(),
            is_ending: AtomicBool::new(false),
            bodies: Arc::new(Semaphore::new(options.limits.bodies_bytes.div_ceil(BODY_STEP))),
            reader: Arc::new(Semaphore::new(1)),
            options,
        })
    }

    /// All metrics, as text for Prometheus.
    pub(crate) fn metrics_text(&self) -> String {
        let models = self.models.entries().iter().map(|entry| entry.metrics.text());
        crate::metrics::merged(models.chain([self.refusals.text()]))
    }
}
