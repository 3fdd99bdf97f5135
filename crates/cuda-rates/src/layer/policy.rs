//! A call under a policy compared with dense attention, by the location of pages.

use std::sync::Arc;
use std::time::Instant;

use riffle_cuda::Stream;
use riffle_engine::{EngineError, PairCount};
use riffle_eval::{AttentionCase, DevicePolicyRate, EvalError};
use riffle_policy::PolicySpec;

use super::{MadeLayer, Pages, median};

/// Calls under one policy with all pages in one location.
struct Calls {
    median_ms: f64,
    select_ms: f64,
    /// Pairs read by the last call.
    pairs: PairCount,
    output: Vec<f32>,
}

/// A policy on the last `case.rows` queries, compared with dense attention.
pub(crate) fn policy(
    stream: &Arc<Stream>,
    case: &AttentionCase,
    name: &str,
    repeats: usize,
) -> Result<DevicePolicyRate, EvalError> {
    let spec: PolicySpec = name.parse().map_err(EngineError::from)?;
    let layer = MadeLayer::new(stream, case, repeats)?;
    let dense = calls(&layer, Pages::OnDevice, &PolicySpec::full(), repeats)?;
    let resident = calls(&layer, Pages::OnDevice, &spec, repeats)?;
    let far = calls(&layer, Pages::InMemory, &spec, repeats)?;
    Ok(DevicePolicyRate {
        policy: spec.to_string(),
        rows: case.rows,
        tokens: case.tokens,
        median_ms: resident.median_ms,
        select_ms: resident.select_ms,
        dense_ms: dense.median_ms,
        speedup: dense.median_ms / resident.median_ms,
        offloaded_ms: far.median_ms,
        offloaded_share: resident.median_ms / far.median_ms,
        density: resident.pairs.read as f64 / resident.pairs.causal as f64,
        same_bits: (resident.pairs, resident.output) == (far.pairs, far.output),
    })
}

fn calls(layer: &MadeLayer, pages: Pages, policy: &PolicySpec, repeats: usize) -> Result<Calls, EvalError> {
    let mut attention = layer.attention(pages, policy)?;
    let chunk = layer.chunk(&attention)?;
    let (mut times_ms, mut select_ms, mut pairs) = (Vec::new(), Vec::new(), PairCount::default());
    for repeat in 0..=repeats {
        layer.go_back(&mut attention);
        let (time, before) = (attention.time()?, attention.pairs());
        let start = Instant::now();
        attention.attend(0, &chunk)?;
        let selected_ms = attention.time()?.select_ms - time.select_ms;
        if repeat > 0 {
            times_ms.push(start.elapsed().as_secs_f64() * 1e3);
            select_ms.push(selected_ms);
        }
        let PairCount { read, causal } = attention.pairs();
        pairs = PairCount {
            read: read - before.read,
            causal: causal - before.causal,
        };
    }
    Ok(Calls {
        median_ms: median(times_ms),
        select_ms: median(select_ms),
        pairs,
        output: attention.output(&chunk)?,
    })
}
