//! Rates of a whole model at several depths of context: reading a prompt and writing an answer.

use std::sync::Arc;
use std::time::Instant;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use riffle_engine::{Engine, Session};
use riffle_model::ExpertStatistics;
use serde::{Deserialize, Serialize};

use crate::cells::{Cell, StepWatch, run_cells};
use crate::journal::Journal;
use crate::read_ceiling::ReadCeiling;
use crate::room::check_context;
use crate::tasks::Watch;
use crate::{EvalError, RunSettings};

/// Options of the model measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRateOptions {
    /// Tokens of the timed prompt.
    pub prompt_tokens: usize,
    /// Tokens to generate.
    pub generated_tokens: usize,
    /// Tokens in the context before the prompt.
    pub depths: Vec<usize>,
    /// Runs at each depth; the fastest counts.
    pub repeats: usize,
}

/// `riffle bench model`: rates by depth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelRates {
    /// How the model was run.
    pub settings: RunSettings,
    /// Tokens of the timed prompt.
    pub prompt_tokens: usize,
    /// Generated tokens.
    pub generated_tokens: usize,
    /// Runs at each depth; the fastest counts.
    pub repeats: usize,
    /// A row for each depth.
    pub rates: Vec<ModelRate>,
}

/// Rates at one depth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelRate {
    /// Tokens in the context before the prompt.
    pub depth: usize,
    /// Prompt tokens read a second.
    pub prefill_tokens_per_s: f64,
    /// Tokens written a second.
    pub decode_tokens_per_s: f64,
    /// Rate at which the answer read weights, in GB/s. Every token reads all weights except a separate embedding and
    /// unselected experts.
    pub weight_gigabytes_per_s: f64,
    /// Read rate of this machine's memory in GB/s, measured before and after each answer.
    pub read_gigabytes_per_s: f64,
    /// The first over the second.
    pub weight_read_share: f64,
    /// Bytes of KV pages at the end.
    pub kv_bytes: u64,
    /// Rates of experts that stay in the model's files; `None` if all are in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertRates>,
}

/// Reads of experts from a model's files, for the last prompt and the last answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExpertRates {
    /// Bytes read for a prompt.
    pub prompt_read_bytes: u64,
    /// Bytes read for a token of an answer.
    pub token_read_bytes: u64,
    /// Share of the selected experts of a prompt that were in memory or loading.
    pub prompt_found_share: f64,
    /// Seconds of a prompt in which the computation waited for the files.
    #[serde(default)]
    pub prompt_waited_s: f64,
    /// Share of the selected experts of an answer that were in memory because an earlier token used them.
    pub answer_hit_share: f64,
    /// Share of these experts that were in memory or loading because the router ran early.
    pub answer_early_share: f64,
    /// Seconds of an answer in which the computation waited for the files.
    pub answer_waited_s: f64,
}

impl ExpertRates {
    fn new(prompt: &ExpertStatistics, answer: &ExpertStatistics, tokens: usize) -> Self {
        let chosen = (answer.hits + answer.early + answer.misses).max(1) as f64;
        Self {
            prompt_read_bytes: prompt.read_bytes,
            token_read_bytes: answer.read_bytes / tokens as u64,
            prompt_found_share: prompt.found_share(),
            prompt_waited_s: prompt.waited_ns as f64 / 1e9,
            answer_hit_share: answer.hits as f64 / chosen,
            answer_early_share: answer.early as f64 / chosen,
            answer_waited_s: answer.waited_ns as f64 / 1e9,
        }
    }
}

/// Measures a model on random tokens. One reading of the context serves all depths in ascending order, unless the
/// decode policy must see the text during reading. The journal keeps finished depths.
///
/// # Errors
/// [`EvalError::Option`] for an empty measurement; a context that does not fit; [`EvalError::Interrupted`].
pub fn measure_model(
    engine: &Arc<Engine>,
    options: &ModelRateOptions,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<ModelRates, EvalError> {
    if options.prompt_tokens == 0 || options.generated_tokens == 0 || options.repeats == 0 || options.depths.is_empty()
    {
        return Err(EvalError::Option(
            "-p, -n, --repeats and --depth must be at least 1 (depths may be 0)".to_owned(),
        ));
    }
    let deepest = options.depths.iter().copied().max().unwrap_or(0);
    let longest = options.prompt_tokens.max(options.generated_tokens);
    check_context(
        engine,
        "the largest --depth and -p or -n behind it",
        deepest.saturating_add(longest),
    )?;
    let weight_bytes = weight_bytes_of_a_token(engine)?;
    let ceiling = ReadCeiling::new();
    let grows = engine.options().sequence.decode.follows_from_keys();
    let mut read = 0;
    let cells: Vec<Cell<usize>> = options
        .depths
        .iter()
        .map(|&depth| Cell {
            name: format!("depth {depth}"),
            tokens: tokens_to_read(grows, std::mem::replace(&mut read, depth), depth)
                + options.repeats * (options.prompt_tokens + options.generated_tokens),
            task: depth,
        })
        .collect();
    let mut context = Context {
        session: Session::new(engine)?,
        random: ChaCha8Rng::seed_from_u64(0),
        vocab_size: engine.model().config().vocab_size as u32,
        grows,
        depth: 0,
    };
    let rates = run_cells(&cells, journal, watch, &mut |depth, watch| {
        measure(&mut context, options, *depth, weight_bytes, &ceiling, watch)
    })?;
    Ok(ModelRates {
        settings: RunSettings::from_engine(engine),
        prompt_tokens: options.prompt_tokens,
        generated_tokens: options.generated_tokens,
        repeats: options.repeats,
        rates,
    })
}

/// Tokens to read for a context of `depth` tokens after a context of `before` tokens: all of them if the context
/// cannot grow or must shrink.
fn tokens_to_read(grows: bool, before: usize, depth: usize) -> usize {
    if grows && before <= depth {
        depth - before
    } else {
        depth
    }
}

/// A context of random tokens that grows from depth to depth.
struct Context {
    session: Session,
    random: ChaCha8Rng,
    vocab_size: u32,
    /// True if one reading serves several depths.
    grows: bool,
    /// Depth of the context; the session may have more tokens after it.
    depth: usize,
}

impl Context {
    fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count)
            .map(|_| self.random.random_range(0..self.vocab_size))
            .collect()
    }

    /// Gives the session a context of `depth` tokens; `more` of them are new.
    fn reach(&mut self, depth: usize, more: usize, watch: &mut Watch<'_>) -> Result<(), EvalError> {
        if more == depth {
            self.session = self.session.beside()?;
        } else {
            self.session.truncate(self.depth)?;
        }
        if more > 0 {
            let tokens = self.tokens(more);
            self.session.prefill(&tokens, &mut |progress| {
                watch(progress.tokens_done / progress.tokens as f64)
            })?;
        }
        self.depth = depth;
        Ok(())
    }
}

fn measure(
    context: &mut Context,
    options: &ModelRateOptions,
    depth: usize,
    weight_bytes: u64,
    ceiling: &ReadCeiling,
    watch: &mut Watch<'_>,
) -> Result<ModelRate, EvalError> {
    // Reading a long context takes most of the time.
    let more = tokens_to_read(context.grows, context.depth, depth);
    let before = more as f64 / (more + options.repeats * options.prompt_tokens) as f64;
    context.reach(depth, more, &mut |share| watch(before * share))?;
    let (prompt, answer) = (
        context.tokens(options.prompt_tokens),
        context.tokens(options.generated_tokens),
    );
    let session = &mut context.session;
    let (mut prefill_s, mut decode_s) = (f64::INFINITY, f64::INFINITY);
    let mut read = ceiling.gigabytes_per_s();
    let counts = |session: &Session| session.sequence().engine().expert_statistics();
    let mut experts = None;
    for run in 0..options.repeats {
        let done = before + (1.0 - before) * run as f64 / options.repeats as f64;
        session.truncate(depth)?;
        let before = counts(session);
        let start = Instant::now();
        session.prefill(&prompt, &mut |_| watch(done))?;
        prefill_s = prefill_s.min(start.elapsed().as_secs_f64());
        let between = counts(session);
        session.truncate(depth)?;
        let start = Instant::now();
        for &token in &answer {
            session.advance(token)?;
        }
        decode_s = decode_s.min(start.elapsed().as_secs_f64());
        if let (Some(before), Some(between), Some(after)) = (before, between, counts(session)) {
            let (prompt, answered) = (between.since(&before), after.since(&between));
            experts = Some(ExpertRates::new(&prompt, &answered, answer.len()));
        }
        read = read.max(ceiling.gigabytes_per_s());
    }
    let bytes = session.sequence().usage().bytes_by_tier;
    let weights = answer.len() as f64 * weight_bytes as f64 / decode_s / 1e9;
    Ok(ModelRate {
        depth,
        prefill_tokens_per_s: prompt.len() as f64 / prefill_s,
        decode_tokens_per_s: answer.len() as f64 / decode_s,
        weight_gigabytes_per_s: weights,
        read_gigabytes_per_s: read,
        weight_read_share: weights / read,
        kv_bytes: bytes.device + bytes.ram + bytes.disk,
        experts,
    })
}

/// Bytes of the weights that every token reads.
fn weight_bytes_of_a_token(engine: &Engine) -> Result<u64, EvalError> {
    let info = riffle_model::inspect_with(engine.path(), &engine.options().model.load_options())?;
    let rows_only = |name: &str| name == "model.embed_tokens.weight" && !info.config.tied_embeddings;
    let read = info.tensors.iter().filter(|tensor| !rows_only(&tensor.name));
    let all: u64 = read.map(|tensor| tensor.bytes).sum();
    // In a mixture of experts, a token reads its selected experts.
    let used = info
        .config
        .experts
        .map_or(1.0, |shape| shape.used as f64 / shape.experts.max(1) as f64);
    let unused = info.config.expert_bytes as f64 * (1.0 - used);
    Ok(all.saturating_sub(unused as u64))
}
