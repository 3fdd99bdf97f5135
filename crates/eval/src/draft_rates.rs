//! Rates of answers with drafts, compared with the same answers without drafts.

use std::sync::Arc;
use std::time::Instant;

use riffle_engine::{DraftCount, DraftSpec, Engine, GenerateOptions, Session, StopReason};
use serde::{Deserialize, Serialize};

use crate::cells::{Cell, StepWatch, run_cells};
use crate::journal::Journal;
use crate::room::check_context;
use crate::tasks::{Watch, interrupted};
use crate::{EvalError, RunSettings};

/// Options of the draft measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftRateOptions {
    /// Name of the text in records.
    pub text: String,
    /// The sources of drafts.
    pub drafts: Vec<DraftSpec>,
    /// Tokens of the text to read before the answer.
    pub depths: Vec<usize>,
    /// Tokens after the text, such as a question; empty if the answer continues the text.
    pub question: Vec<u32>,
    /// Tokens of an answer.
    pub generated_tokens: usize,
    /// Runs of each source, alternating; the fastest counts.
    pub repeats: usize,
}

/// `riffle bench draft`: a row for each depth and draft source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DraftRates {
    /// How the model was run.
    pub settings: RunSettings,
    /// The text, by its file name.
    pub text: String,
    /// Tokens of an answer.
    pub generated_tokens: usize,
    /// Runs of each source; the fastest counts.
    pub repeats: usize,
    /// The rows; at each depth, the row without drafts comes first.
    pub rows: Vec<DraftRate>,
}

/// The rate of an answer at one depth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DraftRate {
    /// The sources of drafts.
    pub draft: String,
    /// Tokens in the context before the answer.
    pub depth: usize,
    /// Tokens written a second.
    pub tokens_per_s: f64,
    /// `tokens_per_s` divided by the rate without drafts, measured in alternation.
    pub beside_none: f64,
    /// Drafted tokens.
    pub drafted: usize,
    /// Drafted tokens that the answer accepted.
    pub accepted: usize,
    /// Tokens of the answer for each pass that read or verified them.
    pub tokens_a_pass: f64,
    /// Pairs of query and key read for each token of the answer, including the drafts' pairs.
    pub pairs_a_token: f64,
    /// Bytes of pages loaded from slower tiers for each token of the answer.
    pub loaded_bytes_a_token: f64,
}

/// Measures greedy answers after the first tokens of a text. The journal keeps finished depths.
///
/// # Errors
/// [`EvalError::Option`] for an empty measurement, or if drafts change an answer; a context that does not fit;
/// [`EvalError::Interrupted`].
pub fn measure_drafts(
    engine: &Arc<Engine>,
    tokens: &[u32],
    options: &DraftRateOptions,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<DraftRates, EvalError> {
    // The text, and the answer that continues it.
    let engine = &engine.with_options(engine.options().clone().with_sequences(2))?;
    options.check(engine, tokens)?;
    let cells: Vec<Cell<usize>> = options
        .depths
        .iter()
        .map(|&depth| Cell {
            name: format!("depth {depth}"),
            tokens: depth + options.repeats * (1 + options.drafts.len()) * options.generated_tokens,
            task: depth,
        })
        .collect();
    let rows: Vec<Vec<DraftRate>> = run_cells(&cells, journal, watch, &mut |depth, watch| {
        measure(engine, tokens, options, *depth, watch)
    })?;
    Ok(DraftRates {
        settings: RunSettings::from_engine(engine),
        text: options.text.clone(),
        generated_tokens: options.generated_tokens,
        repeats: options.repeats,
        rows: rows.into_iter().flatten().collect(),
    })
}

impl DraftRateOptions {
    fn check(&self, engine: &Engine, tokens: &[u32]) -> Result<(), EvalError> {
        if self.generated_tokens < 2 || self.repeats == 0 || self.depths.is_empty() || self.drafts.is_empty() {
            return Err(EvalError::Option(
                "-n must be at least 2, and --repeats, --depth and --draft at least 1".to_owned(),
            ));
        }
        if tokens.is_empty() {
            return Err(EvalError::Option(
                "the text is empty: there is nothing to read".to_owned(),
            ));
        }
        let deepest = self.depths.iter().copied().max().unwrap_or(0);
        let passes_of_model = if self.drafts.iter().any(|draft| draft.model().is_some()) {
            passes_of_small_model(deepest)
        } else {
            0
        };
        let needed = deepest.saturating_add(self.question.len() + self.generated_tokens.max(passes_of_model));
        check_context(engine, "the largest --depth, the question and -n together", needed)
    }
}

/// One draft source, with its fastest run.
struct Measured {
    draft: DraftSpec,
    seconds: f64,
    count: DraftCount,
    pairs: u64,
    loaded_bytes: u64,
}

fn measure(
    engine: &Arc<Engine>,
    tokens: &[u32],
    options: &DraftRateOptions,
    depth: usize,
    watch: &mut Watch<'_>,
) -> Result<Vec<DraftRate>, EvalError> {
    let mut prompt: Vec<u32> = tokens.iter().cycle().take(depth.max(1)).copied().collect();
    prompt.extend(&options.question);
    let mut session = Session::new(engine)?;
    let read = depth as f64 / (depth + 100 * options.generated_tokens) as f64;
    if let Some(draft) = options.drafts.iter().find(|draft| draft.model().is_some()) {
        read_with_small_model(&mut session, draft, &prompt, watch)?;
    }
    let unread = &prompt[session.tokens().len()..];
    session.prefill(unread, &mut |progress| {
        watch(read * progress.tokens_done / progress.tokens as f64)
    })?;
    let drafts = [DraftSpec::NONE].into_iter().chain(options.drafts.iter().cloned());
    let mut measured: Vec<Measured> = drafts.map(Measured::new).collect();
    let runs = options.repeats * measured.len();
    let mut expected: Option<Vec<u32>> = None;
    for run in 0..runs {
        let done = read + (1.0 - read) * run as f64 / runs as f64;
        let place = run % measured.len();
        let answer = measured[place].answer(&mut session, options.generated_tokens, &mut |_| watch(done))?;
        if *expected.get_or_insert_with(|| answer.clone()) != answer {
            return Err(EvalError::Option(format!(
                "an answer with --draft {} at depth {depth} is not the answer without: please report it",
                measured[place].draft
            )));
        }
    }
    let none_s = measured[0].seconds;
    let tokens = options.generated_tokens;
    let rates = measured.iter().map(|measured| measured.rate(depth, tokens, none_s));
    Ok(rates.collect())
}

/// Reads a prompt up to its last token. The small model of a draft reads it too. The timing then covers only answers
/// after a text that both models have read.
fn read_with_small_model(
    session: &mut Session,
    draft: &DraftSpec,
    prompt: &[u32],
    watch: &mut Watch<'_>,
) -> Result<(), EvalError> {
    let Some((_, beginning)) = prompt.split_last().filter(|(_, beginning)| !beginning.is_empty()) else {
        return Ok(());
    };
    session.prefill(beginning, &mut |_| watch(0.0))?;
    let generate = GenerateOptions {
        max_tokens: passes_of_small_model(beginning.len()),
        ignores_end: true,
        draft: draft.clone(),
        ..GenerateOptions::default()
    };
    let generation = session.generate(&generate, &mut |_| watch(0.0))?;
    if generation.stop == StopReason::Interrupted {
        return Err(interrupted(session));
    }
    Ok(session.truncate(beginning.len())?)
}

/// Passes of an answer until a small model has read `tokens` tokens: it reads at least 512 in each pass.
fn passes_of_small_model(tokens: usize) -> usize {
    tokens.div_ceil(512) + 2
}

impl Measured {
    fn new(draft: DraftSpec) -> Self {
        Self {
            draft,
            seconds: f64::INFINITY,
            count: DraftCount::default(),
            pairs: 0,
            loaded_bytes: 0,
        }
    }

    /// An answer of `tokens` tokens in a copy of the session.
    fn answer(&mut self, session: &mut Session, tokens: usize, watch: &mut Watch<'_>) -> Result<Vec<u32>, EvalError> {
        let generate = GenerateOptions {
            max_tokens: tokens,
            ignores_end: true,
            draft: self.draft.clone(),
            ..GenerateOptions::default()
        };
        let mut answer = session.fork()?;
        let (pairs, loaded_bytes) = (
            answer.sequence().counts().pairs.read,
            answer.sequence().pool().loaded_bytes(),
        );
        let start = Instant::now();
        let generation = answer.generate(&generate, &mut |_| watch(1.0))?;
        let seconds = start.elapsed().as_secs_f64();
        if generation.stop == StopReason::Interrupted {
            return Err(interrupted(&answer));
        }
        if seconds < self.seconds {
            self.seconds = seconds;
            self.count = generation.drafts;
            self.pairs = answer.sequence().counts().pairs.read - pairs + generation.drafts.undone_pairs;
            self.loaded_bytes = answer.sequence().pool().loaded_bytes() - loaded_bytes;
        }
        session.take_scratch(&mut answer);
        Ok(generation.tokens)
    }

    fn rate(&self, depth: usize, tokens: usize, none_s: f64) -> DraftRate {
        // The logits of the first token exist before the answer, and every pass reads one token that was not drafted.
        let (generated, count) = (tokens - 1, self.count);
        DraftRate {
            draft: self.draft.to_string(),
            depth,
            tokens_per_s: tokens as f64 / self.seconds,
            beside_none: none_s / self.seconds,
            drafted: count.drafted,
            accepted: count.accepted,
            tokens_a_pass: generated as f64 / (generated - count.accepted) as f64,
            pairs_a_token: self.pairs as f64 / generated as f64,
            loaded_bytes_a_token: self.loaded_bytes as f64 / generated as f64,
        }
    }
}
