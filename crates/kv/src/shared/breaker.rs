//! Stops asking a store for a while after a failure.

use std::time::{Duration, Instant};

/// The first pause; each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// Decides if a store may be asked. Failures pause it; successive failures lengthen the pause. After a pause, one
/// operation tries, and its result decides.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    paused_until: Option<Instant>,
}

impl Breaker {
    /// True during a pause.
    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// Number of successive failures.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// End of the pause.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Records a failure. Returns the pause if this is the first failure after a success.
    pub(super) fn fail(&mut self, now: Instant) -> Option<Duration> {
        if self.is_paused(now) {
            // This operation began before the pause.
            return None;
        }
        let pause = FIRST_PAUSE
            .saturating_mul(1 << self.failures.min(10))
            .min(LONGEST_PAUSE);
        self.paused_until = Some(now + pause);
        self.failures += 1;
        (self.failures == 1).then_some(pause)
    }

    /// Records a success. Returns true if the store had failed before.
    pub(super) fn succeed(&mut self) -> bool {
        self.paused_until = None;
        std::mem::take(&mut self.failures) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_while_a_store_fails_and_end_when_it_works() {
        let (mut breaker, mut now) = (Breaker::default(), Instant::now());
        assert!(!breaker.is_paused(now));
        assert_eq!(breaker.fail(now), Some(FIRST_PAUSE));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let until = breaker.paused_until().unwrap();
            assert!(breaker.is_paused(until - Duration::from_millis(1)) && !breaker.is_paused(until));
            // Failures of operations that began before the pause change nothing.
            assert_eq!(breaker.fail(now), None);
            assert_eq!(breaker.paused_until(), Some(until));
            pauses.push(until - now);
            now = until;
            assert_eq!(breaker.fail(now), None);
        }
        assert!(pauses.is_sorted() && *pauses.last().unwrap() == LONGEST_PAUSE);
        assert!(breaker.succeed());
        assert!(!breaker.is_paused(now) && !breaker.succeed());
        assert_eq!(breaker.fail(now), Some(FIRST_PAUSE));
    }
}
