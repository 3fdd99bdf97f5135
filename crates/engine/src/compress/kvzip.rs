//! Scores by reconstruction: what a model looks at while it repeats its text is what it will look at when it is asked.

use crate::compress::reconstruction::Reconstruction;
use crate::compress::{HeadScores, Observe, QueryObserver, RepeatPrompt, read_observed};
use crate::{EngineError, PrefillProgress, Runner, Sequence};

/// How a text is repeated.
pub(super) struct Reconstructs {
    pub(super) chunk_tokens: usize,
    pub(super) sink_tokens: usize,
    pub(super) prompt: RepeatPrompt,
}

/// The largest attention weight that each pair of a sequence receives while the model repeats the chunk that it stands in.
pub(super) fn score(
    sequence: &mut Sequence,
    runner: &mut Runner,
    reconstructs: &Reconstructs,
    observe: &mut Observe<'_>,
) -> Result<Vec<HeadScores>, EngineError> {
    let text = sequence.tokens.clone();
    let chunks: Vec<_> = (0..text.len())
        .step_by(reconstructs.chunk_tokens)
        .map(|first| first..(first + reconstructs.chunk_tokens).min(text.len()))
        .collect();
    let prompts = chunks
        .iter()
        .map(|chunk| reconstructs.prompt.tokens(&text, chunk.clone()));
    let prompts: Vec<Vec<u32>> = prompts.collect();
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    sequence.check_room_beside("the text with what is repeated of it", longest)?;
    let tokens = prompts.iter().map(Vec::len).sum();
    let layers: Vec<usize> = sequence.whole_layers().into_iter().map(|(_, layer)| layer).collect();
    let kv_heads = sequence.cache.shape().kv_heads;
    let mut reconstruction = Reconstruction::new(&layers, kv_heads, text.len(), reconstructs.sink_tokens);
    let mut before = 0.0;
    for (chunk, prompt) in chunks.into_iter().zip(&prompts) {
        reconstruction.begin(chunk);
        let mut scratch = sequence.dense_fork()?;
        scratch.statistics.observer = Some(QueryObserver::Reconstruction(reconstruction));
        let mut scratch = read_observed(scratch, runner, prompt, &mut |done| {
            observe(PrefillProgress {
                tokens_done: before + done,
                tokens,
            })
        })?;
        before += prompt.len() as f64;
        reconstruction = match scratch.statistics.observer.take() {
            Some(QueryObserver::Reconstruction(reconstruction)) => reconstruction,
            _ => unreachable!("a pass leaves its observer"),
        };
    }
    Ok(reconstruction.into_scores())
}

impl Sequence {
    /// A fork under which every query reads everything, whatever the policies of this sequence.
    fn dense_fork(&mut self) -> Result<Self, EngineError> {
        let device = self.device.as_mut().map(|pages| pages.fork());
        let mut fork = Self::over(&self.engine, self.cache.fork(), device, Self::dense_options())?;
        (fork.statistics.audit, fork.statistics.auto) = (None, None);
        fork.recurrence.copy_from(&self.recurrence)?;
        fork.placement = self.placement.clone();
        fork.tokens = self.tokens.clone();
        fork.prefilled = self.prefilled;
        Ok(fork)
    }
}
