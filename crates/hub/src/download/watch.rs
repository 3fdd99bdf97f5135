//! Reports progress to a caller, and lets the caller stop the pull.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::OnProgress;
use crate::HubError;
use crate::progress::{Activity, Progress};

/// Reports a pull's progress to the caller, which may request a stop.
pub(crate) struct Watch<'a> {
    pub(crate) progress: Progress,
    on_progress: &'a mut OnProgress<'a>,
    told: Option<Instant>,
}

/// Maximum time between two calls of the caller.
pub(crate) const TICK: Duration = Duration::from_millis(50);

impl<'a> Watch<'a> {
    pub(crate) fn new(progress: Progress, on_progress: &'a mut OnProgress<'a>) -> Self {
        Self {
            progress,
            on_progress,
            told: None,
        }
    }

    /// Reports the progress at a limited rate.
    pub(crate) fn tick(&mut self) -> Result<(), HubError> {
        if self.told.is_some_and(|told| told.elapsed() < TICK) {
            Ok(())
        } else {
            self.report()
        }
    }

    /// Reports the begin of an activity.
    pub(crate) fn begin(&mut self, activity: Activity) -> Result<(), HubError> {
        self.progress.activity = activity;
        self.report()
    }

    /// Waits before another try.
    pub(crate) fn wait(&mut self, time: Duration, why: &str) -> Result<(), HubError> {
        let end = Instant::now() + time;
        let before = self.progress.activity.clone();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.begin(before);
            }
            self.begin(Activity::WaitingToRetry {
                why: why.to_owned(),
                seconds: left.as_secs_f64(),
            })?;
            std::thread::sleep(left.min(TICK));
        }
    }

    fn report(&mut self) -> Result<(), HubError> {
        self.told = Some(Instant::now());
        match (self.on_progress)(&self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(HubError::Interrupted),
        }
    }
}
