//! A point of a sequence to which it can return after a few more tokens.

use riffle_policy::{Learned, Policy, PolicySet};

use super::{LatestDraw, Sequence};
use crate::attention::{AttentionState, Slot};
use crate::{EngineError, PairCount};

/// A point in a sequence: [`Sequence::checkpoint`] creates it, [`Sequence::roll_back`] returns to it. It is valid
/// until the sequence has read about 512 more tokens, or evicts tokens.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    tokens: usize,
    prefilled: usize,
    drawn: LatestDraw,
    logits: Vec<f32>,
    pairs: PairCount,
    /// States of learning policies, `[prefill and decode][layers, kv_heads]`; empty if they depend on keys alone.
    policies: [Vec<Learned>; 2],
    /// The length at which decode policies last evicted tokens.
    evicted_since: usize,
}

impl Checkpoint {
    /// Number of tokens of the sequence at the checkpoint.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

impl Sequence {
    /// Records the current state, so that the next tokens can be undone, such as rejected drafts. Pages, and state
    /// that depends on keys, cost nothing. The state of recurrent layers is copied, once for the latest checkpoint.
    ///
    /// # Errors
    /// [`EngineError::Model`] if the copy of a recurrent state does not fit the model.
    pub fn checkpoint(&mut self) -> Result<Checkpoint, EngineError> {
        self.recurrence.keep_checkpoint()?;
        let tokens = self.text.tokens.len();
        let Slot(first) = self.attention.rolling.slot(tokens);
        self.attention.counters.count_rows_from(first);
        let learned = |policies: &PolicySet| -> Result<Vec<Learned>, EngineError> {
            if policies.follows_from_keys() {
                return Ok(Vec::new());
            }
            Ok(policies.iter().map(Policy::learned).collect::<Result<_, _>>()?)
        };
        let policies = &self.attention.policies;
        Ok(Checkpoint {
            tokens,
            prefilled: self.text.prefilled,
            drawn: self.answer.drawn,
            logits: self.answer.logits.clone(),
            pairs: self.attention.counters.pairs,
            policies: [learned(&policies.prefill)?, learned(&policies.decode)?],
            evicted_since: self.attention.evicted.since,
        })
    }

    /// Undoes everything since the latest checkpoint except the first `kept` tokens read after it. Returns the kept
    /// tokens that must be read again. There are none if the sequence's state depends on keys alone, or on states that
    /// the latest pass recorded (of recurrent layers and learning policies). Otherwise they are all kept tokens.
    ///
    /// With no kept token the sequence has its earlier state, including sampler and logits.
    ///
    /// # Errors
    /// [`EngineError::StaleCheckpoint`] if the checkpoint is not of this sequence, or too far back; the sequence is
    /// then unchanged.
    pub fn roll_back(&mut self, checkpoint: &Checkpoint, kept: usize) -> Result<Vec<u32>, EngineError> {
        let (from, held) = (checkpoint.tokens, self.text.tokens.len());
        let (engine, attention) = (&self.setting.engine, &self.attention);
        let model = engine.compute().host();
        let model = model.filter(|_| kept > 0 && self.recurrence.can_replay(from, kept));
        let learns = !attention.policies.decode.follows_from_keys();
        let is_recorded = !learns || attention.learned_rows.reaches(from, kept);
        let remembers = is_recorded && (self.recurrence.state.is_empty() || model.is_some());
        let to = if remembers { from + kept } else { from };
        let known = remembers || self.recurrence.knows(from);
        let has_evicted = learns && attention.evicted.since != checkpoint.evicted_since;
        if held < from + kept || has_evicted || !known || !attention.reaches(to) || !attention.windows_reach(to) {
            return Err(EngineError::StaleCheckpoint { tokens: from, held });
        }
        let again = self.text.tokens[to..from + kept].to_vec();
        if let Some(model) = model.filter(|_| remembers) {
            self.recurrence.replay(model, kept)?;
        }
        let missing = self.go_back(to)?;
        debug_assert!(missing.is_empty(), "the recurrent state of the checkpoint is there");
        set_learned(&mut self.attention, checkpoint, to - from)?;
        self.text.prefilled = checkpoint.prefilled;
        self.answer.drawn = checkpoint.drawn;
        self.attention.counters.roll_back(checkpoint.pairs, to - from);
        self.answer.logits.clear();
        if kept == 0 {
            self.answer.logits.extend_from_slice(&checkpoint.logits);
        }
        Ok(again)
    }
}

/// Restores the state of learning policies `kept` tokens after the checkpoint.
fn set_learned(attention: &mut AttentionState, checkpoint: &Checkpoint, kept: usize) -> Result<(), EngineError> {
    let policies = &mut attention.policies;
    let [prefill, decode] = &checkpoint.policies;
    for (policy, learned) in policies.prefill.iter_mut().zip(prefill) {
        policy.set_learned(learned)?;
    }
    if kept > 0 && !policies.decode.follows_from_keys() {
        return attention.learned_rows.restore(&mut policies.decode, kept);
    }
    for (policy, learned) in policies.decode.iter_mut().zip(decode) {
        policy.set_learned(learned)?;
    }
    Ok(())
}
