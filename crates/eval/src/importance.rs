//! Importance of weights: the mean squares of the inputs of every linear layer over a text.

use std::ops::ControlFlow;
use std::sync::Arc;

use riffle_engine::{Engine, EngineError, EngineOptions, Session};
use riffle_quantize::{ImportanceMatrix, InputSquares};

use crate::EvalError;

/// Options of the collection.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportanceOptions {
    /// Tokens of a chunk. Each chunk starts with an empty cache.
    pub chunk_tokens: usize,
    /// Limit on the chunks; `None` reads the whole text.
    pub most_chunks: Option<usize>,
    /// Names of the texts, for the file.
    pub datasets: Vec<String>,
}

impl Default for ImportanceOptions {
    fn default() -> Self {
        Self {
            chunk_tokens: 512,
            most_chunks: None,
            datasets: Vec::new(),
        }
    }
}

/// Options for an engine that supports [`collect_importance`]: it computes on the CPU and sums inputs.
pub fn observing(options: EngineOptions) -> EngineOptions {
    let mut options = options;
    options.machine.device = None;
    options.machine.preferred_device = None;
    options.model.input_sums = true;
    options
}

/// Reads `tokens` chunk by chunk and sums the squares of the inputs. The engine must have the options of
/// [`observing`]. `watch` receives the number of finished chunks and of all chunks.
///
/// # Errors
/// [`EvalError::Option`] for too few tokens, or an engine that does not sum; [`EvalError::Interrupted`].
pub fn collect_importance(
    engine: &Arc<Engine>,
    tokens: &[u32],
    options: &ImportanceOptions,
    watch: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<ImportanceMatrix, EvalError> {
    if engine.input_sums().is_empty() {
        return Err(EvalError::Option(
            "the model was loaded without sums of inputs".to_owned(),
        ));
    }
    let width = options.chunk_tokens;
    let all = (tokens.len() / width.max(1)).min(options.most_chunks.unwrap_or(usize::MAX));
    if width < 2 || all == 0 {
        return Err(EvalError::Option(format!(
            "the documents have {} tokens, one chunk has {width}: give more text, or fewer tokens to a chunk",
            tokens.len()
        )));
    }
    let beginning = beginning(engine)?;
    for (done, chunk) in tokens.chunks_exact(width).take(all).enumerate() {
        let mut chunk = chunk.to_vec();
        if let Some(beginning) = beginning {
            chunk[0] = beginning;
        }
        let mut session = Session::new(engine)?;
        let interrupted = || EvalError::Interrupted { done, cells: all };
        match session.prefill(&chunk, &mut |_| watch(done, all)) {
            Err(EngineError::Interrupted { .. }) => return Err(interrupted()),
            read => read?,
        }
        if watch(done + 1, all).is_break() {
            return Err(interrupted());
        }
    }
    let mut matrix = ImportanceMatrix {
        datasets: options.datasets.clone(),
        chunk_count: all as u32,
        chunk_tokens: width as u32,
        ..ImportanceMatrix::default()
    };
    for sums in engine.input_sums() {
        let totals = sums.totals();
        let squares = InputSquares {
            sums: totals.squares.iter().map(|sum| *sum as f32).collect(),
            counts: vec![totals.rows as f32],
        };
        matrix.tensors.insert(sums.name().to_owned(), squares);
    }
    Ok(matrix)
}

/// The first token of every text of the model, if it has one.
pub(crate) fn beginning(engine: &Engine) -> Result<Option<u32>, EvalError> {
    let tokenizer = engine.tokenizer()?;
    let first = tokenizer.encode("a", true)?.first().copied();
    Ok(tokenizer.bos().filter(|bos| first == Some(*bos)))
}
