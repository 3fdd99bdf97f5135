//! Compares a policy's attention with exact attention: the attention mass that the policy keeps, and the shape of
//! exact attention.
//!
//! The audit samples 64 queries of each chunk while the engine reads a text. For each it computes the share of exact
//! attention mass that the policy read, without renormalising, by layer, head and position. It also computes the mass
//! on the first tokens, on the latest tokens and on a few other keys. It reports if these keys stay the same from chunk
//! to chunk.

mod sums;

use std::sync::{Arc, Mutex, PoisonError};

use riffle_engine::{Engine, Session, available_memory_bytes};
use serde::{Deserialize, Serialize};

use crate::cells::{Cell, StepWatch, run_cells};
use crate::journal::Journal;
use crate::tasks::Watch;
use crate::{EvalError, RunSettings};
use sums::{Shape, Sums};

/// Options of an audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditOptions {
    /// Name of the text in records.
    pub text: String,
    /// First tokens that count as sinks.
    pub sink_tokens: usize,
    /// Latest tokens of a query that count as local, its own included.
    pub local_tokens: usize,
    /// Keys of a head with the most mass, counted as heavy hitters.
    pub heavy_tokens: usize,
    /// Layer and query head of the attention map. `None` takes the head that keeps the least mass; among equal heads
    /// the one with the farthest attention.
    pub map: Option<(usize, usize)>,
}

/// `riffle eval audit`: the exact attention mass that a policy keeps over one text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditTable {
    /// How the model was run.
    pub settings: RunSettings,
    /// The text, by its file name.
    pub text: String,
    /// Tokens read.
    pub tokens: usize,
    /// First tokens that count as sinks.
    pub sink_tokens: usize,
    /// Latest tokens that count as local.
    pub local_tokens: usize,
    /// Keys that count as heavy hitters.
    pub heavy_tokens: usize,
    /// Sampled (query, head) pairs.
    pub samples: u64,
    /// Mean share of the exact attention mass that the policy read.
    pub mean_mass: f64,
    /// First percentile over the samples: 99 of 100 samples keep more.
    pub first_percentile_mass: f64,
    /// Mean of ‖output − exact output‖ / ‖exact output‖.
    pub mean_output_error: f64,
    /// The largest.
    pub largest_output_error: f64,
    /// Share of the causal query-key pairs that were read.
    pub density: f64,
    /// Every audited head, layer by layer.
    pub heads: Vec<AuditedHead>,
    /// Stretches of queries, over all layers and heads.
    pub rows: Vec<AuditedRows>,
    /// The attention of one head.
    pub map: Option<AttentionMap>,
}

/// One query head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditedHead {
    /// Layer of the head, counted among layers with keys and values.
    pub layer: usize,
    /// Index of the head among the layer's query heads.
    pub head: usize,
    /// KV head of the query head.
    pub kv_head: usize,
    /// Sampled queries.
    pub samples: u64,
    /// Mean share of the exact attention mass that the policy read.
    pub mean_mass: f64,
    /// First percentile over the samples: 99 of 100 samples keep more.
    pub first_percentile_mass: f64,
    /// Mean relative error of the output.
    pub mean_output_error: f64,
    /// Share of the causal pairs that were read.
    pub density: f64,
    /// Share of the mass on the sinks, for queries after the first chunk.
    pub sink_mass: f64,
    /// Share of the mass on local tokens, for the same queries.
    pub local_mass: f64,
    /// Share of the mass on the heavy hitters of each chunk, for the same queries. Sinks may be among them.
    pub heavy_mass: f64,
    /// Mean Jaccard index of the heavy hitters of neighbouring chunks, among keys older than both; `None` if the text
    /// has too few chunks.
    pub heavy_jaccard: Option<f64>,
    /// Shares of this head's attention beyond the local tokens, one for each of several equal sections of the text.
    pub far_shares: Vec<f64>,
}

/// Queries of one section of the text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditedRows {
    /// First position.
    pub from_position: usize,
    /// End of the section: the position after its last token.
    pub to_position: usize,
    /// Sampled (query, head) pairs.
    pub samples: u64,
    /// Mean share of the exact attention mass that the policy read.
    pub mean_mass: f64,
    /// First percentile over the samples: 99 of 100 samples keep more.
    pub first_percentile_mass: f64,
    /// The smallest.
    pub lowest_mass: f64,
}

/// The attention of one head over the text, in a square grid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttentionMap {
    /// Layer of the head.
    pub layer: usize,
    /// Index of the head among the layer's query heads.
    pub head: usize,
    /// Cells along each side.
    pub cells: usize,
    /// `[query cells, key cells]`: share of the queries' attention. A row without a sampled query is zero.
    pub shares: Vec<f64>,
    /// `[query cells, key cells]`: share of the causal pairs that the policy read.
    pub read: Vec<f64>,
}

/// Reads `tokens` under the engine's prefill policy with
/// [`SequenceOptions::audit`](riffle_engine::SequenceOptions::audit) and compares it with exact attention. The
/// journal keeps finished audits.
///
/// # Errors
/// [`EvalError::Option`] for fewer than 128 tokens, an unknown head, or sums that do not fit in memory;
/// [`EvalError::Interrupted`]; any error of the prompt.
pub fn audit(
    engine: &Arc<Engine>,
    tokens: &[u32],
    options: &AuditOptions,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<AuditTable, EvalError> {
    let cell = Cell {
        name: format!("audit of {} tokens", tokens.len()),
        tokens: tokens.len(),
        task: (),
    };
    let mut tables = run_cells(&[cell], journal, watch, &mut |(), watch| {
        audited(engine, tokens, options, watch)
    })?;
    tables
        .pop()
        .ok_or_else(|| EvalError::Option("nothing was audited".to_owned()))
}

fn audited(
    engine: &Arc<Engine>,
    tokens: &[u32],
    options: &AuditOptions,
    watch: &mut Watch<'_>,
) -> Result<AuditTable, EvalError> {
    let config = engine.model().config();
    let shape = Shape {
        layers: config.attention_layers(),
        heads: config.heads,
        tokens: tokens.len(),
        chunk_tokens: engine.options().machine.chunk_tokens,
    };
    check(&shape, options)?;
    let sums = Arc::new(Mutex::new(Sums::new(shape, options.clone())));
    let mut session = Session::new(engine)?;
    let shared = Arc::clone(&sums);
    session
        .sequence_mut()
        .observers()
        .audit(move |query| shared.lock().unwrap_or_else(PoisonError::into_inner).add(query))?;
    session.prefill(tokens, &mut |progress| {
        watch(progress.tokens_done / progress.tokens as f64)
    })?;
    let report = session.sequence().audit().ok_or_else(|| {
        EvalError::Option("nothing was audited: no layer of this model attends to all of its text".to_owned())
    })?;
    drop(session);
    let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(AuditTable {
        settings: RunSettings::from_engine(engine),
        text: options.text.clone(),
        tokens: tokens.len(),
        sink_tokens: options.sink_tokens,
        local_tokens: options.local_tokens,
        heavy_tokens: options.heavy_tokens,
        samples: report.samples,
        mean_mass: report.mean_mass,
        first_percentile_mass: report.first_percentile_mass,
        mean_output_error: report.mean_output_error,
        largest_output_error: report.largest_output_error,
        density: report.density,
        heads: sums.heads(&report.heads),
        rows: sums.rows(),
        map: sums.map(&report.heads),
    })
}

fn check(shape: &Shape, options: &AuditOptions) -> Result<(), EvalError> {
    if shape.tokens < 128 {
        return Err(EvalError::Option(format!(
            "an audit needs at least 128 tokens, not {}: use a longer text or --length",
            shape.tokens
        )));
    }
    if options.heavy_tokens == 0 || options.sink_tokens == 0 || options.local_tokens == 0 {
        return Err(EvalError::Option(
            "--sinks, --local and --heavy must be at least 1 token".to_owned(),
        ));
    }
    if let Some((layer, head)) = options.map
        && (layer >= shape.layers || head >= shape.heads)
    {
        return Err(EvalError::Option(format!(
            "--map {layer}:{head}: this model has {} layers with attention (from 0) of {} heads",
            shape.layers, shape.heads
        )));
    }
    let (needed, available) = (shape.bytes(), available_memory_bytes());
    if needed > available / 2 {
        return Err(EvalError::Option(format!(
            "the sums of {} heads over {} tokens take {} and {} are available: use a smaller --length",
            shape.layers * shape.heads,
            shape.tokens,
            riffle_engine::human_bytes(needed),
            riffle_engine::human_bytes(available)
        )));
    }
    Ok(())
}
