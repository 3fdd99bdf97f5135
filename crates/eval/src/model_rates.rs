//! Rates of a whole model: reading a prompt and writing an answer, at several depths of context.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use riffle_engine::{Engine, Session};
use serde::Serialize;

use crate::EvalError;
use crate::read_ceiling::ReadCeiling;

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRateOptions {
    /// Tokens of the prompt that is timed.
    pub prompt_tokens: usize,
    /// Tokens that are generated.
    pub generated_tokens: usize,
    /// Tokens in the context before the prompt.
    pub depths: Vec<usize>,
    /// Runs at each depth; the fastest counts.
    pub repeats: usize,
}

/// Rates at one depth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelRate {
    /// Tokens in the context before.
    pub depth: usize,
    /// Prompt tokens read a second.
    pub prefill_tokens_per_s: f64,
    /// Tokens written a second.
    pub decode_tokens_per_s: f64,
    /// GB/s at which weights were read while writing: all of them for each token, but for an embedding of its own.
    pub weight_gigabytes_per_s: f64,
    /// GB/s at which this machine reads memory, measured before and after each answer.
    pub read_gigabytes_per_s: f64,
    /// The first over the second.
    pub weight_read_share: f64,
    /// Bytes of KV pages at the end.
    pub kv_bytes: u64,
}

/// Measures a model on random tokens; `done` is told each rate and may end the run.
///
/// # Errors
/// [`EvalError::Option`] for nothing to measure; a context that does not fit.
pub fn measure_model(
    engine: &Arc<Engine>,
    options: &ModelRateOptions,
    done: &mut (dyn FnMut(&ModelRate) -> ControlFlow<()> + Send),
) -> Result<Vec<ModelRate>, EvalError> {
    if options.prompt_tokens == 0 || options.generated_tokens == 0 || options.repeats == 0 || options.depths.is_empty()
    {
        return Err(EvalError::Option(
            "-p, -n, --repeats and --depth must be at least 1 (depths may be 0)".to_owned(),
        ));
    }
    let weight_bytes = weight_bytes_of_a_token(engine)?;
    let ceiling = ReadCeiling::new();
    let vocab = engine.model().config().vocab_size as u32;
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut tokens = |count: usize| -> Vec<u32> { (0..count).map(|_| random.random_range(0..vocab)).collect() };
    let mut go_on = |_| ControlFlow::Continue(());
    let mut rates = Vec::new();
    for &depth in &options.depths {
        let mut session = Session::new(engine)?;
        if depth > 0 {
            session.prefill(&tokens(depth), &mut go_on)?;
        }
        let (prompt, answer) = (tokens(options.prompt_tokens), tokens(options.generated_tokens));
        let (mut prefill_s, mut decode_s) = (f64::INFINITY, f64::INFINITY);
        let mut read = ceiling.gigabytes_per_s();
        for _ in 0..options.repeats {
            session.truncate(depth)?;
            let start = Instant::now();
            session.prefill(&prompt, &mut go_on)?;
            prefill_s = prefill_s.min(start.elapsed().as_secs_f64());
            session.truncate(depth)?;
            let start = Instant::now();
            for &token in &answer {
                session.advance(token)?;
            }
            decode_s = decode_s.min(start.elapsed().as_secs_f64());
            read = read.max(ceiling.gigabytes_per_s());
        }
        let bytes = session.usage().bytes_by_tier;
        let weights = answer.len() as f64 * weight_bytes as f64 / decode_s / 1e9;
        let rate = ModelRate {
            depth,
            prefill_tokens_per_s: prompt.len() as f64 / prefill_s,
            decode_tokens_per_s: answer.len() as f64 / decode_s,
            weight_gigabytes_per_s: weights,
            read_gigabytes_per_s: read,
            weight_read_share: weights / read,
            kv_bytes: bytes.device + bytes.ram + bytes.disk,
        };
        let flow = done(&rate);
        rates.push(rate);
        if flow.is_break() {
            break;
        }
    }
    Ok(rates)
}

/// Bytes of the weights that every token reads.
fn weight_bytes_of_a_token(engine: &Engine) -> Result<u64, EvalError> {
    let info = riffle_model::inspect_scaled(engine.path(), engine.options().rope_scaling.as_ref())?;
    let rows_only = |name: &str| name == "model.embed_tokens.weight" && !info.config.tied_embeddings;
    let read = info.tensors.iter().filter(|tensor| !rows_only(&tensor.name));
    Ok(read.map(|tensor| tensor.bytes).sum())
}
