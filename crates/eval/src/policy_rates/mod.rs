//! Measures selection and attention under a policy, and dense attention of the same queries, in one layer.

mod layer;
mod made_layer;
#[cfg(test)]
mod tests;

use riffle_attention::Format;
use riffle_engine::EngineError;
use riffle_policy::{Phase, PolicyRules, PolicySpec};
use serde::{Deserialize, Serialize};

use crate::EvalError;
use crate::cells::{Cell, StepWatch, run_cells};
use crate::journal::Journal;
use crate::room::check_memory;
use layer::time;
use made_layer::{FILL_TOKENS, filled, shape};

/// Distribution of the keys relative to the queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyKind {
    /// Keys independent of the queries, with logits of variance 1. A model of random weights with normalised queries
    /// and keys has such logits.
    Random,
    /// Like `Random`, but one token in 64 matches every query, so few tokens have nearly all mass.
    Peaked,
}

/// One layer and its context.
#[derive(Debug, Clone, Copy)]
pub struct PolicyRateOptions {
    /// Tokens of the context, including the tokens of the queries.
    pub tokens: usize,
    /// Layers of the model; a policy may keep some of them dense.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Formats of keys and values under the policies; dense attention uses f16.
    pub formats: (Format, Format),
    /// Distribution of the keys.
    pub keys: KeyKind,
    /// Queries of a prompt's chunk, unless the policy prefers another number.
    pub chunk_tokens: usize,
}

/// `riffle bench policies`: a row for each policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PolicyRates {
    /// Threads.
    pub threads: usize,
    /// Tokens of the context.
    pub tokens: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Format of keys and of values under the policies.
    pub formats: [String; 2],
    /// Distribution of the keys.
    pub keys: KeyKind,
    /// A row for each policy.
    pub rates: Vec<PolicyRate>,
}

/// Cost of a prompt's last chunk or of a decode step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PolicyRate {
    /// The policy.
    pub policy: String,
    /// `prefill` or `decode`.
    pub phase: String,
    /// Milliseconds of dense attention from f16.
    pub dense_ms: f64,
    /// Milliseconds for reading keys and choosing.
    pub select_ms: f64,
    /// Milliseconds of attention over the selection.
    pub attend_ms: f64,
    /// Share of the causal pairs that are read.
    pub density: f64,
    /// Layers of the model.
    pub layers: usize,
    /// Layers that the policy keeps dense.
    pub dense_layers: usize,
}

impl PolicyRate {
    /// Dense attention's time divided by the policy's time, in a sparse layer.
    pub fn speed(&self) -> f64 {
        self.dense_ms / (self.select_ms + self.attend_ms)
    }

    /// The ratio of [`speed`](Self::speed) over all layers of the model.
    pub fn model_speed(&self) -> f64 {
        let dense = self.dense_layers as f64;
        let layers = self.layers as f64;
        layers / (dense + (layers - dense) / self.speed())
    }

    /// Selection time as a share of the saved attention time.
    pub fn share_of_saved(&self) -> f64 {
        self.select_ms / (self.dense_ms - self.attend_ms)
    }
}

/// Measures each policy in the phase, on the current threads, in a sparse layer, including the lists of pages. The
/// journal keeps finished policies.
///
/// # Errors
/// A policy that does not select in the phase or attends in two phases; a shape that the cache refuses;
/// [`EvalError::Interrupted`].
pub fn measure_policies(
    policies: &[PolicySpec],
    phase: Phase,
    options: &PolicyRateOptions,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<PolicyRates, EvalError> {
    let cell = |spec: &PolicySpec| {
        let rows = rows(spec, phase, options)?;
        Ok(Cell {
            name: spec.to_string(),
            tokens: options.tokens,
            task: (spec.clone(), rows),
        })
    };
    let cells = policies.iter().map(cell).collect::<Result<Vec<_>, EvalError>>()?;
    let dense_cache = filled(options, (Format::F16, Format::F16))?;
    let cache = match options.formats {
        (Format::F16, Format::F16) => None,
        formats => Some(filled(options, formats)?),
    };
    let rates = run_cells(&cells, journal, watch, &mut |(spec, rows), _| {
        let dense = time(options, &dense_cache, &PolicySpec::full(), phase, *rows)?;
        let timed = time(options, cache.as_ref().unwrap_or(&dense_cache), spec, phase, *rows)?;
        Ok(PolicyRate {
            policy: spec.to_string(),
            phase: phase.to_string(),
            dense_ms: dense.attend_ms,
            select_ms: timed.select_ms,
            attend_ms: timed.attend_ms,
            density: timed.density,
            layers: options.layers,
            dense_layers: timed.dense_layers,
        })
    })?;
    let (keys, values) = options.formats;
    Ok(PolicyRates {
        threads: rayon::current_num_threads(),
        tokens: options.tokens,
        heads: options.heads,
        kv_heads: options.kv_heads,
        head_dim: options.head_dim,
        formats: [keys, values].map(|format| format.name().to_owned()),
        keys: options.keys,
        rates,
    })
}

/// Queries of a policy's chunk. Refuses policies that need more than one chunk.
fn rows(spec: &PolicySpec, phase: Phase, options: &PolicyRateOptions) -> Result<usize, EvalError> {
    let rules = PolicyRules::from(spec.clone());
    let rows = match phase {
        Phase::Decode => 1,
        Phase::Prefill => rules.preferred_chunk_tokens().unwrap_or(options.chunk_tokens),
    };
    check(options, rows)?;
    rules.check(phase, rows).map_err(EngineError::from)?;
    if rules.has_two_phases() {
        return Err(EvalError::Option(format!(
            "{} attends in two phases, which one chunk cannot show; time a run of it",
            spec.name()
        )));
    }
    Ok(rows)
}

/// Refuses invalid chunks and contexts, and contexts that do not fit in memory.
fn check(options: &PolicyRateOptions, rows: usize) -> Result<(), EvalError> {
    let (tokens, heads, kv_heads) = (options.tokens, options.heads, options.kv_heads);
    if rows == 0 || rows > tokens {
        return Err(EvalError::Option(format!(
            "a chunk of {rows} tokens does not lie in a context of {tokens}: --ub takes at least 1, and --tokens at least as many as a chunk"
        )));
    }
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(EvalError::Option(format!(
            "{kv_heads} KV heads do not divide {heads} query heads"
        )));
    }
    let shapes = [(Format::F16, Format::F16), options.formats].map(|formats| shape(options, formats));
    for shape in &shapes {
        shape.validate().map_err(EngineError::from)?;
    }
    // Queries with their partial results, and the values that fill the cache.
    let row_bytes = (heads * options.head_dim * size_of::<f32>()) as u64;
    let values = row_bytes.saturating_mul(4 * (rows + FILL_TOKENS) as u64);
    let caches = shapes.map(|shape| shape.bytes_for(tokens));
    let caches = caches[0].saturating_add(if options.formats == (Format::F16, Format::F16) {
        0
    } else {
        caches[1]
    });
    let what = format!(
        "a layer of {tokens} tokens with {heads} query and {kv_heads} KV heads of {}",
        options.head_dim
    );
    check_memory(
        &what,
        caches.saturating_add(values),
        "use fewer --tokens, or a smaller --shape or --ub",
    )
}
