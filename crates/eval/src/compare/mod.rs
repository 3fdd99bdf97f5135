//! Compares policies on the same tasks and prompts and, if requested, at the same budget.

mod fit;
mod task;

use std::ops::ControlFlow;
use std::sync::Arc;

use riffle_engine::Engine;
use riffle_policy::{KeyUse, Phase, PolicySpec};
use serde::{Deserialize, Serialize};

use crate::EvalError;
use crate::baselines::baselines;
use crate::cells::{Cell, StepWatch, run_cells};
use crate::choice::PolicyChoice;
use crate::journal::Journal;
use crate::record::{BudgetFit, ComparisonRow, ComparisonTable, RunSettings, TextSummary, keeps};
use crate::statistics::Interval;
use crate::tasks::{
    Corpus, Cost, NeedleTest, Prompt, QuestionPlace, Reader, RulerTest, Watch, check_lengths, match_any,
};

pub(crate) use fit::{Fitted, FittedChoice};
pub use task::CompareTask;

/// Options of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct CompareOptions {
    /// Policies beside dense attention.
    pub policies: Vec<PolicyChoice>,
    /// Tasks.
    pub tasks: Vec<CompareTask>,
    /// Tokens of the documents. Tasks from files have their own lengths.
    pub lengths: Vec<usize>,
    /// Prompts of a RULER task, documents of a needle task.
    pub samples: u64,
    /// Depths of a needle task.
    pub depths: usize,
    /// Seed of the first prompt.
    pub seed: u64,
    /// Shares of the pairs. Every policy is fitted to read each share in its phase, at each length; an empty list
    /// uses the policies unchanged.
    pub budgets: Vec<f64>,
    /// True to read the common beginning of a policy's prompts once. Decode policies that learn nothing while reading
    /// share the document of dense attention.
    pub shares: bool,
}

/// Result of a cell: the scores of its prompts and their cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Scored {
    /// The policy with all its parameters.
    settings: RunSettings,
    /// The fit to the budget; journals of earlier versions lack it.
    #[serde(default)]
    fit: Option<BudgetFit>,
    scores: Vec<f64>,
    cost: Cost,
}

/// A part of a comparison: a policy at a length, on one task.
struct Entry<'a> {
    /// Row of the table.
    row: usize,
    choice: &'a PolicyChoice,
    budget: Option<f64>,
    task: &'a CompareTask,
    /// Prompts of a task from a file; empty for other tasks, which generate them.
    prompts: &'a [Prompt],
    context_tokens: usize,
}

/// Tasks of one length.
struct Length<'a> {
    /// Tokens of the documents; for a file's prompts, tokens of the longest.
    context_tokens: usize,
    tasks: Vec<&'a CompareTask>,
    /// Prompts of the one task, if it is from a file.
    prompts: Vec<Prompt>,
}

/// Runs every policy on every task at every length. The journal keeps finished cells.
///
/// For a prefill policy, the prompt contains the document and the question. For a decode policy, the question follows
/// the document token by token, so every answer depends on the policy.
///
/// Every prompt is read from its beginning, so its times are complete. With [`CompareOptions::shares`], full
/// attention and every decode policy that learns nothing share one dense reading of a document. The answers stay the
/// same; the times and densities of a prompt then count only the newly read part.
///
/// # Errors
/// [`EvalError::Option`] for an empty comparison or a policy without a fit; [`EvalError::Interrupted`].
pub fn compare(
    engine: &Arc<Engine>,
    corpus: &Corpus,
    options: &CompareOptions,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<ComparisonTable, EvalError> {
    options.check()?;
    let lengths = options.lengths(engine, corpus)?;
    let full = PolicyChoice::full();
    let policies = options.policies.iter().filter(|choice| !choice.is_full());
    let choices: Vec<&PolicyChoice> = std::iter::once(&full).chain(policies).collect();
    let cells = cells(options, &choices, &lengths);
    let mut fitted = Fitted::new(engine, &corpus.hay, options.seed);
    let mut readers = Readers::default();
    let found: Vec<Scored> = run_cells(&cells, journal, watch, &mut |entry: &Entry<'_>, watch| {
        let FittedChoice { choice, fit } = fitted.choice(entry.choice, entry.budget, entry.context_tokens, watch)?;
        let asked = engine.with_options(choice.options(engine.options()))?;
        let mut scored = Scored {
            settings: RunSettings::from_engine(&asked),
            fit,
            scores: Vec::new(),
            cost: Cost::default(),
        };
        let samples = entry.samples(options);
        for number in 0..samples {
            let reader = readers.reader_for(engine, &choice, options.shares)?;
            let watch = &mut |share: f64| watch((number as f64 + share) / samples as f64);
            entry.score(corpus, reader, (options, number), &mut scored, watch)?;
        }
        Ok(scored)
    })?;
    let mut run: Vec<(&Entry<'_>, &Scored)> = cells.iter().map(|cell| &cell.task).zip(&found).collect();
    run.sort_by_key(|(entry, _)| entry.row);
    let rows = run.iter().map(|(entry, scored)| row(engine, entry, scored));
    Ok(ComparisonTable {
        rows: rows.collect(),
        files: options.files(),
    })
}

/// Every task that distinguishes policies in a choice's phase, at every length, in run order.
fn cells<'a>(
    options: &CompareOptions,
    choices: &[&'a PolicyChoice],
    lengths: &'a [Length<'a>],
) -> Vec<Cell<Entry<'a>>> {
    let mut cells = Vec::new();
    for length in lengths {
        let first = cells.len();
        for (choice, budget) in choices.iter().flat_map(|choice| options.budgets_of(choice)) {
            let suits = |task: &&CompareTask| task.suits(choice.phase, choice.is_full());
            for task in length.tasks.iter().copied().filter(suits) {
                let entry = Entry {
                    row: cells.len(),
                    choice,
                    budget,
                    task,
                    prompts: &length.prompts,
                    context_tokens: length.context_tokens,
                };
                cells.push(Cell {
                    name: entry.name(options),
                    tokens: entry.tokens(options),
                    task: entry,
                });
            }
        }
        if options.shares {
            // Policies that read densely run task by task, while the reader still holds the document.
            cells[first..].sort_by_key(|cell| {
                let reads_densely = cell.task.choice.reads_densely();
                let task = options.tasks.iter().position(|task| task == cell.task.task);
                (!reads_densely, task.filter(|_| reads_densely))
            });
        }
    }
    cells
}

impl CompareOptions {
    fn check(&self) -> Result<(), EvalError> {
        let needs_length = self.made().next().is_some();
        let no_length = needs_length && self.lengths.is_empty();
        if self.tasks.is_empty() || no_length || self.samples == 0 || self.depths == 0 {
            return Err(EvalError::Option(
                "nothing to compare: give --tasks and --lengths, and --samples and --depths of at least 1".to_owned(),
            ));
        }
        self.budgets.iter().try_for_each(|budget| check_budget(Some(*budget)))
    }

    /// The choice with each of its budgets; `None` for the unchanged policy.
    fn budgets_of<'a>(&self, choice: &'a PolicyChoice) -> Vec<(&'a PolicyChoice, Option<f64>)> {
        if choice.is_full() || self.budgets.is_empty() {
            return vec![(choice, None)];
        }
        self.budgets.iter().map(|budget| (choice, Some(*budget))).collect()
    }

    /// Name, length and hash of each file with tasks.
    pub fn files(&self) -> Vec<TextSummary> {
        let files = self.tasks.iter().filter_map(|task| match task {
            CompareTask::File(file) => Some(file.summary().clone()),
            _ => None,
        });
        files.collect()
    }

    /// Tasks that generate prompts for every length.
    fn made(&self) -> impl Iterator<Item = &CompareTask> {
        self.tasks.iter().filter(|task| !matches!(task, CompareTask::File(_)))
    }

    /// The tasks by length: generated tasks at every length, then tasks from files.
    fn lengths<'a>(&'a self, engine: &Engine, corpus: &Corpus) -> Result<Vec<Length<'a>>, EvalError> {
        let mut lengths = Vec::new();
        if self.made().next().is_some() {
            check_lengths(engine, &self.lengths)?;
            lengths.extend(self.lengths.iter().map(|context_tokens| Length {
                context_tokens: *context_tokens,
                tasks: self.made().collect(),
                prompts: Vec::new(),
            }));
        }
        for task in &self.tasks {
            let CompareTask::File(file) = task else { continue };
            let prompts = file.prompts(corpus, &mut |_| ControlFlow::Continue(()))?;
            lengths.push(Length {
                context_tokens: prompts.iter().map(Prompt::tokens).max().unwrap_or(0),
                tasks: vec![task],
                prompts,
            });
        }
        Ok(lengths)
    }
}

/// Refuses a budget outside 0 to 1.
pub(crate) fn check_budget(budget: Option<f64>) -> Result<(), EvalError> {
    match budget {
        Some(budget) if !(budget > 0.0 && budget <= 1.0) => Err(EvalError::Option(format!(
            "--budget is {budget}, but must be a share above 0 and at most 1"
        ))),
        _ => Ok(()),
    }
}

/// Sessions with the latest document.
#[derive(Default)]
struct Readers {
    /// Under dense attention.
    dense: Option<Reader>,
    /// Reader and name of the latest policy.
    own: Option<(String, Reader)>,
}

impl Readers {
    /// Reader for a policy. With `shares` it may already hold the beginning of the prompt; otherwise it is empty.
    fn reader_for(
        &mut self,
        engine: &Arc<Engine>,
        choice: &PolicyChoice,
        shares: bool,
    ) -> Result<&mut Reader, EvalError> {
        let reader = |choice: &PolicyChoice| {
            let engine = engine.with_options(choice.options(engine.options()))?;
            Reader::new(&engine, !shares, None)
        };
        let rules = choice.rules();
        if shares && choice.reads_densely() {
            let dense = match self.dense.take() {
                Some(dense) => dense,
                None => reader(&PolicyChoice::full())?,
            };
            let dense = self.dense.insert(dense);
            dense.answer_under((choice.phase == Phase::Decode).then_some(rules));
            return Ok(dense);
        }
        let name = format!("{choice} {}", choice.policy);
        let own = match self.own.take() {
            Some((known, reader)) if shares && known == name => reader,
            _ => reader(choice)?,
        };
        Ok(&mut self.own.insert((name, own)).1)
    }
}

impl Entry<'_> {
    /// Name of the cell in a journal.
    fn name(&self, options: &CompareOptions) -> String {
        let (choice, task, context_tokens) = (self.choice, self.task, self.context_tokens);
        let (samples, depths) = (options.samples, options.depths);
        let name = match self.task {
            CompareTask::File(_) => format!("{choice}: {task}, {} questions", self.prompts.len()),
            _ => format!("{choice}: {task} {context_tokens} tokens, {samples} samples, {depths} depths"),
        };
        // The journal's settings already name the only budget of a run.
        match self.budget.filter(|_| options.budgets.len() > 1) {
            Some(budget) => format!("{name}, budget {budget}"),
            None => name,
        }
    }

    /// Tokens of all prompts of the entry.
    fn tokens(&self, options: &CompareOptions) -> usize {
        match self.task {
            CompareTask::File(_) => self.prompts.iter().map(Prompt::tokens).sum(),
            task => self
                .context_tokens
                .saturating_mul(options.samples as usize)
                .saturating_mul(task.prompts(options.depths)),
        }
    }

    fn samples(&self, options: &CompareOptions) -> usize {
        match self.task {
            CompareTask::File(_) => self.prompts.len(),
            _ => options.samples as usize,
        }
    }

    /// Asks the prompts of one numbered sample and adds the scores.
    fn score(
        &self,
        corpus: &Corpus,
        reader: &mut Reader,
        (options, number): (&CompareOptions, usize),
        scored: &mut Scored,
        watch: &mut Watch<'_>,
    ) -> Result<(), EvalError> {
        let asked = match self.choice.phase {
            Phase::Prefill => QuestionPlace::WithDocument,
            Phase::Decode => QuestionPlace::Late,
        };
        let (depths, seed) = (options.depths, options.seed.saturating_add(number as u64));
        let cost = match self.task {
            &CompareTask::Needle(kind, place) => {
                let test = NeedleTest {
                    kind,
                    place,
                    context_tokens: self.context_tokens,
                    depths,
                    seed,
                };
                let (samples, cost) = test.run(corpus, reader, watch)?;
                scored.scores.extend(samples.iter().map(|sample| sample.score()));
                cost
            }
            CompareTask::Outside(task) => {
                let (score, cost) = task.run(corpus, reader, (self.context_tokens, seed, asked), watch)?;
                scored.scores.push(score);
                cost
            }
            CompareTask::File(_) => {
                let prompt = &self.prompts[number];
                let reply = reader.reply(prompt, asked, watch)?;
                scored
                    .scores
                    .push(match_any(&reply.answers.join("\n"), &prompt.expected));
                reply.cost
            }
            &CompareTask::Ruler(task) => {
                let test = RulerTest {
                    task,
                    context_tokens: self.context_tokens,
                    seed,
                    asked,
                };
                let (sample, cost) = test.run(corpus, reader, watch)?;
                scored.scores.push(sample.score);
                cost
            }
        };
        scored.cost.add(&cost);
        Ok(())
    }
}

fn row(engine: &Engine, entry: &Entry<'_>, scored: &Scored) -> ComparisonRow {
    let cost = &scored.cost;
    let pairs = match entry.choice.phase {
        Phase::Prefill => cost.prompt_pairs,
        Phase::Decode => cost.step_pairs,
    };
    let (budget, density) = (entry.budget, pairs.density());
    ComparisonRow {
        policy: entry.choice.to_string(),
        phase: entry.choice.phase.to_string(),
        task: entry.task.to_string(),
        context_tokens: entry.context_tokens,
        budget,
        budget_kept: keeps(budget, density),
        fit: scored.fit.clone(),
        settings: scored.settings.clone(),
        score: Interval::of_scores(&scored.scores),
        scores: scored.scores.clone(),
        density,
        prefill_ms: (cost.prompts > 0).then(|| cost.prompt_s * 1e3 / cost.prompts as f64),
        decode_ms: cost.steps_s * 1e3 / cost.steps.max(1) as f64,
        decode_bytes: decode_bytes(engine, entry, cost),
    }
}

/// Bytes of keys and values that a token after the prompt reads: the selected pairs, and all keys if the policy scans
/// them. The scan of the oracles does not count.
fn decode_bytes(engine: &Engine, entry: &Entry<'_>, cost: &Cost) -> f64 {
    let (options, config, choice) = (engine.options(), engine.model().config(), entry.choice);
    let bytes = |format: riffle_attention::Format| {
        let page = options.cache.page_tokens;
        format.plane_bytes(page, config.head_dim) as f64 / page as f64
    };
    let (keys, values) = (bytes(options.cache.key_format), bytes(options.cache.value_format));
    let rules = choice.rules();
    let mut scanning = rules
        .specs()
        .map(PolicySpec::info)
        .filter(|info| info.traits.keys == KeyUse::Scanned);
    let scans = choice.phase == Phase::Decode && scanning.any(|info| !baselines().contains(info));
    let scanned = if scans && !choice.is_full() {
        cost.step_pairs.causal as f64 * keys
    } else {
        0.0
    };
    let chosen = (cost.step_pairs.read as f64 * (keys + values) + scanned) / cost.steps.max(1) as f64;
    chosen + unchosen_keys(engine, entry.context_tokens) as f64 * (keys + values)
}

/// Keys that a token after `context_tokens` tokens reads in all KV heads of layers without a policy: layers with
/// their own window, and layers that read another layer's keys.
fn unchosen_keys(engine: &Engine, context_tokens: usize) -> usize {
    let model = engine.model();
    let config = model.config();
    let keys = (0..config.layers).filter_map(|layer| {
        config.cache_layer(layer)?;
        let shares = config.attention_of(layer).shares.is_some();
        let window = model.window(layer).or(shares.then_some(usize::MAX))?;
        Some(window.min(context_tokens) * config.attention_of(layer).kv_heads)
    });
    keys.sum()
}
