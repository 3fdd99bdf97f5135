//! Beginnings on disk, read by this process before or by another.

use riffle_kv::PrefixCache;

use super::beginning::{fillable_tokens, keepable_tokens, keeps_state, prefix_identity, prompt_grid, resume_state};
use crate::attention::lcm;
use crate::{EngineError, Sequence};

/// A beginning that a prefix cache keeps and a sequence is being filled with.
pub(crate) struct PrefixSearch {
    identity: Vec<u8>,
    /// Tokens that the sequence will hold.
    tokens: usize,
    /// The recurrent layers' state after these.
    state: Option<Vec<u8>>,
    /// Blocks and notes that had changed on disk and were removed.
    pub(crate) damaged_blocks: usize,
}

/// Fills an empty sequence with a beginning of `tokens` that the prefix cache keeps, at most all but the last token,
/// so that reading the rest gives what reading all would have given. Returns how many damaged blocks were removed
/// on the way. Under dense attention a text that was read before is found to its last token.
///
/// A model with recurrent layers finds the beginnings whose state was kept with them ([`store_prefix`]).
///
/// With a window ([`StreamWindow`](crate::StreamWindow)), and where layers have windows of their own that
/// [`CacheOptions::keeps_beginnings`](crate::CacheOptions::keeps_beginnings) does not keep whole, it finds at most what is read before the first page leaves.
///
/// With full attention that holds to the bit. A sparse prefill policy finds only pages that it made itself, cut into
/// the same chunks: as good as its own, and the same to the bit where its choices do not depend on where a prompt
/// ends.
///
/// # Errors
/// [`EngineError::PrefixPolicy`] when a policy needs to have seen the queries; [`EngineError::Kv`].
pub fn fill_prefix(sequence: &mut Sequence, cache: &PrefixCache, tokens: &[u32]) -> Result<usize, EngineError> {
    prefix_identity(sequence)?;
    sequence.forget_all();
    sequence.turn_for(tokens.len());
    let mut search = find_prefix(sequence, cache, tokens)?;
    while fill_next(sequence, cache, tokens, &mut search, usize::MAX)? {}
    Ok(search.damaged_blocks)
}

/// The part of `tokens` that the prefix cache keeps. Reads no page.
pub(crate) fn find_prefix(
    sequence: &Sequence,
    cache: &PrefixCache,
    tokens: &[u32],
) -> Result<PrefixSearch, EngineError> {
    let identity = prefix_identity(sequence)?;
    let (shape, grid) = (*sequence.attention().cache.shape(), prompt_grid(sequence));
    let [most, looked_at] = fillable_tokens(sequence, tokens.len());
    let mut search = PrefixSearch {
        identity,
        tokens: 0,
        state: None,
        damaged_blocks: 0,
    };
    if sequence.recurrence().is_recurrent() {
        let found = cache.note(&shape, &search.identity, &tokens[..most])?;
        search.damaged_blocks = found.damaged;
        search.tokens = found.tokens;
        search.state = found.note;
    } else {
        let known = cache.known_tokens(&shape, &search.identity, &tokens[..looked_at])?;
        search.tokens = known.min(most) / grid * grid;
    }
    Ok(search)
}

/// Fills in up to `step_tokens` more tokens of what a search has found, beyond those that the sequence holds, which are the first
/// of `tokens`. False when there is no more to fill in; the sequence holds whole chunks of `tokens` after every step.
pub(crate) fn fill_next(
    sequence: &mut Sequence,
    cache: &PrefixCache,
    tokens: &[u32],
    search: &mut PrefixSearch,
    step_tokens: usize,
) -> Result<bool, EngineError> {
    if search.tokens <= sequence.tokens().len() {
        return Ok(false);
    }
    let (page, grid) = (sequence.engine().options().cache.page_tokens, prompt_grid(sequence));
    let step = lcm(page, grid);
    // A page that is held in part is filled anew.
    let held = sequence.tokens().len() / step * step;
    sequence.hold_prompt(held, held, &[]);
    let to = held.saturating_add((step_tokens / step).max(1).saturating_mul(step));
    let end = if to < search.tokens {
        to
    } else {
        search.tokens.next_multiple_of(page).min(tokens.len())
    };
    let found = match cache.fill(&mut sequence.attention_mut().cache, &search.identity, &tokens[..end]) {
        Ok(found) => found,
        Err(error) => {
            // Pages without the state of recurrent layers are no beginning to go on from.
            if search.state.is_some() {
                sequence.forget_all();
            }
            return Err(error.into());
        }
    };
    search.damaged_blocks += found.damaged_blocks;
    let kept = match (found.tokens.min(search.tokens), &search.state) {
        (kept, Some(_)) => kept,
        (kept, None) => kept / grid * grid,
    };
    sequence.hold_prompt(held, kept, tokens);
    if kept < to.min(search.tokens) {
        // A page was damaged: what lies before it is all there is.
        if search.state.is_some() {
            sequence.forget_all();
        }
        return Ok(false);
    }
    if kept < search.tokens {
        return Ok(true);
    }
    if let Some(note) = search.state.take() {
        search.damaged_blocks += usize::from(!resume_state(sequence, &note, kept)?);
    }
    Ok(false)
}

/// Keeps what was read as prompt: whole pages, and the tokens of a page that it fills in part. Returns the tokens kept and the bytes
/// that all pages of the prefix cache take.
///
/// Sparse prefill policies keep of the last page what they read in whole chunks, and models with recurrent layers keep whole pages alone.
/// Nothing is kept any more where a window, the sequence's or a layer's, has moved on
/// ([`CacheOptions::keeps_beginnings`](crate::CacheOptions::keeps_beginnings)). The state of recurrent layers is kept with the pages where the sequence holds whole pages of prompt and nothing else; a
/// model with such layers keeps nothing elsewhere. So it is called on the way, at [`prefix_cuts`](crate::prefix_cuts).
///
/// # Errors
/// As [`fill_prefix`].
pub fn store_prefix(sequence: &Sequence, cache: &PrefixCache) -> Result<(usize, u64), EngineError> {
    store_prefix_up_to(sequence, cache, usize::MAX)
}

/// [`store_prefix`] of the first `most_tokens` tokens, so that a long beginning can be kept in steps. Steps of whole pages leave no
/// tokens of pages in part behind.
pub(crate) fn store_prefix_up_to(
    sequence: &Sequence,
    cache: &PrefixCache,
    most_tokens: usize,
) -> Result<(usize, u64), EngineError> {
    let identity = prefix_identity(sequence)?;
    let read = &sequence.tokens()[..keepable_tokens(sequence).min(most_tokens)];
    let (attention, state) = (sequence.attention(), &sequence.recurrence().state);
    let is_kept = attention.is_whole() && (state.is_empty() || keeps_state(sequence));
    let read = if is_kept { read } else { &[] };
    let stored = if is_kept && !state.is_empty() && read.len() == sequence.prefilled() {
        cache.store_with_note(&attention.cache, &identity, read, &state.to_bytes())?
    } else {
        cache.store(&attention.cache, &identity, read)?
    };
    Ok((stored.tokens, stored.bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::ControlFlow;
    use std::path::Path;

    use super::*;
    use crate::{Engine, EngineOptions, Session};

    #[test]
    fn a_prefix_cache_that_fails_half_way_leaves_no_pages_without_their_recurrent_state() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/model-hybrid");
        let options = EngineOptions::default()
            .with_context_tokens(Some(1024))
            .with_batch_tokens(64)
            .with_chunk_tokens(64)
            .with_page_tokens(32);
        let engine = Engine::load(model, options).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let cache = PrefixCache::open(folder.path(), u64::MAX).unwrap();
        let tokens: Vec<u32> = (0..400).map(|at| at * 7 % 200).collect();
        let mut session = Session::new(&engine).unwrap();
        session
            .prefill(&tokens[..384], &mut |_| ControlFlow::Continue(()))
            .unwrap();
        assert_eq!(store_prefix(session.sequence(), &cache).unwrap().0, 384);

        let mut session = Session::new(&engine).unwrap();
        let mut search = find_prefix(session.sequence(), &cache, &tokens).unwrap();
        assert!(fill_next(session.sequence_mut(), &cache, &tokens, &mut search, 64).unwrap());
        assert_eq!(session.tokens().len(), 64);
        let index = folder.path().join("index.redb");
        fs::remove_file(&index).unwrap();
        fs::create_dir(&index).unwrap();
        assert!(fill_next(session.sequence_mut(), &cache, &tokens, &mut search, 64).is_err());
        assert_eq!((session.tokens().len(), session.sequence().usage().tokens), (0, 0));
    }
}
