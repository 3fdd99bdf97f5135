//! Times one layer under a policy at its last chunk.

use std::time::Instant;

use riffle_engine::{LayerAttention, PairCount};
use riffle_kv::KvCache;
use riffle_policy::{Phase, PolicySpec};

use super::PolicyRateOptions;
use super::made_layer::{keys_and_values, queries};
use crate::EvalError;

/// The policy parameter that makes the first layers dense.
const DENSE_LAYERS: &str = "dense_layers";

/// Cost of a policy in a sparse layer.
pub(super) struct Timed {
    pub(super) select_ms: f64,
    pub(super) attend_ms: f64,
    pub(super) density: f64,
    /// Layers of the model that the policy keeps dense.
    pub(super) dense_layers: usize,
}

/// Timed tokens of an answer before it restarts.
const ANSWER_TOKENS: usize = 32;

/// Medians of several runs of the last `rows` queries in a cache with the whole context. A prompt reads its chunk
/// again in each run. An answer continues for some tokens, so that policies keep their summaries of its pages.
pub(super) fn time(
    options: &PolicyRateOptions,
    cache: &KvCache,
    spec: &PolicySpec,
    phase: Phase,
    rows: usize,
) -> Result<Timed, EvalError> {
    // The measured layer is not one of the dense layers.
    let behind = spec.with(DENSE_LAYERS, "0");
    let behind = behind.as_ref().unwrap_or(spec);
    let steps = match phase {
        Phase::Prefill => 1,
        Phase::Decode => ANSWER_TOKENS.min(options.tokens),
    };
    let held = options.tokens - rows * steps;
    let mut attention = LayerAttention::new(cache.fork(), options.heads, behind, phase, rows)?;
    if phase == Phase::Prefill {
        // The chunk must not be the prompt's last one, because some policies keep it dense.
        attention = attention.within_prompt(2 * options.tokens);
    }
    let (keys, values) = keys_and_values(options, held, rows);
    let chunk = attention.chunk(rows, queries(options, rows), keys, values)?;
    let (mut select_ms, mut attend_ms) = (Vec::new(), Vec::new());
    let mut density = 1.0;
    let began = Instant::now();
    for run in 0.. {
        if select_ms.len() >= 3 && (began.elapsed().as_secs_f64() >= 1.0 || select_ms.len() >= 200) {
            break;
        }
        if run % steps == 0 {
            attention.truncate(held);
        }
        let (time, pairs) = (attention.time()?, attention.pairs());
        attention.attend(0, &chunk)?;
        // The first run, and the first token of an answer, build summaries of the earlier tokens.
        if run == 0 || (steps > 1 && run % steps == 0) {
            continue;
        }
        let (time_after, PairCount { read, causal }) = (attention.time()?, attention.pairs());
        select_ms.push(time_after.select_ms - time.select_ms);
        attend_ms.push(time_after.attend_ms - time.attend_ms);
        density = (read - pairs.read) as f64 / (causal - pairs.causal) as f64;
    }
    Ok(Timed {
        select_ms: median(&mut select_ms),
        attend_ms: median(&mut attend_ms),
        density,
        dense_layers: match density {
            1.0 => options.layers,
            _ => dense_layers_of(spec, options.layers),
        },
    })
}

/// Counts the model's first layers that the policy reads densely by its parameter.
fn dense_layers_of(spec: &PolicySpec, layers: usize) -> usize {
    let with = |count: usize| spec.with(DENSE_LAYERS, &count.to_string()).ok();
    match with(0) {
        None => 0,
        Some(_) => (0..layers)
            .find(|count| with(*count).as_ref() == Some(spec))
            .unwrap_or(layers),
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
