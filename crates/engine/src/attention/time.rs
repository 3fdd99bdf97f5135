use std::time::Instant;

use serde::Serialize;

/// The time of attention by part, by the clock on the wall, over all layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AttentionTime {
    /// Milliseconds in which policies looked at keys, chose, and counted votes.
    pub select_ms: f64,
    /// Milliseconds of attending to what was chosen; by a device's own clock where the result stays there.
    pub attend_ms: f64,
}

/// Adds the time since `start` to a sum; returns now.
pub(crate) fn add_since(sum_ms: &mut f64, start: Instant) -> Instant {
    let now = Instant::now();
    *sum_ms += now.saturating_duration_since(start).as_secs_f64() * 1e3;
    now
}
