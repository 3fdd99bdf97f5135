//! Counts and notes in an answer.

use riffle_engine::{AuditReport, DraftCount, StopReason};
use serde_json::{Value, json};

use crate::app::App;
use crate::asking::Wishes;
use crate::driver::{Finished, Reading};

/// Tokens of one request over all its answers, with OpenAI's names.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    pub(super) written_tokens: usize,
    /// Number of written tokens that are thoughts.
    pub(super) thought_tokens: usize,
    pub(super) drafts: DraftCount,
}

impl Usage {
    /// Sums the usage of several answers. The prompt of each group of `choices` answers counts once.
    pub(super) fn total<'a>(finished: impl Iterator<Item = &'a Finished>, choices: usize) -> Self {
        let mut usage = Self::default();
        for (number, finished) in finished.enumerate() {
            let report = &finished.report;
            if number % choices.max(1) == 0 {
                usage.prompt_tokens += report.prompt_tokens;
                usage.cached_tokens += report.reused_tokens;
            }
            usage.written_tokens += report.generation.tokens.len();
            usage.drafts += report.generation.drafts;
        }
        usage
    }

    pub(super) fn with_thoughts(self, thought_tokens: usize) -> Self {
        Self { thought_tokens, ..self }
    }

    pub(super) fn openai(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.written_tokens,
            "total_tokens": self.prompt_tokens + self.written_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {
                "reasoning_tokens": self.thought_tokens,
                "accepted_prediction_tokens": self.drafts.accepted,
                "rejected_prediction_tokens": self.drafts.drafted - self.drafts.accepted,
            },
        })
    }
}

/// The stop reason of an answer, in OpenAI's words.
pub(super) fn finish_reason(stop: &StopReason, calls: usize) -> &'static str {
    match stop {
        StopReason::MaxTokens | StopReason::ContextFull | StopReason::Interrupted => "length",
        _ if calls > 0 => "tool_calls",
        StopReason::EndOfText | StopReason::StopString(_) | StopReason::Loop { .. } => "stop",
    }
}

/// Counts of an answer's pairs and tokens, and the times of its parts.
pub(super) fn riffle(app: &App, wishes: &Wishes, finished: &Finished) -> Value {
    let options = app.engine.options();
    let (pairs, times) = (finished.pairs, finished.report.times);
    let drafts = finished.report.generation.drafts;
    let prefill = wishes.extras.prefill.as_ref().unwrap_or(&options.sequence.prefill);
    let decode = wishes.extras.decode.as_ref().unwrap_or(&options.sequence.decode);
    let share = match pairs.causal {
        0 => 1.0,
        causal => pairs.read as f64 / causal as f64,
    };
    let mut report = json!({
        "prefill": prefill.to_string(),
        "decode": decode.to_string(),
        "ended_by": finished.report.generation.stop.name(),
        "draft": wishes.generate.draft.to_string(),
        "drafted_tokens": drafts.drafted,
        "accepted_tokens": drafts.accepted,
        "pairs_read": pairs.read,
        "pairs_causal": pairs.causal,
        "share_read": share,
        "kept_mass": finished.audit.as_ref().map(kept_mass),
        "waited_s": times.waited_s,
        "read_s": times.read_s,
        "answered_s": times.answered_s,
    });
    let warnings = wishes.warnings.lines();
    if !warnings.is_empty() {
        report["warnings"] = json!(warnings);
    }
    report
}

fn kept_mass(audit: &AuditReport) -> Value {
    json!({
        "mean": audit.mean_mass,
        "first_percentile": audit.first_percentile_mass,
        "samples": audit.samples,
        "mean_output_error": audit.mean_output_error,
    })
}

/// Speeds with llama.cpp's names.
fn timings(finished: &Finished) -> Value {
    let (report, times) = (&finished.report, finished.report.times);
    let read = report.prompt_tokens - report.reused_tokens;
    let written = report.generation.tokens.len();
    let rate = |tokens: usize, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    json!({
        "cache_n": report.reused_tokens,
        "prompt_n": read,
        "prompt_ms": times.read_s * 1e3,
        "prompt_per_second": rate(read, times.read_s),
        "predicted_n": written,
        "predicted_ms": times.answered_s * 1e3,
        "predicted_per_second": rate(written, times.answered_s),
        "draft_n": report.generation.drafts.drafted,
        "draft_n_accepted": report.generation.drafts.accepted,
    })
}

/// Adds the report and the times of an answer to a body of OpenAI's shape.
pub(super) fn put_end(body: &mut Value, app: &App, wishes: &Wishes, finished: &Finished) {
    body["timings"] = timings(finished);
    body["riffle"] = riffle(app, wishes, finished);
}

/// Adds the progress of reading to a chunk of OpenAI's shape.
pub(super) fn put_progress(chunk: &mut Value, wishes: &Wishes, reading: &Reading) {
    let (llama, own) = progress(reading);
    if wishes.extras.shows_progress {
        chunk["prompt_progress"] = llama;
    }
    chunk["riffle"] = own;
}

/// The progress of reading a prompt, with llama.cpp's names and ours.
pub(super) fn progress(reading: &Reading) -> (Value, Value) {
    let done = reading.progress.tokens_done;
    let llama = json!({
        "total": reading.progress.tokens,
        "cache": reading.reused_tokens,
        "processed": done.floor() as u64,
        "time_ms": reading.elapsed_s * 1e3,
    });
    let own = json!({"progress": {
        "tokens_read": done,
        "tokens": reading.progress.tokens,
        "seconds_left": reading.left_s,
    }});
    (llama, own)
}
