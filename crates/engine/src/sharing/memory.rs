//! Beginnings in memory: sequences of one pool share pages.

use super::beginning::{can_share, check_prefix, has_evicted, prompt_grid};
use crate::sequence::fork::fork_pages;
use crate::{EngineError, Sequence, SequenceOptions};

/// A sequence under `options` that continues from the first `tokens` tokens of this one's prompt, with new counts.
/// `None` if `options` would give other pages, or this sequence cannot return so far.
pub(crate) fn fork_beginning(
    sequence: &mut Sequence,
    tokens: usize,
    options: &SequenceOptions,
) -> Result<Option<Sequence>, EngineError> {
    if !can_share(sequence) || !sequence.options().makes_the_same_pages(options) {
        return Ok(None);
    }
    let mut fork = fork_pages(sequence, options.clone())?;
    let again = fork.truncate(tokens)?;
    Ok((again.is_empty() && fork.tokens().len() == tokens).then_some(fork))
}

/// Shares the whole pages of the prompt with sequences [beside](Sequence::beside) this one that read the same text.
/// Pages are found by a hash of all tokens up to their end. Returns the number of shared tokens: 0 after evictions.
///
/// # Errors
/// [`EngineError::PrefixPolicy`] if a policy needs to see the queries; [`EngineError::PrefixRecurrent`].
pub fn share_prefix(sequence: &mut Sequence) -> Result<usize, EngineError> {
    check_sharing(sequence)?;
    // Pages with evicted tokens do not match their text.
    if has_evicted(sequence) {
        return Ok(0);
    }
    let identity = pages_identity(sequence);
    let read = sequence.tokens()[..sequence.prefilled()].to_vec();
    Ok(sequence.attention_mut().cache.share(&identity, &read))
}

/// Fills an empty sequence with a beginning of `tokens` that a sequence beside it shares, at most all but the last
/// token. Returns its number of tokens; reading the rest gives the result described in
/// [`fill_prefix`](crate::fill_prefix).
///
/// # Errors
/// As [`share_prefix`].
pub fn adopt_prefix(sequence: &mut Sequence, tokens: &[u32]) -> Result<usize, EngineError> {
    adopt_prefix_for(sequence, tokens, tokens.len())
}

/// As [`adopt_prefix`], for a text that will soon have `length` tokens.
pub(crate) fn adopt_prefix_for(sequence: &mut Sequence, tokens: &[u32], length: usize) -> Result<usize, EngineError> {
    check_sharing(sequence)?;
    sequence.forget_all();
    sequence.turn_for(length);
    let (grid, identity) = (prompt_grid(sequence), pages_identity(sequence));
    let found = sequence.attention_mut().cache.adopt(&identity, tokens);
    let kept = found.min(tokens.len().saturating_sub(1)) / grid * grid;
    sequence.hold_prompt(0, kept, tokens);
    Ok(kept)
}

fn check_sharing(sequence: &Sequence) -> Result<(), EngineError> {
    if sequence.recurrence().is_recurrent() {
        return Err(EngineError::PrefixRecurrent);
    }
    if sequence.options().window.is_some() {
        return Err(EngineError::option(
            "window",
            "given",
            "pages are shared between sequences, and a window moves the tokens in its pages: leave it out",
        ));
    }
    check_prefix(sequence)
}

/// Everything besides the tokens that determines a sequence's pages, within one engine.
fn pages_identity(sequence: &Sequence) -> Vec<u8> {
    let mut identity = sequence.options().pages_identity();
    if sequence.turn().length() > 0 {
        identity.push(1);
    }
    identity
}
