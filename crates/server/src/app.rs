//! What all requests share.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use riffle_engine::Engine;
use tokio::sync::Semaphore;

use crate::ServerOptions;
use crate::driver::Driver;
use crate::failure::Failure;
use crate::forms::Forms;
use crate::metrics::Metrics;
use crate::speech::Markup;

/// Bytes that room for bodies is counted in.
pub(crate) const BODY_STEP: usize = 64 << 10;

/// The engine, who drives it, and how the server is set up.
pub(crate) struct App {
    pub(crate) engine: Arc<Engine>,
    pub(crate) driver: Driver,
    pub(crate) options: ServerOptions,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) forms: Arc<Forms>,
    /// Room for bodies, in steps of [`BODY_STEP`].
    pub(crate) bodies: Arc<Semaphore>,
    /// How the model writes tool calls and thoughts.
    pub(crate) markup: Markup,
    /// Seconds since 1970.
    pub(crate) started: u64,
}

impl App {
    /// Refuses a model that is not the one that is served. The name may be left out.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), Failure> {
        match asked {
            Some(name) if name != self.options.model_name => Err(Failure {
                param: Some("model".to_owned()),
                code: Some("model_not_found"),
                ..Failure::new(
                    axum::http::StatusCode::NOT_FOUND,
                    format!("there is no model {name:?} here: ask for {:?}", self.options.model_name),
                )
            }),
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

/// A name that no other answer has.
pub(crate) fn new_id(prefix: &str) -> String {
    format!("{prefix}{:032x}", rand::random::<u128>())
}

/// Does work that takes long on a thread of its own.
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
