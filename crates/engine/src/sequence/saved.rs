//! Session files.

use std::fs::Metadata;
use std::path::Path;
use std::sync::Arc;

use riffle_kv::{KvCache, KvError, PagePool};
use riffle_model::RecurrentState;
use riffle_policy::PolicySet;
use serde::{Deserialize, Serialize};

use crate::attention::{Auto, AutoState, Evicted, HeadRecord, HeadSums, PairScores, RollingWindow, SignIndexes};
use crate::origin::Origin;
use crate::sampler::SamplerState;
use crate::sequence::{LatestDraw, Turn};
use crate::{Engine, EngineError, PairCount, Sequence};

/// Changes with the record below.
const VERSION: &str = "9";

/// The part of a sequence besides its pages.
#[derive(Serialize, Deserialize)]
struct Record {
    tokens: Vec<u32>,
    prefilled: usize,
    pending: Option<u32>,
    sampler: Option<SamplerState>,
    /// Logits after the last token, `[vocab]`.
    logits: Vec<f32>,
    pairs: PairCount,
    /// `[layers, kv_heads]`
    prefill: Vec<Vec<u8>>,
    /// `[layers, kv_heads]`
    decode: Vec<Vec<u8>>,
    /// Indexes of signs by layer and KV head.
    signs: Vec<HeadRecord>,
    /// Scores of pairs.
    pair_scores: Vec<HeadRecord>,
    rolling: RollingWindow,
    evicted: Evicted,
    /// True for the rotation of long sequences.
    turns_long: bool,
    /// States of the layers without keys and values.
    recurrent: Vec<u8>,
    /// The rungs to which automatic choice has moved heads.
    auto: Option<AutoState>,
    /// Sums of the audit, `[layers, query heads]`.
    audit: Option<Vec<Option<HeadSums>>>,
}

impl Sequence {
    /// Writes the complete sequence to a file. [`Sequence::restore`] continues from it with the same bits.
    ///
    /// The file appears under its name when it is complete and on the disk; until then, and on any error, an earlier
    /// file stays. A new file is readable by its owner only; a replaced one keeps its permissions. A
    /// [`PathLock`](riffle_kv::PathLock) keeps other processes from replacing it meanwhile. Returns the file's
    /// metadata.
    ///
    /// # Errors
    /// [`EngineError::Kv`] if the file is not writable.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Metadata, EngineError> {
        let states = |policies: &PolicySet| policies.iter().map(|policy| policy.save_state()).collect();
        let (text, attention) = (&self.text, &self.attention);
        let record = Record {
            tokens: text.tokens.clone(),
            prefilled: text.prefilled,
            pending: self.answer.drawn.pending,
            sampler: self.answer.drawn.sampler,
            logits: self.answer.logits.clone(),
            pairs: attention.counters.pairs,
            prefill: states(&attention.policies.prefill),
            decode: states(&attention.policies.decode),
            signs: attention.signs.to_records(),
            pair_scores: attention.pair_scores.to_records(),
            rolling: attention.rolling.clone(),
            evicted: attention.evicted.clone(),
            turns_long: text.turn.is_long,
            recurrent: self.recurrence.state.to_bytes(),
            auto: attention.auto.as_ref().map(Auto::state),
            audit: attention.audit.as_ref().map(|audit| audit.sums.clone()),
        };
        let record = postcard::to_allocvec(&record).expect("a record holds nothing that cannot be written");
        let origin = Origin::of_sequence(&self.setting.engine, &self.setting.options, VERSION)?.to_bytes();
        Ok(attention.cache.save(path, &origin, &record)?)
    }

    /// Restores a sequence that [`Sequence::save`] wrote, of the same model and options, in pages of `pool`.
    ///
    /// # Errors
    /// [`EngineError::ForeignSession`] if the model or options differ; [`EngineError::ContextExceeded`];
    /// [`EngineError::Kv`] if the file is unreadable or damaged, or the pool has no room.
    pub fn restore(engine: &Arc<Engine>, pool: &PagePool, path: impl AsRef<Path>) -> Result<Self, EngineError> {
        let path = path.as_ref();
        let options = engine.options().sequence.clone();
        let origin = Origin::of_sequence(engine, &options, VERSION)?;
        let saved_origin = KvCache::saved_identity(path)?;
        if let Some((what, now, saved)) = origin.difference(&saved_origin) {
            return Err(EngineError::ForeignSession {
                path: path.to_owned(),
                what,
                saved,
                now,
            });
        }
        let mut sequence = Self::new(engine, pool, options)?;
        let too_long = |tokens: usize| engine.context_exceeded("the saved session", tokens);
        let (cache, record) = pool.restore(path, &origin.to_bytes()).map_err(|error| match error {
            KvError::Budget { wanted_tokens, .. } => too_long(wanted_tokens),
            error => error.into(),
        })?;
        let record: Record = postcard::from_bytes(&record).map_err(|_| unreadable(path))?;
        if record.tokens.len() > engine.plan().context_tokens && engine.options().sequence.window.is_none() {
            return Err(too_long(record.tokens.len()));
        }
        sequence.attention.cache = cache;
        if take_record(&mut sequence, record)? {
            Ok(sequence)
        } else {
            Err(unreadable(path))
        }
    }
}

/// Applies a file's record to the restored pages; returns false if it contradicts them or itself.
fn take_record(sequence: &mut Sequence, record: Record) -> Result<bool, EngineError> {
    let Sequence {
        setting,
        attention,
        recurrence,
        ..
    } = sequence;
    if let (Some(auto), Some(state)) = (&mut attention.auto, &record.auto)
        && !auto.resume(state, &mut attention.policies.prefill)?
    {
        return Ok(false);
    }
    // A session is the same with and without an audit.
    if let (Some(audit), Some(sums)) = (&mut attention.audit, record.audit)
        && !audit.resume(sums)
    {
        return Ok(false);
    }
    let policies = [
        (&mut attention.policies.prefill, record.prefill),
        (&mut attention.policies.decode, record.decode),
    ];
    for (policies, states) in policies {
        if !restore_states(policies, states)? {
            return Ok(false);
        }
    }
    let tokens = record.tokens.len();
    let recurrent = RecurrentState::from_bytes(setting.engine.model().config(), &record.recurrent)?;
    if recurrent.tokens().is_some_and(|after| after != tokens) {
        return Ok(false);
    }
    let shape = attention.cache.shape();
    let heads = (0..shape.tables()).map(|table| shape.place_of(table));
    let held = heads.map(|(layer, kv_head)| attention.cache.head_tokens(layer, kv_head));
    let held: Vec<usize> = held.collect();
    if setting.options.window.is_none() && !record.evicted.leaves(tokens, &held) {
        return Ok(false);
    }
    let signs = SignIndexes::from_records(record.signs, &attention.cache);
    let pair_scores = PairScores::from_records(record.pair_scores, &attention.cache);
    let (Some(signs), Some(pair_scores)) = (signs, pair_scores) else {
        return Ok(false);
    };
    (attention.signs, attention.pair_scores) = (signs, pair_scores);
    recurrence.resume(recurrent)?;
    attention.rolling = record.rolling;
    attention.evicted = record.evicted;
    attention.counters.pairs = record.pairs;
    sequence.set_turn(Turn {
        is_long: record.turns_long,
        ..sequence.text.turn
    });
    sequence.text.tokens = record.tokens;
    sequence.text.prefilled = record.prefilled;
    sequence.answer.drawn = LatestDraw {
        pending: record.pending,
        sampler: record.sampler,
    };
    sequence.answer.logits = record.logits;
    Ok(true)
}

/// Restores each policy's state; returns false if the numbers of states and policies differ.
fn restore_states(policies: &mut PolicySet, states: Vec<Vec<u8>>) -> Result<bool, EngineError> {
    let mut states = states.into_iter();
    for policy in policies.iter_mut() {
        let Some(state) = states.next() else {
            return Ok(false);
        };
        policy.restore_state(&state)?;
    }
    Ok(states.next().is_none())
}

fn unreadable(path: &Path) -> EngineError {
    let found = "what it holds is no session".to_owned();
    KvError::NotReadable {
        path: path.to_owned(),
        found,
    }
    .into()
}
