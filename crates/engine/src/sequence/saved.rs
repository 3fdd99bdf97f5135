//! Sessions in files.

use std::path::Path;
use std::sync::Arc;

use riffle_kv::{KvCache, KvError};
use riffle_model::RecurrentState;
use riffle_policy::PolicySet;
use serde::{Deserialize, Serialize};

use crate::answer::sampler::SamplerState;
use crate::origin::Origin;
use crate::pass::audit::HeadSums;
use crate::pass::auto::{Auto, AutoState};
use crate::plan::{cache_shape, session_tiers};
use crate::sequence::AnswerUnderWay;
use crate::sequence::eviction::Evicted;
use crate::sequence::statistics::PairCount;
use crate::sequence::window::RollingWindow;
use crate::{Engine, EngineError, Sequence, SequenceOptions};

/// Changes with the record below.
const VERSION: &str = "6";

/// What a sequence holds beside its pages.
#[derive(Serialize, Deserialize)]
struct Record {
    tokens: Vec<u32>,
    prefilled: usize,
    pending: Option<u32>,
    sampler: Option<SamplerState>,
    /// Of the last token, `[vocab]`.
    logits: Vec<f32>,
    pairs: PairCount,
    /// `[layers, kv_heads]`
    prefill: Vec<Vec<u8>>,
    /// `[layers, kv_heads]`
    decode: Vec<Vec<u8>>,
    rolling: RollingWindow,
    evicted: Evicted,
    /// Of the layers that hold no keys and values.
    recurrent: Vec<u8>,
    /// Where `--auto` has moved heads.
    auto: Option<AutoState>,
    /// What was audited, `[layers, query heads]`.
    audit: Option<Vec<Option<HeadSums>>>,
}

impl Sequence {
    /// Writes everything the sequence holds to a file, from which [`Sequence::restore`] goes on to the bit.
    ///
    /// The file appears under its name when it is whole and on the disk; until then, and on any error, what was there
    /// before stays. A new file is readable by its owner alone; one that is replaced keeps its permissions. A
    /// [`PathLock`](riffle_kv::PathLock) keeps other processes from replacing it meanwhile.
    ///
    /// # Errors
    /// [`EngineError::Kv`] when the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), EngineError> {
        let states = |policies: &PolicySet| policies.iter().map(|policy| policy.save_state()).collect();
        let record = Record {
            tokens: self.tokens.clone(),
            prefilled: self.prefilled,
            pending: self.answer.pending,
            sampler: self.answer.sampler,
            logits: self.logits.clone(),
            pairs: self.statistics.pairs,
            prefill: states(&self.prefill),
            decode: states(&self.decode),
            rolling: self.placement.rolling.clone(),
            evicted: self.placement.evicted.clone(),
            recurrent: self.recurrence.state.to_bytes(),
            auto: self.statistics.auto.as_ref().map(Auto::state),
            audit: self.statistics.audit.as_ref().map(|audit| audit.sums().to_vec()),
        };
        let record = postcard::to_allocvec(&record).expect("a record holds nothing that cannot be written");
        Ok(self
            .cache
            .save(path, &origin(&self.engine, &self.options)?.to_bytes(), &record)?)
    }

    /// The sequence that [`Sequence::save`] wrote, made by the same model under the same options.
    ///
    /// # Errors
    /// [`EngineError::ForeignSession`] when another model or other options made it; [`EngineError::ContextExceeded`];
    /// [`EngineError::Kv`] when the file cannot be read or is damaged.
    pub fn restore(engine: &Arc<Engine>, path: impl AsRef<Path>) -> Result<Self, EngineError> {
        let path = path.as_ref();
        let options = SequenceOptions::of(engine.options());
        let origin = origin(engine, &options)?;
        let saved_origin = KvCache::saved_identity(path)?;
        if let Some((what, now, saved)) = origin.difference(&saved_origin) {
            return Err(EngineError::ForeignSession {
                path: path.to_owned(),
                what,
                saved,
                now,
            });
        }
        let mut sequence = Self::new(engine, &engine.page_pool()?, options)?;
        let shape = cache_shape(engine.model().config(), engine.options());
        let context = engine.plan().context_tokens;
        let too_long = |tokens: usize| engine.context_exceeded("the saved session", tokens);
        let tiers = session_tiers(engine.model().config(), engine.options(), engine.plan());
        let (cache, record) =
            KvCache::restore_with_tiers(path, &shape, &origin.to_bytes(), tiers).map_err(|error| match error {
                KvError::Budget { wanted_tokens, .. } => too_long(wanted_tokens),
                error => error.into(),
            })?;
        let record: Record = postcard::from_bytes(&record).map_err(|_| unreadable(path))?;
        if record.tokens.len() > context && engine.options().window.is_none() {
            return Err(too_long(record.tokens.len()));
        }
        if let (Some(auto), Some(state)) = (&mut sequence.statistics.auto, &record.auto)
            && !auto.resume(state, &mut sequence.prefill)?
        {
            return Err(unreadable(path));
        }
        // Whether a run audits is no part of what made the session.
        if let (Some(audit), Some(sums)) = (&mut sequence.statistics.audit, record.audit)
            && !audit.resume(sums)
        {
            return Err(unreadable(path));
        }
        restore_states(&mut sequence.prefill, record.prefill, path)?;
        restore_states(&mut sequence.decode, record.decode, path)?;
        let recurrent = RecurrentState::from_bytes(engine.model().config(), &record.recurrent)?;
        if recurrent.tokens().is_some_and(|tokens| tokens != record.tokens.len()) {
            return Err(unreadable(path));
        }
        let heads = (0..shape.layers).flat_map(|layer| (0..shape.kv_heads).map(move |kv_head| (layer, kv_head)));
        let held: Vec<usize> = heads
            .map(|(layer, kv_head)| cache.head_tokens(layer, kv_head))
            .collect();
        if engine.options().window.is_none() && !record.evicted.leaves(record.tokens.len(), &held) {
            return Err(unreadable(path));
        }
        sequence.recurrence.resume(recurrent)?;
        sequence.cache = cache;
        sequence.placement.rolling = record.rolling;
        sequence.placement.evicted = record.evicted;
        sequence.tokens = record.tokens;
        sequence.prefilled = record.prefilled;
        sequence.answer = AnswerUnderWay {
            pending: record.pending,
            sampler: record.sampler,
        };
        sequence.logits = record.logits;
        sequence.statistics.pairs = record.pairs;
        Ok(sequence)
    }
}

fn origin(engine: &Engine, options: &SequenceOptions) -> Result<Origin, EngineError> {
    let mut origin = Origin::of_sequence(engine, options)?;
    origin.add("version", VERSION.to_owned());
    Ok(origin)
}

fn restore_states(policies: &mut PolicySet, states: Vec<Vec<u8>>, path: &Path) -> Result<(), EngineError> {
    let mut states = states.into_iter();
    for policy in policies.iter_mut() {
        policy.restore_state(&states.next().ok_or_else(|| unreadable(path))?)?;
    }
    states.next().map_or(Ok(()), |_| Err(unreadable(path)))
}

fn unreadable(path: &Path) -> EngineError {
    let found = "what it holds is no session".to_owned();
    KvError::NotReadable {
        path: path.to_owned(),
        found,
    }
    .into()
}
