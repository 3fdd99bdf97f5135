//! Divergence between the predictions of a model with other weights and the original model.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use riffle_engine::{Engine, EngineOptions, Session};
use serde::Serialize;

use crate::EvalError;
use crate::importance::beginning;
use crate::perplexity::{Predictions, divergence, log_sum_exp};
use crate::tasks::most_likely;

/// Comparison of two models' predictions for one text.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WeightDivergence {
    /// Compared predictions.
    pub tokens: usize,
    /// Mean Kullback-Leibler divergence of the other model's predictions from the original's, in nats.
    pub kl: f64,
    /// Median of the divergences.
    pub median_kl: f64,
    /// The largest divergence.
    pub largest_kl: f64,
    /// Share of predictions with another most likely token.
    pub flips: f64,
    /// Perplexity of the original.
    pub original_perplexity: f64,
    /// Perplexity of the other model.
    pub perplexity: f64,
}

/// Options of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightDivergenceOptions {
    /// Tokens of a window. A token's context is the earlier part of its window.
    pub window_tokens: usize,
    /// Maximum number of tokens of the text to read.
    pub most_tokens: usize,
}

impl Default for WeightDivergenceOptions {
    fn default() -> Self {
        Self {
            window_tokens: 512,
            most_tokens: 512,
        }
    }
}

/// Reads a text with both models, one after the other. Compares their predictions for every token of the second half of
/// each window. A temporary file holds the original's predictions.
///
/// # Errors
/// [`EvalError::Engine`] for a model that does not load; [`EvalError::Option`] for different vocabularies or a short
/// text.
pub fn weight_divergence(
    [original, other]: [&Path; 2],
    engine: &EngineOptions,
    text: &str,
    options: &WeightDivergenceOptions,
    watch: &mut dyn FnMut(f64) -> ControlFlow<()>,
) -> Result<WeightDivergence, EvalError> {
    let context = engine.clone().with_context_tokens(Some(options.window_tokens));
    let mut kept = Predictions::new()?;
    let first = Engine::load(original, context.clone())?;
    let vocabulary = first.model().config().vocab_size;
    let windows = windows(&first, text, options)?;
    let mut original_nll = 0.0;
    let steps = 2.0 * windows.len() as f64;
    for (done, window) in windows.iter().enumerate() {
        read(&first, window, &mut |next, logits| {
            original_nll += log_sum_exp(logits) - f64::from(logits[next as usize]);
            kept.write(logits)
        })?;
        go_on(watch, (done + 1) as f64 / steps)?;
    }
    drop(first);
    let second = Engine::load(other, context)?;
    let found = second.model().config().vocab_size;
    if found != vocabulary {
        return Err(EvalError::Option(format!(
            "the models have {vocabulary} and {found} tokens"
        )));
    }
    let mut kept = kept.reader(vocabulary)?;
    let (mut divergences, mut nll, mut flips) = (Vec::new(), 0.0, 0usize);
    for (done, window) in windows.iter().enumerate() {
        read(&second, window, &mut |next, logits| {
            let before = kept.next()?;
            divergences.push(divergence(before, logits));
            nll += log_sum_exp(logits) - f64::from(logits[next as usize]);
            flips += usize::from(most_likely(before) != most_likely(logits));
            Ok(())
        })?;
        go_on(watch, 0.5 + (done + 1) as f64 / steps)?;
    }
    divergences.sort_by(f64::total_cmp);
    let tokens = divergences.len();
    Ok(WeightDivergence {
        tokens,
        kl: divergences.iter().sum::<f64>() / tokens as f64,
        median_kl: divergences[tokens / 2],
        largest_kl: divergences[tokens - 1],
        flips: flips as f64 / tokens as f64,
        original_perplexity: (original_nll / tokens as f64).exp(),
        perplexity: (nll / tokens as f64).exp(),
    })
}

fn go_on(watch: &mut dyn FnMut(f64) -> ControlFlow<()>, share: f64) -> Result<(), EvalError> {
    match watch(share) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(EvalError::Interrupted { done: 0, cells: 1 }),
    }
}

/// The text's tokens in windows. Each window starts with the first token of every text of the model.
fn windows(engine: &Engine, text: &str, options: &WeightDivergenceOptions) -> Result<Vec<Vec<u32>>, EvalError> {
    let tokenizer = engine.tokenizer()?;
    let tokens = tokenizer.encode(text, false)?;
    let tokens = &tokens[..tokens.len().min(options.most_tokens)];
    let width = options.window_tokens.min(tokens.len());
    if width < 4 {
        return Err(EvalError::Option(format!(
            "the text has {} tokens: give a longer one",
            tokens.len()
        )));
    }
    let beginning = beginning(engine)?;
    let windows = tokens.chunks_exact(width).map(|window| {
        let mut window = window.to_vec();
        if let Some(beginning) = beginning {
            window[0] = beginning;
        }
        window
    });
    Ok(windows.collect())
}

/// Receives the next token and the logits of its prediction.
type TakePrediction<'a> = dyn FnMut(u32, &[f32]) -> Result<(), EvalError> + 'a;

/// Calls `take` with the predictions for the second half of a window, and the tokens that follow.
fn read(engine: &Arc<Engine>, window: &[u32], take: &mut TakePrediction<'_>) -> Result<(), EvalError> {
    let vocabulary = engine.model().config().vocab_size;
    let mut session = Session::new(engine)?;
    let mut failed = None;
    let wanted = window.len() / 2..window.len() - 1;
    let result = session.prefill_with_logits_at(
        window,
        &[wanted],
        &mut |_| ControlFlow::Continue(()),
        &mut |first, rows| {
            for (row, logits) in rows.chunks_exact(vocabulary).enumerate() {
                if let Err(error) = take(window[first + row + 1], logits) {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        },
    );
    match failed {
        Some(error) => Err(error),
        None => Ok(result?),
    }
}
