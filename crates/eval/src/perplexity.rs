//! The likelihood of a text under a policy, and the divergence from dense attention's predictions.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use riffle_engine::{AttentionPrecision, Engine, PairCount, Session, human_bytes};
use riffle_policy::Phase;
use serde::{Deserialize, Serialize};

use crate::EvalError;
use crate::cells::{Cell, CellStep, StepWatch, run_cells};
use crate::choice::PolicyChoice;
use crate::compare::{Fitted, FittedChoice, check_budget};
use crate::journal::Journal;
use crate::record::{PerplexityBucket, PerplexityRow, PerplexityTable, RunSettings};
use crate::tasks::{Watch, go_on, most_likely};

/// Options of the perplexity measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct PerplexityOptions {
    /// Name of the text in records.
    pub text: String,
    /// Tokens of the text.
    pub tokens: Vec<u32>,
    /// The first token of every text of the model, which replaces each window's first token. Attention may rely on
    /// it.
    pub beginning: Option<u32>,
    /// Tokens of a window. A prediction sees the earlier tokens of its window.
    pub window_tokens: usize,
    /// Tokens from one window to the next. Each window scores its last `stride_tokens` tokens, but never its first
    /// token.
    pub stride_tokens: usize,
    /// Policies to compare with dense attention. For decode policies, the scored tokens are read one by one after the
    /// rest.
    pub policies: Vec<PolicyChoice>,
    /// The share of pairs that every policy reads in its phase. Policies are fitted to it on the text's first window.
    /// `None` uses policies unchanged.
    pub budget: Option<f64>,
    /// Limit on the bytes of dense attention's predictions for one window, in a temporary file.
    pub predictions_budget_bytes: u64,
}

/// Sums over scored tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Sums {
    tokens: usize,
    nll: f64,
    kl: f64,
    largest_kl: f64,
    flips: usize,
}

/// Score of one window under one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct WindowScore {
    /// Sums by bucket.
    sums: Vec<Sums>,
    pairs: PairCount,
}

/// Predicts the text under dense attention and every policy. The journal keeps finished windows.
///
/// # Errors
/// [`EvalError::Option`] for impossible windows, or predictions over their budget; [`EvalError::Interrupted`].
pub fn perplexity(
    engine: &Arc<Engine>,
    options: &PerplexityOptions,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<PerplexityTable, EvalError> {
    let windows = windows(options)?;
    let scored = options.stride_tokens.min(options.window_tokens - 1);
    let precision = engine.options().model.attention;
    let dense_alone = precision == AttentionPrecision::Exact && options.policies.iter().all(PolicyChoice::is_full);
    if !dense_alone {
        options.check_predictions(scored, engine.model().config().vocab_size)?;
    }
    let fitted = choices(engine, options, watch)?;
    // The reference is exact dense attention. Inexact dense attention is one more run.
    let mut choices = vec![(&fitted[0].choice, AttentionPrecision::Exact)];
    if precision != AttentionPrecision::Exact {
        choices.push((&fitted[0].choice, precision));
    }
    let first_fitted = choices.len();
    choices.extend(fitted[1..].iter().map(|policy| (&policy.choice, precision)));
    let buckets = buckets(options.window_tokens);
    let reader = |(choice, attention): &(&PolicyChoice, AttentionPrecision)| {
        Ok(WindowReader {
            engine: engine.with_options(choice.options(engine.options()).with_attention(*attention))?,
            phase: choice.phase,
            scored,
            buckets: &buckets,
        })
    };
    let readers: Vec<WindowReader<'_>> = choices.iter().map(reader).collect::<Result<_, EvalError>>()?;
    let cells = cells(&windows, &choices);
    let mut dense = DensePredictions {
        reader: &readers[0],
        are_kept: !dense_alone,
        latest: None,
    };
    let found: Vec<WindowScore> = run_cells(&cells, journal, watch, &mut |(number, window), watch| {
        let mut tokens = options.tokens[window.clone()].to_vec();
        if let Some(beginning) = options.beginning {
            tokens[0] = beginning;
        }
        match number {
            0 => dense.score(window.start, &tokens, watch),
            number => {
                let mut predictions = dense.for_window(window.start, &tokens, watch)?;
                readers[*number].score(&tokens, watch, &mut |sums, logits| {
                    sums.compare(predictions.next()?, logits);
                    Ok(())
                })
            }
        }
    })?;
    let rows = readers.iter().enumerate().map(|(number, reader)| {
        let scores: Vec<&WindowScore> = found.iter().skip(number).step_by(readers.len()).collect();
        let place = number.checked_sub(first_fitted);
        let fit = place.and_then(|place| fitted[1 + place].fit.clone());
        row(RunSettings::from_engine(&reader.engine), &scores, &buckets).under_budget(options.budget, fit)
    });
    let rows: Vec<PerplexityRow> = rows.collect();
    Ok(PerplexityTable {
        text: options.text.clone(),
        tokens: rows[0].all.tokens,
        window_tokens: options.window_tokens,
        stride_tokens: options.stride_tokens,
        rows,
    })
}

/// Dense attention and the policies, fitted to the budget if there is one.
fn choices(
    engine: &Arc<Engine>,
    options: &PerplexityOptions,
    watch: &mut StepWatch<'_>,
) -> Result<Vec<FittedChoice>, EvalError> {
    check_budget(options.budget)?;
    let mut fitted = Fitted::new(engine, &options.tokens, 0);
    let mut choices = vec![FittedChoice {
        choice: PolicyChoice::full(),
        fit: None,
    }];
    for policy in options.policies.iter().filter(|policy| !policy.is_full()) {
        let step = CellStep {
            done: 0.0,
            total: 1.0,
            found: 0.0,
            cells_done: 0,
            cells: 1,
            cell: &format!("fitting {policy}"),
        };
        choices.push(fitted.choice(policy, options.budget, options.window_tokens, &mut |_| watch(&step))?);
    }
    Ok(choices)
}

/// Every window under every policy. Dense attention comes first in each window, because its predictions are the
/// reference.
fn cells(
    windows: &[Range<usize>],
    choices: &[(&PolicyChoice, AttentionPrecision)],
) -> Vec<Cell<(usize, Range<usize>)>> {
    let mut cells = Vec::new();
    for window in windows {
        for (number, (choice, attention)) in choices.iter().enumerate() {
            let precision = match attention {
                AttentionPrecision::Exact => String::new(),
                rounded => format!(" with {rounded} attention"),
            };
            cells.push(Cell {
                name: format!("{choice}{precision}, window from {}", window.start),
                tokens: window.len(),
                task: (number, window.clone()),
            });
        }
    }
    cells
}

impl PerplexityOptions {
    /// Refuses dense predictions of `scored` tokens that exceed their budget.
    fn check_predictions(&self, scored: usize, vocab: usize) -> Result<(), EvalError> {
        let bytes = (scored * vocab * size_of::<f32>()) as u64;
        if bytes <= self.predictions_budget_bytes {
            return Ok(());
        }
        Err(EvalError::Option(format!(
            "the dense predictions of {scored} tokens take {} and --predictions-budget is {}: use a smaller --stride, or a larger budget",
            human_bytes(bytes),
            human_bytes(self.predictions_budget_bytes)
        )))
    }
}

/// The windows, all of equal length and within the text.
fn windows(options: &PerplexityOptions) -> Result<Vec<Range<usize>>, EvalError> {
    let (window, stride, tokens) = (options.window_tokens, options.stride_tokens, options.tokens.len());
    if window < 2 || stride == 0 || stride > window {
        return Err(EvalError::Option(format!(
            "--window is {window} and --stride {stride}: a window takes at least 2 tokens, a stride at least 1 and at most the window"
        )));
    }
    if tokens < window {
        return Err(EvalError::Option(format!(
            "the text has {tokens} tokens and --window is {window}: use a shorter window or a longer text"
        )));
    }
    Ok((0..=tokens - window)
        .step_by(stride)
        .map(|start| start..start + window)
        .collect())
}

/// Ranges of positions: powers of two from 256 up to the window's end.
fn buckets(window_tokens: usize) -> Vec<Range<usize>> {
    let mut edges = vec![0];
    let powers = (8..)
        .map(|power| 1usize << power)
        .take_while(|edge| *edge < window_tokens);
    edges.extend(powers);
    edges.push(window_tokens);
    edges.windows(2).map(|edge| edge[0]..edge[1]).collect()
}

/// Adds the logits that predict a token to the sums of its bucket.
type TakeLogits<'a> = dyn FnMut(&mut Sums, &[f32]) -> Result<(), EvalError> + 'a;

/// Receives the logits that predict the token at a position.
type TakePosition<'a> = dyn FnMut(usize, &[f32]) -> Result<(), EvalError> + 'a;

/// Predicts windows under one policy.
struct WindowReader<'a> {
    engine: Arc<Engine>,
    phase: Phase,
    /// Tokens at the end of a window to predict.
    scored: usize,
    buckets: &'a [Range<usize>],
}

impl WindowReader<'_> {
    /// Predicts a window's last tokens in order and adds each likelihood to its bucket. `take` receives the bucket's
    /// sums and the logits.
    fn score(
        &self,
        window: &[u32],
        watch: &mut Watch<'_>,
        take: &mut TakeLogits<'_>,
    ) -> Result<WindowScore, EvalError> {
        let mut sums = vec![Sums::default(); self.buckets.len()];
        let mut one = |position: usize, logits: &[f32]| {
            let bucket = self.buckets.partition_point(|bucket| bucket.end <= position);
            let sums = &mut sums[bucket];
            sums.nll += log_sum_exp(logits) - f64::from(logits[window[position] as usize]);
            take(sums, logits)
        };
        let pairs = match self.phase {
            Phase::Prefill => self.read_at_once(window, watch, &mut one)?,
            Phase::Decode => self.read_one_by_one(window, watch, &mut one)?,
        };
        Ok(WindowScore { sums, pairs })
    }

    /// Reads a window as a prompt; returns its pairs.
    fn read_at_once(
        &self,
        window: &[u32],
        watch: &mut Watch<'_>,
        take: &mut TakePosition<'_>,
    ) -> Result<PairCount, EvalError> {
        let vocab = self.engine.model().config().vocab_size;
        let wanted = window.len() - self.scored - 1..window.len() - 1;
        let mut session = Session::new(&self.engine)?;
        let mut failed = None;
        let read = session.prefill_with_logits_at(
            window,
            &[wanted],
            &mut |progress| watch(progress.tokens_done / progress.tokens as f64),
            &mut |position, logits| {
                for (row, logits) in logits.chunks_exact(vocab).enumerate() {
                    if let Err(error) = take(position + row + 1, logits) {
                        failed = Some(error);
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            },
        );
        if let Some(error) = failed {
            return Err(error);
        }
        read?;
        Ok(session.sequence().counts().pairs)
    }

    /// Reads the scored tokens one by one after the rest of the window; returns the pairs of these tokens.
    fn read_one_by_one(
        &self,
        window: &[u32],
        watch: &mut Watch<'_>,
        take: &mut TakePosition<'_>,
    ) -> Result<PairCount, EvalError> {
        let first = window.len() - self.scored;
        let mut session = Session::new(&self.engine)?;
        session.prefill(&window[..first], &mut |progress| {
            watch(0.5 * progress.tokens_done / progress.tokens as f64)
        })?;
        let before = session.sequence().counts().pairs;
        for position in first..window.len() {
            take(position, session.logits())?;
            session.advance(window[position])?;
            let done = (position - first) as f64 / self.scored as f64;
            go_on(&session, &mut |_| watch(0.5 + 0.5 * done))?;
        }
        let after = session.sequence().counts().pairs;
        Ok(PairCount {
            read: after.read - before.read,
            causal: after.causal - before.causal,
        })
    }
}

/// Predictions of dense attention, the reference for the policies.
struct DensePredictions<'a> {
    reader: &'a WindowReader<'a>,
    /// True if other policies need the predictions.
    are_kept: bool,
    /// Predictions of the latest window, and the position of its first token.
    latest: Option<(usize, Predictions)>,
}

impl DensePredictions<'_> {
    /// Reads a window that begins at `start` and keeps the predictions.
    fn score(&mut self, start: usize, window: &[u32], watch: &mut Watch<'_>) -> Result<WindowScore, EvalError> {
        let mut written = Predictions::new()?;
        let score = self.reader.score(window, watch, &mut |sums, logits| {
            sums.tokens += 1;
            if self.are_kept { written.write(logits) } else { Ok(()) }
        });
        self.latest = Some((start, written));
        score
    }

    /// Predictions for a window. If the window's score came from the journal, the window is read again, because the
    /// journal has no predictions.
    fn for_window(
        &mut self,
        start: usize,
        window: &[u32],
        watch: &mut Watch<'_>,
    ) -> Result<PredictionReader<'_>, EvalError> {
        if self.latest.as_ref().is_none_or(|(known, _)| *known != start) {
            self.score(start, window, watch)?;
        }
        match &mut self.latest {
            Some((_, predictions)) => predictions.reader(self.reader.engine.model().config().vocab_size),
            None => Err(EvalError::Option("no dense predictions".to_owned())),
        }
    }
}

impl Sums {
    /// Adds a token whose prediction under dense attention is `dense`.
    fn compare(&mut self, dense: &[f32], logits: &[f32]) {
        let kl = divergence(dense, logits);
        self.tokens += 1;
        self.kl += kl;
        self.largest_kl = self.largest_kl.max(kl);
        self.flips += usize::from(most_likely(dense) != most_likely(logits));
    }

    fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.nll += other.nll;
        self.kl += other.kl;
        self.largest_kl = self.largest_kl.max(other.largest_kl);
        self.flips += other.flips;
    }

    fn bucket(&self, positions: &Range<usize>) -> PerplexityBucket {
        let tokens = self.tokens.max(1) as f64;
        PerplexityBucket {
            from_position: positions.start,
            to_position: positions.end,
            tokens: self.tokens,
            nll: self.nll / tokens,
            perplexity: (self.nll / tokens).exp(),
            kl: self.kl / tokens,
            largest_kl: self.largest_kl,
            flips: self.flips as f64 / tokens,
        }
    }
}

fn row(settings: RunSettings, scores: &[&WindowScore], buckets: &[Range<usize>]) -> PerplexityRow {
    let mut sums = vec![Sums::default(); buckets.len()];
    let (mut all, mut pairs) = (Sums::default(), PairCount::default());
    for score in scores {
        for (sum, part) in sums.iter_mut().zip(&score.sums) {
            sum.add(part);
            all.add(part);
        }
        pairs.read += score.pairs.read;
        pairs.causal += score.pairs.causal;
    }
    let whole = 0..buckets.last().map_or(0, |bucket| bucket.end);
    let scored = sums.iter().zip(buckets).filter(|(sums, _)| sums.tokens > 0);
    PerplexityRow {
        settings,
        density: pairs.density(),
        budget: None,
        budget_kept: None,
        fit: None,
        all: all.bucket(&whole),
        buckets: scored.map(|(sums, positions)| sums.bucket(positions)).collect(),
    }
}

/// ln Σ exp, in f64.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    largest + sum.ln()
}

/// Σ p · (ln p − ln q) of the softmaxes of two rows of logits, in nats; never below 0 by rounding.
pub(crate) fn divergence(dense: &[f32], other: &[f32]) -> f64 {
    let (of_dense, of_other) = (log_sum_exp(dense), log_sum_exp(other));
    let terms = dense.iter().zip(other).map(|(p, q)| {
        let (p, q) = (f64::from(*p) - of_dense, f64::from(*q) - of_other);
        p.exp() * (p - q)
    });
    terms.sum::<f64>().max(0.0)
}

/// Logits of dense attention in a temporary file without a name, row by row.
pub(crate) struct Predictions {
    file: BufWriter<File>,
}

pub(crate) struct PredictionReader<'f> {
    file: BufReader<&'f mut File>,
    bytes: Vec<u8>,
    row: Vec<f32>,
}

impl Predictions {
    pub(crate) fn new() -> Result<Self, EvalError> {
        let file = tempfile::tempfile().map_err(|error| no_file(&error))?;
        Ok(Self {
            file: BufWriter::new(file),
        })
    }

    pub(crate) fn write(&mut self, logits: &[f32]) -> Result<(), EvalError> {
        let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
        self.file.write_all(&bytes).map_err(|error| no_file(&error))
    }

    /// All rows, from the first on.
    pub(crate) fn reader(&mut self, vocab: usize) -> Result<PredictionReader<'_>, EvalError> {
        self.file.flush().map_err(|error| no_file(&error))?;
        let file = self.file.get_mut();
        file.rewind().map_err(|error| no_file(&error))?;
        Ok(PredictionReader {
            file: BufReader::with_capacity(1 << 20, file),
            bytes: vec![0; vocab * size_of::<f32>()],
            row: Vec::with_capacity(vocab),
        })
    }
}

impl PredictionReader<'_> {
    pub(crate) fn next(&mut self) -> Result<&[f32], EvalError> {
        self.file.read_exact(&mut self.bytes).map_err(|error| no_file(&error))?;
        self.row.clear();
        let (values, _) = self.bytes.as_chunks::<4>();
        self.row.extend(values.iter().map(|value| f32::from_le_bytes(*value)));
        Ok(&self.row)
    }
}

fn no_file(error: &std::io::Error) -> EvalError {
    EvalError::File {
        path: std::env::temp_dir(),
        reason: format!("temporary file of dense predictions: {error}; set TMPDIR to a folder with room"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergences_are_those_of_the_definition() {
        // p = (1/2, 1/2), q = (1/4, 3/4): ½ ln 2 + ½ ln ⅔.
        let q = [0.25f32.ln(), 0.75f32.ln()];
        let expected = 0.5 * 2f64.ln() + 0.5 * (2.0f64 / 3.0).ln();
        assert!((divergence(&[3.0, 3.0], &q) - expected).abs() < 1e-7);
        assert_eq!(divergence(&q, &q), 0.0);
        assert!((log_sum_exp(&[0.0, 0.0, 0.0]) - 3f64.ln()).abs() < 1e-12);
        assert!((log_sum_exp(&[1000.0, 1000.0]) - 1000.0 - 2f64.ln()).abs() < 1e-9);
    }

    #[test]
    fn sums_count_flips_and_keep_the_largest_divergence() {
        let mut sums = Sums::default();
        sums.compare(&[1.0, 0.0], &[1.0, 0.0]);
        sums.compare(&[1.0, 0.0], &[0.0, 1.0]);
        sums.nll = 2.0 * 3f64.ln();
        let bucket = sums.bucket(&(0..256));
        assert_eq!((bucket.tokens, bucket.flips), (2, 0.5));
        assert!((bucket.perplexity - 3.0).abs() < 1e-12);
        // σ(1) − σ(−1) = tanh(½), times a difference of 1 in each direction.
        assert!(
            (bucket.largest_kl - 0.5f64.tanh()).abs() < 1e-7 && (bucket.kl - bucket.largest_kl / 2.0).abs() < 1e-12
        );
    }

    #[test]
    fn windows_slide_by_the_stride_and_buckets_cover_them() {
        let options = |window_tokens, stride_tokens, tokens: usize| PerplexityOptions {
            text: String::new(),
            tokens: vec![0; tokens],
            beginning: None,
            window_tokens,
            stride_tokens,
            policies: Vec::new(),
            budget: None,
            predictions_budget_bytes: 0,
        };
        assert_eq!(windows(&options(8, 4, 17)).unwrap(), [0..8, 4..12, 8..16]);
        assert_eq!(buckets(1000), [0..256, 256..512, 512..1000]);
        assert_eq!(buckets(256), vec![0usize..256; 1]);
        for (window, stride, tokens) in [(8, 9, 20), (1, 1, 20), (8, 0, 20), (8, 4, 7)] {
            assert!(
                windows(&options(window, stride, tokens)).is_err(),
                "{window} {stride} {tokens}"
            );
        }
    }
}
