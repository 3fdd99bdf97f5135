//! The minimum rate of a body.

use std::cell::Cell;
use std::time::Duration;

use crate::Waits;

/// Rate of a body. Time in which the caller does not wait for bytes does not count.
pub(crate) struct Pace {
    pub(crate) window: Duration,
    pub(crate) least_bytes: u64,
    waited: Cell<Duration>,
    bytes: Cell<u64>,
}

impl Pace {
    pub(crate) fn new(waits: &Waits) -> Self {
        Self {
            window: waits.window,
            least_bytes: waits.window_bytes,
            waited: Cell::default(),
            bytes: Cell::default(),
        }
    }

    /// Counts bytes and the time spent waiting for them; false at the end of a window with too few bytes.
    pub(crate) fn is_kept(&self, waited: Duration, bytes: u64) -> bool {
        let (waited, bytes) = (self.waited.get() + waited, self.bytes.get() + bytes);
        let is_end = waited >= self.window;
        self.waited.set(if is_end { Duration::ZERO } else { waited });
        self.bytes.set(if is_end { 0 } else { bytes });
        !is_end || bytes >= self.least_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_that_is_waited_counts_and_each_window_begins_anew() {
        let pace = Pace::new(&Waits {
            window: Duration::from_secs(60),
            window_bytes: 100,
            ..Waits::default()
        });
        let seconds = Duration::from_secs;
        for _ in 0..10 {
            assert!(pace.is_kept(seconds(59), 1), "the window goes on");
            assert!(pace.is_kept(seconds(1), 99), "it ends with enough");
        }
        assert!(pace.is_kept(seconds(0), 1_000_000), "bytes of this window");
        assert!(pace.is_kept(seconds(60), 0));
        assert!(!pace.is_kept(seconds(60), 99), "are none of the next");
        assert!(pace.is_kept(seconds(600), 100));
    }
}
