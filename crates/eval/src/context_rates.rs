//! Measures the cost of a context's length: time to the first token, speed of the answer, peak memory by part.

use std::sync::Arc;
use std::time::Instant;

use riffle_engine::{Engine, EngineOptions, Session};
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
    /// Share of the causal query-key pairs that were read.
    pub density: f64,
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
    for (name, engine) in &runs {
        for &length in lengths {
            cells.push(Cell {
                name: format!("{name}{length} tokens"),
                tokens: length.saturating_mul(options.repeats),
                task: (engine, length),
            });
        }
    }
    let rows = run_cells(&cells, journal, watch, &mut |(engine, length), watch| {
        let mut best: Option<ContextRow> = None;
        for run in 0..options.repeats {
            let mut part = |share: f64| watch((run as f64 + share) / options.repeats as f64);
            let row = measure(engine, tokens, *length, generated, &mut part)?;
            best = Some(match best {
                None => row,
                Some(best) => fastest(best, row),
            });
        }
        best.ok_or_else(|| EvalError::Option("nothing was measured".to_owned()))
    })?;
    Ok(ContextTable {
        text: options.text.clone(),
        generated_tokens: generated,
        repeats: options.repeats,
        rows,
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
        let needed = longest.saturating_add(generated);
        check_context(engine, "the longest of --lengths and -n together", needed)
    }

    /// The engine with each policy and the prefix of its cells' names; if requested, also with all pages in memory.
    fn runs(&self, engine: &Arc<Engine>) -> Result<Vec<(String, Arc<Engine>)>, EvalError> {
        let mut runs = vec![(String::new(), Arc::clone(engine))];
        if !self.policies.is_empty() {
            let run = |choice: &PolicyChoice| {
                let engine = engine.with_options(choice.options(engine.options()))?;
                Ok((format!("{choice}, "), engine))
            };
            runs = self.policies.iter().map(run).collect::<Result<_, EvalError>>()?;
        }
        if !self.beside_memory {
            return Ok(runs);
        }
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
        let all_in_memory = |(name, engine): &(String, Arc<Engine>)| {
            let options = engine.options().clone().with_kv_tiers(memory.clone());
            Ok((format!("in memory, {name}"), engine.with_options(options)?))
        };
        let mut all: Vec<_> = runs.iter().map(all_in_memory).collect::<Result<_, EvalError>>()?;
        all.append(&mut runs);
        Ok(all)
    }
}

fn measure(
    engine: &Arc<Engine>,
    tokens: &[u32],
    length: usize,
    generated: usize,
    watch: &mut Watch<'_>,
) -> Result<ContextRow, EvalError> {
    let settings = RunSettings {
        context_tokens: length + generated,
        ..RunSettings::from_engine(engine)
    };
    let text: Vec<u32> = tokens.iter().cycle().take(settings.context_tokens).copied().collect();
    let (prompt, answer) = text.split_at(length);
    memory::reset_peak();
    let mut session = Session::new(engine)?;
    let start = Instant::now();
    session.prefill(prompt, &mut |progress| {
        watch(progress.tokens_done / progress.tokens as f64)
    })?;
    let first_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    for token in answer {
        session.advance(*token)?;
    }
    let decode_s = start.elapsed().as_secs_f64();
    let usage = session.sequence().usage();
    let options = engine
        .options()
        .clone()
        .with_context_tokens(Some(settings.context_tokens));
    // The memory of an endless sequence does not depend on its length.
    let plan = match options.sequence.window {
        Some(_) => engine.plan().clone(),
        None => {
            let info = options.model.inspect(engine.path())?;
            riffle_engine::plan(&info, &options)?
        }
    };
    Ok(ContextRow {
        settings,
        context_tokens: length,
        time_to_first_token_ms: first_s * 1e3,
        prefill_tokens_per_s: length as f64 / first_s,
        decode_tokens_per_s: answer.len() as f64 / decode_s,
        density: session.sequence().counts().pairs.density(),
        weights_bytes: plan.weights_bytes,
        kv_device_bytes: usage.bytes_by_tier.device,
        kv_ram_bytes: usage.bytes_by_tier.ram,
        kv_disk_bytes: usage.bytes_by_tier.disk,
        kv_bookkeeping_bytes: usage.bookkeeping_bytes,
        recurrent_bytes: plan.recurrent_bytes,
        workspace_bytes: plan.scratch_bytes,
        peak_resident_bytes: memory::peak_bytes(),
    })
}

/// The shortest times and the largest memory.
fn fastest(a: ContextRow, b: ContextRow) -> ContextRow {
    ContextRow {
        time_to_first_token_ms: a.time_to_first_token_ms.min(b.time_to_first_token_ms),
        prefill_tokens_per_s: a.prefill_tokens_per_s.max(b.prefill_tokens_per_s),
        decode_tokens_per_s: a.decode_tokens_per_s.max(b.decode_tokens_per_s),
        peak_resident_bytes: a.peak_resident_bytes.max(b.peak_resident_bytes),
        ..a
    }
}
