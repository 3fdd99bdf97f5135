//! Requests that were answered with an error, by status and reason.

use axum::http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::text::text_of;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    status: u32,
    reason: &'static str,
}

/// Requests that were answered with an error.
#[derive(Debug)]
pub(crate) struct Refusals {
    registry: Registry,
    refused: Family<Refused, Counter>,
}

impl Default for Refusals {
    fn default() -> Self {
        let (mut registry, refused) = (Registry::default(), Family::default());
        registry.register(
            "riffle:requests_refused",
            "Requests that were answered with an error, by status and reason",
            Family::clone(&refused),
        );
        Self { registry, refused }
    }
}

impl Refusals {
    pub(crate) fn count(&self, status: StatusCode, reason: &'static str) {
        let status = u32::from(status.as_u16());
        self.refused.get_or_create(&Refused { status, reason }).inc();
    }

    pub(crate) fn text(&self) -> String {
        text_of(&self.registry)
    }
}
