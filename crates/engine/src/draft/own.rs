//! Drafts by the model itself: its attention reads only the selection of a cheap policy.
//!
//! During a draft, the sequence uses the draft's policies. Drafted tokens are read like generated ones. After the
//! last one the sequence is rolled back, so the pages contain no drafted tokens when the draft is verified. Draft
//! policies that learn from attention mass observe the verification.

use riffle_policy::{Phase, PolicyRules, PolicySet};

use crate::Failure;
use crate::draft::GuessedDraft;
use crate::draft::step::{DraftPart, logits_by_row, read};
use crate::pass::Runner;
use crate::sequence::Checkpoint;
use crate::{EngineError, Sequence};

/// The policies of an answer's drafts.
pub(super) struct OwnDraft {
    pub(super) rules: PolicyRules,
    /// `None` while they observe a verification.
    policies: Option<PolicySet>,
    /// Evicted tokens of each head when the policies were last used, `[layers, kv_heads]`.
    evicted_tokens: Vec<usize>,
}

/// An unfinished draft.
struct Drafting {
    checkpoint: Checkpoint,
    draft: GuessedDraft,
    failure: Option<Failure>,
}

impl OwnDraft {
    pub(super) fn new(rules: &PolicyRules, sequence: &Sequence) -> Result<Self, EngineError> {
        let engine = sequence.engine();
        let resolved = &engine.resolved;
        rules.check_places(&resolved.policy)?;
        Ok(Self {
            rules: rules.clone(),
            policies: Some(PolicySet::new(
                rules,
                Phase::Decode,
                &resolved.policy,
                &engine.options().machine.cost,
            )?),
            evicted_tokens: vec![0; resolved.cache.tables()],
        })
    }

    /// Swaps these policies with the sequence's.
    pub(super) fn swap(&mut self, sequence: &mut Sequence) {
        self.renew(sequence);
        if let Some(policies) = &mut self.policies {
            std::mem::swap(policies, &mut sequence.attention_mut().policies.decode);
        }
    }

    /// Lets learning policies observe the sequence's reads, until [`end_watch`](Self::end_watch).
    pub(super) fn watch(&mut self, sequence: &mut Sequence) {
        if !self.rules.follows_from_keys() {
            self.renew(sequence);
            sequence.attention_mut().policies.watchers = self.policies.take();
        }
    }

    /// Takes the observing policies back.
    pub(super) fn end_watch(&mut self, sequence: &mut Sequence) {
        let watchers = sequence.attention_mut().policies.watchers.take();
        self.policies = watchers.or(self.policies.take());
    }

    /// Restarts the policies of heads that lost tokens meanwhile, because their slots have changed.
    fn renew(&mut self, sequence: &Sequence) {
        let shape = &sequence.engine().resolved.cache;
        let evicted = &sequence.attention().evicted;
        let policies = self.policies.iter_mut().flat_map(PolicySet::iter_mut);
        for (table, (policy, known)) in policies.zip(&mut self.evicted_tokens).enumerate() {
            let (layer, kv_head) = shape.place_of(table);
            let tokens = evicted.evicted_tokens(shape, layer, kv_head);
            if *known != tokens {
                policy.reset();
                *known = tokens;
            }
        }
    }
}

/// Drafts `wanted[part]` tokens for each part, one token of all parts per pass. A failed part gets its failure and no
/// draft.
///
/// # Errors
/// Failures that affect all sequences; every sequence is then unchanged.
pub(super) fn draft(
    runner: &mut Runner,
    parts: &mut [DraftPart<'_, '_>],
    wanted: &[usize],
    logits: &mut Vec<f32>,
) -> Result<(), EngineError> {
    let begun = parts.iter_mut().zip(wanted);
    let mut drafts: Vec<Option<Drafting>> = begun.map(|(part, tokens)| Drafting::begin(part, *tokens)).collect();
    let outcome = read_drafts(runner, parts, &mut drafts, logits);
    for (part, draft) in parts.iter_mut().zip(drafts) {
        if let Some(draft) = draft {
            draft.end(part);
        }
    }
    outcome
}

/// Reads the latest token of every draft and draws the next, until every draft is complete.
fn read_drafts(
    runner: &mut Runner,
    parts: &mut [DraftPart<'_, '_>],
    drafts: &mut [Option<Drafting>],
    logits: &mut Vec<f32>,
) -> Result<(), EngineError> {
    loop {
        let both = parts.iter().zip(drafts.iter());
        let tokens = both.map(|(part, drafting)| match drafting {
            Some(Drafting {
                draft, failure: None, ..
            }) if draft.goes_on() => {
                vec![draft.tokens.last().copied().unwrap_or(part.step.token)]
            }
            _ => Vec::new(),
        });
        let tokens: Vec<Vec<u32>> = tokens.collect();
        let outcomes = read(runner, parts, &tokens)?;
        if outcomes.is_empty() {
            return Ok(());
        }
        let rows = logits_by_row(runner, logits)?;
        for ((place, outcome), row) in outcomes.into_iter().zip(rows) {
            if let Some(drafting) = &mut drafts[place] {
                if outcome.is_none() {
                    drafting.draft.draw(parts[place].step.sequence.tokens(), Some(row));
                }
                drafting.failure = outcome;
            }
        }
    }
}

impl Drafting {
    /// Begins a draft of `tokens` tokens with the draft's policies; `None` for zero tokens, or if the part fails.
    fn begin(part: &mut DraftPart<'_, '_>, tokens: usize) -> Option<Self> {
        if tokens == 0 {
            return None;
        }
        // The draft's policies see its tokens, so the checkpoint includes their state.
        part.swap_policies();
        let checkpoint = match part.step.sequence.checkpoint() {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                part.swap_policies();
                part.fail(error);
                return None;
            }
        };
        Some(Self {
            checkpoint,
            draft: part.guess(tokens),
            failure: None,
        })
    }

    /// Removes the drafted tokens from the sequence and restores its own policies.
    fn end(self, part: &mut DraftPart<'_, '_>) {
        let rolled_back = part.roll_back(&self.checkpoint, 0);
        part.swap_policies();
        match (self.failure, rolled_back) {
            (Some(failure), _) => part.failure = Some(failure),
            (None, Err(error)) => part.fail(error),
            (None, Ok(_)) => part.draft = self.draft.tokens,
        }
    }
}
