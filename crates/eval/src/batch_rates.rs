//! Rates of many sequences on one engine: joined passes for their answers, and the delay of an answer while the
//! engine reads a prompt.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use riffle_engine::{
    Engine, EngineError, EngineOptions, Event, FinishedRows, GenerateOptions, Request, RequestId, Runner, Scheduler,
    SchedulerOptions, Sequence, Work,
};
use riffle_policy::Phase;
use serde::{Deserialize, Serialize};

use crate::cells::{Cell, StepWatch, run_cells};
use crate::journal::Journal;
use crate::tasks::Watch;
use crate::{EvalError, RunSettings};

/// Options of the batch measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRateOptions {
    /// Numbers of sequences.
    pub sequences: Vec<usize>,
    /// Tokens of each prompt.
    pub prompt_tokens: usize,
    /// Tokens of the common beginning of all prompts, read once.
    pub shared_tokens: usize,
    /// Tokens that each sequence generates.
    pub generated_tokens: usize,
    /// Tokens of the prompt that the engine reads beside the answers; 0 skips this measurement.
    pub beside_tokens: usize,
    /// Runs for each number of sequences; the fastest counts.
    pub repeats: usize,
}

/// `riffle bench batch`: a row for each number of sequences, with the delay that a long prompt adds to an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BatchTable {
    /// How the model was run.
    pub settings: RunSettings,
    /// Tokens of each prompt.
    pub prompt_tokens: usize,
    /// Tokens of the common beginning of all prompts.
    pub shared_tokens: usize,
    /// Tokens that each sequence generated.
    pub generated_tokens: usize,
    /// Runs for each number of sequences; the fastest counts.
    pub repeats: usize,
    /// The rows.
    pub rows: Vec<BatchRow>,
}

/// One number of sequences.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BatchRow {
    /// Sequences that answer together. For [`Self::waiting`], they answer while the engine reads a long prompt.
    pub sequences: usize,
    /// Prompt tokens per second, counting shared tokens once.
    pub prefill_tokens_per_s: f64,
    /// Tokens generated a second by all sequences together.
    pub decode_tokens_per_s: f64,
    /// Bytes of the KV pages of all sequences, counting shared pages once.
    pub kv_bytes: u64,
    /// Delays of the answers beside a prompt; `None` without such a prompt.
    pub waiting: Option<Waiting>,
}

/// Answers while the engine reads a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The longest time between two tokens of one answer, in milliseconds.
    pub longest_gap_ms: f64,
    /// The median time between two tokens, in milliseconds.
    pub median_gap_ms: f64,
    /// The longest pass over a part of the prompt, in milliseconds.
    pub longest_piece_ms: f64,
}

/// Sequences and prompt length of one cell.
#[derive(Clone, Copy)]
struct Task {
    sequences: usize,
    beside_tokens: usize,
}

impl BatchRateOptions {
    /// The engine's options with room for the sequences.
    pub fn with_room(&self, options: EngineOptions) -> EngineOptions {
        let most = self.sequences.iter().copied().max().unwrap_or(1);
        let each = self.prompt_tokens.saturating_add(self.generated_tokens);
        let longest = each.max(self.beside_tokens.saturating_add(1));
        let own = each
            .saturating_sub(self.shared_tokens)
            .saturating_add(2 * options.cache.page_tokens);
        let together = self.shared_tokens.saturating_add(own.saturating_mul(most));
        // Answers beside a prompt are as long as the context allows.
        let beside = match self.beside_tokens {
            0 => 0,
            _ => longest.saturating_mul(most + 1),
        };
        let pool = together.max(beside);
        let context = options.model.context_tokens.or(Some(longest));
        options
            .with_context_tokens(context)
            .with_sequences(most + 1)
            .with_pool_tokens(Some(pool))
    }
}

/// Measures every number of sequences on random tokens. The journal keeps finished measurements.
///
/// # Errors
/// [`EvalError::Option`] for an empty measurement; [`EvalError::Engine`] if the sequences do not fit;
/// [`EvalError::Interrupted`].
pub fn measure_batch(
    engine: &Arc<Engine>,
    options: &BatchRateOptions,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<BatchTable, EvalError> {
    let counts = [options.prompt_tokens, options.generated_tokens, options.repeats];
    if options.sequences.is_empty() || options.sequences.contains(&0) || counts.contains(&0) {
        return Err(EvalError::Option(
            "--sequences, -p, -n and --repeats must be at least 1".to_owned(),
        ));
    }
    if options.shared_tokens >= options.prompt_tokens {
        return Err(EvalError::Option(format!(
            "--shared is {}, but each prompt has a token of its own: give fewer than -p {}",
            options.shared_tokens, options.prompt_tokens
        )));
    }
    let cell = |sequences: usize, beside_tokens: usize| Cell {
        name: match beside_tokens {
            0 => format!("{sequences} sequences"),
            tokens => format!("{sequences} answers beside a prompt of {tokens} tokens"),
        },
        tokens: beside_tokens + options.repeats * sequences * (options.prompt_tokens + options.generated_tokens),
        task: Task {
            sequences,
            beside_tokens,
        },
    };
    let mut cells: Vec<Cell<Task>> = options.sequences.iter().map(|sequences| cell(*sequences, 0)).collect();
    if options.beside_tokens > 0 {
        cells.extend(
            options
                .sequences
                .iter()
                .map(|sequences| cell(*sequences, options.beside_tokens)),
        );
    }
    let rows = run_cells(&cells, journal, watch, &mut |task, watch| match task.beside_tokens {
        0 => {
            let mut best: Option<BatchRow> = None;
            for _ in 0..options.repeats {
                let row = together(engine, options, task.sequences, watch)?;
                best = Some(best.map_or(row.clone(), |best| faster(best, &row)));
            }
            best.ok_or_else(|| EvalError::Option("nothing was measured".to_owned()))
        }
        tokens => beside(engine, task.sequences, tokens, watch),
    })?;
    Ok(BatchTable {
        settings: RunSettings::from_engine(engine),
        prompt_tokens: options.prompt_tokens,
        shared_tokens: options.shared_tokens,
        generated_tokens: options.generated_tokens,
        repeats: options.repeats,
        rows,
    })
}

fn faster(best: BatchRow, row: &BatchRow) -> BatchRow {
    BatchRow {
        prefill_tokens_per_s: best.prefill_tokens_per_s.max(row.prefill_tokens_per_s),
        decode_tokens_per_s: best.decode_tokens_per_s.max(row.decode_tokens_per_s),
        ..best
    }
}

fn random_tokens(engine: &Engine, seed: u64, count: usize) -> Vec<u32> {
    let vocab = engine.model().config().vocab_size as u32;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| random.random_range(0..vocab)).collect()
}

/// Prompts one after the other, then answers in joined passes.
fn together(
    engine: &Arc<Engine>,
    options: &BatchRateOptions,
    count: usize,
    watch: &mut Watch<'_>,
) -> Result<BatchRow, EvalError> {
    let (pool, mut runner) = (engine.page_pool()?, Runner::new(engine));
    let mut reader = Sequence::new(engine, &pool, engine.options().sequence.clone())?;
    let began = Instant::now();
    read(
        &mut runner,
        &mut reader,
        &random_tokens(engine, 0, options.shared_tokens),
        watch,
    )?;
    let own = options.prompt_tokens - options.shared_tokens;
    let mut sequences = Vec::with_capacity(count);
    for number in 0..count {
        let mut sequence = reader.fork()?;
        read(
            &mut runner,
            &mut sequence,
            &random_tokens(engine, 1 + number as u64, own),
            watch,
        )?;
        sequences.push(sequence);
    }
    let prefill_s = began.elapsed().as_secs_f64();
    let answers = random_tokens(engine, u64::MAX, options.generated_tokens * count);
    let mut logits = Vec::new();
    let began = Instant::now();
    for step in answers.chunks_exact(count) {
        let work = sequences
            .iter_mut()
            .zip(step.chunks_exact(1))
            .map(|(sequence, token)| Work {
                goal: sequence.tokens().len() + 1,
                sequence,
                tokens: token,
                phase: Phase::Decode,
                finished_rows: FinishedRows::All,
            });
        pass(&mut runner, &mut work.collect::<Vec<_>>())?;
        runner.logits(0..count, &mut logits)?;
    }
    let decode_s = began.elapsed().as_secs_f64();
    Ok(BatchRow {
        sequences: count,
        prefill_tokens_per_s: (options.shared_tokens + count * own) as f64 / prefill_s,
        decode_tokens_per_s: answers.len() as f64 / decode_s,
        kv_bytes: pool.pages_bytes(),
        waiting: None,
    })
}

fn read(runner: &mut Runner, sequence: &mut Sequence, tokens: &[u32], watch: &mut Watch<'_>) -> Result<(), EvalError> {
    if tokens.is_empty() {
        return Ok(());
    }
    let again = sequence.begin_prompt(tokens, 0)?;
    debug_assert!(again.is_empty(), "it holds nothing yet");
    let goal = sequence.tokens().len() + tokens.len();
    for batch in tokens.chunks(sequence.batch_tokens()) {
        let work = Work {
            sequence,
            tokens: batch,
            phase: Phase::Prefill,
            goal,
            finished_rows: FinishedRows::Last,
        };
        pass(runner, &mut [work])?;
        if watch(0.0).is_break() {
            return Err(interrupted());
        }
    }
    Ok(())
}

fn interrupted() -> EvalError {
    EngineError::Interrupted { tokens: 0, total: 0 }.into()
}

fn pass(runner: &mut Runner, work: &mut [Work<'_>]) -> Result<(), EvalError> {
    let outcomes = runner.pass(work, &mut |_| ControlFlow::Continue(()))?;
    match outcomes.into_iter().flatten().next() {
        Some(failure) => Err(failure.error.into()),
        None => Ok(()),
    }
}

/// Answers of a scheduler while it reads a long prompt.
fn beside(
    engine: &Arc<Engine>,
    count: usize,
    prompt_tokens: usize,
    watch: &mut Watch<'_>,
) -> Result<BatchRow, EvalError> {
    let mut answers = Answers::begin(engine, count)?;
    let long = answers.scheduler.submit(request(engine, u64::MAX, prompt_tokens, 1))?;
    let began = Instant::now();
    answers.latest = vec![Some(began); count];
    let mut longest_piece_ms = 0.0f64;
    loop {
        let start = Instant::now();
        let step = answers.step(long)?;
        if step.has_read {
            longest_piece_ms = longest_piece_ms.max(start.elapsed().as_secs_f64() * 1e3);
        }
        if step.is_last {
            break;
        }
        if watch(0.0).is_break() {
            return Err(interrupted());
        }
        if step.has_ended_prompt {
            break;
        }
    }
    let elapsed_s = began.elapsed().as_secs_f64();
    let Answers {
        scheduler,
        written,
        gaps_ms: mut gaps,
        ..
    } = answers;
    gaps.sort_by(f64::total_cmp);
    let pool = scheduler.pool();
    Ok(BatchRow {
        sequences: count,
        prefill_tokens_per_s: prompt_tokens as f64 / elapsed_s,
        decode_tokens_per_s: written as f64 / elapsed_s,
        kv_bytes: pool.pages_bytes(),
        waiting: Some(Waiting {
            prompt_tokens,
            longest_gap_ms: gaps.last().copied().unwrap_or(0.0),
            median_gap_ms: gaps.get(gaps.len() / 2).copied().unwrap_or(0.0),
            longest_piece_ms,
        }),
    })
}

/// A request for up to `max_tokens` tokens after a random prompt.
fn request(engine: &Engine, seed: u64, tokens: usize, max_tokens: usize) -> Request {
    Request {
        tokens: random_tokens(engine, seed, tokens),
        generate: GenerateOptions {
            max_tokens,
            ..GenerateOptions::default()
        },
        ..Request::default()
    }
}

/// Answers that a scheduler continues. When the model ends an answer, a new request replaces it.
struct Answers<'a> {
    engine: &'a Engine,
    scheduler: Scheduler,
    requests: Vec<RequestId>,
    /// Time of each answer's latest token, once the answer has begun.
    latest: Vec<Option<Instant>>,
    /// Milliseconds between two tokens of an answer.
    gaps_ms: Vec<f64>,
    /// Tokens of all answers.
    written: usize,
}

/// Outcome of one step of the scheduler.
struct TimedStep {
    /// True if the step read a piece of the prompt.
    has_read: bool,
    /// True if the prompt was read to its end.
    has_ended_prompt: bool,
    /// True if the scheduler has no work left.
    is_last: bool,
}

impl<'a> Answers<'a> {
    /// Runs short prompts until each has a token of its answer.
    fn begin(engine: &'a Arc<Engine>, count: usize) -> Result<Self, EvalError> {
        let options = SchedulerOptions {
            most_running: count + 1,
            ..SchedulerOptions::for_engine(engine.options())
        };
        let mut answers = Self {
            engine,
            scheduler: Scheduler::new(engine, options)?,
            requests: Vec::new(),
            latest: Vec::new(),
            gaps_ms: Vec::new(),
            written: 0,
        };
        for number in 0..count {
            let id = answers.submit(number as u64)?;
            answers.requests.push(id);
        }
        let mut begun = BTreeSet::new();
        while begun.len() < count {
            let more = answers.scheduler.step(&mut |event| {
                if let Event::Token(id, ..) = event {
                    begun.insert(id);
                }
            })?;
            if !more {
                break;
            }
        }
        Ok(answers)
    }

    fn submit(&mut self, seed: u64) -> Result<RequestId, EvalError> {
        let most_tokens = self.engine.plan().context_tokens.saturating_sub(64);
        Ok(self.scheduler.submit(request(self.engine, seed, 16, most_tokens))?)
    }

    /// One step while the engine reads the prompt of `long`.
    fn step(&mut self, long: RequestId) -> Result<TimedStep, EvalError> {
        let (mut has_read, mut has_ended_prompt, mut ended) = (false, false, Vec::new());
        let (requests, latest) = (&self.requests, &mut self.latest);
        let (gaps_ms, written) = (&mut self.gaps_ms, &mut self.written);
        let more = self.scheduler.step(&mut |event| match event {
            Event::Token(id, ..) if id == long => has_ended_prompt = true,
            Event::Token(id, ..) => {
                let now = Instant::now();
                if let Some(place) = requests.iter().position(|answer| *answer == id) {
                    let before = latest[place].replace(now);
                    gaps_ms.extend(before.map(|before| (now - before).as_secs_f64() * 1e3));
                    *written += 1;
                }
            }
            Event::Reading(..) => has_read = true,
            Event::Finished(id, ..) | Event::Failed(id, _) => ended.push(id),
            Event::PromptProbabilities(..)
            | Event::Compressed(..)
            | Event::PrefixCacheLost(_)
            | Event::SharedStore(_) => {}
        })?;
        for id in ended {
            if let Some(place) = self.requests.iter().position(|answer| *answer == id) {
                self.requests[place] = self.submit(place as u64)?;
                self.latest[place] = None;
            }
        }
        Ok(TimedStep {
            has_read,
            has_ended_prompt,
            is_last: !more,
        })
    }
}
