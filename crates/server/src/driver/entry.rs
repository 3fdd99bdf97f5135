//! A request in the scheduler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use riffle_engine::{PrefillProgress, TimeLeft};
use tokio::sync::mpsc::UnboundedSender;

use super::{DriverEvent, Listener, Reading};
use crate::log::Line;
use crate::request_notes::{RequestNotes, line_of};

/// Shortest time between two reports of progress.
const PROGRESS_PAUSE: Duration = Duration::from_millis(500);

/// A submitted request: its listener, its deadline and its progress.
pub(super) struct Entry {
    pub(super) events: UnboundedSender<DriverEvent>,
    pub(super) deadline: Instant,
    /// True if the request's sequence is sent at the end.
    pub(super) wants_sequence: bool,
    notes: Option<Arc<RequestNotes>>,
    submitted: Instant,
    /// Time when the reading of the prompt began.
    begun: Option<Instant>,
    time_left: TimeLeft,
    told_progress: Option<Instant>,
    pub(super) latest_token: Option<Instant>,
}

impl Entry {
    pub(super) fn new(listener: Listener, wants_sequence: bool, time_left: TimeLeft) -> Self {
        Self {
            events: listener.events,
            deadline: listener.deadline,
            wants_sequence,
            notes: listener.notes,
            submitted: Instant::now(),
            begun: None,
            time_left,
            told_progress: None,
            latest_token: None,
        }
    }

    /// A line of the log about the request.
    pub(super) fn line(&self, event: &'static str) -> Line {
        line_of(self.notes.as_ref(), event)
    }

    /// True if the receiver of the request's events is dropped.
    pub(super) fn is_gone(&self) -> bool {
        self.events.is_closed()
    }

    pub(super) fn send(&self, told: DriverEvent) {
        // The driver notices a dropped receiver before the next piece.
        drop(self.events.send(told));
    }

    /// Reports the progress of the request's prompt, at most twice a second.
    pub(super) fn send_progress(&mut self, progress: PrefillProgress, reused_tokens: usize) {
        let now = Instant::now();
        let elapsed_s = (now - *self.begun.get_or_insert(now)).as_secs_f64();
        self.time_left.record(progress, elapsed_s);
        let is_due = self.told_progress.is_none_or(|told| now - told >= PROGRESS_PAUSE);
        if !is_due {
            return;
        }
        self.told_progress = Some(now);
        self.send(DriverEvent::Reading(Reading {
            progress,
            reused_tokens,
            elapsed_s,
            left_s: self.time_left.seconds(),
        }));
    }

    /// Seconds since the latest token, or since the submission for the first one; true for the first one.
    pub(super) fn gap_s(&mut self) -> (f64, bool) {
        let now = Instant::now();
        let before = self.latest_token.replace(now);
        ((now - before.unwrap_or(self.submitted)).as_secs_f64(), before.is_none())
    }

    pub(super) fn age_s(&self) -> f64 {
        self.submitted.elapsed().as_secs_f64()
    }
}
