//! A point of a sequence to which it can return after a few more tokens.

use super::{AnswerUnderWay, Sequence};
use crate::EngineError;
use crate::sequence::placement::Slot;
use crate::sequence::statistics::PairCount;

/// Where a sequence stood: [`Sequence::checkpoint`] makes it, [`Sequence::roll_back`] returns to it. It is good until the sequence
/// has read some 512 tokens more, or evicts tokens.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    tokens: usize,
    prefilled: usize,
    answer: AnswerUnderWay,
    logits: Vec<f32>,
    pairs: PairCount,
    /// Of the policies that learn, `[prefill and decode][layers, kv_heads]`; empty where the state follows from keys.
    policies: [Vec<Vec<u8>>; 2],
}

impl Checkpoint {
    /// Tokens of the sequence then.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

impl Sequence {
    /// Keeps where the sequence stands, so that tokens which are read next can be undone: drafts that are refused. Pages and
    /// what follows from keys cost nothing to keep. The state of recurrent layers is copied, once for the latest checkpoint.
    ///
    /// # Errors
    /// [`EngineError::Model`] where the copy of a recurrent state does not fit the model.
    pub fn checkpoint(&mut self) -> Result<Checkpoint, EngineError> {
        self.recurrence.keep_checkpoint()?;
        let Slot(first) = self.placement.slot(self.tokens.len());
        self.statistics.count_rows_from(first);
        let states = [&self.prefill, &self.decode].map(|policies| match self.learns() {
            true => policies.iter().map(|policy| policy.save_state()).collect(),
            false => Vec::new(),
        });
        Ok(Checkpoint {
            tokens: self.tokens.len(),
            prefilled: self.prefilled,
            answer: self.answer,
            logits: self.logits.clone(),
            pairs: self.statistics.pairs,
            policies: states,
        })
    }

    /// Undoes everything since the latest checkpoint but the first `kept` tokens read after it. Returns the tokens among these that
    /// have to be read again: none where the state of the sequence follows from keys, or from the recorded inputs of recurrent layers; all of
    /// them otherwise.
    ///
    /// With no token kept the sequence is as it was, sampler and logits included.
    ///
    /// # Errors
    /// [`EngineError::StaleCheckpoint`] when the sequence is not one that has gone on from there, or cannot go back so far; it is as
    /// it was then.
    pub fn roll_back(&mut self, checkpoint: &Checkpoint, kept: usize) -> Result<Vec<u32>, EngineError> {
        let (from, held) = (checkpoint.tokens, self.tokens.len());
        let model = self.engine.compute().host();
        let model = model.filter(|_| kept > 0 && !self.learns() && self.recurrence.can_replay(from, kept));
        let learned = self.learns() || (!self.recurrence.state.is_empty() && model.is_none());
        let to = if learned { from } else { from + kept };
        let known = !learned || self.recurrence.knows(from);
        if held < from + kept || !known || !self.placement.reaches(to) || !self.windows_reach(to) {
            return Err(EngineError::StaleCheckpoint { tokens: from, held });
        }
        let again = self.tokens[to..from + kept].to_vec();
        if let Some(model) = model {
            self.recurrence.replay(model, kept)?;
        }
        let missing = self.go_back(to)?;
        debug_assert!(missing.is_empty(), "the recurrent state of the checkpoint is there");
        let restored = [&mut self.prefill, &mut self.decode]
            .into_iter()
            .zip(&checkpoint.policies);
        for (policies, states) in restored {
            for (policy, state) in policies.iter_mut().zip(states) {
                policy.restore_state(state)?;
            }
        }
        self.prefilled = checkpoint.prefilled;
        self.answer = checkpoint.answer;
        self.statistics.pairs = checkpoint.pairs;
        if !learned {
            self.statistics.keep_rows(kept);
        }
        self.logits.clear();
        if kept == 0 {
            self.logits.extend_from_slice(&checkpoint.logits);
        }
        Ok(again)
    }

    /// Whether a policy has learned what keys do not give back.
    pub(crate) fn learns(&self) -> bool {
        let mut policies = self.prefill.iter().chain(self.decode.iter());
        policies.any(|policy| !policy.traits().follows_from_keys)
    }
}
