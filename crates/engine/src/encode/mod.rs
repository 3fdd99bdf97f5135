//! Reads whole texts for vectors and scores, without a cache.
//!
//! A text goes through the layers in one batch. Each layer attends over the keys and values that it has just projected.
//! So there is no cache, no policy and no rounding of keys, and a token may see later ones. Short texts share a batch.
//! Each attends only to itself, so its bits do not depend on the others.

mod attention;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use riffle_files::human_bytes;
use riffle_model::{
    Batch, Decoder, Forward, HostForward, RecurrentState, ScoreHead, ScoreRule, SegmentTokens, TextTokens,
};

use crate::plan::available_memory_bytes;
use crate::{Engine, EngineError};
use attention::attend_rows_of;

/// Rows of a batch of short texts.
const ROWS_TOGETHER: usize = 1024;

/// Rows of a piece of work. A piece should take tens of milliseconds, so that others can take turns.
const PIECE_ROWS: usize = 256;

/// Texts in the layers of a model, each for a vector or a score.
pub struct Encoding {
    engine: Arc<Engine>,
    model: Arc<Decoder>,
    wanted: Wanted,
    texts: Vec<TextTokens>,
    /// Texts that share a batch, in order.
    groups: Vec<Range<usize>>,
    /// Groups that are done.
    done: usize,
    forward: HostForward,
    under_way: Option<Group>,
    results: Vec<Vec<f32>>,
}

/// The requested result of each text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Vector,
    Score(ScoreRule),
}

/// A batch of texts in the layers.
struct Group {
    batch: Batch,
    states: Vec<RecurrentState>,
    blocks: Vec<Range<usize>>,
    layer: usize,
    step: LayerStep,
}

/// The next piece of a layer: a block of rows, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayerStep {
    Project(usize),
    Finish(usize),
}

/// The vector of each text, in order. Texts are token ids, including the special tokens that the model expects.
///
/// # Errors
/// As [`Encoding::vectors`] and [`Encoding::advance`].
pub fn embed(engine: &Arc<Engine>, texts: Vec<Vec<u32>>) -> Result<Vec<Vec<f32>>, EngineError> {
    let mut encoding = Encoding::vectors(engine, texts)?;
    while encoding.advance()?.is_continue() {}
    Ok(encoding.into_results())
}

impl Encoding {
    /// Starts to compute a vector for each text, as in [`Engine::embedding`].
    ///
    /// # Errors
    /// [`EngineError::NoVectors`], [`EngineError::EmptyPrompt`], [`EngineError::TextTooLong`],
    /// [`EngineError::OutOfMemory`] before anything is allocated.
    pub fn vectors(engine: &Arc<Engine>, texts: Vec<Vec<u32>>) -> Result<Self, EngineError> {
        engine.embedding()?;
        let texts = texts.into_iter().map(TextTokens::from).collect();
        Self::begin(engine, texts, Wanted::Vector, EngineError::NoVectors)
    }

    /// Starts to compute a score from 0 to 1 for each prompt, as in [`Engine::reranking`]. A score is the only element
    /// of its result.
    ///
    /// # Errors
    /// As [`vectors`](Self::vectors), with [`EngineError::NoScores`].
    pub fn scores(engine: &Arc<Engine>, prompts: Vec<TextTokens>) -> Result<Self, EngineError> {
        let rule = engine.reranking()?.rule();
        Self::begin(engine, prompts, Wanted::Score(rule), EngineError::NoScores)
    }

    /// Maximum number of tokens of a text.
    pub fn most_tokens(engine: &Engine) -> usize {
        let positions = engine.model().config().max_position;
        let stated = engine.embedding().ok().and_then(|embedding| embedding.most_tokens);
        stated.map_or(positions, |most| most.min(positions))
    }

    fn begin(
        engine: &Arc<Engine>,
        texts: Vec<TextTokens>,
        wanted: Wanted,
        refusal: impl Fn(String) -> EngineError,
    ) -> Result<Self, EngineError> {
        let config = engine.model().config();
        let Some(model) = engine.compute().host().cloned() else {
            return Err(refusal("a device computes it, and only the CPU gives them".to_owned()));
        };
        if !config.is_uniform() {
            return Err(refusal("its layers have attention of several kinds".to_owned()));
        }
        check_lengths(engine, &texts)?;
        let lengths: Vec<usize> = texts.iter().map(|text| text.tokens.len()).collect();
        let groups = groups(&lengths);
        let rows = groups
            .iter()
            .map(|group| lengths[group.clone()].iter().sum())
            .max()
            .unwrap_or(0);
        check_memory(engine, rows, &lengths)?;
        Ok(Self {
            forward: HostForward::new(&model, rows),
            engine: Arc::clone(engine),
            model,
            wanted,
            texts,
            groups,
            done: 0,
            under_way: None,
            results: Vec::with_capacity(lengths.len()),
        })
    }

    /// Computes the next piece: a block of rows in a layer, or few rows in several layers. [`ControlFlow::Break`] at
    /// the end.
    ///
    /// # Errors
    /// [`EngineError::NonFiniteLogits`] for damaged weights; unreadable experts. The encoding cannot continue then.
    pub fn advance(&mut self) -> Result<ControlFlow<()>, EngineError> {
        let mut rows = 0;
        while rows < PIECE_ROWS {
            let Some(texts) = self.groups.get(self.done).cloned() else {
                return Ok(ControlFlow::Break(()));
            };
            let mut group = match self.under_way.take() {
                Some(group) => group,
                None => self.begin_group(texts.clone())?,
            };
            rows += group.advance(&self.model, &mut self.forward)?;
            if group.layer < self.model.config.layers {
                self.under_way = Some(group);
            } else {
                self.finish_group(&group, texts)?;
                self.done += 1;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The results of the finished texts, in order.
    pub fn into_results(self) -> Vec<Vec<f32>> {
        self.results
    }

    fn begin_group(&mut self, texts: Range<usize>) -> Result<Group, EngineError> {
        let adapters = self.engine.options().sequence.adapters;
        let texts = &self.texts[texts];
        let segment = |text| SegmentTokens::prompt(text, 0).with_adapters(adapters);
        let batch = Batch::new(texts.iter().map(|text| segment(&text.tokens)))?;
        self.forward.embed(&batch)?;
        for (segment, text) in batch.segments().iter().zip(texts) {
            self.forward
                .mark_second_text(segment.rows.start + text.of_first..segment.rows.end);
        }
        let states = batch.segments().iter().map(|_| RecurrentState::new(&self.model.config));
        Ok(Group {
            states: states.collect(),
            blocks: self.forward.row_blocks(PIECE_ROWS),
            batch,
            layer: 0,
            step: LayerStep::Project(0),
        })
    }

    /// Takes the results of texts that have passed all layers.
    fn finish_group(&mut self, group: &Group, texts: Range<usize>) -> Result<(), EngineError> {
        let width = self.model.config.hidden_size;
        let mut normed = Vec::new();
        for (segment, text) in group.batch.segments().iter().zip(texts) {
            let takes_first = self.model.score_head.as_ref().is_some_and(ScoreHead::takes_first);
            let rows = match self.wanted {
                Wanted::Vector => segment.rows.clone(),
                Wanted::Score(_) if takes_first => segment.rows.start..segment.rows.start + 1,
                Wanted::Score(_) => segment.rows.end - 1..segment.rows.end,
            };
            let last = rows.end - 1;
            normed.clear();
            self.forward.append_normed(rows, &mut normed);
            let result = match self.wanted {
                Wanted::Vector => self.engine.embedding()?.vector(&normed, width),
                Wanted::Score(rule) => vec![rule.score(&self.outputs(rule, last, &normed)?)],
            };
            if !result.iter().all(|value| value.is_finite()) {
                let position = self.texts[text].tokens.len();
                return Err(EngineError::NonFiniteLogits { position });
            }
            self.results.push(result);
        }
        Ok(())
    }

    /// The inputs of a score: numbers of a row of the batch with this state after the final norm.
    fn outputs(&mut self, rule: ScoreRule, row: usize, normed: &[f32]) -> Result<Vec<f32>, EngineError> {
        if let (Some(head), ScoreRule::Logistic | ScoreRule::FirstOfSoftmax) = (&self.model.score_head, rule) {
            return Ok(head.apply(normed));
        }
        let mut logits = vec![0.0; self.model.config.vocab_size];
        self.forward.logits(&[row], &mut logits)?;
        Ok(match rule {
            ScoreRule::Tokens(yes, no) => vec![logits[yes as usize], logits[no as usize]],
            _ => Vec::new(),
        })
    }
}

impl Group {
    /// Computes the next step, and returns its rows.
    fn advance(&mut self, model: &Decoder, forward: &mut HostForward) -> Result<usize, EngineError> {
        let (LayerStep::Project(block) | LayerStep::Finish(block)) = self.step;
        let rows = self.blocks[block].clone();
        match self.step {
            LayerStep::Project(_) => {
                let attends = forward.project(self.layer, rows.clone())?;
                // A recurrent layer has no attention, and reads its rows in order.
                self.step = if attends && block + 1 < self.blocks.len() {
                    LayerStep::Project(block + 1)
                } else if attends {
                    LayerStep::Finish(0)
                } else {
                    LayerStep::Finish(block)
                };
            }
            LayerStep::Finish(_) => {
                let attends = match forward.projected() {
                    Some(projected) => {
                        attend_rows_of(model, &self.batch, self.layer, rows.clone(), projected)?;
                        true
                    }
                    None => false,
                };
                let mut states: Vec<&mut RecurrentState> = self.states.iter_mut().collect();
                while !forward.finish_piece(self.layer, rows.clone(), &mut states)? {}
                if block + 1 < self.blocks.len() {
                    self.step = if attends {
                        LayerStep::Finish(block + 1)
                    } else {
                        LayerStep::Project(block + 1)
                    };
                } else {
                    self.layer += 1;
                    self.step = LayerStep::Project(0);
                }
            }
        }
        Ok(rows.len())
    }
}

/// Divides texts into groups of at most [`ROWS_TOGETHER`] rows, in order. A longer text is a group of its own.
fn groups(lengths: &[usize]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut rows = 0;
    for (text, length) in lengths.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if rows + length <= ROWS_TOGETHER => group.end = text + 1,
            _ => {
                groups.push(text..text + 1);
                rows = 0;
            }
        }
        rows += length;
    }
    groups
}

fn check_lengths(engine: &Engine, texts: &[TextTokens]) -> Result<(), EngineError> {
    let most = Encoding::most_tokens(engine);
    for (number, text) in texts.iter().enumerate() {
        let tokens = text.tokens.len();
        if tokens == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens > most {
            return Err(EngineError::TextTooLong { number, tokens, most });
        }
    }
    Ok(())
}

/// Refuses texts that need more than the free memory, before any is read. At most `rows` rows share a batch.
fn check_memory(engine: &Engine, rows: usize, lengths: &[usize]) -> Result<(), EngineError> {
    let config = engine.model().config();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    // Hidden states of all rows, the longest text's states after the final norm, the logits of a row.
    let states = (rows + longest) * config.hidden_size + config.vocab_size;
    let results = lengths.len() * config.hidden_size.max(1);
    let needed = riffle_model::scratch_bytes(config, rows)
        .saturating_add(((states + results) * size_of::<f32>()) as u64)
        .saturating_add(lengths.len() as u64 * config.recurrent_bytes());
    let budget = engine.options().machine.memory_budget_bytes;
    let left = budget.map(|budget| budget.saturating_sub(engine.plan().loaded_bytes()));
    let available = left.unwrap_or(u64::MAX).min(available_memory_bytes());
    if needed <= available {
        return Ok(());
    }
    Err(EngineError::OutOfMemory {
        needed: human_bytes(needed),
        parts: format!("activations of {rows} tokens that are read together"),
        available: human_bytes(available),
        advice: "send shorter texts, or free memory".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts_go_together_and_long_ones_alone() {
        assert!(groups(&[]).is_empty());
        assert_eq!(groups(&[5, 6, 7]), vec![0..3]);
        assert_eq!(groups(&[1000, 24, 1, 5000, 1024, 1]), [0..2, 2..3, 3..4, 4..5, 5..6]);
    }
}
