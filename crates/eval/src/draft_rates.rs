//! Rates of answers with drafts, beside the same answers without.

use std::sync::Arc;
use std::time::Instant;

use riffle_engine::{DraftCount, DraftSpec, Engine, EngineError, GenerateOptions, Generation, Session};
use serde::{Deserialize, Serialize};

use crate::cells::{Cell, StepWatch, run_cells};
use crate::journal::Journal;
use crate::room::check_context;
use crate::tasks::Watch;
use crate::{EvalError, RunSettings};

/// What to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftRateOptions {
    /// What records call the text.
    pub text: String,
    /// What drafts, each beside none.
    pub drafts: Vec<DraftSpec>,
    /// Tokens of the text that are read before the answer.
    pub depths: Vec<usize>,
    /// Tokens behind each of them, such as a question; none for a text that goes on.
    pub question: Vec<u32>,
    /// Tokens of an answer.
    pub generated_tokens: usize,
    /// Runs of each, in turns; the fastest counts.
    pub repeats: usize,
}

/// `riffle bench draft`: a row for each depth and what drafts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DraftRates {
    /// How the model was run.
    pub settings: RunSettings,
    /// The text, by its file name.
    pub text: String,
    /// Tokens of an answer, where it does not end before.
    pub generated_tokens: usize,
    /// Runs of each; the fastest counts.
    pub repeats: usize,
    /// The rows; without drafts first at each depth.
    pub rows: Vec<DraftRate>,
}

/// The rate of an answer at one depth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DraftRate {
    /// What drafts.
    pub draft: String,
    /// Tokens in the context before.
    pub depth: usize,
    /// Tokens that were written.
    pub tokens: usize,
    /// Tokens written a second.
    pub tokens_per_s: f64,
    /// That beside the rate without drafts, which took turns with it.
    pub beside_none: f64,
    /// Tokens that were drafted.
    pub drafted: usize,
    /// Those of them that the answer drew.
    pub accepted: usize,
    /// Tokens of the answer for each pass that read or verified them.
    pub tokens_a_pass: f64,
}

/// Measures greedy answers behind the first tokens of a text. Finished depths come from the journal and go there.
///
/// # Errors
/// [`EvalError::Option`] for nothing to measure, and where an answer with drafts is another than without; a context that does not fit;
/// [`EvalError::Interrupted`].
pub fn measure_drafts(
    engine: &Arc<Engine>,
    tokens: &[u32],
    options: &DraftRateOptions,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<DraftRates, EvalError> {
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
        settings: RunSettings::of(engine),
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
        let needed = deepest.saturating_add(self.question.len() + self.generated_tokens);
        check_context(engine, "the largest --depth, the question and -n together", needed)
    }
}

/// The fastest run of one draft.
struct Best {
    draft: DraftSpec,
    seconds: f64,
    generation: Option<Generation>,
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
    session.prefill(&prompt, &mut |progress| {
        watch(read * progress.tokens_done / progress.tokens as f64)
    })?;
    let drafts = [DraftSpec::NONE].into_iter().chain(options.drafts.iter().cloned());
    let mut bests: Vec<Best> = drafts
        .map(|draft| Best {
            draft,
            seconds: f64::INFINITY,
            generation: None,
        })
        .collect();
    let runs = options.repeats * bests.len();
    for run in 0..runs {
        let place = run % bests.len();
        let best = &mut bests[place];
        let generate = GenerateOptions {
            max_tokens: options.generated_tokens,
            ignores_end: true,
            draft: best.draft.clone(),
            ..GenerateOptions::default()
        };
        let done = read + (1.0 - read) * run as f64 / runs as f64;
        let mut answer = session.fork()?;
        let start = Instant::now();
        let generation = answer.generate(&generate, &mut |_| watch(done))?;
        let seconds = start.elapsed().as_secs_f64();
        session.take_scratch(&mut answer);
        if generation.tokens.len() < options.generated_tokens {
            return Err(EngineError::Interrupted {
                tokens: session.tokens().len(),
                total: prompt.len() + options.generated_tokens,
            }
            .into());
        }
        best.seconds = best.seconds.min(seconds);
        let first = best.generation.get_or_insert_with(|| generation.clone());
        let same = first.tokens == generation.tokens;
        let same = same
            && bests[0]
                .generation
                .as_ref()
                .is_none_or(|none| none.tokens == generation.tokens);
        if !same {
            return Err(EvalError::Option(format!(
                "an answer with --draft {} at depth {depth} is another than without: please report it",
                bests[place].draft
            )));
        }
    }
    let none_s = bests[0].seconds;
    Ok(bests.into_iter().map(|best| best.rate(depth, none_s)).collect())
}

impl Best {
    fn rate(self, depth: usize, none_s: f64) -> DraftRate {
        let (tokens, drafts) = match self.generation {
            Some(generation) => (generation.tokens.len(), generation.drafts),
            None => (0, DraftCount::default()),
        };
        DraftRate {
            draft: self.draft.to_string(),
            depth,
            tokens,
            tokens_per_s: tokens as f64 / self.seconds,
            beside_none: none_s / self.seconds,
            drafted: drafts.drafted,
            accepted: drafts.accepted,
            // The first token costs no pass, and every pass reads one token that was not drafted.
            tokens_a_pass: (tokens - 1) as f64 / (tokens - 1 - drafts.accepted) as f64,
        }
    }
}
