//! Prefill progress on standard error: a bar on a terminal, otherwise a line every few seconds.

#[cfg(feature = "pull")]
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
#[cfg(feature = "pull")]
use riffle_engine::human_bytes;
use riffle_engine::{Engine, PrefillProgress, TimeLeft};
use riffle_eval::CellStep;

use crate::console;

const LINE_EVERY: Duration = Duration::from_secs(5);

/// The bar is drawn eight times a second.
const MESSAGE_EVERY: Duration = Duration::from_millis(100);

/// Fewest tokens of a prompt with progress lines.
const LINES_FROM_TOKENS: usize = 256;

pub(crate) struct PrefillDisplay {
    bar: ProgressBar,
    start: Instant,
    last_line: Instant,
    last_message: Option<Instant>,
    time_left: TimeLeft,
}

impl PrefillDisplay {
    pub(crate) fn new(engine: &Engine) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
        let style = ProgressStyle::with_template("reading {bar:16} {pos}/{len} tokens  {wide_msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        let now = Instant::now();
        Self {
            bar,
            start: now,
            last_line: now,
            last_message: None,
            time_left: TimeLeft::new(engine),
        }
    }

    pub(crate) fn update(&mut self, progress: PrefillProgress) {
        let elapsed_s = self.start.elapsed().as_secs_f64();
        self.time_left.record(progress, elapsed_s);
        self.bar.set_length(progress.tokens as u64);
        self.bar.set_position(progress.tokens_done as u64);
        // Progress arrives every few milliseconds; the display limits its updates.
        if self.last_message.is_some_and(|last| last.elapsed() < MESSAGE_EVERY) {
            return;
        }
        self.last_message = Some(Instant::now());
        let left = self.time_left.seconds();
        let message = left.map_or_else(String::new, |left_s| format!("{} left", duration(left_s)));
        self.bar.set_message(message.clone());
        let is_long = progress.tokens >= LINES_FROM_TOKENS;
        if self.bar.is_hidden() && is_long && self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            let rate = progress.tokens_done / elapsed_s.max(1e-9);
            let (done, tokens) = (progress.tokens_done, progress.tokens);
            let behind = if message.is_empty() { "" } else { ", " };
            console::note(format!(
                "reading {done:.0}/{tokens} tokens, {rate:.0} tokens/s{behind}{message}"
            ));
        }
    }

    /// The forecast, with the seconds since the reading began.
    pub(crate) fn forecast(&self) -> (&TimeLeft, f64) {
        (&self.time_left, self.start.elapsed().as_secs_f64())
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// A duration for people: `40 s`, `3 min 20 s`, `12 min`, `3 h 05 min`.
pub(crate) fn duration(seconds: f64) -> String {
    let tens = (seconds / 10.0).round() as u64;
    let minutes = (seconds / 60.0).round() as u64;
    match seconds {
        ..=120.0 => format!("{seconds:.0} s"),
        ..=595.0 => format!("{} min {:02} s", tens / 6, tens % 6 * 10),
        ..=5970.0 => format!("{minutes} min"),
        _ => format!("{} h {:02} min", minutes / 60, minutes % 60),
    }
}

/// A progress bar with a message; without a terminal, a line at intervals.
struct Gauge {
    bar: ProgressBar,
    start: Instant,
    last_line: Instant,
}

impl Gauge {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            bar: share_bar(),
            start: now,
            last_line: now,
        }
    }

    /// The time left after `measured` of the work, with `left` still to do; empty before the first measurement.
    fn time_left(&self, measured: f64, left: f64) -> String {
        if measured > 0.0 {
            format!(
                ", {} left",
                duration(self.start.elapsed().as_secs_f64() * left / measured)
            )
        } else {
            String::new()
        }
    }

    fn show(&mut self, share: f64, message: String, line: String) {
        self.bar.set_position((1000.0 * share) as u64);
        self.bar.set_message(message);
        if self.bar.is_hidden() && self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            console::note(line);
        }
    }
}

/// A bar of a thousand steps.
fn share_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr_with_hz(8));
    let style = ProgressStyle::with_template("{bar:16} {percent}%  {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar
}

/// Progress of a measurement in cells, with the time left.
pub(crate) struct StepDisplay(Gauge);

impl StepDisplay {
    pub(crate) fn new() -> Self {
        Self(Gauge::new())
    }

    pub(crate) fn update(&mut self, step: &CellStep<'_>) {
        let left = self.0.time_left(step.done - step.found, step.total - step.done);
        let message = format!("{} of {} cells{left}: {}", step.cells_done, step.cells, step.cell);
        self.0.show(step.done / step.total.max(1.0), message.clone(), message);
    }

    pub(crate) fn finish(&self) {
        self.0.bar.finish_and_clear();
    }
}

/// Progress of an embedding model that reads the parts of documents, with the time left.
pub(crate) struct EmbeddingDisplay(Gauge);

impl EmbeddingDisplay {
    pub(crate) fn new() -> Self {
        Self(Gauge::new())
    }

    pub(crate) fn update(&mut self, done: usize, parts: usize) {
        let left = self.0.time_left(done as f64, (parts - done) as f64);
        let message = format!("meaning of {done} of {parts} parts{left}");
        self.0.show(done as f64 / parts.max(1) as f64, message.clone(), message);
    }

    pub(crate) fn finish(&self) {
        self.0.bar.finish_and_clear();
    }
}

/// Progress of a download, with the time left.
#[cfg(feature = "pull")]
pub(crate) struct PullDisplay {
    bar: ProgressBar,
    last_line: Instant,
    /// Times and byte counts of recent seconds.
    samples: VecDeque<(Instant, u64)>,
}

/// Time span of a download's average rate.
#[cfg(feature = "pull")]
const RATE_OVER: Duration = Duration::from_secs(10);

#[cfg(feature = "pull")]
impl PullDisplay {
    pub(crate) fn new() -> Self {
        Self {
            bar: share_bar(),
            last_line: Instant::now(),
            samples: VecDeque::new(),
        }
    }

    pub(crate) fn update(&mut self, progress: &riffle_hub::Progress) {
        let message = self.message(progress);
        let share = progress.bytes_done as f64 / (progress.bytes as f64).max(1.0);
        self.bar.set_position((1000.0 * share) as u64);
        self.bar.set_message(message.clone());
        if self.bar.is_hidden() && self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            console::note(message);
        }
    }

    fn message(&mut self, progress: &riffle_hub::Progress) -> String {
        use riffle_hub::Activity;
        let file = crate::shown::name(&progress.file);
        match &progress.activity {
            Activity::Asking => "asking the hub what there is".to_owned(),
            Activity::Checking => format!("{file}: reading what an earlier download left"),
            Activity::WaitingForProcess => format!("{file}: another process downloads it; waiting for its end"),
            Activity::WaitingToRetry { why, seconds } => {
                self.samples.clear();
                format!("{}; next try in {seconds:.0} s", crate::shown::line(why))
            }
            _ => self.downloading(progress, &file),
        }
    }

    fn downloading(&mut self, progress: &riffle_hub::Progress, file: &str) -> String {
        let now = Instant::now();
        self.samples.push_back((now, progress.bytes_done));
        while self.samples.front().is_some_and(|(then, _)| now - *then > RATE_OVER) {
            self.samples.pop_front();
        }
        let of = format!(
            "{} of {}",
            human_bytes(progress.bytes_done),
            human_bytes(progress.bytes)
        );
        let (then, before) = self.samples.front().copied().unwrap_or((now, progress.bytes_done));
        let rate = progress.bytes_done.saturating_sub(before) as f64 / (now - then).as_secs_f64().max(1e-3);
        if !(rate >= 1.0 && now - then > Duration::from_secs(1)) {
            format!("{of}, {file}")
        } else {
            let left = (progress.bytes.saturating_sub(progress.bytes_done)) as f64 / rate;
            format!("{of}, {}/s, {} left, {file}", human_bytes(rate as u64), duration(left))
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Progress of writing tensors, or of reading chunks.
pub(crate) struct QuantizeDisplay(Gauge);

impl QuantizeDisplay {
    pub(crate) fn new() -> Self {
        Self(Gauge::new())
    }

    pub(crate) fn update(&mut self, progress: &riffle_quantize::QuantizeProgress<'_>) {
        let share = progress.done_bytes as f64 / progress.file_bytes.max(1) as f64;
        let (done, all) = (progress.done_tensors + 1, progress.tensors);
        let name = crate::shown::name(progress.tensor);
        self.show(share, &format!("tensor {done} of {all}, {name}"));
    }

    /// Shows the progress of reading chunks.
    pub(crate) fn update_chunks(&mut self, done: usize, all: usize) {
        self.show(done as f64 / all.max(1) as f64, &format!("chunk {done} of {all}"));
    }

    fn show(&mut self, share: f64, message: &str) {
        let message = format!("{message}{}", self.0.time_left(share, 1.0 - share));
        let line = format!("{:.0}%, {message}", 100.0 * share);
        self.0.show(share, message, line);
    }

    pub(crate) fn finish(&self) {
        self.0.bar.finish_and_clear();
    }
}
