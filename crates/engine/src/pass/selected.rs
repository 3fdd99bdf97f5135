//! Reads a prompt with fewer tokens in the upper layers ([`TokenSelection`]).

use std::ops::{ControlFlow, Range};

use riffle_model::{AdapterScales, Batch, SegmentTokens};
use riffle_policy::Phase;

use crate::attention::{LayerRows, NewKeys, Slot};
use crate::pass::layer::layer_step;
use crate::pass::{FinishedRows, PrefillProgress, Runner, Work};
use crate::{EngineError, PairCount, Sequence, TokenSelection};

/// Selected tokens of a prompt that pass the upper layers together.
pub(crate) struct SelectedRows<'a> {
    /// The whole prompt.
    prompt: &'a [u32],
    /// Positions of the tokens in the prompt, ascending.
    positions: &'a [usize],
    /// Hidden states of the tokens after the lower layers, `[positions, hidden_size]`.
    pub(crate) hidden: &'a [f32],
    /// Number of selected tokens before these rows.
    pub(crate) first: usize,
    /// All selected tokens of the prompt.
    pub(crate) goal: usize,
    /// Factors on the adapters of the sequence.
    pub(crate) adapters: AdapterScales,
}

impl SelectedRows<'_> {
    /// The batch of these rows: each run of neighbouring tokens is a segment.
    pub(crate) fn batch(&self) -> Result<Batch, EngineError> {
        let runs = self.positions.chunk_by(|a, b| a + 1 == *b);
        let segments = runs.map(|run| {
            let tokens = &self.prompt[run[0]..run[0] + run.len()];
            let segment = SegmentTokens::prompt(tokens, run[0]).in_length(self.prompt.len());
            segment.with_adapters(self.adapters)
        });
        Ok(Batch::new(segments)?)
    }
}

/// The hidden states of a prompt after the lower layers.
struct LowerLayers {
    // [tokens, hidden_size]
    hidden: Vec<f32>,
    /// Queries of the latest tokens in the last lower layer, `[observed, heads, head_dim]`.
    queries: Vec<f32>,
    /// Number of tokens of these queries.
    observed: usize,
}

/// Reports a prompt's progress, counted in layers of rows.
struct Progress<'a, 'o> {
    tokens: usize,
    done: usize,
    total: usize,
    observe: &'a mut (dyn FnMut(PrefillProgress) -> ControlFlow<()> + 'o),
}

impl Runner {
    /// Reads a prompt into an empty sequence: all tokens in the lower layers, selected ones in the upper layers.
    /// After a failure the sequence is empty.
    pub(crate) fn read_selected(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        selection: &TokenSelection,
        observe: &mut dyn FnMut(PrefillProgress) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let upper = selection.upper_layers(self.engine.model().config());
        let mut progress = Progress {
            tokens: tokens.len(),
            done: 0,
            // The selection decides how many rows the upper layers read; until then the share is an estimate.
            total: upper.start * tokens.len() + (upper.len() as f64 * tokens.len() as f64 * selection.share) as usize,
            observe,
        };
        let read = self.read_lower(sequence, tokens, selection, &upper, &mut progress);
        let read = read.and_then(|lower| {
            let chosen = self.choose(sequence, tokens.len(), selection, &lower)?;
            progress.total = upper.start * tokens.len() + upper.len() * chosen.len();
            self.read_upper(sequence, tokens, &chosen, &upper, (&lower.hidden, &mut progress))?;
            leave_unread(sequence, tokens.len(), chosen.len(), &upper);
            Ok(())
        });
        if read.is_err() {
            sequence.forget_all();
        }
        read
    }

    /// Runs all tokens through the lower layers.
    fn read_lower(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        selection: &TokenSelection,
        upper: &Range<usize>,
        progress: &mut Progress<'_, '_>,
    ) -> Result<LowerLayers, EngineError> {
        let hidden_size = self.engine.model().config().hidden_size;
        let observed = selection.observed_tokens.min(tokens.len());
        let batches = batches(tokens.len(), sequence.batch_tokens(), observed);
        let mut lower = LowerLayers {
            hidden: Vec::with_capacity(tokens.len() * hidden_size),
            queries: Vec::new(),
            observed: batches.last().map_or(0, Range::len).min(selection.observed_tokens),
        };
        for rows in batches {
            let is_last = rows.end == tokens.len();
            let mut work = [Work {
                sequence: &mut *sequence,
                tokens: &tokens[rows.clone()],
                phase: Phase::Prefill,
                goal: tokens.len(),
                finished_rows: FinishedRows::Last,
            }];
            let mut pass = self.begin(&mut work)?;
            pass.layers = upper.start;
            while self.advance(&mut pass, &mut work)?.is_continue() {
                if is_last && let Some(queries) = self.last_queries(&pass, upper.start - 1, lower.observed) {
                    lower.queries = queries;
                }
                progress.report(pass.share_done() * (rows.len() * upper.start) as f64)?;
            }
            if let Some(failure) = self.complete(pass, &mut work).pop().flatten() {
                return Err(failure.error);
            }
            progress.done += rows.len() * upper.start;
            lower.hidden.extend_from_slice(self.hidden());
        }
        Ok(lower)
    }

    /// Ranks the tokens by their mass from the latest queries in the last lower layer.
    fn choose(
        &mut self,
        sequence: &mut Sequence,
        tokens: usize,
        selection: &TokenSelection,
        lower: &LowerLayers,
    ) -> Result<Vec<usize>, EngineError> {
        let config = self.engine.model().config();
        let layer = selection.upper_layers(config).start - 1;
        let Some(cache_layer) = config.cache_layer(layer) else {
            unreachable!("options refuse recurrent layers beside a selection of tokens")
        };
        let input = LayerRows {
            step: layer_step(sequence, layer, Phase::Prefill, tokens),
            cache_layer,
            slot: Slot(tokens - lower.observed),
            first_row: 0,
            tokens: lower.observed,
            queries: &lower.queries,
            new_keys: NewKeys::Host { keys: &[], values: &[] },
            index: None,
        };
        let mass = sequence.attention_mut().token_mass(&input)?;
        Ok(selection.choose(&mass))
    }

    /// Runs the chosen tokens through the upper layers.
    fn read_upper(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        chosen: &[usize],
        upper: &Range<usize>,
        (hidden, progress): (&[f32], &mut Progress<'_, '_>),
    ) -> Result<(), EngineError> {
        let hidden_size = self.engine.model().config().hidden_size;
        let mut gathered = Vec::new();
        let mut first = 0;
        for positions in chosen.chunks(sequence.batch_tokens()) {
            gathered.clear();
            for position in positions {
                gathered.extend_from_slice(&hidden[position * hidden_size..(position + 1) * hidden_size]);
            }
            let rows = SelectedRows {
                prompt: tokens,
                positions,
                hidden: &gathered,
                first,
                goal: chosen.len(),
                adapters: sequence.options().adapters,
            };
            let mut pass = self.begin_selected(&rows, upper.start)?;
            let mut work = [Work {
                sequence: &mut *sequence,
                tokens: &[],
                phase: Phase::Prefill,
                goal: chosen.len(),
                finished_rows: FinishedRows::Last,
            }];
            while self.advance(&mut pass, &mut work)?.is_continue() {
                let layers_done = pass.share_done() * upper.end as f64 - upper.start as f64;
                progress.report(layers_done * positions.len() as f64)?;
            }
            if let Some(error) = pass.take_failure() {
                return Err(error);
            }
            first += positions.len();
            progress.done += positions.len() * upper.len();
        }
        Ok(())
    }

    /// Hidden states of the latest batch, `[rows, hidden_size]`.
    fn hidden(&mut self) -> &[f32] {
        match self.forward.as_mut().and_then(|forward| forward.host()) {
            Some(forward) => forward.hidden(),
            None => unreachable!("options refuse a device beside a selection of tokens"),
        }
    }
}

impl Progress<'_, '_> {
    /// Reports the finished work plus `under_way` layers of rows of the current pass.
    fn report(&mut self, under_way: f64) -> Result<(), EngineError> {
        let share = (self.done as f64 + under_way) / self.total.max(1) as f64;
        let progress = PrefillProgress {
            tokens_done: share.min(1.0) * self.tokens as f64,
            tokens: self.tokens,
            batch: None,
        };
        match (self.observe)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(EngineError::Interrupted {
                tokens: 0,
                total: self.tokens,
            }),
        }
    }
}

/// Records that upper layers store `chosen` of `tokens` tokens. Unread pairs count as causal pairs.
fn leave_unread(sequence: &mut Sequence, tokens: usize, chosen: usize, upper: &Range<usize>) {
    let config = sequence.engine().model().config();
    let layers = config.cached_layers().enumerate();
    let layers = layers.filter(|(_, layer)| upper.contains(layer));
    let layers: Vec<usize> = layers.map(|(cached, _)| cached).collect();
    let attention = sequence.attention_mut();
    let shape = *attention.cache.shape();
    let heads: usize = layers.iter().map(|layer| shape.layer(*layer).kv_heads).sum();
    let pairs = |tokens: usize| (tokens as u64) * (tokens as u64 + 1) / 2;
    attention.counters.pairs.add(PairCount {
        read: 0,
        causal: (pairs(tokens) - pairs(chosen)) * heads as u64,
    });
    if chosen < tokens {
        attention.evicted.add_unread(&shape, &layers, tokens - chosen, tokens);
    }
}

/// Splits a prompt into logical batches of up to `most` rows; the last has at least `observed` rows if `most` allows
/// it.
fn batches(tokens: usize, most: usize, observed: usize) -> Vec<Range<usize>> {
    let observed = observed.min(most);
    let mut batches = Vec::new();
    let mut first = 0;
    while tokens - first > most {
        let next = (first + most).min(tokens - observed);
        batches.push(first..next);
        first = next;
    }
    batches.push(first..tokens);
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_batch_holds_every_observed_token() {
        let whole = batches(100, 100, 10);
        assert_eq!((whole.len(), &whole[0]), (1, &(0..100)));
        assert_eq!(batches(105, 100, 10), [0..95, 95..105]);
        assert_eq!(batches(205, 100, 10), [0..100, 100..195, 195..205]);
        assert_eq!(batches(150, 100, 10), [0..100, 100..150]);
        assert_eq!(batches(9, 4, 64), [0..4, 4..5, 5..9]);
        for (tokens, most, observed) in [(1, 1, 1), (7, 3, 3), (1000, 64, 64), (1000, 64, 63)] {
            let batches = batches(tokens, most, observed);
            assert!(batches.iter().all(|rows| !rows.is_empty() && rows.len() <= most));
            assert!(batches.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(batches.last().unwrap().len() >= observed.min(most).min(tokens));
        }
    }
}
