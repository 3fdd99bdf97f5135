//! Measures the cost of a context's length: time to the first token, speed of the answer, peak memory by part.

use std::sync::Arc;
use std::time::Instant;

use riffle_engine::{Engine, EngineOptions, MemoryPlan, PairCount, SequenceCounts, Session};
use riffle_policy::PolicyRules;
use riffle_system::memory;
use serde::{Deserialize, Serialize};

use crate::cells::{Cell, StepWatch, run_cells};
use crate::journal::Journal;
use crate::room::check_context;
use crate::tasks::Watch;
use crate::{EvalError, PolicyChoice, RunSettings};

/// Options of the context measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextRateOptions {
    /// Name of the text in records.
    pub text: String,
    /// Policies; an empty list uses the policies of the engine's options.
    pub policies: Vec<PolicyChoice>,
    /// Tokens of the prompts.
    pub lengths: Vec<usize>,
    /// Tokens generated one by one after each prompt.
    pub generated_tokens: usize,
    /// Runs of each length; the fastest counts.
    pub repeats: usize,
    /// True to also measure each policy with all KV pages in memory, if the engine's options move some pages
    /// elsewhere.
    pub beside_memory: bool,
}

/// `riffle bench context`: a row for each policy and length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ContextTable {
    /// The text's file name. A short text repeats.
    pub text: String,
    /// Tokens generated one by one after each prompt.
    pub generated_tokens: usize,
    /// Runs of each length; the fastest counts.
    pub repeats: usize,
    /// The rows.
    pub rows: Vec<ContextRow>,
}

/// One policy at one length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ContextRow {
    /// How the model was run.
    pub settings: RunSettings,
    /// Tokens of the prompt.
    pub context_tokens: usize,
    /// Milliseconds from an empty session to the logits of the first token.
    pub time_to_first_token_ms: f64,
    /// Prompt tokens read a second.
    pub prefill_tokens_per_s: f64,
    /// Tokens written a second at this depth.
    pub decode_tokens_per_s: f64,
    /// Share of the causal query-key pairs that were read, in prompt and answer together.
    pub density: f64,
    /// The answer's attention; `None` in older records.
    #[serde(default)]
    pub answer_attention: Option<AnswerAttention>,
    /// Bytes of weights.
    pub weights_bytes: u64,
    /// Bytes of KV pages in the device tier at the end.
    pub kv_device_bytes: u64,
    /// Bytes of KV pages in main memory.
    pub kv_ram_bytes: u64,
    /// Bytes of KV pages on disk.
    pub kv_disk_bytes: u64,
    /// Bytes of page tables and free lists.
    pub kv_bookkeeping_bytes: u64,
    /// Bytes of the recurrent layers' state and its copies.
    pub recurrent_bytes: u64,
    /// Bytes of activations, partial results and logits, as planned for this length.
    pub workspace_bytes: u64,
    /// Peak resident memory of the process, with program and text; `None` if the system does not report it.
    pub peak_resident_bytes: Option<u64>,
}

/// Attention of generated tokens over all layers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AnswerAttention {
    /// Milliseconds per token for policies.
    pub select_ms: f64,
    /// Milliseconds per token for attention to the selections, with loading of far pages.
    pub attend_ms: f64,
    /// Share of the causal query-key pairs that were read.
    pub density: f64,
}

impl AnswerAttention {
    /// The attention of `tokens` tokens between two counts of a sequence.
    fn between(before: &SequenceCounts, after: &SequenceCounts, tokens: usize) -> Self {
        let (began, ended) = (before.decode_time, after.decode_time);
        let pairs = PairCount {
            read: after.pairs.read - before.pairs.read,
            causal: after.pairs.causal - before.pairs.causal,
        };
        Self {
            select_ms: (ended.select_ms - began.select_ms) / tokens as f64,
            attend_ms: (ended.attend_ms - began.attend_ms) / tokens as f64,
            density: pairs.density(),
        }
    }

    /// The smaller times of two runs.
    fn fastest(self, other: Self) -> Self {
        Self {
            select_ms: self.select_ms.min(other.select_ms),
            attend_ms: self.attend_ms.min(other.attend_ms),
            ..self
        }
    }
}

impl ContextRow {
    /// The parts: name and bytes. Page tables count with the pages of main memory.
    pub fn parts(&self) -> [(&'static str, u64); 6] {
        [
            ("weights", self.weights_bytes),
            ("workspace (planned)", self.workspace_bytes),
            ("recurrent state", self.recurrent_bytes),
            ("KV pages, device", self.kv_device_bytes),
            ("KV pages, RAM", self.kv_ram_bytes + self.kv_bookkeeping_bytes),
            ("KV pages, disk", self.kv_disk_bytes),
        ]
    }
}

/// Measures every policy at every length. Short `tokens` repeat. The journal keeps finished rows.
///
/// Decode policies that learn nothing answer after one dense reading of each length, so their rows have its times of
/// the prompt. The first token after a prompt is not timed: it completes what the policy keeps.
///
/// # Errors
/// [`EvalError::Option`] for an empty measurement or a context that is too small for the lengths;
/// [`EvalError::Interrupted`].
pub fn measure_context(
    engine: &Arc<Engine>,
    tokens: &[u32],
    options: &ContextRateOptions,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<ContextTable, EvalError> {
    let (lengths, generated) = (&options.lengths, options.generated_tokens);
    options.check(engine, tokens)?;
    let runs = options.runs(engine)?;
    let mut cells = Vec::new();
    // Runs of one length follow each other, because they may share a reading.
    for &length in lengths {
        for run in &runs {
            cells.push(Cell {
                name: format!("{}{length} tokens", run.name),
                tokens: length.saturating_mul(options.repeats),
                task: (run, length),
            });
        }
    }
    let mut shared: Option<Reading> = None;
    let rows = run_cells(&cells, journal, watch, &mut |(run, length), watch| {
        let text: Vec<u32> = tokens.iter().cycle().take(length + generated + 1).copied().collect();
        // Another prompt's pages go before this one is read.
        let known = shared.take().filter(|reading| reading.serves(run, *length));
        let mut reading = match known {
            Some(reading) => reading,
            None => Reading::of(run, &text[..*length], options.repeats, watch)?,
        };
        let row = answer(run, &mut reading, &text[*length..], options.repeats);
        shared = Some(reading);
        row
    })?;
    let of_run = |number: usize| rows.iter().skip(number).step_by(runs.len());
    Ok(ContextTable {
        text: options.text.clone(),
        generated_tokens: generated,
        repeats: options.repeats,
        rows: (0..runs.len()).flat_map(of_run).cloned().collect(),
    })
}

impl ContextRateOptions {
    /// Refuses an empty measurement and lengths that exceed the context.
    fn check(&self, engine: &Engine, tokens: &[u32]) -> Result<(), EvalError> {
        let (lengths, generated) = (&self.lengths, self.generated_tokens);
        if lengths.contains(&0) || lengths.is_empty() || generated == 0 || self.repeats == 0 {
            return Err(EvalError::Option(
                "--lengths, -n and --repeats must be at least 1".to_owned(),
            ));
        }
        if tokens.is_empty() {
            return Err(EvalError::Option(
                "the text is empty: there is nothing to read".to_owned(),
            ));
        }
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let needed = longest.saturating_add(generated).saturating_add(1);
        check_context(
            engine,
            "the longest of --lengths, -n and one untimed token together",
            needed,
        )
    }

    /// The engine with each policy; if requested, also with all pages in memory.
    fn runs(&self, engine: &Arc<Engine>) -> Result<Vec<Run>, EvalError> {
        let mut tiers = vec![(String::new(), Arc::clone(engine))];
        if self.beside_memory {
            tiers.insert(0, ("in memory, ".to_owned(), in_memory(engine)?));
        }
        let mut runs = Vec::new();
        for (name, engine) in &tiers {
            if self.policies.is_empty() {
                runs.push(Run {
                    name: name.clone(),
                    engine: Arc::clone(engine),
                    reader: None,
                });
                continue;
            }
            let dense = engine.with_options(PolicyChoice::full().options(engine.options()))?;
            for choice in &self.policies {
                let reader = choice.reads_densely().then(|| (Arc::clone(&dense), choice.rules()));
                runs.push(Run {
                    name: format!("{name}{choice}, "),
                    engine: engine.with_options(choice.options(engine.options()))?,
                    reader,
                });
            }
        }
        Ok(runs)
    }
}

/// The engine with all KV pages in memory.
fn in_memory(engine: &Arc<Engine>) -> Result<Arc<Engine>, EvalError> {
    let (memory, tiers) = (
        EngineOptions::default().cache.kv_tiers,
        &engine.options().cache.kv_tiers,
    );
    if tiers.device_budget_bytes == 0 && tiers.ram_budget_bytes.is_none() && tiers.disk.is_none() {
        return Err(EvalError::Option(
            "--beside-memory compares with what --kv-device-budget, --kv-ram-budget or --kv-disk does: give one"
                .to_owned(),
        ));
    }
    Ok(engine.with_options(engine.options().clone().with_kv_tiers(memory))?)
}

/// A policy in an engine.
struct Run {
    /// The beginning of its cells' names.
    name: String,
    engine: Arc<Engine>,
    /// The engine that reads prompts densely for several policies, and the policy of the answer.
    reader: Option<(Arc<Engine>, PolicyRules)>,
}

impl Run {
    /// The engine that reads the prompts.
    fn reading_engine(&self) -> &Arc<Engine> {
        self.reader.as_ref().map_or(&self.engine, |(engine, _)| engine)
    }
}

/// A prompt that was read.
struct Reading {
    session: Session,
    /// Seconds of the fastest reading.
    first_s: f64,
    peak_bytes: Option<u64>,
}

impl Reading {
    /// Reads the prompt `repeats` times.
    fn of(run: &Run, prompt: &[u32], repeats: usize, watch: &mut Watch<'_>) -> Result<Self, EvalError> {
        let engine = run.reading_engine();
        let (mut first_s, mut last) = (f64::INFINITY, None);
        memory::reset_peak();
        for repeat in 0..repeats {
            drop(last.take());
            let mut session = Session::new(engine)?;
            let start = Instant::now();
            session.prefill(prompt, &mut |progress| {
                let share = progress.tokens_done / progress.tokens as f64;
                watch((repeat as f64 + share) / repeats as f64)
            })?;
            first_s = first_s.min(start.elapsed().as_secs_f64());
            last = Some(session);
        }
        let session = last.ok_or_else(|| EvalError::Option("nothing was measured".to_owned()))?;
        Ok(Self {
            session,
            first_s,
            peak_bytes: memory::peak_bytes(),
        })
    }

    /// True if the run reads as many tokens with the same engine.
    fn serves(&self, run: &Run, length: usize) -> bool {
        Arc::ptr_eq(self.session.sequence().engine(), run.reading_engine()) && self.session.tokens().len() == length
    }

    /// A session that answers under the run's policy.
    fn fork(&mut self, run: &Run) -> Result<Session, EvalError> {
        Ok(match &run.reader {
            Some((_, decode)) => self.session.fork_under(decode.clone())?,
            None => self.session.fork()?,
        })
    }
}

/// Answers `repeats` times with `answer` after a reading. The first of these tokens is not timed.
fn answer(run: &Run, reading: &mut Reading, answer: &[u32], repeats: usize) -> Result<ContextRow, EvalError> {
    let (length, (first, answer)) = (reading.session.tokens().len(), (answer[0], &answer[1..]));
    memory::reset_peak();
    let (mut fastest_s, mut attention) = (f64::INFINITY, None);
    let mut usage = reading.session.sequence().usage();
    let mut pairs = reading.session.sequence().counts().pairs;
    for _ in 0..repeats {
        let mut session = reading.fork(run)?;
        session.advance(first)?;
        let before = session.sequence().counts();
        let start = Instant::now();
        for token in answer {
            session.advance(*token)?;
        }
        fastest_s = fastest_s.min(start.elapsed().as_secs_f64());
        let after = session.sequence().counts();
        let found = AnswerAttention::between(&before, &after, answer.len());
        attention = Some(attention.map_or(found, |known: AnswerAttention| known.fastest(found)));
        (usage, pairs) = (session.sequence().usage(), after.pairs);
        reading.session.take_scratch(&mut session);
    }
    let settings = RunSettings {
        context_tokens: length + answer.len() + 1,
        ..RunSettings::from_engine(&run.engine)
    };
    let plan = plan_for(&run.engine, settings.context_tokens)?;
    Ok(ContextRow {
        settings,
        context_tokens: length,
        time_to_first_token_ms: reading.first_s * 1e3,
        prefill_tokens_per_s: length as f64 / reading.first_s,
        decode_tokens_per_s: answer.len() as f64 / fastest_s,
        density: pairs.density(),
        answer_attention: attention,
        weights_bytes: plan.weights_bytes,
        kv_device_bytes: usage.bytes_by_tier.device,
        kv_ram_bytes: usage.bytes_by_tier.ram,
        kv_disk_bytes: usage.bytes_by_tier.disk,
        kv_bookkeeping_bytes: usage.bookkeeping_bytes,
        recurrent_bytes: plan.recurrent_bytes,
        workspace_bytes: plan.scratch_bytes,
        peak_resident_bytes: memory::peak_bytes().max(reading.peak_bytes),
    })
}

/// The plan for a context of `tokens` tokens. The memory of an endless sequence does not depend on its length.
fn plan_for(engine: &Engine, tokens: usize) -> Result<MemoryPlan, EvalError> {
    if engine.options().sequence.window.is_some() {
        return Ok(engine.plan().clone());
    }
    let options = engine.options().clone().with_context_tokens(Some(tokens));
    let info = options.model.inspect(engine.path())?;
    Ok(riffle_engine::plan(&info, &options)?)
}
