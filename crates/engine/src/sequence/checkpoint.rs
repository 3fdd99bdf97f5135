//! A point of a sequence to which it can return after a few more tokens.

use riffle_policy::{Learned, Policy, PolicySet};

use super::{LatestDraw, Sequence};
use crate::attention::{AttentionState, Slot};
use crate::{EngineError, PairCount};

/// A place in a sequence: [`Sequence::checkpoint`] makes it, [`Sequence::roll_back`] returns to it. It is good until the sequence
/// has read some 512 tokens more, or evicts tokens.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    tokens: usize,
    prefilled: usize,
    drawn: LatestDraw,
    logits: Vec<f32>,
    pairs: PairCount,
    /// Of the policies that learn, `[prefill and decode][layers, kv_heads]`; empty where the state follows from keys.
    policies: [Vec<Learned>; 2],
    /// The length at which decode policies evicted tokens last.
    evicted_since: usize,
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

    /// Undoes everything since the latest checkpoint but the first `kept` tokens read after it. Returns the tokens among these that
    /// have to be read again: none where the state of the sequence follows from keys, or from what the latest pass recorded of recurrent layers
    /// and of policies that learn; all of them otherwise.
    ///
    /// With no token kept the sequence is as it was, sampler and logits included.
    ///
    /// # Errors
    /// [`EngineError::StaleCheckpoint`] when the sequence is not one that has gone on from there, or cannot go back so far; it is as
    /// it was then.
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

/// Gives policies that learn what they knew `kept` tokens behind the checkpoint.
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
