//! The shapes of Ollama, on the same questions and answers as the other APIs.

mod answer;
pub(crate) mod chat;
pub(crate) mod embed;
pub(crate) mod facts;
pub(crate) mod generate;
pub(crate) mod models;
mod options;

use std::time::SystemTime;

/// The version of Ollama's API. Clients choose their fields by it.
pub(crate) const API_VERSION: &str = "0.13.0";

/// A time in Ollama's spelling, such as `2026-11-28T16:00:00.123456789Z`.
fn time_text(time: SystemTime) -> String {
    humantime::format_rfc3339_nanos(time).to_string()
}
